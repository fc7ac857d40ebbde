//! Streams put back to an older state: no dispatch is run twice, none is left alone without a word.

use std::collections::BTreeMap;

use shared::bus::OutgoingMessage;
use shared::clock::{Clock as _, IdSource as _, SystemClock, SystemIds};
use shared::model::dispatch::Dispatch;
use shared::model::ledger::{DropReason, LedgerEntry};
use shared::model::order::{OrderKind, SessionOrder};
use shared::model::session::{QueueMode, QueueSettings, SessionRef};
use shared::model::time::UnixMillis;
use shared::testing::eventually;
use shared::wire::headers::{Headers, MSG_ID, REDRIVE};
use shared::wire::held::HeldKind;
use shared::wire::subject;
use shared::wire::topology::streams::{DISPATCHES, LEDGER};
use ulid::Ulid;

use crate::bench::{Bench, dispatch, session};

/// What arrives so soon after it was made is no copy, milliseconds (`doubt::YOUNG_MS`).
const YOUNG_MS: i64 = 30_000;

/// Runs dispatches `numbers` of `to` to their end, with a broker of its own.
async fn run(bench: &Bench, name: &str, to: &SessionRef, numbers: std::ops::Range<u64>, total: usize) {
    let running = bench.run(name, "").await;
    for number in numbers {
        bench.send(to, number).await;
    }
    eventually("all turns", async || {
        bench.completed(to).await.len() >= total && bench.claims().await == 0
    })
    .await;
    running.stop().await;
}

/// How often each of the session's dispatches had a turn.
async fn turns(bench: &Bench, of: &SessionRef) -> BTreeMap<String, usize> {
    let mut turns = BTreeMap::new();
    for entry in bench.entries(of).await {
        if let LedgerEntry::TurnStarted { dispatches, .. } = entry {
            for dispatch in dispatches {
                *turns.entry(dispatch.event_id.to_string()).or_default() += 1;
            }
        }
    }
    turns
}

