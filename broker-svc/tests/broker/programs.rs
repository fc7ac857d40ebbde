//! Programs of one's own as agents: the two documented examples, and one that does not want to end.

use std::path::{Path, PathBuf};

use shared::model::ledger::{LedgerEntry, TurnFailure};

use crate::bench::{Bench, eventually, session};

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
