//! Programs of one's own as agents: the two documented examples, and one that does not want to end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use broker_svc::config::BrokerConfig;
use shared::clock::pause;
use shared::model::ledger::{LedgerEntry, TurnFailure};

use crate::bench::{Bench, broker_at, child, eventually, run_broker, session, told};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/examples")
        .join(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_examples_answer() {
    let bench = Bench::start().await;
    let programs = [
        (
            "python",
            format!("command: python3, args: ['{}']", example("agent.py").display()),
            "python heard: message 1",
        ),
        (
            "bash",
            format!("command: bash, args: ['{}']", example("agent.sh").display()),
            "bash heard: message 1",
        ),
    ];
    for (number, (name, program, expected)) in programs.into_iter().enumerate() {
        let personas = format!("personas: {{default: {{runner: process, process: {{{program}}}}}}}");
        let running = bench.run("b1", &personas).await;
        let here = session(name);
        bench.send(&here, 1).await;
        eventually("the turn", async || bench.completed(&here).await.len() == 1).await;
        let reply = bench.until_replies(number + 1).await.pop().expect("a reply");
        assert_eq!(reply.content, expected);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_end_is_killed_with_its_children() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let children = folder.path().join("children");
    // The child outlives its parent's death unless the whole group is killed.
    let script = format!("sleep 600 & echo $! >> {}; wait", children.display());
    let personas = format!(
        "personas: {{default: {{runner: process, limits: {{wall_ms: 10000}}, process: {{command: bash, args: ['-c', '{script}']}}}}}}"
    );
    let running = bench.run("b1", &personas).await;
    let main = session("main");
    bench.send(&main, 1).await;
    eventually("the failure", async || {
        bench.entries(&main).await.iter().any(|entry| {
            matches!(entry, LedgerEntry::TurnFailed { failure: TurnFailure::Limit { limit }, .. } if limit == "wall_ms")
        })
    })
    .await;
    let pids = std::fs::read_to_string(&children).expect("it had begun");
    for pid in pids.split_whitespace() {
        let process = PathBuf::from(format!("/proc/{pid}/stat"));
        eventually("the child is gone", async || {
            let stat = std::fs::read_to_string(&process).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        })
        .await;
    }
    running.stop().await;
}

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_BROKER_URL";
/// Names its personas.
const PERSONAS: &str = "NEXUS_TEST_BROKER_PERSONAS";

/// Not a test: what the child runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let (Some(url), Some(personas)) = (told(URL), told(PERSONAS)) else {
        return;
    };
    let broker = broker_at(&url, "child", &personas, BrokerConfig::default()).await;
    let _running = run_broker(Arc::new(broker));
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_ends_with_a_broker_that_is_killed() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let lines = folder.path().join("lines");
    // Neither does it read its input, nor do its children.
    let script = format!(
        "trap '' TERM; (while true; do echo x >> {}; sleep 0.05; done) & wait",
        lines.display()
    );
    let personas =
        format!("personas: {{default: {{runner: process, process: {{command: bash, args: ['-c', \"{script}\"]}}}}}}");
    let url = bench.server.url();
    let mut broker = child("programs::a_broker_of_its_own", &[(URL, &url), (PERSONAS, &personas)]);
    bench.send(&session("main"), 1).await;
    let written = || std::fs::metadata(&lines).map_or(0, |lines| lines.len());
    eventually("it is at work", async || written() > 4).await;
    broker.kill().await.expect("SIGKILL");
    eventually("it is silent", async || {
        let before = written();
        pause(Duration::from_secs(1)).await;
        written() == before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_says_nothing_is_told_of_with_its_complaint() {
    let bench = Bench::start().await;
    let personas =
        "personas: {default: {runner: process, process: {command: bash, args: ['-c', 'echo no key >&2; exit 3']}}}";
    let running = bench.run("b1", personas).await;
    let main = session("main");
    bench.send(&main, 1).await;
    eventually("the failure", async || {
        bench.entries(&main).await.iter().any(|entry| {
            matches!(entry, LedgerEntry::TurnFailed { failure: TurnFailure::Agent { error }, .. } if error.contains("no key"))
        })
    })
    .await;
    running.stop().await;
}
