//! Hooks within turns against a model that insists: it calls the tool again and again, and argues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use broker_svc::agent::personas::Personas;
use broker_svc::hooks::rules::HookRules;
use broker_svc::hooks::{GateDecision, HookedTurn, TurnHooks};
use serde_json::{Value, json};
use shared::bus::{ServiceHandle, ServiceSpec};
use shared::clock::{Clock as _, SystemClock};
use shared::llm::ModelProvider;
use shared::model::ledger::{LedgerEntry, ToolCall, ToolOutcome};
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use shared::testing::{ModelServer, eventually};

use crate::bench::{Bench, session};
use crate::models::{PERSONA, config, send};
use crate::sizes::is_long;

/// A model that calls `name` with `arguments` as often as `times`, whatever it is told, and then gives in.
pub(crate) async fn insisting(name: &'static str, arguments: Value, times: usize) -> ModelServer {
    ModelServer::ruled(move |request, _| {
        let results = request.tool_results();
        if results.len() >= times {
            return ScriptedAnswer::text(&format!("I was told: {}", results.join(" / ")));
        }
        ScriptedAnswer::calls([ScriptedCall::new(&format!("c{}", results.len()), name, &arguments)])
    })
    .await
}

/// The connector behind `list_hooks` and `create_hook`: it counts, and answers with what it was asked.
pub(crate) async fn connector(bench: &Bench, answer: Value) -> (Arc<AtomicUsize>, ServiceHandle) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = |answer: Value| {
        let count = Arc::clone(&count);
        move |question: Value| {
            let (count, answer) = (Arc::clone(&count), answer.clone());
            async move {
                count.fetch_add(1, Ordering::SeqCst);
                Ok::<_, (usize, String)>(if answer.is_null() { question } else { answer })
            }
        }
    };

    let spec = ServiceSpec::new("hook", "test")
        .endpoint("list", counted(answer.clone()))
        .endpoint("create", counted(answer));
    let service = bench.bus.serve(spec).await.expect("a service");

    (count, service)
}

pub(crate) fn ran(entries: &[LedgerEntry]) -> Vec<(String, String, Value)> {
    let mut all = Vec::new();
    for entry in entries {
        if let LedgerEntry::HookRan { hook, point, outcome } = entry {
            let outcome = serde_json::to_value(outcome).expect("JSON");
            all.push((hook.clone(), point.clone(), outcome));
        }
    }
    all
}

