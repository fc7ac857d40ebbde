//! One approved call and many who ask for it at once: it is given out once.

use std::time::Duration;

use futures_util::future::join_all;
use shared::testing::eventually;

use crate::asking::{REMOTE, Remote, allowed, gated, says};
use crate::bench::Bench;

/// How many ask for one call at once.
const ASKERS: usize = 16;
/// Calls of one turn: humans are asked 64 times in a turn at most.
const CALLS_OF_A_TURN: u64 = 40;
/// How long one question to the gate is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many turns are made: one, or with `NEXUS_CHAOS=long` as many as make 200 calls.
#[expect(clippy::disallowed_methods, reason = "the long form is asked for by a variable")]
fn turns() -> u64 {
    let is_long = std::env::var("NEXUS_CHAOS").is_ok_and(|form| form == "long");
    if is_long { 5 } else { 1 }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approved_call_that_many_ask_for_on_two_brokers_is_given_out_once() {
    let bench = Bench::start().await;
    let url = bench.server.url();
    let (first, gate) = gated(&url, "b1", REMOTE).await;
    let (second, other_gate) = gated(&url, "b2", REMOTE).await;

    let mut agent = Remote::begin(bench).await;
    for turn in 0..turns() {
        for number in 0..CALLS_OF_A_TURN {
            let (call, amount) = (format!("t{turn}-{number}"), 60_000 + number);
            let id = agent.asks(&call, amount).await;
            says(&agent.desk, &id, true, None).await;
            let askers = (0..ASKERS).map(|_| agent.try_gate(&call, "pay", amount, None, PATIENCE));
            let answers = join_all(askers).await;
            let given = answers.iter().flatten().filter(|answer| **answer == allowed(amount));

            assert_eq!(given.count(), 1, "{call}: {answers:?}");
        }

        agent.next_turn(turn + 2).await;
    }

    agent.answers("done").await;
    let turns = usize::try_from(turns() + 1).expect("few");
    eventually("the turns", async || {
        agent.bench.completed(&agent.main).await.len() == turns
    })
    .await;

    for gate in [gate, other_gate] {
        gate.stop().await;
    }

    for running in [first, second] {
        running.stop().await;
    }
}
