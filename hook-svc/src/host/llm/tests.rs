//! Tests against a server that uses the real wire format.

mod costs;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use serde_json::json;
use shared::bus::Bus;
use shared::clock::SystemClock;
use shared::llm::{ModelPrice, ModelProvider, PriceTable};
use shared::model::event::EventId;
use shared::model::hook::HookSpend;
use shared::model::time::UnixMillis;
use shared::retry::RetrySchedule;
use shared::testing::ManualClock;
use shared::testing::model_server::{AnswerEnding, CutPoint, ModelServer, ScriptedAnswer, ScriptedSpeech};
use shared::testing::nats::NatsServer;
use shared::wire::subject::token;
use shared::wire::topology::buckets::HOOK_SPEND;

use super::*;
use crate::runner::{HookSource, NoHost};

/// Returns a host whose model is `server`, and its NATS server.
async fn host(server: &ModelServer, limits: SpendLimits) -> (LlmHost, NatsServer) {
    let (nats, bus) = shared::testing::world().await;
    (replica(&server.base_url("openai"), limits, &bus), nats)
}

/// Returns one of the hosts on `bus`, whose model is at `base_url`.
fn replica(base_url: &str, limits: SpendLimits, bus: &Bus) -> LlmHost {
    host_of(&dear_model(base_url), limits, bus)
}

fn dear_model(base_url: &str) -> LlmConfig {
    LlmConfig {
        provider: ModelProvider::OpenAi,
        model: "m".to_owned(),
        base_url: base_url.to_owned(),
        retry: RetrySchedule {
            initial_ms: 1,
            max_ms: 5,
            max_attempts: 2,
            ..RetrySchedule::default()
        },
        // One dollar per token, so that sums are visible.
        prices: PriceTable(
            [(
                "m".to_owned(),
                ModelPrice {
                    input: 1_000_000.0,
                    output: 1_000_000.0,
                    cached: None,
                },
            )]
            .into(),
        ),
        ..LlmConfig::default()
    }
}

fn host_of(llm: &LlmConfig, limits: SpendLimits, bus: &Bus) -> LlmHost {
    // The clock of the budget alone: a day ends only when a test ends it.
    let day: SharedClock = Arc::new(ManualClock::at(UnixMillis(1_700_000_000_000)));
    let budget = SpendBudget::new(bus, limits, model_price(llm), day);
    let model = open_model(llm, Arc::new(SystemClock), ShutdownSignal::default());
    LlmHost::new(model, budget, Arc::new(NoHost))
}

/// Returns a stream that ends in the middle.
fn broken_off() -> ScriptedAnswer {
    ScriptedAnswer::Say {
        speech: ScriptedSpeech {
            text: vec!["a stream that breaks off".to_owned()],
            ..ScriptedSpeech::default()
        },
        cut: CutPoint::Every(7),
        ending: AnswerEnding::Dropped { after: 60 },
    }
}

const RICH: SpendLimits = SpendLimits {
    hook_usd: 1_000_000.0,
    all_usd: 1_000_000.0,
};

fn call(hook: &str, event: &str, args: Value) -> HostCall {
    HostCall {
        event_id: EventId::parse(event).expect("valid"),
        event_json: bytes::Bytes::new(),
        sequence: 0,
        now: UnixMillis(1),
        hook: Arc::new(HookSource {
            id: hook.to_owned(),
            name: hook.to_owned(),
            source: String::new(),
            content_hash: String::new(),
            timeout_ms: 20_000,
            created_at: UnixMillis(0),
            created_by: "operator".to_owned(),
            sees: crate::runner::HookScope::Everything,
            net: Vec::new(),
        }),
        number: 0,
        name: "llm".to_owned(),
        args,
    }
}

/// Arguments of a call that costs as much as is reserved for it: 120 tokens, one dollar each.
fn dear_question() -> Value {
    json!({"prompt": "x", "max_tokens": 119})
}