/// Counts the turns whose post-turn hooks have all run.
pub(crate) fn settled_turns(entries: &[LedgerEntry]) -> usize {
    let settled = |entry: &&LedgerEntry| matches!(entry, LedgerEntry::PostHooksSettled { .. });
    entries.iter().filter(settled).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn in_read_only_mode_no_write_happens_however_the_model_insists() {
    let bench = Bench::start().await;
    let (count, service) = connector(&bench, Value::Null).await;
    let server = insisting("create_hook", json!({"name": "a", "script": "b"}), 4).await;
    let hooks = "
read_only: true
hooks: [{hook: PreToolUse, builtin: read_only_guard}]
";

    let llm = config(&server, ModelProvider::OpenAi, "openai");
    let running = bench.run_hooked("b1", PERSONA, hooks, llm).await;
    let main = session("main");
    send(&bench, &main, 1, &["*"], 0).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;

    assert_eq!(count.load(Ordering::SeqCst), 0, "nothing was written");

    let told = server.requests().last().expect("a request").tool_results();
    assert_eq!(told.len(), 4);
    assert!(told.iter().all(|told| told.contains("read-only mode")), "{told:?}");

    let entries = bench.entries(&main).await;
    let denied = ran(&entries);
    assert!(
        denied.len() == 4 && denied.iter().all(|(_, _, outcome)| outcome["result"] == "denied"),
        "{denied:?}"
    );
    assert!(
        !entries
            .iter()
            .any(|entry| matches!(entry, LedgerEntry::ToolStarted { .. }))
    );

    let records = bench.hook_records().await;
    assert_eq!(records.len(), 4, "each denial is audited: {records:?}");
    assert_eq!(
        (&records[0]["hook"], &records[0]["result"]),
        (&json!("read_only_guard"), &json!("denied"))
    );

    running.stop().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_a_connector_is_logged_before_it_runs_and_after() {
    let bench = Bench::start().await;
    let bus = bench.bus.clone();
    let logged_before = Arc::new(AtomicUsize::new(0));
    let logged = Arc::clone(&logged_before);

    // The connector looks itself: the record of this very call must be there.
    let spec = ServiceSpec::new("hook", "test").endpoint("list", move |question: Value| {
        let (bus, logged) = (bus.clone(), Arc::clone(&logged));
        async move {
            let stored = bus
                .read_history(shared::wire::topology::streams::AUDIT, "nexus.audit.turn", 1, 100)
                .await;
            let stored = stored.map_err(|error| (500, error.to_string()))?;
            let read = |payload: &[u8]| serde_json::from_slice::<Value>(payload).unwrap_or_default();

            let is_of_this = |record: &Value| record["phase"] == "before" && record["arguments"] == question;
            if stored
                .iter()
                .map(|message| read(&message.payload))
                .any(|record| is_of_this(&record))
            {
                logged.fetch_add(1, Ordering::SeqCst);
            }

            Ok::<_, (usize, String)>(json!({"hooks": []}))
        }
    });

    let service = bench.bus.serve(spec).await.expect("a service");
    let server = insisting("list_hooks", json!({"status": "active"}), 3).await;
    let hooks = "
hooks:
  - {name: before, hook: PreToolUse, builtin: audit_log, tools: [list_*], priority: 1}
  - {name: after, hook: PostToolUse, builtin: audit_log, tools: [list_*]}
";

    let llm = config(&server, ModelProvider::OpenAi, "openai");
    let running = bench.run_hooked("b1", PERSONA, hooks, llm).await;
    let main = session("main");
    send(&bench, &main, 1, &["*"], 0).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;

    assert_eq!(logged_before.load(Ordering::SeqCst), 3);

    let records = bench.hook_records().await;
    let phases: Vec<&str> = records.iter().filter_map(|record| record["phase"].as_str()).collect();
    assert_eq!(phases, ["before", "after", "before", "after", "before", "after"]);
    assert_eq!(records[1]["result"], json!({"hooks": []}));
    assert_eq!(
        (&records[0]["tool"], &records[0]["user"]),
        (&json!("list_hooks"), &json!("v1"))
    );

    running.stop().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_result_is_cut_before_the_model_reads_it() {
    let bench = Bench::start().await;
    let (count, service) = connector(&bench, json!("ü".repeat(9_000))).await;
    let server = insisting("list_hooks", json!({}), 1).await;
    let hooks = "hooks: [{hook: PostToolUse, builtin: result_truncate}]";
    let llm = config(&server, ModelProvider::OpenAi, "openai");
    let running = bench.run_hooked("b1", PERSONA, hooks, llm).await;
    let main = session("main");
    send(&bench, &main, 1, &["*"], 0).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;

    let told = server.requests()[1].tool_results();
    assert_eq!(
        told[0],
        format!("{}… [cut: 8000 of 9000 characters]", "ü".repeat(8_000))
    );
    assert_eq!(count.load(Ordering::SeqCst), 1);

    running.stop().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_calls_a_minute_hold_over_three_brokers() {
    let bench = Bench::start().await;
    let (count, service) = connector(&bench, json!({"hooks": []})).await;
    let hooks = "hooks: [{hook: PreToolUse, builtin: rate_limit, tools: [list_*], with: {calls: 10, seconds: 600}}]";
    let servers = [
        insisting("list_hooks", json!({}), 6).await,
        insisting("list_hooks", json!({}), 6).await,
        insisting("list_hooks", json!({}), 6).await,
    ];

    let mut brokers = Vec::new();
    for (number, server) in servers.iter().enumerate() {
        let llm = config(server, ModelProvider::OpenAi, "openai");
        brokers.push(bench.run_hooked(&format!("b{number}"), PERSONA, hooks, llm).await);
    }

    let sessions: Vec<_> = (0..9).map(|number| session(&format!("s{number}"))).collect();
    for here in &sessions {
        send(&bench, here, 1, &["*"], 0).await;
    }

    for here in &sessions {
        eventually("the turn", async || bench.completed(here).await.len() == 1).await;
    }

    assert_eq!(count.load(Ordering::SeqCst), 10, "54 calls were asked for");

    let mut refused = 0;
    for here in &sessions {
        refused += ran(&bench.entries(here).await).len();
    }

    assert_eq!(refused, 44);

    for broker in brokers {
        broker.stop().await;
    }

    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_of_the_stream_put_text_in_hide_tools_and_redact() {
    let bench = Bench::start().await;
    let (count, service) = connector(&bench, Value::Null).await;
    let server = insisting("list_hooks", json!({}), 1).await;
    let folder = tempfile::tempdir().expect("a folder");
    let hide = folder.path().join("hide.json");
    std::fs::write(&hide, r#"{"hiddenTools": ["list_*"]}"#).expect("an answer");
    let redact = folder.path().join("redact.json");
    std::fs::write(&redact, r#"{"updatedOutput": "[redacted]"}"#).expect("an answer");

    let hooks = format!(
        "enabled: true
allow: {{all: [cat *]}}
hooks:
  - {{name: hide, hook: pre_stream, command: cat {}, blocking: true}}
  - {{name: hi, hook: SessionStart, reminder: be kind}}
  - {{name: each, hook: BeforeModel, reminder: be quick, trigger: {{interval: 1}}}}
  - {{name: hush, hook: post_stream, command: cat {}, blocking: true}}
",
        hide.display(),
        redact.display()
    );

    let llm = config(&server, ModelProvider::OpenAi, "openai");
    let running = bench.run_hooked("b1", PERSONA, &hooks, llm).await;
    let main = session("main");
    send(&bench, &main, 1, &["*"], 0).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    let requests = server.requests();

    assert!(!requests[0].offered_tools().contains(&"list_hooks".to_owned()));
    assert!(requests[0].last_user_text().contains("be kind"), "{}", requests[0].body);
    assert!(
        requests[1].last_user_text().contains("be quick"),
        "{}",
        requests[1].body
    );

    let told = requests[1].tool_results();
    assert!(
        told[0].contains("no tool `list_hooks`"),
        "a hidden tool is not run: {told:?}"
    );
    assert_eq!(count.load(Ordering::SeqCst), 0);
    assert_eq!(bench.until_replies(1).await[0].content, "[redacted]");

    send(&bench, &main, 2, &["*"], 0).await;
    eventually("another turn", async || bench.completed(&main).await.len() == 2).await;
    let injected = ran(&bench.entries(&main).await);
    let kind = injected.iter().filter(|(hook, ..)| hook == "hi").count();

    assert_eq!(kind, 1, "a session begins once: {injected:?}");

    running.stop().await;
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tools_of_one_server_are_counted_together_over_brokers() {
    let bench = Bench::start().await;
    let text = "hooks: [{hook: PreToolUse, builtin: rate_limit, with: {calls: 3, seconds: 600}}]";
    let rules = HookRules::parse(text, &Personas::default()).expect("hooks");
    let brokers = ["b1", "b2"].map(|name| {
        let bus = bench.bus.clone();
        TurnHooks::new(rules.clone(), bus, Arc::new(SystemClock), name)
    });

    let main = session("main");
    let mut refused = Vec::new();
    let calls = [
        "erp__read",
        "erp__write",
        "erp__read",
        "erp__write",
        "mcp__erp__read",
        "crm__read",
        "list_hooks",
    ];
    for (number, name) in calls.into_iter().enumerate() {
        let hooks = &brokers[number % 2];
        let call = ToolCall {
            call: format!("1-{number}"),
            name: name.to_owned(),
            arguments: json!({}),
        };
        let moment = HookedTurn::new(&main, ulid::Ulid::nil(), 1, hooks.hooks_of(&main, &[]), &[]);
        let (gated, _) = hooks.run_gate(&moment, &call).await;
        if !matches!(gated, GateDecision::Run { .. }) {
            refused.push(number);
        }
    }

    assert_eq!(
        refused,
        [3, 4],
        "the fourth and fifth call of `erp`, whichever tool they are"
    );
}

/// The figure of `docs/performance.md`; the bound here is wide, because tests share their machine.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_hooks_that_let_everything_be_cost_next_to_nothing() {
    let rounds = if is_long() { 2_000 } else { 200 };
    let bench = Bench::start().await;
    let hook = |number: usize| {
        format!(
            "  - {{name: a{number}, hook: PreToolUse, builtin: read_only_guard, tools: ['list_*']}}\n  \
               - {{name: b{number}, hook: PostToolUse, builtin: result_truncate}}\n"
        )
    };

    let hooks: String = std::iter::once("hooks:\n".to_owned())
        .chain((0..20).map(hook))
        .collect();
    let rules = HookRules::parse(&hooks, &Personas::default()).expect("hooks");
    let main = session("main");
    let hooks = TurnHooks::new(rules, bench.bus.clone(), Arc::new(SystemClock), "b1");
    let call = ToolCall {
        call: "1-1".to_owned(),
        name: "list_hooks".to_owned(),
        arguments: json!({"status": "active", "created_by": "agent:atlas"}),
    };

    let result = json!({"hooks": ["a".repeat(1_000)]});
    let began = SystemClock.monotonic();

    for _ in 0..rounds {
        // As a turn does: its hooks are found once, its one call goes through both points.
        let moment = HookedTurn::new(&main, ulid::Ulid::nil(), 1, hooks.hooks_of(&main, &[]), &[]);
        let (gated, ran) = hooks.run_gate(&moment, &call).await;
        assert!(matches!(gated, GateDecision::Run { .. }) && ran.is_empty());

        let outcome = ToolOutcome::Ok { result: result.clone() };
        let (outcome, ran) = hooks.run_after_call(&moment, &call, outcome).await;
        assert!(matches!(outcome, ToolOutcome::Ok { .. }) && ran.is_empty());
    }

    let took = SystemClock.monotonic().saturating_duration_since(began) / rounds;
    println!("20 hooks before and 20 after one call: {took:?} a turn");
    let most = std::time::Duration::from_millis(if is_long() { 1 } else { 100 });

    assert!(took < most, "{took:?}");
}
