//! Hooks that run when something is over, a call or a turn: each to its end, once, and nobody waits for them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use shared::bus::ServiceSpec;
use shared::llm::ModelProvider;
use shared::model::ledger::{LedgerEntry, ToolOutcome};
use shared::model::permission::PermissionLevel;
use shared::model::session::{QueueMode, SessionRef};
use shared::testing::model_server::ScriptedAnswer;
use shared::testing::{ModelServer, eventually};
use tokio::sync::Notify;

use crate::bench::{Bench, Running, dispatch, session};
use crate::hooked::{connector, insisting, settled_turns};
use crate::models::{PERSONA, config};

/// A hook's program: it appends its question to a file, and ends when nobody holds the lock of another.
struct Slow {
    folder: tempfile::TempDir,
    command: String,
    /// Locked until the hooks may end.
    held: std::fs::File,
}

impl Slow {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("slow.py");
        std::fs::write(
            &program,
            "import fcntl, sys\nhere = sys.argv[1]\nopen(here + '/asked', 'a').write(sys.stdin.read() + '\\n')\n\
             fcntl.flock(open(here + '/held'), fcntl.LOCK_SH)\n",
        )
        .expect("a program");

        let held = std::fs::File::create(folder.path().join("held")).expect("a file");
        held.lock().expect("a lock");
        let command = format!("python3 {} {}", program.display(), folder.path().display());

        Self { folder, command, held }
    }

    fn hooks(&self, point: &str, rest: &str) -> String {
        let command = &self.command;
        format!(
            "enabled: true\nallow: {{all: ['{command}']}}\nhooks:\n  \
             - {{name: slow, hook: {point}, command: '{command}', blocking: true, priority: 1, timeout: 300}}\n{rest}"
        )
    }

    fn asked(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("asked")).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    async fn begun(&self, times: usize) {
        eventually("the hook is asked", async || self.asked().len() == times).await;
    }

    fn go(&self) {
        self.held.unlock().expect("a lock");
    }
}

async fn send(bench: &Bench, to: &SessionRef, event: u64, mode: Option<QueueMode>) {
    let mut dispatch = dispatch(to, event);
    dispatch.permissions.level = PermissionLevel::Full;
    dispatch.queue_mode = mode;
    bench.publish(&dispatch).await;
    bench.claim(to).await;
}

async fn run(bench: &Bench, name: &str, hooks: &str, server: &ModelServer) -> Running {
    bench
        .run_hooked(name, PERSONA, hooks, config(server, ModelProvider::OpenAi, "openai"))
        .await
}

