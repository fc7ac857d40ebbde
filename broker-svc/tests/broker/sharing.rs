//! Brokers share the parts of the sessions: who reads what, who helps whom, and who follows the dead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use broker_svc::config::BrokerConfig;
use bytes::Bytes;
use serde_json::Value;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::ledger::LedgerEntry;
use shared::model::session::SessionRef;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::partition::{PartSet, session_part};
use shared::wire::topology::SESSION_PARTS;
use shared::wire::topology::streams::{DELIVERIES, DISPATCHES};
use tokio::process::Child;

use crate::bench::{Bench, DEADLINE, Running, broker_at, child, dispatch, events_of, run_broker, session, told};

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_SHARING_URL";
/// The lease of a broker, and what a busy machine may add to it.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(3 + 20);
/// The longest that a session may wait, 4 s, and what a busy machine may add to it.
const LONGEST_STALL: Duration = Duration::from_secs(4 + 20);

/// Not a test: what the children run.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let Some(url) = told(URL) else { return };
    let name = format!("child-{}", std::process::id());
    let _running = run_broker(Arc::new(broker_at(&url, &name, "", BrokerConfig::default()).await));
    std::future::pending::<()>().await;
}

fn child_of(bench: &Bench) -> Child {
    child("sharing::a_broker_of_its_own", &[(URL, &bench.server.url())])
}

fn parts_of(running: &Running) -> PartSet {
    *running.broker.parts.borrow()
}

/// Waits until `running` reads as many parts as `count`, each from a known place on.
async fn until_reading(running: &Running, count: u32) {
    eventually("its share of the parts", async || {
        let parts = parts_of(running);
        let is_read = |part| running.broker.feed.with_window(|window| window.first(part).is_some());
        parts.len() == count && parts.iter().all(is_read)
    })
    .await;
}

/// The number of dispatches that were delivered to readers, by part.
async fn delivered(bench: &Bench) -> BTreeMap<u16, u64> {
    let question = Bytes::from_static(b"{}");
    let subject = "$JS.API.CONSUMER.LIST.DISPATCHES";
    let answer = bench
        .bus
        .request_bytes(subject, &Headers::new(), question, DEADLINE)
        .await;
    let answer: Value = serde_json::from_slice(&answer.expect("listed").payload).expect("JSON");

    let mut counts = BTreeMap::new();
    for consumer in answer["consumers"].as_array().expect("consumers") {
        let filter = consumer["config"]["filter_subject"].as_str().expect("a filter");
        let part = filter.split('.').nth(2).and_then(|part| part.parse().ok());
        let count = consumer["delivered"]["consumer_seq"].as_u64().expect("a count");
        *counts.entry(part.expect("a part")).or_default() += count;
    }
    counts
}

/// `count` sessions of the parts `of`.
fn sessions_in(of: PartSet, count: usize) -> Vec<SessionRef> {
    let all = (0..).map(|number| session(&format!("s{number}")));
    all.filter(|session| of.contains(session_part(session)))
        .take(count)
        .collect()
}

fn all_parts() -> PartSet {
    (0..SESSION_PARTS).collect()
}

/// Waits until each of `sessions` has had `count` turns, and asserts that each event had one, in order.
async fn each_once(bench: &Bench, sessions: &[SessionRef], count: u64) {
    for session in sessions {
        eventually("all its turns", async || {
            bench.completed(session).await.len() as u64 >= count
        })
        .await;
        assert_eq!(bench.completed(session).await, events_of(session, count), "{session}");
    }

    let all = count * sessions.len() as u64;
    let replies = async || bench.bus.stream_state(DELIVERIES).await.expect("replies").messages;
    eventually("the replies", async || replies().await >= all).await;
    assert_eq!(replies().await, all);
    eventually("no claim is left", async || bench.claims().await == 0).await;
}

