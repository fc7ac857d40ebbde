//! The built-in agent against a model server: its tools, its bounds, what is heard of it while it speaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use shared::bus::ServiceSpec;
use shared::llm::{LlmConfig, ModelProvider};
use shared::model::event::{Event, MAX_HOPS};
use shared::model::ledger::{LedgerEntry, ToolOutcome, TurnFailure};
use shared::model::permission::{PermissionLevel, PermissionSet, ToolRules};
use shared::model::reply::ReplyAction;
use shared::retry::RetrySchedule;
use shared::testing::model_server::{AnswerEnding, ScriptedAnswer, ScriptedCall, ScriptedSpeech};
use shared::testing::{ModelServer, eventually};
use shared::wire::subject;
use shared::wire::topology::streams;

use crate::bench::{Bench, dispatch, session};

pub(crate) const PERSONA: &str = "personas: {default: {runner: llm, prompt: be brief}}";

pub(crate) fn config(server: &ModelServer, provider: ModelProvider, name: &str) -> LlmConfig {
    LlmConfig {
        provider,
        model: "gemini-3-flash-preview".to_owned(),
        base_url: server.base_url(name),
        retry: RetrySchedule {
            initial_ms: 1,
            max_ms: 2,
            ..RetrySchedule::default()
        },
        ..LlmConfig::default()
    }
}

/// Sends `to` a message that may use the tools matched by `allow`.
pub(crate) async fn send(bench: &Bench, to: &shared::model::session::SessionRef, event: u64, allow: &[&str], hops: u8) {
    let mut dispatch = dispatch(to, event);
    dispatch.permissions = PermissionSet {
        level: PermissionLevel::Restricted,
        tools: Some(ToolRules {
            allow: Some(allow.iter().map(|&pattern| pattern.to_owned()).collect()),
            deny: Vec::new(),
        }),
        credentials: None,
    };

    dispatch.causation.hops = hops;
    bench.publish(&dispatch).await;
    bench.claim(to).await;
}

fn outcomes(entries: &[LedgerEntry]) -> Vec<ToolOutcome> {
    let mut finished = Vec::new();
    for entry in entries {
        if let LedgerEntry::ToolFinished { outcome, .. } = entry {
            finished.push(outcome.clone());
        }
    }
    finished
}

fn started(entries: &[LedgerEntry]) -> usize {
    entries
        .iter()
        .filter(|entry| matches!(entry, LedgerEntry::ToolStarted { .. }))
        .count()
}