fn ends(entries: &[LedgerEntry]) -> Vec<(bool, ToolOutcome)> {
    let mut ends = Vec::new();
    for entry in entries {
        if let LedgerEntry::ToolFinished { outcome, unseen, .. } = entry {
            ends.push((*unseen, outcome.clone()));
        }
    }
    ends
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_tool_is_in_the_ledger_before_the_hooks_behind_it_have_ended() {
    let bench = Bench::start().await;
    let (count, service) = connector(&bench, json!("a result")).await;
    let server = insisting("list_hooks", json!({}), 1).await;
    let slow = Slow::new();
    let hooks = slow.hooks("PostToolUse", "");
    let main = session("main");
    let first = run(&bench, "b1", &hooks, &server).await;
    send(&bench, &main, 1, None).await;
    slow.begun(1).await;

    // As if killed: nothing of it is said to the server any more.
    drop(first);
    slow.go();
    let second = run(&bench, "b2", &hooks, &server).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;

    assert_eq!(count.load(Ordering::SeqCst), 1, "the tool ran once");

    let result = json!("a result");
    let ok = ToolOutcome::Ok { result };
    assert_eq!(ends(&bench.entries(&main).await), [(true, ok.clone()), (false, ok)]);
    assert_eq!(slow.asked().len(), 2);

    second.stop().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_a_crash_interrupted_is_told_of_as_any_other() {
    let bench = Bench::start().await;
    let (begun, never) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell, wait) = (Arc::clone(&begun), Arc::clone(&never));

    let spec = ServiceSpec::new("hook", "test").endpoint("create", move |_: Value| {
        let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
        async move {
            tell.notify_one();
            wait.notified().await;
            Ok::<_, (usize, String)>(Value::Null)
        }
    });

    let service = bench.bus.serve(spec).await.expect("a service");
    let server = insisting("create_hook", json!({"name": "a", "script": "b"}), 1).await;
    let hooks = "
hooks:
  - {name: before, hook: PreToolUse, builtin: audit_log}
  - {name: after, hook: PostToolUse, builtin: audit_log}
";

    let main = session("main");
    let first = run(&bench, "b1", hooks, &server).await;
    send(&bench, &main, 1, None).await;
    begun.notified().await;
    drop(first);
    let second = run(&bench, "b2", hooks, &server).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;

    let records = bench.hook_records().await;
    let phases: Vec<_> = records
        .iter()
        .map(|record| (&record["phase"], &record["result"]))
        .collect();

    assert_eq!(
        phases,
        [
            (&json!("before"), &Value::Null),
            (&json!("after"), &json!("interrupted"))
        ]
    );
    assert_eq!(records[1]["arguments"]["name"], "a");

    never.notify_waiters();
    second.stop().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_does_not_wait_for_the_hooks_behind_a_call_and_they_run_all_the_same() {
    let bench = Bench::start().await;
    let (count, service) = connector(&bench, json!("a result")).await;
    let server = insisting("list_hooks", json!({}), 1).await;
    let slow = Slow::new();
    let main = session("main");
    let running = run(&bench, "b1", &slow.hooks("PostToolUse", ""), &server).await;
    send(&bench, &main, 1, None).await;
    slow.begun(1).await;
    send(&bench, &main, 2, Some(QueueMode::Interrupt)).await;

    eventually("the interruption", async || {
        let entries = bench.entries(&main).await;
        entries
            .iter()
            .any(|entry| matches!(entry, LedgerEntry::TurnInterrupted { .. }))
    })
    .await;

    slow.go();
    eventually("the newest", async || bench.completed(&main).await.len() == 1).await;
    eventually("what was owed", async || {
        settled_turns(&bench.entries(&main).await) == 1
    })
    .await;

    assert_eq!(
        slow.asked()[1]["tool_response"],
        "a result",
        "the call of the turn that is over"
    );
    assert!(count.load(Ordering::SeqCst) >= 1);

    running.stop().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_turn_does_not_wait_for_the_last_hooks_of_the_one_before() {
    let bench = Bench::start().await;
    let server = ModelServer::ruled(|_, _| ScriptedAnswer::text("hello")).await;
    let slow = Slow::new();
    let main = session("main");
    let running = run(&bench, "b1", &slow.hooks("Stop", ""), &server).await;
    send(&bench, &main, 1, None).await;
    slow.begun(1).await;
    send(&bench, &main, 2, None).await;
    eventually("the second", async || bench.completed(&main).await.len() == 2).await;

    assert_eq!((slow.asked().len(), settled_turns(&bench.entries(&main).await)), (1, 0));

    slow.go();
    eventually("both are settled", async || {
        settled_turns(&bench.entries(&main).await) == 2
    })
    .await;
    let asked = slow.asked();
    let told: Vec<_> = asked
        .iter()
        .map(|asked| (&asked["user_id"], &asked["prompt"]))
        .collect();

    assert_eq!(
        told,
        [(&json!("v1"), &json!("message 1")), (&json!("v1"), &json!("message 2"))]
    );

    running.stop().await;
}

/// A command that appends a line to `path`, and fails as long as there are fewer than `fails` lines.
fn failing(folder: &Path, name: &str, fails: usize) -> (PathBuf, String) {
    let (notes, program) = (folder.join(name), folder.join(format!("{name}.py")));
    let text = format!(
        "import os, sys\npath = sys.argv[1]\nbefore = len(open(path).readlines()) if os.path.exists(path) else 0\n\
         open(path, 'a').write('x\\n')\nsys.exit(1 if before < {fails} else 0)\n"
    );
    std::fs::write(&program, text).expect("a program");
    let command = format!("python3 {} {}", program.display(), notes.display());
    (notes, command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_last_hook_that_fails_is_tried_again_and_the_others_are_not() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (good, first) = failing(folder.path(), "good", 0);
    let (bad, second) = failing(folder.path(), "bad", 1);
    let hooks = format!(
        "enabled: true\nallow: {{all: ['{first}', '{second}']}}\nhooks:\n  \
         - {{name: good, hook: Stop, command: '{first}', priority: 1}}\n  \
         - {{name: bad, hook: Stop, command: '{second}', priority: 2}}\n"
    );

    let server = ModelServer::ruled(|_, _| ScriptedAnswer::text("hello")).await;
    let main = session("main");
    let running = run(&bench, "b1", &hooks, &server).await;
    send(&bench, &main, 1, None).await;
    eventually("it is settled", async || {
        settled_turns(&bench.entries(&main).await) == 1
    })
    .await;
    let lines = |path: &Path| std::fs::read_to_string(path).unwrap_or_default().lines().count();

    assert_eq!((lines(&good), lines(&bad)), (1, 2));

    let records = bench.hook_records().await;
    let commands = records.iter().filter(|record| record["kind"] == "hook_command");
    let codes: Vec<_> = commands.map(|record| record["exit_code"].clone()).collect();

    assert_eq!(codes, [0, 1, 0], "each run is told of");

    running.stop().await;
}