fn code(answered: &CallResult) -> &'static str {
    answered.outcome.as_ref().expect_err("refused").code
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_paid_once_however_many_ask_the_same_upon_one_event() {
    let server = ModelServer::ruled(|_, _| ScriptedAnswer::text("yes")).await;
    let (host, _nats) = host(&server, RICH).await;
    let question = json!({"prompt": "Is it?", "system": "Be brief."});
    let (a, b) = tokio::join!(
        host.call(call("a", "sms:1", question.clone())),
        host.call(call("b", "sms:1", question.clone())),
    );

    assert_eq!((&a.outcome, &b.outcome), (&Ok(json!("yes")), &Ok(json!("yes"))));
    assert_eq!(a.spent.llm_calls + b.spent.llm_calls, 1, "{a:?} {b:?}");

    let paid = if a.spent.llm_calls == 1 { a.spent } else { b.spent };
    assert!(
        paid.llm_tokens_in > 0 && paid.llm_tokens_out > 0 && paid.llm_cost_usd > 0.0,
        "{paid:?}"
    );

    host.call(call("a", "sms:2", question)).await.outcome.expect("answered");
    assert_eq!(server.calls(), 2, "another event asks anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_of_a_hook_and_of_all_end_a_day() {
    let server = ModelServer::ruled(|_, _| ScriptedAnswer::text("yes")).await;
    let limits = SpendLimits {
        hook_usd: 200.0,
        ..RICH
    };

    let (host, nats) = host(&server, limits).await;
    let ask = async |hook: &str, number: u32| host.call(call(hook, &format!("sms:{number}"), dear_question())).await;
    assert!(ask("a", 1).await.outcome.is_ok());

    let over = ask("a", 2).await;
    assert_eq!((code(&over), over.spent), ("over_budget", CallUsage::default()));
    assert!(ask("b", 3).await.outcome.is_ok(), "another hook has its own");

    drop(nats);

    let limits = SpendLimits { all_usd: 200.0, ..RICH };
    let (host, _nats) = self::host(&server, limits).await;
    assert!(host.call(call("a", "sms:1", dear_question())).await.outcome.is_ok());
    assert_eq!(
        code(&host.call(call("b", "sms:2", dear_question())).await),
        "over_budget"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_calls_at_once_stay_within_a_budget_of_ten() {
    let server = ModelServer::ruled(|_, _| ScriptedAnswer::text("yes")).await;
    let (_nats, bus) = shared::testing::world().await;
    let limits = SpendLimits {
        hook_usd: 1_200.0,
        ..RICH
    };

    let host = replica(&server.base_url("openai"), limits, &bus);
    let calls = (0..200).map(|number| host.call(call("a", &format!("sms:{number}"), dear_question())));
    let answers = join_all(calls).await;

    let answered = answers.iter().filter(|answer| answer.outcome.is_ok()).count();
    assert_eq!((answered, server.calls()), (10, 10));

    let refused = answers.iter().filter(|answer| answer.outcome.is_err());
    assert!(refused.map(code).all(|code| code == "over_budget"));

    for whose in ["hook.a", "all"] {
        let record = bus.kv::<HookSpend>(HOOK_SPEND).get(&format!("19675.{whose}")).await;
        let record = record.expect("a record").expect("a record").value;
        assert_eq!(
            (record.calls, record.micro_usd, record.held_micro_usd),
            (10, 1_200_000_000, 0),
            "{whose}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_waiting_for_the_record_leaves_nothing_reserved() {
    let (_nats, bus) = shared::testing::world().await;
    let day: SharedClock = Arc::new(ManualClock::at(UnixMillis(1_700_000_000_000)));
    let price = ModelPrice {
        input: 1_000_000.0,
        output: 1_000_000.0,
        cached: None,
    };

    let budget = SpendBudget::new(&bus, RICH, Ok(price), day);
    let size = QuestionSize {
        prompt_bytes: 1,
        max_tokens: Some(119),
    };

    let call = call("a", "sms:1", dear_question());
    // Given up at the first wait for the server. On a busy machine it may be answered before; then it is in hand, and ended.
    if let Some(answered) = budget.reserve_call("a", size).now_or_never() {
        let unused = answered.expect("there is room");
        unused.settle_call(&call, CallUsage::default()).await;
    }

    let reserved = budget.reserve_call("a", size).await.expect("there is room");
    let spent = CallUsage {
        llm_calls: 1,
        llm_cost_usd: 100.0,
        ..CallUsage::default()
    };

    let settling = reserved.settle_call(&call, spent);
    settling.now_or_never();

    for whose in ["hook.a", "all"] {
        let counted = async || {
            let record = bus.kv::<HookSpend>(HOOK_SPEND).get(&format!("19675.{whose}")).await;
            let record = record.expect("readable").expect("a record").value;
            (record.calls, record.micro_usd, record.held_micro_usd) == (1, 100_000_000, 0)
        };
        let settled = async {
            while !counted().await {
                shared::clock::pause(Duration::from_millis(10)).await;
            }
        };

        let in_time = tokio::time::timeout(Duration::from_secs(30), settled).await;
        in_time.unwrap_or_else(|_| panic!("{whose} is not settled"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_counts_as_spent() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base_url = format!("http://{}/v1", silent.local_addr().expect("an address"));
    let (_nats, bus) = shared::testing::world().await;
    let limits = SpendLimits {
        hook_usd: 200.0,
        ..RICH
    };

    let host = replica(&base_url, limits, &bus);
    let given_up = host.call(call("a", "sms:1", dear_question()));
    tokio::select! {
        answered = given_up => panic!("the model says nothing: {answered:?}"),
        reached = silent.accept() => drop(reached.expect("a request")),
    }

    let over = host.call(call("a", "sms:2", dear_question())).await;
    assert_eq!(code(&over), "over_budget");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_the_same_shares_the_error_and_who_asks_later_asks_anew() {
    let script = [
        ScriptedAnswer::status(500, "broken"),
        ScriptedAnswer::status(503, "still broken"),
        ScriptedAnswer::text("at last"),
    ];
    let server = ModelServer::scripted(script).await;
    let (host, _nats) = host(&server, RICH).await;
    let ask = |hook: &'static str| host.call(call(hook, "sms:1", json!({"prompt": "1"})));
    let (one, other) = tokio::join!(ask("a"), ask("b"));

    assert_eq!((code(&one), code(&other)), ("provider_down", "provider_down"));
    assert_eq!(ask("b").await.outcome, Ok(json!("at last")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_a_typed_error() {
    let script = [
        ScriptedAnswer::status(500, "broken"),
        ScriptedAnswer::status(503, "still broken"),
        broken_off(),
        broken_off(),
        ScriptedAnswer::status(401, "no"),
        ScriptedAnswer::text("not JSON"),
        ScriptedAnswer::text("{\"service\": \"bank\"}"),
    ];

    let server = ModelServer::scripted(script).await;
    let (host, _nats) = host(&server, RICH).await;
    let ask = async |args: Value| host.call(call("a", "sms:1", args)).await;

    assert_eq!(code(&ask(json!({"prompt": "1"})).await), "provider_down");

    let broken = ask(json!({"prompt": "1"})).await;
    assert_eq!((code(&broken), broken.spent.llm_calls), ("provider_down", 2));

    let refused = ask(json!({"prompt": "2"})).await;
    assert_eq!((code(&refused), refused.spent), ("unauthorised", CallUsage::default()));
    assert_eq!(code(&ask(json!({"prompt": "3", "json": true})).await), "bad_answer");

    let answered = ask(json!({"prompt": "3", "json": true, "max_tokens": 50})).await;
    assert_eq!(answered.outcome, Ok(json!("{\"service\": \"bank\"}")));

    for wrong in [
        json!({"prompt": ""}),
        json!({"prompt": "x", "max_tokens": 0}),
        json!({}),
    ] {
        assert_eq!(code(&ask(wrong).await), "bad_arguments");
    }

    for (wrong, text) in [
        (
            json!({"prompt": {}}),
            "llm(): prompt: expected a string, found an object",
        ),
        (
            json!({"prompt": "x", "max_tokens": "y"}),
            "llm(): max_tokens: expected a number, found string \"y\"",
        ),
        (json!({"system": "x"}), "llm(): missing key `prompt`"),
    ] {
        let error = ask(wrong).await.outcome.expect_err("it is refused");
        assert_eq!(error.message, text);
    }

    drop(server);
    assert_eq!(code(&ask(json!({"prompt": "4"})).await), "provider_down");
    assert_eq!(
        code(
            &host
                .call(HostCall {
                    name: "search".to_owned(),
                    ..call("a", "sms:1", json!({}))
                })
                .await
        ),
        NOT_AVAILABLE
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_price_is_not_asked() {
    let server = ModelServer::ruled(|_, _| ScriptedAnswer::text("yes")).await;
    let (_nats, bus) = shared::testing::world().await;
    let llm = LlmConfig {
        prices: PriceTable::default(),
        ..dear_model(&server.base_url("openai"))
    };

    let answered = host_of(&llm, RICH, &bus)
        .call(call("h", "sms:1", dear_question()))
        .await;
    let error = answered.outcome.expect_err("refused");
    assert_eq!(error.code, "no_price");
    assert!(error.message.contains("llm.prices.\"m\""), "{error:?}");
    assert_eq!(server.calls(), 0);
}