/// Sends `count` events to each of `sessions` while `meanwhile` runs, and answers the longest time from the publication
/// of a dispatch to the end of its turn.
async fn sent_beside(
    bench: &Bench,
    sessions: &[SessionRef],
    count: u64,
    meanwhile: impl Future<Output = ()>,
) -> Duration {
    let sending = async {
        for event in 1..=count {
            for session in sessions {
                bench.send(session, event).await;
            }
            pause(Duration::from_millis(100)).await;
        }
    };
    tokio::join!(sending, meanwhile);
    each_once(bench, sessions, count).await;

    let mut longest = 0;
    for session in sessions {
        for (_, record) in bench.ledger(session).await {
            for entry in &record.entries {
                if let LedgerEntry::TurnStarted { dispatches, .. } = entry {
                    let stored = bench.bus.at_sequence(DISPATCHES, dispatches[0].sequence).await;
                    let published = stored.expect("the stream").expect("the dispatch").published_at;
                    longest = longest.max(record.at.since(published));
                }
            }
        }
    }
    Duration::from_millis(longest.unsigned_abs())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_dispatch_is_read_by_one_of_two_brokers_and_each_reads_about_half() {
    let bench = Bench::start().await;
    let one = bench.run("b1", "").await;
    until_reading(&one, 16).await;
    let other = bench.run("b2", "").await;
    until_reading(&one, 8).await;
    until_reading(&other, 8).await;
    let (here, there) = (parts_of(&one), parts_of(&other));
    assert!(here.iter().all(|part| !there.contains(part)), "{here:?} {there:?}");

    let sessions = sessions_in(all_parts(), 200);
    for session in &sessions {
        bench.send(session, 1).await;
    }
    each_once(&bench, &sessions, 1).await;

    let read = delivered(&bench).await;
    let read_by = |parts: PartSet| -> u64 { parts.iter().map(|part| read.get(&part).copied().unwrap_or(0)).sum() };
    let sent_to = |parts: PartSet| {
        sessions
            .iter()
            .filter(|session| parts.contains(session_part(session)))
            .count()
    };
    assert_eq!(read_by(here), sent_to(here) as u64, "{read:?}");
    assert_eq!(read_by(there), sent_to(there) as u64, "{read:?}");
    assert!((60..=140).contains(&read_by(here)), "about half: {read:?}");

    // Warm folds are where the part is: the owners of the second turns are those of the first.
    for session in &sessions {
        bench.send(session, 2).await;
    }
    each_once(&bench, &sessions, 2).await;
    let mut own = 0;
    for session in &sessions {
        let reader = if here.contains(session_part(session)) {
            "b1"
        } else {
            "b2"
        };
        let owners = owners(&bench, session).await;
        own += usize::from(owners.iter().all(|owner| owner == reader));
    }
    assert!(
        own * 10 >= sessions.len() * 8,
        "{own} of {} sessions stayed",
        sessions.len()
    );

    one.stop().await;
    other.stop().await;
}

/// The brokers that have owned `session`, oldest first.
async fn owners(bench: &Bench, session: &SessionRef) -> Vec<String> {
    let entries = bench.entries(session).await.into_iter();
    let owned = entries.filter_map(|entry| {
        let LedgerEntry::Owned { broker, .. } = entry else {
            return None;
        };
        Some(broker)
    });
    owned.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parts_of_a_killed_broker_are_taken_over_and_every_turn_is_done_once() {
    let bench = Bench::start().await;
    let one = bench.run("b1", "").await;
    let mut doomed = child_of(&bench);
    until_reading(&one, 8).await;

    let sessions = sessions_in(all_parts(), 48);
    let longest = sent_beside(&bench, &sessions, 30, async {
        pause(Duration::from_millis(500)).await;
        doomed.kill().await.expect("SIGKILL");
        let killed = SystemClock.monotonic();
        until_reading(&one, 16).await;
        let took = SystemClock.monotonic().saturating_duration_since(killed);
        println!("taken over after {took:?}");
        assert!(took < TAKEN_OVER_WITHIN, "{took:?}");
    })
    .await;
    println!("longest wait of a dispatch: {longest:?}");
    assert!(longest < LONGEST_STALL, "{longest:?}");

    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_with_slots_to_spare_helps_one_without() {
    const SLOTS: usize = 2;
    let bench = Bench::start().await;
    // The agent of persona `slow` is away: its turns wait for it, and keep their slots.
    let personas = "personas: {default: {runner: echo}, slow: {runner: nats, limits: {no_agent_ms: 600000}}}";
    let config = BrokerConfig {
        max_active_turns: SLOTS,
        ..BrokerConfig::default()
    };
    let busy = bench.run_with("busy", personas, config).await;
    until_reading(&busy, 16).await;

    let slow = |number: usize| SessionRef {
        persona: "slow".to_owned(),
        session: format!("s{number}"),
    };
    for number in 0..SLOTS {
        let to = slow(number);
        let one = dispatch(&to, 1);
        bench.publish(&one).await;
        bench.claim(&to).await;
    }
    eventually("all its slots are taken", async || {
        let mut begun = 0;
        for number in 0..SLOTS {
            let entries = bench.entries(&slow(number)).await;
            begun += entries
                .iter()
                .filter(|entry| matches!(entry, LedgerEntry::TurnStarted { .. }))
                .count();
        }
        begun == SLOTS
    })
    .await;

    let idle = bench.run("idle", personas).await;
    until_reading(&busy, 8).await;
    until_reading(&idle, 8).await;
    let sessions = sessions_in(parts_of(&busy), 20);
    for event in 1..=3 {
        for session in &sessions {
            bench.send(session, event).await;
        }
    }

    for session in &sessions {
        eventually("its turns", async || {
            bench.completed(session).await == events_of(session, 3)
        })
        .await;
        let owners = owners(&bench, session).await;
        assert!(owners.iter().all(|owner| owner == "idle"), "{owners:?}");
    }

    // What it helped with, it read from the sessions' own subjects.
    let read = delivered(&bench).await;
    let idle_parts = parts_of(&idle);
    assert!(
        idle_parts.iter().all(|part| !parts_of(&busy).contains(part)),
        "the parts have not moved"
    );
    let read: u64 = idle_parts
        .iter()
        .map(|part| read.get(&part).copied().unwrap_or(0))
        .sum();
    assert!(read <= SLOTS as u64, "{read} dispatches of its own parts were read");
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_move_when_brokers_come_and_go_and_no_session_waits_long() {
    let bench = Bench::start().await;
    let one = bench.run("b1", "").await;
    until_reading(&one, 16).await;

    let sessions = sessions_in(all_parts(), 32);
    let moving = async {
        for round in 0..2 {
            let other = bench.run(&format!("other-{round}"), "").await;
            until_reading(&other, 8).await;
            until_reading(&one, 8).await;
            pause(Duration::from_millis(500)).await;
            other.stop().await;
            until_reading(&one, 16).await;
        }
    };
    let longest = Box::pin(sent_beside(&bench, &sessions, 40, moving)).await;
    println!("longest wait of a dispatch: {longest:?}");
    assert!(longest < LONGEST_STALL, "{longest:?}");

    one.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_brokers_that_read_the_same_parts_do_no_harm() {
    let bench = Bench::start().await;
    // Both go by one name, so that each takes all parts for its own.
    let (one, other) = (bench.run("twin", "").await, bench.run("twin", "").await);
    until_reading(&one, 16).await;
    until_reading(&other, 16).await;

    let sessions = sessions_in(all_parts(), 20);
    let longest = sent_beside(&bench, &sessions, 20, async {}).await;
    println!("longest wait of a dispatch: {longest:?}");

    one.stop().await;
    other.stop().await;
}
