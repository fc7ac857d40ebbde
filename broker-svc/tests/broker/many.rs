//! Very many sessions, and very many messages for one: what they cost a broker that is a process of its own.
//!
//! The short form runs with the tests; `NEXUS_SESSIONS=long` runs what the contract names, and asserts its bounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use broker_svc::config::BrokerConfig;
use broker_svc::ledger::state::{MAX_NOTES, SessionState};
use futures_util::{StreamExt as _, stream};
use shared::clock::{Clock as _, SystemClock};
use shared::model::ledger::LedgerEntry;
use shared::testing::{connect_to, eventually, eventually_within, memory_kib};
use shared::wire::topology::streams::DELIVERIES;

use crate::bench::{Bench, broker_at, child, dispatch, run_broker, session, told};
use crate::sizes::is_long;
use crate::stepping::{SUBJECT, Scripted, answer, effect};

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_MANY_URL";
/// Messages published at once.
const AT_ONCE: usize = 64;
/// Memory that a broker may take, whatever it has run, KiB.
const MOST_KIB: u64 = 150 * 1_024;
/// And for each session whose turn it runs.
const MOST_KIB_EACH: u64 = 64;

/// Not a test: what the children run.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let Some(url) = told(URL) else { return };
    let name = format!("child-{}", std::process::id());
    let _running = run_broker(Arc::new(broker_at(&url, &name, "", BrokerConfig::default()).await));
    std::future::pending::<()>().await;
}

/// The most memory that process `pid` ever had, KiB, without the pages of its binary: those of a dev build of all tests are
/// some sixty mebibytes, and the kernel takes them back as it likes.
fn peak(pid: u32) -> u64 {
    let kib = |field: &str| memory_kib(pid, field).expect("it lives");
    kib("VmHWM").saturating_sub(kib("RssFile"))
}

/// Says `event` in each of the sessions `0..count`, and waits until `replies` are out in all.
async fn say(bench: &Bench, count: u64, event: u64, replies: u64) {
    let said = stream::iter(0..count).for_each_concurrent(AT_ONCE, async |number| {
        bench.send(&session(&format!("s{number}")), event).await;
    });
    said.await;
    let patience = Duration::from_secs(60) + Duration::from_millis(20) * u32::try_from(count).unwrap_or(u32::MAX);

    eventually_within(&format!("{replies} replies"), patience, async || {
        let there = bench.bus.stream_state(DELIVERIES).await.expect("replies").messages;
        (there >= replies)
            .then_some(())
            .ok_or_else(|| format!("{there} are there"))
    })
    .await;
}

fn rate(turns: u64, since: Instant) -> f64 {
    turns as f64 / SystemClock.monotonic().saturating_duration_since(since).as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_have_had_their_turn_cost_a_broker_next_to_nothing() {
    let (all, active, rounds) = if is_long() { (100_000, 1_000, 60) } else { (400, 50, 2) };
    let bench = Bench::start().await;
    let url = bench.server.url();
    let mut owner = child("many::a_broker_of_its_own", &[(URL, &url)]);
    let pid = owner.id().expect("it runs");
    let begun = SystemClock.monotonic();
    say(&bench, all, 1, all).await;

    let first = rate(all, begun);
    eventually("no claim is left", async || bench.claims().await == 0).await;
    let after_all = peak(pid);
    let begun = SystemClock.monotonic();

    for round in 1..=rounds {
        say(&bench, active, 1 + round, all + round * active).await;
    }

    let then = rate(active * rounds, begun);
    let at_last = peak(pid);
    println!(
        "{all} sessions: {first:.0} turns/s, peak {} MiB; then {active} active: {then:.0} turns/s, peak {} MiB",
        after_all / 1_024,
        at_last / 1_024
    );

    let at_once = active.min(BrokerConfig::default().max_active_turns as u64);
    let most = MOST_KIB + at_once * MOST_KIB_EACH;
    assert!(at_last < most, "{at_last} KiB, at most {most}");

    owner.kill().await.expect("it is ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_messages_behind_a_turn_each_has_one_end_and_as_many_wait_as_may() {
    let count: u64 = 1_000;
    let cap = 20;
    let bench = Bench::start().await;
    let mut asked = bench.bus.core_subscribe(SUBJECT).await.expect("a subscription");
    bench.bus.flush().await.expect("it is known");
    let agent = Scripted {
        bus: connect_to(&bench.server.url(), "test").await,
        asks: SUBJECT.to_owned(),
        tools: vec![("web_search", true)],
    };

    let running = bench.run_answering("b1", Arc::new(agent)).await;
    let main = session("main");
    bench.send(&main, 1).await;
    let (_, mut held) = effect(&mut asked).await;
    let said = stream::iter(2..=count).for_each_concurrent(AT_ONCE, async |event| {
        bench.publish(&dispatch(&main, event)).await;
    });
    said.await;

    let begun_or_dropped = async || {
        let entries = bench.entries(&main).await;
        let those = entries.iter().map(|entry| {
            if let LedgerEntry::TurnStarted { dispatches, .. } = entry {
                return dispatches.len() as u64;
            }
            u64::from(matches!(entry, LedgerEntry::DispatchDropped { .. }))
        });

        those.sum::<u64>()
    };

    // What is dropped is in the ledger before the next tool runs. On a busy machine the turn may come to its limit meanwhile,
    // and the next one begins.
    eventually("all but as many as may wait have begun or are dropped", async || {
        if begun_or_dropped().await >= count - cap {
            return true;
        }

        // A look takes up sixty-four: a ring makes it look at each call.
        bench.claim(&main).await;
        answer(&bench.bus, &held, "let me see", &["web_search"]).await;
        let (_, tool) = effect(&mut asked).await;
        answer(&bench.bus, &tool, "nothing", &[]).await;
        held = effect(&mut asked).await.1;

        false
    })
    .await;

    // Nothing moves while the call that is held has no answer.
    let waiting = count - begun_or_dropped().await;
    answer(&bench.bus, &held, "one", &[]).await;

    for _ in 0..waiting {
        let (_, to) = effect(&mut asked).await;
        answer(&bench.bus, &to, "next", &[]).await;
    }

    eventually("all is over", async || bench.claims().await == 0).await;
    let mut fold = SessionState::default();
    let mut ends: BTreeMap<u64, u32> = BTreeMap::new();

    let mut notes = 0;
    for (sequence, record) in bench.ledger(&main).await {
        for entry in &record.entries {
            if let LedgerEntry::DispatchDropped { dispatch, .. } = entry {
                *ends.entry(dispatch.sequence).or_default() += 1;
            }

            if let LedgerEntry::TurnStarted { dispatches, .. } = entry {
                dispatches
                    .iter()
                    .for_each(|d| *ends.entry(d.sequence).or_default() += 1);
            }
        }

        fold.apply(sequence, &record);
        notes = notes.max(fold.running.as_ref().map_or(0, |running| running.notes.len()));
    }

    assert_eq!(ends.len() as u64, count);
    assert!(ends.values().all(|times| *times == 1), "{ends:?}");
    assert!(notes > 0 && notes <= MAX_NOTES + 1, "{notes} lines");

    running.stop().await;
}