/// Asks for `call`, and says what came of it.
fn one_call(
    name: &'static str,
    arguments: Value,
) -> impl Fn(&shared::testing::model_server::RecordedRequest, usize) -> ScriptedAnswer {
    move |request, _| match request.tool_results().last() {
        None => ScriptedAnswer::calls([ScriptedCall::new("c1", name, &arguments)]),
        Some(result) => ScriptedAnswer::text(&format!("it says {result}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_uses_a_tool_over_each_wire_and_answers() {
    let bench = Bench::start().await;
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);

    let spec = ServiceSpec::new("hook", "test").endpoint("list", move |question: Value| {
        let counted = Arc::clone(&counted);
        async move {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok::<_, (usize, String)>(json!({"hooks": [question["status"]]}))
        }
    });

    let service = bench.bus.serve(spec).await.expect("a service");

    for (number, (provider, name)) in [
        (ModelProvider::OpenAi, "openai"),
        (ModelProvider::Gemini, "gemini"),
        (ModelProvider::Anthropic, "anthropic"),
    ]
    .into_iter()
    .enumerate()
    {
        let server = ModelServer::ruled(one_call("list_hooks", json!({"status": "active"}))).await;
        let running = bench.run_asking("b1", PERSONA, config(&server, provider, name)).await;
        let here = session(name);
        let mut heard = bench
            .bus
            .core_subscribe(&subject::stream(&here))
            .await
            .expect("a stream");

        send(&bench, &here, 1, &["list_*"], 0).await;
        eventually("the turn", async || bench.completed(&here).await.len() == 1).await;
        assert_eq!(server.calls(), 2, "{name}");
        assert_eq!(served.load(Ordering::Relaxed), number + 1, "{name}");
        assert_eq!(
            server.requests()[0].offered_tools(),
            ["list_hooks", "list_intents"],
            "{name}"
        );

        let entries = bench.entries(&here).await;
        let reply = bench.until_replies(number + 1).await.pop().expect("a reply");
        assert_eq!(reply.content, r#"it says {"hooks":["active"]}"#, "{name}");

        let mut costs = 0.0;
        for entry in &entries {
            if let LedgerEntry::ModelAnswered { usage, .. } = entry {
                costs += usage.cost_usd;
            }
        }

        assert!((costs - 2.0 * 0.000_092).abs() < 1e-9, "{name}: {costs}");

        let mut partial = String::new();
        let mut done = false;
        while !done {
            let piece = heard.next().await.expect("a piece");
            let piece: Value = serde_json::from_slice(&piece.payload).expect("JSON");
            partial.push_str(piece["text"].as_str().unwrap_or_default());
            done = piece["done"] == true;
        }

        assert_eq!(partial, reply.content, "{name}");

        running.stop().await;
    }

    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_not_be_run_is_not_started_and_the_model_is_told() {
    let bench = Bench::start().await;
    let server = ModelServer::ruled(|request, _| {
        let call = |name: &str, arguments: &str| ScriptedCall {
            arguments: arguments.to_owned(),
            ..ScriptedCall::new("c", name, &json!({}))
        };
        if request.tool_results().is_empty() {
            let calls = [
                call("search_events", "{\"query\": "),
                call("search_events", "{\"limit\": 3}"),
                call("create_hook", "{\"name\": \"a\", \"script\": \"b\"}"),
                call("search_events", "{\"query\": \"x\"}"),
            ];

            ScriptedAnswer::calls(calls.into_iter().enumerate().map(|(index, call)| ScriptedCall {
                id: Some(format!("c{index}")),
                ..call
            }))
        } else {
            ScriptedAnswer::text("so be it")
        }
    })
    .await;

    let running = bench
        .run_asking("b1", PERSONA, config(&server, ModelProvider::OpenAi, "openai"))
        .await;
    let main = session("main");
    send(&bench, &main, 1, &["search_*"], 0).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    let told = server.requests()[1].tool_results();

    assert!(told[0].contains("malformed arguments"), "{told:?}");
    assert!(told[1].contains("schema") && told[1].contains("query"), "{told:?}");
    assert!(told[2].contains("no tool `create_hook`"), "{told:?}");
    assert_eq!(told[3], "error: not available", "nobody serves it");

    let entries = bench.entries(&main).await;
    assert_eq!((started(&entries), outcomes(&entries).len()), (1, 4), "{entries:?}");

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_personas_ceiling_holds_whatever_the_dispatch_allows() {
    let bench = Bench::start().await;
    let server = ModelServer::scripted([ScriptedAnswer::text("hello")]).await;
    let personas = "personas: {default: {runner: llm, tools: ['*_hook*', search_events], \
                    permissions: {level: full, tools: {allow: ['*'], deny: ['create_*', 'delete_*']}}}}";
    let running = bench
        .run_asking("b1", personas, config(&server, ModelProvider::OpenAi, "openai"))
        .await;

    let main = session("main");
    send(&bench, &main, 1, &["*"], 0).await;
    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    let offered = server.requests()[0].offered_tools();

    assert_eq!(offered, ["disable_hook", "get_hook", "list_hooks", "search_events"]);

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_write_to_each_other_as_events_and_not_for_ever() {
    let bench = Bench::start().await;
    let wanted = json!({"to": "bob", "content": "are you there?"});
    let server = ModelServer::ruled(one_call("send_message_to_agent", wanted)).await;
    let running = bench
        .run_asking("b1", PERSONA, config(&server, ModelProvider::OpenAi, "openai"))
        .await;

    for (name, hops) in [("near", 2), ("far", MAX_HOPS)] {
        let here = session(name);
        send(&bench, &here, 1, &["*"], hops).await;
        eventually("the turn", async || bench.completed(&here).await.len() == 1).await;
    }

    let events = bench
        .bus
        .read_history(streams::EVENTS, "nexus.ev.*.agent.>", 1, 10)
        .await
        .expect("events");
    let events: Vec<Event> = events.iter().map(|stored| stored.decode().expect("an event")).collect();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(
        events[0].id.as_str().starts_with("agent:default:bob:"),
        "{}",
        events[0].id
    );

    assert_eq!((events[0].hops, events[0].content.as_str()), (3, "are you there?"));

    let audited = bench
        .bus
        .read_history(streams::AUDIT, "nexus.audit.agent", 1, 10)
        .await
        .expect("audit");
    assert_eq!(audited.len(), 1);

    let mut replies = bench.until_replies(2).await;
    replies.retain(|reply| reply.session == session("far"));
    assert!(replies[0].content.contains("refused"), "{}", replies[0].content);

    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_waits_hears_the_reply() {
    let bench = Bench::start().await;
    let wanted = json!({"to": "bob", "content": "are you there?", "wait_for_reply": true});
    let server = ModelServer::ruled(one_call("send_message_to_agent", wanted)).await;
    let running = bench
        .run_asking("b1", PERSONA, config(&server, ModelProvider::Gemini, "gemini"))
        .await;
    let main = session("main");
    send(&bench, &main, 1, &["*"], 0).await;

    let mut sent = None;
    eventually("the event", async || {
        let events = bench
            .bus
            .read_history(streams::EVENTS, "nexus.ev.*.agent.>", 1, 10)
            .await
            .expect("events");
        sent = events.first().map(|stored| stored.decode::<Event>().expect("an event"));

        sent.is_some()
    })
    .await;

    let sent = sent.expect("an event");
    // As channel `agent` of delivery-svc sends it.
    let headers = [(shared::wire::headers::CAUSATION, sent.id.as_str())]
        .into_iter()
        .collect();
    let part = bytes::Bytes::from(json!({"content": "I am"}).to_string());
    bench
        .bus
        .core_publish(&subject::out("bob", &sent.peer.id), &headers, part)
        .await;

    eventually("the turn", async || bench.completed(&main).await.len() == 1).await;
    assert!(bench.until_replies(1).await[0].content.contains("I am"));

    running.stop().await;
}

/// The ends of turns by the limit of US dollars, and the reservations before that.
fn reserved_and_failed(entries: &[LedgerEntry]) -> (Vec<(f64, f64)>, usize) {
    let mut reserved = Vec::new();
    let mut failed = 0;
    for entry in entries {
        if let LedgerEntry::CostReserved {
            cost_usd, given_up_usd, ..
        } = entry
        {
            reserved.push((*cost_usd, *given_up_usd));
        } else if let LedgerEntry::TurnFailed { failure, .. } = entry {
            let limit = "cost_usd".to_owned();
            assert_eq!(*failure, TurnFailure::Limit { limit });
            failed += 1;
        }
    }
    (reserved, failed)
}

/// Runs a turn whose limit is `cost_usd` against `server` until the limit ends it.
async fn run_to_the_limit(bench: &Bench, name: &str, cost_usd: f64, server: &ModelServer) -> Vec<(f64, f64)> {
    let personas =
        format!("personas: {{default: {{runner: llm, max_tokens: 1000, limits: {{cost_usd: {cost_usd}}}}}}}");
    let llm = config(server, ModelProvider::OpenAi, "openai");
    let running = bench.run_asking(name, &personas, llm).await;
    let here = session(name);
    send(bench, &here, 1, &["no_tools"], 0).await;

    eventually("the limit", async || {
        reserved_and_failed(&bench.entries(&here).await).1 == 1
    })
    .await;
    let (reserved, _) = reserved_and_failed(&bench.entries(&here).await);
    running.stop().await;
    reserved
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_call_that_does_not_fit_into_the_limit_is_not_made() {
    let bench = Bench::start().await;

    // An answer of 1,000 tokens costs 0.003 dollars, more than the limit.
    let server = ModelServer::scripted([]).await;
    assert_eq!(run_to_the_limit(&bench, "none", 0.002_9, &server).await, []);
    assert_eq!(server.calls(), 0);

    // The first answer leaves less than the price of a second one.
    let dear = ScriptedAnswer::say(ScriptedSpeech {
        calls: vec![ScriptedCall::new("c1", "nothing", &json!({}))],
        tokens: [100, 500, 0, 0],
        ..ScriptedSpeech::default()
    });
    let server = ModelServer::scripted([dear]).await;
    let reserved = run_to_the_limit(&bench, "one", 0.004, &server).await;
    assert_eq!(server.calls(), 1);
    assert!(
        matches!(reserved[..], [(cost, 0.0)] if (0.003..0.004).contains(&cost)),
        "{reserved:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_without_an_answer_count_as_paid_unless_they_were_rejected() {
    let bench = Bench::start().await;

    // Three calls of 0.003 dollars and their prompts fit into the limit, and each may have been paid for.
    let broken = |_: &shared::testing::model_server::RecordedRequest, _: usize| {
        ScriptedAnswer::text("a text that is long enough to be cut").ending(AnswerEnding::Closed { after: 900 })
    };
    let server = ModelServer::ruled(broken).await;
    let reserved = run_to_the_limit(&bench, "broken", 0.01, &server).await;
    let given_up: Vec<bool> = reserved.iter().map(|(_, given_up)| *given_up > 0.0).collect();
    assert_eq!((server.calls(), given_up), (3, vec![false, true, true]), "{reserved:?}");

    // Calls that the provider rejects cost nothing: the next one has the same reservation.
    let refused = |_: &shared::testing::model_server::RecordedRequest, number: usize| match number {
        0..20 => ScriptedAnswer::status(429, "slow down"),
        _ => ScriptedAnswer::text("a text that is long enough to be cut").ending(AnswerEnding::Closed { after: 900 }),
    };
    let server = ModelServer::ruled(refused).await;
    let reserved = run_to_the_limit(&bench, "refused", 0.005, &server).await;
    assert_eq!((server.calls(), reserved.len()), (21, 1), "{reserved:?}");

    // A failed gateway may have passed the call on, and so may each attempt of one call: two that failed and an answer
    // use up the limit for a fourth.
    let failed = |_: &shared::testing::model_server::RecordedRequest, number: usize| match number {
        0..2 => ScriptedAnswer::status(502, "bad gateway"),
        _ => ScriptedAnswer::say(ScriptedSpeech {
            calls: vec![ScriptedCall::new("c1", "nothing", &json!({}))],
            tokens: [100, 500, 0, 0],
            ..ScriptedSpeech::default()
        }),
    };
    let server = ModelServer::ruled(failed).await;
    let reserved = run_to_the_limit(&bench, "failed", 0.01, &server).await;
    assert_eq!(server.calls(), 3, "{reserved:?}");
    assert!(
        matches!(reserved[..], [(cost, 0.0), (0.0, lost)] if cost > 0.003 && (lost - 2.0 * cost).abs() < 1e-9),
        "{reserved:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_changes_a_message_of_its_conversation_by_a_reply_of_its_own() {
    let target = "out:01M3250V3V0000000000000001/0";
    let of_target = || target.to_owned();
    let edit = json!({"message": target, "content": "better"});
    let reaction = json!({"message": target, "emoji": "👀", "remove": true});
    let changes = [
        ("edit_message", edit, ReplyAction::Edit { target: of_target() }),
        (
            "delete_message",
            json!({ "message": target }),
            ReplyAction::Delete { target: of_target() },
        ),
        (
            "react_to_message",
            reaction,
            ReplyAction::React {
                target: of_target(),
                emoji: "👀".to_owned(),
                removed: true,
            },
        ),
    ];
    for (tool, wanted, action) in changes {
        let bench = Bench::start().await;
        let server = ModelServer::ruled(one_call(tool, wanted)).await;
        let running = bench
            .run_asking("b1", PERSONA, config(&server, ModelProvider::OpenAi, "openai"))
            .await;
        let here = session("near");
        send(&bench, &here, 1, &["*"], 0).await;

        let replies = bench.until_replies(2).await;
        let (change, answer) = (&replies[0], &replies[1]);
        assert_eq!(change.action, Some(action), "{tool}");
        assert_eq!((answer.action.clone(), answer.id), (None, answer.turn), "{tool}");
        assert_eq!((change.turn, &change.session), (answer.turn, &answer.session));
        assert_eq!(
            change.delivery_context, answer.delivery_context,
            "no other conversation"
        );
        assert!(change.id != change.turn && change.interactive.is_none(), "{tool}");
        assert_eq!(change.content, if tool == "edit_message" { "better" } else { "" });
        assert!(answer.content.contains("queued"), "{}", answer.content);
        running.stop().await;
    }
}
