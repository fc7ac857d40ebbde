//! Hooks beyond the built-in loop: scripts, agents that run their tools themselves, agents that work for agents, and
//! what runs when a turn is over.

use std::path::Path;

use broker_svc::hooks::callback;
use serde_json::{Value, json};
use shared::bus::{RequestError, ServiceSpec};
use shared::llm::ModelProvider;
use shared::model::event::Event;
use shared::model::ledger::{FinishedTurn, LedgerEntry, TurnDescription, TurnEnding};
use shared::testing::model_server::ScriptedAnswer;
use shared::testing::{ModelServer, eventually};
use shared::wire::headers::Headers;
use shared::wire::topology::streams;

use crate::bench::{Bench, DEADLINE, dispatch, session};
use crate::hooked::{insisting, settled_turns};
use crate::lost_dispatches::made_again;
use crate::models::{PERSONA, config, send};

#[tokio::test(flavor = "multi_thread")]
async fn a_script_decides_by_the_contract_of_all_hooks() {
    let bench = Bench::start().await;
    // In place of hook-svc: it is shown an event, and answers as a script's run does.
    let spec = ServiceSpec::new("hook", "test")
        .endpoint("run", |question: Value| async move {
            let context = &question["event"]["metadata"];
            assert_eq!((&question["hook"], &question["event"]["channel"]), (&json!("turn/policy"), &json!("turn")));

            let extracted = match context["tool_args"]["status"].as_str() {
                Some("active") => json!({"modified_args": {"status": "paused"}, "side_effects": ["narrowed"]}),
                _ => json!({"allow": false, "error": format!("{} is not for {}", context["tool_name"], context["user_id"])}),
            };

            Ok::<_, (usize, String)>(json!({
                "fired": true, "result": {"fire": true, "disableHook": false, "context": {"extracted": extracted}}, "latency_us": 1,
                "llm_calls": 0, "llm_tokens_in": 0, "llm_tokens_out": 0, "llm_cost_usd": 0.0, "search_calls": 0
            }))
        })
        .endpoint("list", |question: Value| async move { Ok::<_, (usize, String)>(question) });

    let service = bench.bus.serve(spec).await.expect("a service");
    let hooks = "hooks: [{name: policy, hook: PreToolUse, script: turn/policy, tools: [list_*]}]";
    for (status, expected) in [
        ("active", r#"{"status":"paused"}"#),
        ("disabled", r#"error: "list_hooks" is not for "v1""#),
    ] {
        let server = insisting("list_hooks", json!({ "status": status }), 1).await;
        let llm = config(&server, ModelProvider::OpenAi, "openai");
        let running = bench.run_hooked("b1", PERSONA, hooks, llm).await;
        let here = session(status);
        send(&bench, &here, 1, &["*"], 0).await;
        eventually("the turn", async || bench.completed(&here).await.len() == 1).await;

        assert_eq!(server.requests()[1].tool_results(), [expected]);

        running.stop().await;
    }

    service.stop().await;
    // Nobody runs scripts: the gate denies.
    let server = insisting("list_hooks", json!({"status": "active"}), 1).await;
    let running = bench
        .run_hooked("b1", PERSONA, hooks, config(&server, ModelProvider::OpenAi, "openai"))
        .await;
    let here = session("nobody");
    send(&bench, &here, 1, &["*"], 0).await;
    eventually("the turn", async || bench.completed(&here).await.len() == 1).await;

    assert!(server.requests()[1].tool_results()[0].contains("could not decide"));

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_runs_its_tools_itself_asks_the_gate_of_its_turn() {
    let bench = Bench::start().await;
    let personas = "personas: {default: {runner: nats, hooks: [{hook: PreToolUse, builtin: read_only_guard, with: {always: true, reads: [web_search]}}]}}";
    let hooks = "
hooks:
  - {hook: PostToolUse, builtin: result_truncate, with: {max_chars: 3}}
  - {name: hi, hook: pre_session, reminder: be kind}
";

    let server = ModelServer::scripted([]).await;
    let llm = config(&server, ModelProvider::OpenAi, "openai");
    let running = bench.run_hooked("b1", personas, hooks, llm).await;
    let gate = callback::serve(&running.broker).await.expect("the gate is served");
    let mut questions = bench
        .bus
        .core_subscribe("nexus.agent.default")
        .await
        .expect("a subject");

    let main = session("main");
    let sent = bench.send(&main, 1).await;
    let question = tokio::time::timeout(DEADLINE, questions.next())
        .await
        .expect("in time")
        .expect("a question");

    let request: Value = serde_json::from_slice(&question.payload).expect("JSON");
    assert!(
        request["system_prompt"]
            .as_str()
            .is_some_and(|prompt| prompt.contains("be kind")),
        "{request}"
    );

    let ask = async |turn: &Value, point: &str, tool: &str| {
        let asked = json!({
            "turn": turn, "session": {"persona": "default", "session": "main"}, "hook_event_name": point, "tool_use_id": "t1",
            "tool_name": tool, "tool_input": {"query": "x"}, "tool_response": "abcdef"
        });

        bench
            .bus
            .request::<Value, Value>("nexus.svc.turn.gate", Headers::new(), &asked, DEADLINE)
            .await
    };

    let turn = &request["turn"];
    let allowed = ask(turn, "PreToolUse", "web_search").await.expect("an answer");
    assert_eq!(allowed, json!({"decision": "allow", "tool_input": {"query": "x"}}));

    let denied = ask(turn, "PreToolUse", "shell").await.expect("an answer");
    assert_eq!(denied["reason"], "`shell` is not permitted in this turn");

    let cut = ask(turn, "PostToolUse", "web_search").await.expect("an answer");
    assert_eq!(cut["tool_response"], "abc… [cut: 3 of 6 characters]");

    let over = ask(&json!("01M80A4BYPJANS8A4KMNFK7P5E"), "PreToolUse", "web_search").await;
    assert!(matches!(over, Err(RequestError::Service { code: 409, .. })), "{over:?}");

    // While the turn's dispatch is lost, it is unknown for whom the turn works, and fewer hooks would bind it.
    let emptied = bench.bus.purge_subject(streams::DISPATCHES, ">").await;
    emptied.expect("emptied");
    let lost = ask(turn, "PreToolUse", "web_search").await;
    assert!(matches!(lost, Err(RequestError::Service { code: 503, .. })), "{lost:?}");
    made_again(&bench, &sent).await;
    let found = ask(turn, "PreToolUse", "web_search").await.expect("an answer");
    assert_eq!(found, allowed);

    gate.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_works_for_an_agent_is_bound_by_its_hooks() {
    let bench = Bench::start().await;
    let hooks = "
hooks: []
personas: {strict: [{hook: PreToolUse, builtin: read_only_guard, with: {always: true, reads: []}}]}
";

    let personas = "personas: {default: {runner: llm}, strict: {runner: llm, tools: []}}";
    let server = insisting("list_hooks", json!({}), 1).await;
    let running = bench
        .run_hooked("b1", personas, hooks, config(&server, ModelProvider::OpenAi, "openai"))
        .await;
    let main = session("main");
    let mut dispatch = dispatch(&main, 1);
    dispatch.permissions.level = shared::model::permission::PermissionLevel::Full;

    let works_for = json!([{"persona": "strict", "session": "main"}]);
    dispatch.message.metadata.insert("works_for".to_owned(), works_for);
    bench.publish(&dispatch).await;
    bench.claim(&main).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    let told = server.requests()[1].tool_results();

    assert!(told[0].contains("read-only mode"), "{told:?}");

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_message_says_for_whom_it_is_sent() {
    let bench = Bench::start().await;
    let server = insisting(
        "send_message_to_agent",
        json!({"to": "bob", "content": "list the hooks"}),
        1,
    )
    .await;

    let running = bench
        .run_hooked("b1", PERSONA, "", config(&server, ModelProvider::OpenAi, "openai"))
        .await;
    let main = session("main");
    send(&bench, &main, 1, &["*"], 0).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    let events = bench
        .bus
        .read_history(streams::EVENTS, "nexus.ev.*.agent.>", 1, 10)
        .await
        .expect("events");

    let event: Event = events[0].decode().expect("an event");
    assert_eq!(
        event.metadata["works_for"],
        json!([{"persona": "default", "session": "main"}])
    );

    running.stop().await;
}

/// A command that appends its question to `path`, one line each, and fails where `path` is no file yet.
fn noting(path: &Path) -> String {
    format!("python3 {} {}", path.with_extension("py").display(), path.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_at_a_turns_end_runs_however_it_ended_and_again_where_it_failed() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().join("notes");
    let program = "import os, sys\npath = sys.argv[1]\nfirst = not os.path.exists(path)\n\
                   open(path, 'a').write(sys.stdin.read() + '\\n')\nsys.exit(1 if first else 0)\n";
    std::fs::write(notes.with_extension("py"), program).expect("a program");
    let command = noting(&notes);

    let hooks = format!(
        "enabled: true\nallow: {{all: ['{command}']}}\nhooks: [{{name: note, hook: Stop, command: '{command}'}}]"
    );
    let server = ModelServer::scripted([ScriptedAnswer::text("hello"), ScriptedAnswer::status(400, "no")]).await;
    let running = bench
        .run_hooked("b1", PERSONA, &hooks, config(&server, ModelProvider::OpenAi, "openai"))
        .await;

    let main = session("main");
    for event in 1..=2 {
        send(&bench, &main, event, &["*"], 0).await;
    }

    let lines = || {
        let text = std::fs::read_to_string(&notes).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
            .collect::<Vec<_>>()
    };

    eventually("three runs", async || lines().len() == 3).await;
    let told: Vec<Value> = lines().iter().map(|line| line["content"]["outcome"].clone()).collect();
    assert_eq!(
        told,
        ["completed", "completed", "failed"],
        "the first run failed and was tried again"
    );
    assert_eq!(lines()[0]["hook_event_name"], "Stop");

    eventually("both are settled", async || {
        settled_turns(&bench.entries(&main).await) == 2
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_owed_at_a_turns_end_is_run_by_whoever_takes_the_session_next() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().join("notes");
    let program = "import sys\nopen(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')\n";
    std::fs::write(notes.with_extension("py"), program).expect("a program");
    let command = noting(&notes);
    let hooks = format!(
        "enabled: true\nallow: {{all: ['{command}']}}\nhooks: [{{name: note, hook: post_session, command: '{command}'}}]"
    );

    let server = ModelServer::ruled(|_, _| ScriptedAnswer::text("hello")).await;
    let llm = || config(&server, ModelProvider::OpenAi, "openai");
    let first = bench.run_hooked("b1", PERSONA, &hooks, llm()).await;
    let main = session("main");
    send(&bench, &main, 1, &["*"], 0).await;
    eventually("the first", async || notes.exists()).await;
    first.stop().await;

    // A broker that died between the turn's end and its hooks: the ledger says what is owed.
    let entries = bench.entries(&main).await;
    let mut turn = None;
    for entry in &entries {
        if let LedgerEntry::TurnCompleted { turn: completed, .. } = entry {
            turn = Some(*completed);
        }
    }

    let owed = LedgerEntry::PostHooksDue {
        finished: Box::new(FinishedTurn {
            turn: turn.expect("a turn"),
            ended: TurnEnding::Completed,
            works_for: Vec::new(),
            description: TurnDescription::default(),
            unseen: None,
        }),
    };
    bench.append(&main, vec![owed]).await;
    let second = bench.run_hooked("b2", PERSONA, &hooks, llm()).await;
    bench.claim(&main).await;
    eventually("the second", async || {
        std::fs::read_to_string(&notes).unwrap_or_default().lines().count() == 2
    })
    .await;

    second.stop().await;
}
