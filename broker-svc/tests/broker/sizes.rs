//! What size costs: a session with a long life beside a new one, a hot session beside a quiet one.
//!
//! The short form runs with the tests. `NEXUS_SESSIONS=long` runs what the contract names, and prints what
//! `docs/performance.md` tells, within the contract's bounds. Those of the short form are wide: the machine is busy; what
//! they keep out is a cost that grows with size.

use std::time::Duration;

use broker_svc::config::BrokerConfig;
use shared::bus::CoreSubscription;
use shared::clock::{Clock as _, SystemClock};
use shared::model::session::SessionRef;
use shared::testing::{eventually_within, says};

use crate::bench::{Bench, DEADLINE, dispatch, session};

/// Asked for by `NEXUS_SESSIONS=long`.
pub(crate) fn is_long() -> bool {
    says("NEXUS_SESSIONS", "long")
}

fn percentile(of: &mut [f64], share: f64) -> f64 {
    of.sort_by(f64::total_cmp);
    of[((of.len() - 1) as f64 * share).round() as usize]
}

/// Says something in `to`, and waits for its reply; milliseconds.
async fn answered(bench: &Bench, replies: &mut CoreSubscription, to: &SessionRef, event: u64) -> f64 {
    let mut one = dispatch(to, event);
    one.delivery_context.channel = "timed".to_owned();
    let begun = SystemClock.monotonic();
    bench.publish(&one).await;
    bench.claim(to).await;
    let reply = tokio::time::timeout(DEADLINE, replies.next()).await;
    reply.expect("in time").expect("the bus is open");
    SystemClock.monotonic().saturating_duration_since(begun).as_secs_f64() * 1e3
}

async fn heard(bench: &Bench) -> CoreSubscription {
    let replies = bench
        .bus
        .core_subscribe("nexus.delivery.timed.>")
        .await
        .expect("replies");
    bench.bus.flush().await.expect("it is known");
    replies
}

/// Publishes messages `from..=to` of `session` and waits until its ledger has stood still with all of them answered.
async fn live_through(bench: &Bench, session: &SessionRef, from: u64, to: u64) {
    for event in from..=to {
        bench.publish(&dispatch(session, event)).await;
    }

    bench.claim(session).await;
    let patience = DEADLINE + Duration::from_millis(20 * to.saturating_sub(from));
    eventually_within(&format!("{to} turns"), patience, async || match bench.claims().await {
        0 => Ok(()),
        claims => Err(format!("{claims} claims are left")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_a_long_life_answers_as_fast_as_a_new_one() {
    let (turns, trials) = if is_long() { (10_000, 200) } else { (600, 15) };
    let bench = Bench::start().await;

    // One fold is remembered: whoever comes back after somebody else is folded from the ledger.
    let config = BrokerConfig {
        fold_cache: 1,
        ..BrokerConfig::default()
    };
    let running = bench.run_with("b1", "", config).await;

    let (old, other) = (session("old"), session("other"));
    for from in (1..=turns).step_by(500) {
        live_through(&bench, &old, from, turns.min(from + 499)).await;
    }

    let mut replies = heard(&bench).await;
    let (mut of_old, mut of_new) = (Vec::new(), Vec::new());
    for trial in 1..=trials {
        answered(&bench, &mut replies, &other, trial).await;
        of_old.push(answered(&bench, &mut replies, &old, turns + trial).await);
        of_new.push(answered(&bench, &mut replies, &session(&format!("new-{trial}")), 1).await);
    }

    let (old, new) = (percentile(&mut of_old, 0.5), percentile(&mut of_new, 0.5));
    println!("after {turns} turns, cold: p50 {old:.2} ms, a new session {new:.2} ms ({trials} trials)");
    let most = if is_long() {
        1.25 * new + 1.0
    } else {
        10.0 * new + 250.0
    };

    assert!(old < most, "{old} ms, {new} ms");

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_session_does_not_hold_up_a_quiet_one() {
    let (rounds, each, queued) = if is_long() { (60, 50, 1_000) } else { (2, 10, 200) };
    let bench = Bench::start().await;
    let running = bench.run("b1", "").await;
    let mut replies = heard(&bench).await;
    let (hot, quiet) = (session("hot"), session("quiet"));
    let (mut alone, mut beside) = (Vec::new(), Vec::new());

    let mut event = 0;
    for round in 0..rounds {
        for _ in 0..each {
            event += 1;
            alone.push(answered(&bench, &mut replies, &quiet, event).await);
        }

        for number in 1..=queued {
            bench.publish(&dispatch(&hot, round * queued + number)).await;
        }

        bench.claim(&hot).await;

        while bench.claims().await > 0 && beside.len() < usize::try_from((round + 1) * each).expect("few") {
            event += 1;
            beside.push(answered(&bench, &mut replies, &quiet, event).await);
        }

        live_through(&bench, &hot, 1, 0).await;
    }

    assert!(!beside.is_empty(), "the hot session was done before anything was asked");

    let told = |name: &str, of: &mut Vec<f64>| {
        let (p50, p99) = (percentile(of, 0.5), percentile(of, 0.99));
        println!("{name}: p50 {p50:.2} ms, p99 {p99:.2} ms over {}", of.len());
        (p50, p99)
    };
    let (without, with) = (
        told("alone", &mut alone),
        told(&format!("beside {queued} queued"), &mut beside),
    );
    if is_long() {
        assert!(with.1 <= 1.2 * without.1, "p99: {} ms, {} ms", without.1, with.1);
    }

    assert!(with.0 < 10.0 * without.0 + 250.0, "{} ms, {} ms", without.0, with.0);

    running.stop().await;
}
