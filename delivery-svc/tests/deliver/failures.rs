//! Bad input, duplicates, policy, and a replica that dies.

use std::collections::{BTreeMap, BTreeSet};

use delivery_svc::policy::{PolicyRule, SendPolicy};
use shared::bus::OutgoingMessage;
use shared::model::receipt::ReceiptStep;
use shared::model::reply::SendDecision;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::subject;

use crate::receiver::Receiver;
use crate::world::{Setup, World, old_reply, reply};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rubbish_is_a_dead_letter_and_blocks_nothing() {
    let world = World::start().await;
    let replica = world.replica("a", Setup::default());
    let good = reply(1, "nats", "ann");
    let to = subject::delivery(&good.delivery_context);

    let newer: Headers = [("Nexus-Schema", "reply/99")].into_iter().collect();
    for (headers, payload) in [
        (Headers::new(), &b"\xff\x00"[..]),
        (newer, b""),
        (Headers::new(), &[0x81; 50_000]),
    ] {
        let out = OutgoingMessage::raw(to.clone(), headers, payload.to_vec().into());
        world.bus.publish(out).await.expect("it is stored");
    }

    world.publish(&reply(2, "pigeon", "ann")).await;
    world.publish(&good).await;
    world.settled().await;

    let letters = world.dead_letters().await;
    let mut reasons: Vec<_> = letters.iter().map(|letter| letter.reason.as_str()).collect();
    reasons.sort_unstable();

    assert_eq!(reasons, ["gave_up", "malformed", "malformed", "newer_schema"]);
    assert!(
        letters
            .iter()
            .any(|letter| letter.payload_bytes().as_deref() == Some(b"\xff\x00"))
    );
    assert!(
        letters
            .iter()
            .any(|letter| letter.detail.starts_with("channel `pigeon` is not configured"))
    );
    assert_eq!(world.sent_events().await.len(), 1);

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_panics_is_given_up_after_the_policys_attempts_and_disturbs_nobody() {
    let world = World::start().await;
    let replica = world.replica("a", Setup::default());
    let (broken, other) = (reply(1, "broken", "ann"), reply(2, "nats", "bob"));
    world.publish(&broken).await;
    world.publish(&other).await;
    world.settled().await;

    let letters = world.dead_letters().await;
    let told: Vec<_> = letters
        .iter()
        .map(|letter| (letter.reason.as_str(), letter.attempts))
        .collect();

    assert_eq!(told, [("gave_up", 3)]);
    assert!(
        letters[0].detail.contains("failed unexpectedly"),
        "{}",
        letters[0].detail
    );

    let retries = world.outcomes(&broken.delivery_context).await.len();
    assert_eq!(retries, 3, "two failed attempts and the end");
    assert_eq!(world.sent_events().await.len(), 1, "the other one is sent");

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_receipt_hides_none() {
    let (world, receiver) = (World::start().await, Receiver::start(&[]).await);
    let setup = || Setup {
        url: receiver.url(),
        ..Setup::default()
    };

    let reply = reply(1, "webhook", "ann");
    let receipts = subject::receipt(&reply.delivery_context);
    let rubbish = async |headers: Headers| {
        let out = OutgoingMessage::raw(receipts.clone(), headers, b"\xff\x00".to_vec().into());
        world.bus.publish(out).await.expect("it is stored").sequence
    };

    let of = |more: &[(&str, &str)]| -> Headers {
        let copy = [("Nexus-Delivery-Copy", "1@1")];
        copy.into_iter().chain(more.iter().copied()).collect()
    };
    rubbish(Headers::new()).await;
    let copy = async || {
        let out = OutgoingMessage::new(subject::delivery(&reply.delivery_context), &reply);
        world.bus.publish(out).await.expect("it is stored")
    };

    copy().await;
    let first = world.replica("a", setup());
    world.settled().await;
    first.stop().await;

    // Behind it, whoever comes next finds the receipt of the delivery that was made.
    rubbish(Headers::new()).await;
    rubbish(of(&[])).await;
    copy().await;
    let second = world.replica("b", setup());
    world.settled().await;
    second.stop().await;

    assert_eq!(receiver.calls().len(), 1, "a second call");

    // What a newer version wrote may tell anything: nobody is called until that one has gone on, or it is gone.
    let newer = rubbish(of(&[("Nexus-Schema", "receipt/99")])).await;
    let later = crate::world::reply(2, "webhook", "ann");
    world.publish(&later).await;
    let third = world.replica("c", setup());
    let to_another = crate::world::reply(3, "webhook", "bob");
    world.publish(&to_another).await;
    eventually("another is delivered", async || receiver.calls().len() == 2).await;

    assert_eq!(receiver.contents()[1], "echo: 3");

    let stream = shared::wire::topology::streams::RECEIPTS;
    assert!(world.bus.delete_message(stream, newer).await.expect("it is deleted"));

    world.settled().await;
    assert_eq!(receiver.contents()[2], "echo: 2");

    third.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_that_is_published_three_times_is_made_once() {
    let (world, receiver) = (World::start().await, Receiver::start(&[]).await);
    let replica = world.replica(
        "a",
        Setup {
            url: receiver.url(),
            ..Setup::default()
        },
    );

    let reply = reply(1, "webhook", "ann");
    for _ in 0..3 {
        // Without a message id: the server lets all of them in, as it does beyond its duplicate window.
        let out = OutgoingMessage::new(subject::delivery(&reply.delivery_context), &reply);
        world.bus.publish(out).await.expect("it is stored");
    }

    world.settled().await;
    assert_eq!(receiver.calls().len(), 1);
    assert_eq!(world.outcomes(&reply.delivery_context).await.len(), 1);
    assert_eq!(world.sent_events().await.len(), 1);

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_reply_published_again_behind_others_is_not_delivered_again() {
    let (world, receiver) = (World::start().await, Receiver::start(&[]).await);
    let replica = world.replica(
        "a",
        Setup {
            url: receiver.url(),
            ..Setup::default()
        },
    );

    let (old, other) = (old_reply(1, "webhook", "ann"), old_reply(2, "webhook", "ann"));
    for reply in [&old, &other, &old, &other] {
        let out = OutgoingMessage::new(subject::delivery(&reply.delivery_context), reply);
        world.bus.publish(out).await.expect("it is stored");
    }

    world.settled().await;
    assert_eq!(receiver.contents(), ["echo: 1", "echo: 2"]);
    assert_eq!(world.sent_events().await.len(), 2);

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_young_reply_published_again_under_another_id_is_not_delivered_again() {
    let (world, receiver) = (World::start().await, Receiver::start(&[]).await);
    let setup = || Setup {
        url: receiver.url(),
        ..Setup::default()
    };
    let publish_again = async |number: u64, id: &str| {
        let copy = OutgoingMessage::reply(&reply(number, "webhook", "ann")).msg_id(id);
        world.bus.publish(copy).await.expect("it is stored");
        world.settled().await;
    };

    let first = world.replica("a", setup());
    for number in 1..=3 {
        world.publish(&reply(number, "webhook", "ann")).await;
    }
    world.settled().await;

    // By the owner that has written the receipts.
    for number in 1..=3 {
        publish_again(number, &format!("again:{number}")).await;
    }
    assert_eq!(receiver.contents(), ["echo: 1", "echo: 2", "echo: 3"]);
    first.stop().await;

    // By an owner that has read only the destination's last receipt before.
    let second = world.replica("b", setup());
    world.publish(&reply(4, "webhook", "ann")).await;
    world.settled().await;
    for number in 1..=4 {
        publish_again(number, &format!("once more:{number}")).await;
    }
    assert_eq!(receiver.contents(), ["echo: 1", "echo: 2", "echo: 3", "echo: 4"]);
    assert_eq!(world.sent_events().await.len(), 4);

    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_policy_denies_leaves_a_receipt_only() {
    let (world, receiver) = (World::start().await, Receiver::start(&[]).await);
    let rule = PolicyRule {
        channel: Some("webhook".to_owned()),
        action: SendDecision::Deny,
        ..PolicyRule::default()
    };

    let policy = SendPolicy {
        rules: vec![rule],
        ..SendPolicy::default()
    };
    let replica = world.replica(
        "a",
        Setup {
            url: receiver.url(),
            policy,
            ..Setup::default()
        },
    );

    let reply = reply(1, "webhook", "ann");
    world.publish(&reply).await;
    world.settled().await;

    assert!(receiver.calls().is_empty());

    let receipts = world.receipts(&reply.delivery_context).await;
    assert_eq!(
        receipts[0].step,
        ReceiptStep::DeniedByPolicy {
            rule: "rule 1".to_owned()
        }
    );
    assert!(world.sent_events().await.is_empty() && world.dead_letters().await.is_empty());

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_at_work_costs_nothing() {
    const PEERS: u64 = 10;
    const REPLIES: u64 = 400;

    let answers = [(503, Some("1")), (500, None), (200, None), (500, None)];
    let (world, receiver) = (World::start().await, Receiver::start(&answers).await);
    let setup = || Setup {
        url: receiver.url(),
        ..Setup::default()
    };

    let first = world.replica("first", setup());
    let replies: Vec<_> = (0..REPLIES)
        .map(|n| reply(n, "webhook", &format!("p{}", n % PEERS)))
        .collect();
    for reply in &replies {
        world.publish(reply).await;
    }

    eventually("the first replica is at work", async || receiver.calls().len() > 50).await;
    first.kill();
    let second = world.replica("second", setup());
    world.settled().await;

    assert!(world.dead_letters().await.is_empty());

    let events = world.sent_events().await;
    let ids: BTreeSet<_> = events.iter().map(|event| event.id.clone()).collect();
    assert_eq!(
        (events.len() as u64, ids.len() as u64),
        (REPLIES, REPLIES),
        "each reply is one event"
    );

    let mut order: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for event in &events {
        order
            .entry(&event.peer.id)
            .or_default()
            .push(event.metadata["delivery"].as_str().expect("an id"));
    }

    assert!(
        order.values().all(|deliveries| deliveries.is_sorted()),
        "order per peer: {order:?}"
    );

    for peer in 0..PEERS {
        let receipts = world
            .receipts(&replies[usize::try_from(peer).expect("small")].delivery_context)
            .await;
        let delivered = receipts
            .iter()
            .filter(|r| matches!(r.step, ReceiptStep::Delivered { .. }))
            .count();

        assert_eq!(delivered as u64, REPLIES / PEERS, "one delivery each");
    }

    let called: BTreeSet<_> = receiver.calls().into_iter().map(|call| call.id).collect();
    assert_eq!(called.len() as u64, REPLIES);

    second.stop().await;
}
