//! Streams put back to an older state: nothing is sent twice, and nothing is left unsent without a word.

use std::collections::BTreeMap;

use delivery_svc::receipts::receipts_witness;
use shared::bus::OutgoingMessage;
use shared::clock::{Clock as _, SystemClock};
use shared::model::ledger::{AppendId, LedgerCursor, LedgerEntry, LedgerRecord};
use shared::model::receipt::ReceiptStep;
use shared::model::reply::Reply;
use shared::model::restore::{HOLD_KEY, HoldDecision, RestoreHold};
use shared::testing::eventually;
use shared::wire::held::HeldUntil;
use shared::wire::subject;
use shared::wire::topology::buckets;
use shared::wire::topology::streams::{DELIVERIES, EVENTS, PARKED, RECEIPTS};
use shared::wire::witness::WaitingMark;
use ulid::Ulid;

use crate::world::{Setup, World, old_reply, reply};

/// How often each delivery to `peer` was made, as the receipts say.
async fn made(world: &World, peer: &str) -> BTreeMap<Ulid, usize> {
    let to = reply(0, "nats", peer).delivery_context;
    let mut made = BTreeMap::new();
    for receipt in world.receipts(&to).await {
        if matches!(receipt.step, ReceiptStep::Delivered { .. }) {
            *made.entry(receipt.delivery).or_default() += 1;
        }
    }
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_queue_sends_nothing_twice_and_what_is_new_at_once() {
    let mut world = World::start().await;
    let first = world.replica("a", Setup::default());

    for number in 0..3 {
        world.publish(&reply(number, "nats", "p")).await;
    }

    world.settled().await;
    first.stop().await;

    for number in 3..6 {
        world.publish(&reply(number, "nats", "p")).await;
    }

    world.server.stop().await;
    let older = world.server.copy_of(DELIVERIES);
    world.server.restart().await;

    let second = world.replica("b", Setup::default());

    for number in 6..60 {
        world.publish(&reply(number, "nats", "p")).await;
    }

    world.settled().await;
    second.stop().await;
    assert_eq!(made(&world, "p").await.len(), 60);

    world.server.stop().await;
    world.server.put_back(DELIVERIES, &older);
    world.server.restart().await;

    // Its sequence is far below those that the receipts name.
    let fresh = reply(1_000, "nats", "p");
    world.publish(&fresh).await;
    let third = world.replica("c", Setup::default());
    eventually("the new one is sent", async || {
        made(&world, "p").await.contains_key(&fresh.id)
    })
    .await;

    world.settled().await;
    let made = made(&world, "p").await;
    assert_eq!(made.len(), 61);
    assert!(made.values().all(|times| *times == 1), "{made:?}");

    third.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_receipts_the_sent_events_are_asked_and_the_rest_is_held() {
    let mut world = World::start().await;
    world.server.stop().await;
    let no_receipts = world.server.copy_of(RECEIPTS);
    world.server.restart().await;
    let first = world.replica("a", Setup::default());
    let sent = old_reply(1, "nats", "p");
    world.publish(&sent).await;
    world.settled().await;
    first.stop().await;
    receipts_witness(&world.bus)
        .check(SystemClock.now())
        .await
        .expect("kept");

    let events = world.bus.stream_state(EVENTS).await.expect("readable").messages;

    world.server.stop().await;
    world.server.put_back(RECEIPTS, &no_receipts);
    world.server.restart().await;

    // A broker that recovers publishes both again; of the second nobody knows anything.
    let again = OutgoingMessage::reply(&sent).msg_id("again").repeated();
    world.bus.publish(again).await.expect("stored");
    let unknown = old_reply(2, "nats", "p");
    world
        .bus
        .publish(OutgoingMessage::reply(&unknown))
        .await
        .expect("stored");
    let second = world.replica("b", Setup::default());
    world.settled().await;

    let held = world.bus.held_bucket().entries().await.expect("readable");
    let ids: Vec<Ulid> = held.iter().map(|(_, entry)| entry.value.id).collect();
    assert_eq!(ids, [unknown.id], "what was sent is known by its event");
    assert!(held.iter().all(|(_, entry)| entry.value.wanted == HeldUntil::Decided));
    assert_eq!(
        world.bus.stream_state(EVENTS).await.expect("readable").messages,
        events,
        "nothing is sent"
    );

    let entry = &held[0].1;
    let decided = world
        .bus
        .decide_held(&entry.value, HeldUntil::Redo, entry.revision)
        .await;

    decided.expect("decided");
    let redo = OutgoingMessage::reply(&unknown).msg_id("redo").repeated();
    world.bus.publish(redo).await.expect("stored");
    eventually("it is sent once an operator wants it", async || {
        made(&world, "p").await.get(&unknown.id) == Some(&1)
    })
    .await;

    second.stop().await;
}

/// Writes into the ledger that the turn of `reply` is done, as a broker does before it publishes the reply.
async fn record(world: &World, reply: &Reply) {
    let record = LedgerRecord {
        append: AppendId {
            broker: "test".to_owned(),
            epoch: 1,
            counter: reply.id.timestamp_ms(),
        },
        at: SystemClock.now(),
        held_ms: 0,
        entries: vec![LedgerEntry::TurnCompleted {
            turn: reply.turn,
            reply: Some(Box::new(reply.clone())),
            head: reply.turn,
            cursor: LedgerCursor::default(),
        }],
    };

    let out = OutgoingMessage::new(subject::ledger(&reply.session), &record);
    world.bus.publish(out).await.expect("stored");
    world.publish(reply).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_the_queue_lost_are_found_in_the_ledger_and_sent_once() {
    let mut world = World::start().await;
    let first = world.replica("a", Setup::default());

    for number in 0..3 {
        record(&world, &reply(number, "nats", "p")).await;
    }

    world.settled().await;
    eventually("it is noted since when replies wait", async || {
        let noted = world.bus.kv::<WaitingMark>(buckets::POSITIONS).get(DELIVERIES).await;
        noted.expect("readable").is_some()
    })
    .await;

    first.stop().await;
    world.server.stop().await;
    let older = world.server.copy_of(DELIVERIES);
    world.server.restart().await;

    for number in 3..6 {
        record(&world, &reply(number, "nats", "p")).await;
    }

    world.server.stop().await;
    world.server.put_back(DELIVERIES, &older);
    world.server.restart().await;

    let second = world.replica("b", Setup::default());
    eventually("all are sent", async || made(&world, "p").await.len() == 6).await;
    world.settled().await;
    let made = made(&world, "p").await;

    assert!(made.values().all(|times| *times == 1), "{made:?}");

    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_a_queue_that_is_emptied_are_sent() {
    let world = World::start().await;
    let first = world.replica("a", Setup::default());
    eventually("it is noted since when replies wait", async || {
        let noted = world.bus.kv::<WaitingMark>(buckets::POSITIONS).get(DELIVERIES).await;
        noted.expect("readable").is_some()
    })
    .await;

    first.kill();

    for number in 0..4 {
        record(&world, &reply(number, "nats", "q")).await;
    }

    let purged = world.bus.purge_subject(DELIVERIES, ">").await.expect("purged");
    assert_eq!(purged, 4);

    let second = world.replica("b", Setup::default());
    eventually("all are sent", async || made(&world, "q").await.len() == 4).await;
    let made = made(&world, "q").await;

    assert!(made.values().all(|times| *times == 1), "{made:?}");

    second.stop().await;
}

/// Makes `stream` anew out of its own copy, as a restore does.
async fn restore(world: &World, stream: &str) {
    let mut copy = Vec::new();
    let mut head = world.bus.write_snapshot(stream, &mut copy).await.expect("copied");
    head.renew_incarnation("restored");
    assert!(world.bus.delete_stream(stream).await.expect("deleted"));
    let restored = world.bus.restore_stream(stream, &head, &mut copy.as_slice()).await;
    restored.expect("restored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_are_found_where_the_record_of_the_restore_is_lost_with_the_queue() {
    let world = World::start().await;
    let first = world.replica("a", Setup::default());
    eventually("it is noted since when replies wait", async || {
        let noted = world.bus.kv::<WaitingMark>(buckets::POSITIONS).get(DELIVERIES).await;
        noted.expect("readable").is_some()
    })
    .await;

    first.kill();

    for number in 0..4 {
        record(&world, &reply(number, "nats", "r")).await;
    }

    world.bus.purge_subject(DELIVERIES, ">").await.expect("purged");
    restore(&world, DELIVERIES).await;

    // Nobody knows when it was restored: not now, which would make everything older than that.
    let second = world.replica("b", Setup::default());
    eventually("all wait for the operator", async || {
        let parked = world.bus.stream_state(PARKED).await.expect("readable");
        parked.messages == 4
    })
    .await;

    let holds = world.bus.kv::<RestoreHold>(buckets::RESTORE);
    let hold = holds
        .get(HOLD_KEY)
        .await
        .expect("readable")
        .expect("written again")
        .value;

    assert_eq!((hold.at, hold.decision), (None, HoldDecision::Waiting));
    assert!(made(&world, "r").await.is_empty(), "nothing leaves undecided");

    second.stop().await;
}