#[tokio::test(flavor = "multi_thread")]
async fn older_dispatches_are_not_run_again_and_new_ones_are_run() {
    let mut bench = Bench::start().await;
    let main = session("main");
    run(&bench, "b1", &main, 1..4, 3).await;
    bench.server.stop().await;
    let older = bench.server.copy_of(DISPATCHES);
    bench.server.restart().await;
    run(&bench, "b2", &main, 4..30, 29).await;
    bench.server.stop().await;
    bench.server.put_back(DISPATCHES, &older);
    bench.server.restart().await;

    // The new one stands at a sequence that the cursor has passed.
    run(&bench, "b3", &main, 30..31, 30).await;
    let turns = turns(&bench, &main).await;
    assert_eq!(turns.len(), 30);
    assert!(turns.values().all(|times| *times == 1), "{turns:?}");

    run(&bench, "b4", &main, 31..32, 31).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_ledger_holds_what_it_cannot_know() {
    let mut bench = Bench::start().await;
    let main = session("main");
    run(&bench, "b1", &main, 1..4, 3).await;
    bench.server.stop().await;
    let older = bench.server.copy_of(LEDGER);
    bench.server.restart().await;
    run(&bench, "b2", &main, 4..9, 8).await;

    let b2 = bench.broker("b2", "").await;
    b2.streams
        .ledger_witness()
        .check(SystemClock.now())
        .await
        .expect("kept");
    drop(b2);
    let replies = bench.replies().await.len();
    bench.server.stop().await;
    bench.server.put_back(LEDGER, &older);
    bench.server.restart().await;

    let running = bench.run("b3", "").await;
    bench.claim(&main).await;
    eventually("five are held", async || {
        bench
            .bus
            .held_bucket()
            .entries()
            .await
            .is_ok_and(|held| held.len() == 5)
    })
    .await;

    let held = bench.bus.held_bucket().entries().await.expect("readable");
    assert!(held.iter().all(|(_, entry)| entry.value.kind == HeldKind::Dispatch));

    // They arrived as soon as they were made: that they are no copies does not say that they were not run.
    for (_, entry) in &held {
        let stored = bench.bus.at_sequence(DISPATCHES, entry.value.sequence).await;
        let arrived = stored.expect("readable").expect("it is there").published_at;
        let made = i64::try_from(entry.value.id.timestamp_ms()).expect("after 1970");
        let age = arrived.since(UnixMillis(made));
        assert!((0..YOUNG_MS).contains(&age), "{age} ms");
    }
    assert_eq!(bench.replies().await.len(), replies, "nothing is said twice");

    let b3 = bench.broker("b4", "").await;
    let until = b3
        .current_era()
        .await
        .expect("told")
        .doubt_until
        .expect("the ledger is older");
    eventually("what comes from now on is new", async || SystemClock.now() > until).await;
    bench.send(&main, 9).await;
    eventually("the new one is run", async || {
        bench.replies().await.len() == replies + 1
    })
    .await;

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_an_older_ledger_does_not_know_is_not_carried_out_again() {
    let mut bench = Bench::start().await;
    let main = session("main");
    run(&bench, "b1", &main, 1..4, 3).await;
    bench.server.stop().await;
    let older = bench.server.copy_of(LEDGER);
    bench.server.restart().await;

    let running = bench.run("b2", "").await;
    let reset = order(&main, OrderKind::Reset);
    let queue = order(
        &main,
        OrderKind::Queue {
            settings: QueueSettings {
                mode: Some(QueueMode::Collect),
                ..QueueSettings::default()
            },
        },
    );
    for given in [&reset, &queue] {
        give(&bench, given).await;
    }
    eventually("both are carried out", async || ordered(&bench, &main).await.len() == 2).await;
    running
        .broker
        .streams
        .ledger_witness()
        .check(SystemClock.now())
        .await
        .expect("kept");
    running.stop().await;

    bench.server.stop().await;
    bench.server.put_back(LEDGER, &older);
    bench.server.restart().await;

    let running = bench.run("b3", "").await;
    bench.claim(&main).await;
    eventually("the reset has a letter", async || bench.dead_letters().await.len() == 1).await;
    is_dropped(&bench, &main, DropReason::OrderInDoubt).await;
    let letter = bench.dead_letters().await.pop().expect("a letter");
    assert_eq!(letter.reason, "order_in_doubt");

    // What may be carried out as often as one likes is.
    eventually("the queue's settings are set", async || {
        ordered(&bench, &main).await == [queue.id]
    })
    .await;
    let resets = |entry: &LedgerEntry| matches!(entry, LedgerEntry::SessionReset { .. });
    assert!(!bench.entries(&main).await.iter().any(resets), "history stands");

    // Redriven, as `nexus dlq redrive` does: the operator means it.
    let until = running
        .broker
        .current_era()
        .await
        .expect("told")
        .doubt_until
        .expect("the ledger is older");
    eventually("what comes from now on is new", async || SystemClock.now() > until).await;
    let payload = letter.payload_bytes().expect("base64");
    let mut headers: Headers = letter
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    headers.insert(MSG_ID, format!("{REDRIVE}1"));
    let out = OutgoingMessage::raw(letter.redrive_subject, headers, payload.into());
    bench.bus.publish(out).await.expect("stored");
    bench.claim(&main).await;
    eventually("it is carried out", async || {
        ordered(&bench, &main).await == [queue.id, reset.id]
    })
    .await;

    running.stop().await;
}

fn order(to: &SessionRef, wanted: OrderKind) -> SessionOrder {
    SessionOrder {
        id: SystemIds.ulid(),
        target: to.clone(),
        wanted,
        by: "ada".to_owned(),
        reason: String::new(),
        at: SystemClock.now(),
    }
}

async fn give(bench: &Bench, order: &SessionOrder) {
    let out = OutgoingMessage::new(subject::dispatch(&order.target), order).msg_id(order.id.to_string());
    bench.bus.publish(out).await.expect("an order is stored");
    bench.claim(&order.target).await;
}

/// Orders that the ledger of `of` says were carried out.
async fn ordered(bench: &Bench, of: &SessionRef) -> Vec<Ulid> {
    let entries = bench.entries(of).await.into_iter();
    let orders = entries.filter_map(|entry| {
        let LedgerEntry::Ordered { order, .. } = entry else {
            return None;
        };
        Some(order.id)
    });
    orders.collect()
}

/// Publishes `both` for `session`, whose only turns they are, and waits until each was run.
async fn run_both(bench: &Bench, session: &SessionRef, both: [&Dispatch; 2]) {
    for made in both {
        bench.publish(made).await;
    }
    bench.claim(session).await;
    eventually("two turns", async || {
        turns(bench, session).await.len() == 2 && bench.claims().await == 0
    })
    .await;
}

/// Waits until the ledger of `session` says that a dispatch was dropped for `wanted`.
async fn is_dropped(bench: &Bench, session: &SessionRef, wanted: DropReason) {
    eventually("it is recognised", async || {
        let entries = bench.entries(session).await;
        let is_it =
            |entry: &LedgerEntry| matches!(entry, LedgerEntry::DispatchDropped { reason, .. } if *reason == wanted);
        entries.iter().any(is_it)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_of_an_old_event_that_comes_again_is_recognised_by_its_subject() {
    let bench = Bench::start().await;
    let main = session("main");
    let running = bench.run("b1", "").await;
    let old = |number| {
        let mut made = dispatch(&main, number);
        made.timestamp = UnixMillis(made.timestamp.0).plus(-200_000);
        made
    };

    let first = old(1);
    run_both(&bench, &main, [&first, &old(2)]).await;

    // As the server takes it two minutes later: its window has forgotten the id.
    let out = OutgoingMessage::new(subject::dispatch(&main), &first).msg_id("later");
    bench.bus.publish(out).await.expect("stored");
    bench.claim(&main).await;
    is_dropped(&bench, &main, DropReason::Repeated).await;

    assert!(turns(&bench, &main).await.values().all(|times| *times == 1));

    running.stop().await;
}

/// As an intent's firing is published by whoever knows nothing of an earlier one: its event has a place of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_may_be_a_copy_is_recognised_however_new_its_event_looks() {
    let bench = Bench::start().await;
    let main = session("main");
    let running = bench.run("b1", "").await;
    let first = dispatch(&main, 1);
    run_both(&bench, &main, [&first, &dispatch(&main, 2)]).await;

    let mut again = first.clone();
    again.event_seq += 1_000;
    let out = OutgoingMessage::new(subject::dispatch(&main), &again)
        .msg_id("later")
        .repeated();
    bench.bus.publish(out).await.expect("stored");
    bench.claim(&main).await;
    is_dropped(&bench, &main, DropReason::Repeated).await;

    assert!(turns(&bench, &main).await.values().all(|times| *times == 1));

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_is_evaluated_again_long_afterwards_is_known_by_the_ledger() {
    let bench = Bench::start().await;
    let main = session("main");
    let running = bench.run("b1", "").await;
    let old = |number| {
        let mut made = dispatch(&main, number);
        made.id = Ulid::from_parts(made.id.timestamp_ms() - 200_000, made.id.random());
        made
    };

    let first = old(1);
    run_both(&bench, &main, [&first, &old(2)]).await;

    // The stream has dropped the first one by age; the event is evaluated again just now.
    let subject = subject::dispatch(&main);
    let stored = bench
        .bus
        .next_on_subject(DISPATCHES, &subject, 1)
        .await
        .expect("readable");

    let sequence = stored.expect("it is there").sequence;
    assert!(bench.bus.delete_message(DISPATCHES, sequence).await.expect("deleted"));

    let mut again = first.clone();
    again.timestamp = SystemClock.now();
    let out = OutgoingMessage::new(subject, &again).msg_id("later");
    bench.bus.publish(out).await.expect("stored");
    bench.claim(&main).await;
    is_dropped(&bench, &main, DropReason::HandledBefore).await;

    assert_eq!(turns(&bench, &main).await.len(), 2);

    running.stop().await;
}
