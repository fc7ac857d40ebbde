//! An agent in another language: Python 3 with nothing but a socket.

use std::path::Path;
use std::process::Stdio;

use shared::model::ledger::{LedgerEntry, TurnFailure};
use shared::testing::eventually;
use shared::wire::session_mark::AgentAway;
use shared::wire::subject;
use shared::wire::topology::buckets::SESSION_CHECKPOINTS;
use tokio::process::{Child, Command};

use crate::bench::{Bench, session};

/// Asks again soon, so that the test need not wait for a dead agent's answer.
const REMOTE: &str = "personas: {default: {runner: nats, limits: {reply_timeout_ms: 1500, no_agent_ms: 20000}}}";

fn agent(bench: &Bench, memory: &Path, mode: &str) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/agent.py");
    let url = bench.server.url();
    let address = url.strip_prefix("nats://").expect("a NATS address");
    let mut command = Command::new("python3");

    command
        .arg(script)
        .args([address, "default"])
        .arg(memory)
        .arg(mode)
        .stdin(Stdio::null())
        .kill_on_drop(true);

    command.spawn().expect("python3 is there")
}

async fn lines(memory: &Path) -> Vec<String> {
    let text = tokio::fs::read_to_string(memory).await.unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_in_the_middle_of_a_turn_works_once_and_answers_when_it_is_back() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let memory = folder.path().join("turns");
    let mut first = agent(&bench, &memory, "die");
    let running = bench.run("b1", REMOTE).await;
    let main = session("main");
    bench.send(&main, 1).await;

    // It notes the turn as done and dies before it answers.
    assert!(!first.wait().await.expect("it ends").success());
    assert_eq!(lines(&memory).await.len(), 1);

    let mut second = agent(&bench, &memory, "live");
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    bench.send(&main, 2).await;
    eventually("two replies", async || bench.replies().await.len() == 2).await;
    let done = lines(&memory).await;

    assert_eq!(done.len(), 2, "each turn was worked on once: {done:?}");

    let said: Vec<String> = bench.replies().await.into_iter().map(|reply| reply.content).collect();
    assert_eq!(said, ["python: message 1", "python: message 2"]);

    running.stop().await;
    second.kill().await.expect("it is ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_serves_the_persona_the_user_is_told() {
    let bench = Bench::start().await;
    let personas = "personas: {default: {runner: nats, limits: {no_agent_ms: 300}}}";
    let running = bench.run("b1", personas).await;
    let main = session("main");
    bench.send(&main, 1).await;
    eventually("a reply", async || bench.replies().await.len() == 1).await;
    let entries = bench.entries(&main).await;

    let failed = entries.iter().any(|e| {
        matches!(
            e,
            LedgerEntry::TurnFailed {
                failure: TurnFailure::NoAgent,
                ..
            }
        )
    });

    assert!(
        failed && bench.replies().await[0].content.contains("No agent is available"),
        "{entries:?}"
    );

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_asked_to_stop_in_the_middle_of_a_turn_hands_it_to_another() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let memory = folder.path().join("turns");
    let personas = "personas: {default: {runner: nats, limits: {no_agent_ms: 60000}}}";
    let first = bench.run("b1", personas).await;
    let main = session("main");
    bench.send(&main, 1).await;
    eventually("the turn begins", async || !bench.ledger(&main).await.is_empty()).await;
    first.stop().await;

    let second = bench.run("b2", personas).await;
    let mut python = agent(&bench, &memory, "live");
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    second.stop().await;
    python.kill().await.expect("it is ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_away_is_noted_until_it_answers() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let running = bench.run("b1", REMOTE).await;
    let main = session("main");
    let noted = async || {
        let notes = bench.bus.kv::<AgentAway>(SESSION_CHECKPOINTS);
        let entry = notes.get(&subject::away_key(&main)).await.expect("KV answers");
        entry.map(|entry| entry.value)
    };

    bench.send(&main, 1).await;
    eventually("a note", async || noted().await.is_some()).await;
    let away = noted().await.expect("a note");

    assert_eq!(
        (&away.session, away.why.as_str()),
        (&main, "no agent serves this persona")
    );
    assert!(away.until > away.since, "{away:?}");

    let mut agent = agent(&bench, &folder.path().join("turns"), "live");
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    eventually("no note", async || noted().await.is_none()).await;
    running.stop().await;
    agent.kill().await.expect("it is ended");
}
