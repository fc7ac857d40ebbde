//! Command hooks in real turns: existing scripts, time-outs, what is skipped, what is told of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker_svc::agent::personas::Personas;
use broker_svc::hooks::HookPoint;
use broker_svc::hooks::breakers::TurnBreakers;
use broker_svc::hooks::declared::DeclaredHook;
use broker_svc::hooks::rules::HookRules;
use serde_json::{Value, json};
use shared::breaker::Breaker;
use shared::llm::ModelProvider;
use shared::model::ledger::LedgerEntry;
use shared::model::time::UnixMillis;
use shared::testing::model_server::ScriptedAnswer;
use shared::testing::{ManualClock, ModelServer, eventually};
use shared::wire::subject;
use shared::wire::topology::buckets;

use crate::bench::{Bench, session};
use crate::hooked::{connector, insisting, ran};
use crate::models::{PERSONA, config, send};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks/claude_pre_tool_use.py")
}

fn results(entries: &[LedgerEntry]) -> Vec<String> {
    ran(entries)
        .into_iter()
        .map(|(_, _, told)| told["result"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_script_of_claude_code_refuses_and_allows_unchanged() {
    let bench = Bench::start().await;
    let (count, service) = connector(&bench, Value::Null).await;
    let command = format!("python3 {}", script().display());
    let hooks = format!(
        "enabled: true\nallow: {{all: ['{command}']}}\nhooks: [{{name: claude, hook: PreToolUse, command: '{command}', blocking: true}}]"
    );

    for (name, arguments, refused) in [
        ("bad", json!({"name": "a", "script": "rm -rf /"}), true),
        ("good", json!({"name": "a", "script": "return {fire: false}"}), false),
    ] {
        let server = insisting("create_hook", arguments, 1).await;
        let llm = config(&server, ModelProvider::OpenAi, "openai");
        let running = bench.run_hooked("b1", PERSONA, &hooks, llm).await;
        let here = session(name);
        let mut live = bench
            .bus
            .core_subscribe(&subject::stream(&here))
            .await
            .expect("a stream");

        send(&bench, &here, 1, &["*"], 0).await;
        eventually("the turn", async || bench.completed(&here).await.len() == 1).await;
        let told = server.requests()[1].tool_results();

        assert_eq!(count.load(Ordering::SeqCst), usize::from(!refused), "{name}: {told:?}");

        if refused {
            assert_eq!(told, ["error: Blocked: the script removes files"]);
        }

        // Nothing is streamed before the tool: the first that is heard is the command's record.
        let heard = live.next().await.expect("a record");
        let heard: Value = serde_json::from_slice(&heard.payload).expect("JSON");
        assert_eq!(
            (&heard["kind"], &heard["exit_code"]),
            (&json!("hook_command"), &json!(if refused { 2 } else { 0 }))
        );

        running.stop().await;
    }

    let records = bench.hook_records().await;
    let commands = records.iter().filter(|record| record["kind"] == "hook_command").count();
    assert_eq!(commands, 2, "{records:?}");

    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_off_the_list_or_too_slow_or_broken_refuses_and_is_told() {
    let bench = Bench::start().await;
    let (count, service) = connector(&bench, Value::Null).await;
    let folder = tempfile::tempdir().expect("a folder");
    let witness = folder.path().join("ran");
    let slow = folder.path().join("slow.sh");
    std::fs::write(&slow, "sleep 600 & echo $! > \"$1\"; wait\n").expect("a script");
    let children = folder.path().join("children");
    let slow = format!("sh {} {}", slow.display(), children.display());

    let cases = [
        ("off", format!("touch {}", witness.display()), "not allowed", "skipped"),
        (
            "piped",
            format!("true && touch {}", witness.display()),
            "not allowed",
            "skipped",
        ),
        ("slow", slow.clone(), "no answer within 5000 ms", "failed"),
        ("broken", "false".to_owned(), "exit 1", "failed"),
    ];

    for (name, command, reason, result) in cases {
        let hooks = format!(
            "enabled: true\nallow: {{all: ['{slow}', 'false']}}\nhooks: [{{name: gate, hook: PreToolUse, command: '{command}', blocking: true, timeout: 5}}]"
        );
        let server = insisting("list_hooks", json!({}), 1).await;
        let llm = config(&server, ModelProvider::OpenAi, "openai");
        let running = bench.run_hooked("b1", PERSONA, &hooks, llm).await;
        let here = session(name);
        send(&bench, &here, 1, &["*"], 0).await;
        eventually("the turn", async || bench.completed(&here).await.len() == 1).await;

        let told = server.requests()[1].tool_results();
        assert!(told[0].contains(reason), "{name}: {told:?}");
        assert_eq!(results(&bench.entries(&here).await), [result], "{name}");

        running.stop().await;
    }

    assert_eq!(
        count.load(Ordering::SeqCst),
        0,
        "no gate that does not answer lets a call pass"
    );
    assert!(!witness.exists(), "what is off the list was never run");

    let pid = std::fs::read_to_string(&children).expect("it had begun");
    let process = PathBuf::from(format!("/proc/{}/stat", pid.trim()));
    eventually("the child is gone", async || {
        let stat = std::fs::read_to_string(&process).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    })
    .await;

    let records = bench.hook_records().await;
    let skipped: Vec<&Value> = records
        .iter()
        .filter(|record| record["kind"] == "hook_command_skipped")
        .collect();

    assert_eq!(skipped.len(), 2, "{records:?}");
    assert!(
        skipped[1]["hint"].as_str().is_some_and(|hint| hint.contains("&&")),
        "{skipped:?}"
    );

    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_rewrites_arguments_and_the_tool_gets_exactly_those() {
    let bench = Bench::start().await;
    let (_count, service) = connector(&bench, Value::Null).await;
    let folder = tempfile::tempdir().expect("a folder");
    let answer = folder.path().join("answer.json");
    let said = json!({"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow",
        "updatedInput": {"status": "paused"}, "additionalContext": "the list was narrowed"}});
    std::fs::write(&answer, said.to_string()).expect("an answer");

    let command = format!("cat {}", answer.display());
    let hooks = format!(
        "enabled: true\nallow: {{default: ['{command}']}}\nhooks: [{{name: narrow, hook: PreToolUse, command: '{command}', blocking: true}}]"
    );
    let server = insisting("list_hooks", json!({"status": "active"}), 1).await;
    let llm = config(&server, ModelProvider::OpenAi, "openai");
    let running = bench.run_hooked("b1", PERSONA, &hooks, llm).await;

    let main = session("main");
    send(&bench, &main, 1, &["*"], 0).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    let request = server.requests().pop().expect("a request");

    assert_eq!(
        request.tool_results(),
        [r#"{"status":"paused"}"#],
        "the connector says what it was asked"
    );
    assert!(
        request.last_user_text().contains("the list was narrowed"),
        "{}",
        request.body
    );

    let entries = bench.entries(&main).await;
    let started = entries.iter().any(|entry| {
        matches!(entry, LedgerEntry::ToolStarted { arguments: Some(arguments), .. } if *arguments == json!({"status": "paused"}))
    });

    assert!(started, "{entries:?}");

    running.stop().await;
    service.stop().await;
}

/// The one hook of `hooks`.
fn only(hooks: &str) -> Arc<DeclaredHook> {
    let rules = HookRules::parse(hooks, &Personas::default()).expect("hooks");
    let set = rules.hooks_of(&session("main"), &[]);
    set.at(HookPoint::PreToolUse).next().cloned().expect("one")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_keeps_failing_is_paused_on_every_broker_and_probed_by_one() {
    let bench = Bench::start().await;
    let clock = Arc::new(ManualClock::at(UnixMillis(1_769_000_000_000)));
    let hook = only("hooks: [{name: gate, hook: PreToolUse, script: turn/policy}]");
    let breakers = |name: &str| Arc::new(TurnBreakers::new(&bench.bus, clock.clone(), name));
    let (one, other) = (breakers("b1"), breakers("b2"));
    let following = [&one, &other].map(|breakers| {
        let breakers = Arc::clone(breakers);
        tokio::spawn(async move { breakers.follow_bucket().await })
    });

    for _ in 0..3 {
        one.record(&hook, true).await;
    }

    // Failures in a row count together, whoever had them.
    for _ in 0..2 {
        other.record(&hook, true).await;
    }

    eventually("both know", async || one.admit_hook(&hook).await.is_err()).await;
    assert!(other.admit_hook(&hook).await.is_err());

    let shown = bench.bus.kv::<Breaker>(buckets::BREAKERS).entries().await.expect("KV");
    assert_eq!((shown.len(), shown[0].1.value.hook_id.as_str()), (1, "turn:gate"));

    // Whoever begins late hears of it; another declaration of the same name is not meant.
    let late = breakers("b3");
    let other_hook = only("hooks: [{name: gate, hook: PreToolUse, script: turn/other}]");
    let heard = Arc::clone(&late);
    let follows = tokio::spawn(async move { heard.follow_bucket().await });
    eventually("the third knows", async || late.admit_hook(&hook).await.is_err()).await;
    late.admit_hook(&other_hook).await.expect("it never failed");
    clock.advance(301_000);

    let (first, second) = tokio::join!(one.admit_hook(&hook), other.admit_hook(&hook));
    assert!(first.is_ok() != second.is_ok(), "one probes: {first:?} {second:?}");

    let prober = if first.is_ok() { &one } else { &other };
    // Its turn is canceled, and nobody hears of the probe again.
    clock.advance(301_000);
    prober.admit_hook(&hook).await.expect("its claim has run out");
    prober.record(&hook, false).await;

    for breakers in [&one, &other, &late] {
        eventually("it runs again", async || breakers.admit_hook(&hook).await.is_ok()).await;
    }

    following.iter().for_each(tokio::task::JoinHandle::abort);
    follows.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_is_paused_refuses_within_the_turn_and_is_not_asked() {
    let bench = Bench::start().await;
    let (count, service) = connector(&bench, Value::Null).await;
    let hooks = "
enabled: true
allow: {all: ['false']}
hooks: [{name: gate, hook: PreToolUse, command: 'false', blocking: true}]
";

    let server = insisting("list_hooks", json!({}), 7).await;
    let llm = || config(&server, ModelProvider::OpenAi, "openai");
    let running = bench.run_hooked("b1", PERSONA, hooks, llm()).await;
    let here = session("failing");
    send(&bench, &here, 1, &["*"], 0).await;
    eventually("the turn", async || bench.completed(&here).await.len() == 1).await;
    let told = server.requests().last().expect("a request").tool_results();
    let paused = told
        .iter()
        .map(|told| told.contains("paused after repeated errors"))
        .collect::<Vec<_>>();

    assert_eq!(paused, [false, false, false, false, false, true, true], "{told:?}");

    let runs = async || {
        let records = bench.hook_records().await;
        records.iter().filter(|record| record["kind"] == "hook_command").count()
    };
    assert_eq!(runs().await, 5, "five in a row");
    assert_eq!(count.load(Ordering::SeqCst), 0, "and no call was let through");

    running.stop().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_what_a_command_says_the_beginning_is_told_in_whole_characters() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long");
    let begins = "x".repeat(4_095);
    std::fs::write(&long, format!("{begins}\u{fc}ber")).expect("a file");
    let command = format!("cat {}", long.display());
    let hooks = format!(
        "enabled: true\nallow: {{all: ['{command}']}}\nhooks: [{{name: long, hook: Stop, command: '{command}', blocking: true}}]"
    );

    let server = ModelServer::scripted([ScriptedAnswer::text("hello")]).await;
    let llm = config(&server, ModelProvider::OpenAi, "openai");
    let running = bench.run_hooked("b1", PERSONA, &hooks, llm).await;
    send(&bench, &session("main"), 1, &["*"], 0).await;
    let told = async || {
        let records = bench.hook_records().await;
        let mut told = records.into_iter().filter(|record| record["kind"] == "hook_command");
        told.next().map(|record| record["stdout"].clone())
    };

    eventually("it is told", async || told().await.is_some()).await;
    assert_eq!(
        told().await,
        Some(json!(begins)),
        "the character at the cut is left out"
    );

    running.stop().await;
}
