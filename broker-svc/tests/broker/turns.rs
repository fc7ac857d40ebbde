//! Dispatch → ledger → reply.

use std::collections::BTreeSet;

use shared::model::ledger::LedgerEntry;
use shared::testing::eventually;
use shared::wire::session_mark::SettledFloor;
use shared::wire::topology::buckets;

use crate::bench::{Bench, events_of, session};

#[tokio::test(flavor = "multi_thread")]
async fn every_dispatch_is_one_turn_in_one_append_with_one_reply_in_order() {
    let bench = Bench::start().await;
    let running = bench.run("b1", "").await;

    let main = session("main");
    for event in 1..=10 {
        bench.send(&main, event).await;
        eventually("the turn", async || bench.completed(&main).await.len() as u64 == event).await;
    }

    eventually("ten replies", async || bench.replies().await.len() == 10).await;
    assert_eq!(bench.completed(&main).await, events_of(&main, 10));

    let replies = bench.replies().await;
    let said: Vec<String> = replies.iter().map(|reply| reply.content.clone()).collect();
    assert_eq!(said, (1..=10).map(|n| format!("echo: message {n}")).collect::<Vec<_>>());
    assert_eq!(bench.ledger(&main).await.len(), 10, "one append a turn");

    let noted = bench
        .entries(&main)
        .await
        .iter()
        .filter(|e| matches!(e, LedgerEntry::ReplyPublished { .. }))
        .count();

    assert_eq!(noted, 9, "each reply is noted with the next append");

    eventually("the claim is given back", async || bench.claims().await == 0).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_brokers_share_sessions_and_nothing_is_done_twice() {
    let bench = Bench::start().await;
    let (one, other) = (bench.run("b1", "").await, bench.run("b2", "").await);

    let sessions: Vec<_> = (0..5).map(|n| session(&format!("s{n}"))).collect();
    for event in 1..=40 {
        for to in &sessions {
            bench.send(to, event).await;
        }
    }

    eventually("200 replies", async || bench.replies().await.len() >= 200).await;
    let turns: BTreeSet<_> = bench.replies().await.into_iter().map(|reply| reply.turn).collect();
    assert_eq!((turns.len(), bench.replies().await.len()), (200, 200));

    for to in &sessions {
        assert_eq!(bench.completed(to).await, events_of(to, 40), "{to}");
    }

    assert_eq!(bench.dead_letters().await, []);

    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_written_and_a_cold_broker_goes_on_from_it() {
    let bench = Bench::start().await;
    let running = bench.run("b1", "").await;

    let main = session("main");
    for event in 1..=90 {
        bench.send(&main, event).await;
    }

    eventually("90 turns", async || bench.completed(&main).await.len() == 90).await;
    running.stop().await;
    let second = bench.run("b2", "").await;

    for event in 91..=120 {
        bench.send(&main, event).await;
    }

    eventually("120 turns", async || bench.completed(&main).await.len() == 120).await;
    assert_eq!(bench.completed(&main).await, events_of(&main, 120));

    let checkpoints = bench.entries(&main).await;
    let checkpoints = checkpoints
        .iter()
        .filter(|entry| matches!(entry, LedgerEntry::Checkpoint { .. }))
        .count();

    assert!(checkpoints >= 1, "120 turns are more than 256 entries");

    // Checkpoints are found in the ledger alone.
    let floors = bench.bus.kv::<SettledFloor>(buckets::SESSION_CHECKPOINTS);
    let floors = floors.survey().await.expect("readable").entries;
    assert!(floors.iter().all(|(key, _)| key.starts_with("sweeper-")), "{floors:?}");

    second.stop().await;
}
