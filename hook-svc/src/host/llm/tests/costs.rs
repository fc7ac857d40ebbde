//! What an attempt costs, by how it ends.

use super::*;

/// What a provider does with an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Answered,
    /// Rejected with this status.
    Status(u16),
    /// The connection breaks after this many bytes of the answer.
    Broken(usize),
    /// The answer ends early, without an error of the connection.
    Short(usize),
    /// Nothing comes.
    Silent,
}

impl Attempt {
    fn answer(self) -> ScriptedAnswer {
        let speech = ScriptedAnswer::text("an answer with a few words");
        match self {
            Self::Answered => speech,
            Self::Status(status) => ScriptedAnswer::status(status, "no"),
            Self::Broken(after) => speech.ending(AnswerEnding::Dropped { after }),
            Self::Short(after) => speech.ending(AnswerEnding::Closed { after }),
            Self::Silent => ScriptedAnswer::Raw {
                bytes: Vec::new(),
                cut: CutPoint::Whole,
                ending: AnswerEnding::Held,
            },
        }
    }

    const fn is_free(self) -> bool {
        matches!(self, Self::Status(400..500))
    }

    const fn is_repeated(self) -> bool {
        match self {
            Self::Answered => false,
            Self::Status(status) => matches!(status, 408 | 429 | 500..),
            Self::Broken(_) | Self::Short(_) | Self::Silent => true,
        }
    }
}

/// Tokens of an answer of the model server, one dollar each.
const ANSWER_USD: f64 = 120.0;
/// The reservation of [`dear_question`].
const RESERVED_USD: f64 = 120.0;

/// The record of the day of hook `whose`: calls and dollars, and dollars still held.
async fn recorded(bus: &Bus, whose: &str) -> (u64, f64, u64) {
    let entry = bus.kv::<HookSpend>(HOOK_SPEND).get(&format!("19675.{whose}")).await;
    let spend = entry
        .expect("readable")
        .map_or_else(HookSpend::default, |entry| entry.value);
    (
        spend.calls,
        MicroDollars(spend.micro_usd).dollars(),
        spend.held_micro_usd,
    )
}

/// Makes a call of which the attempts end as `pair` says, and checks what it costs.
async fn check_cost(bus: &Bus, pair: [Attempt; 2]) {
    let server = ModelServer::scripted(pair.map(Attempt::answer)).await;
    let is_silent = pair.contains(&Attempt::Silent);
    let llm = LlmConfig {
        idle_timeout_ms: if is_silent { 500 } else { 30_000 },
        ..dear_model(&server.base_url("openai"))
    };

    let hook = format!("{pair:?}");
    let answered = host_of(&llm, RICH, bus)
        .call(call(&hook, "sms:1", dear_question()))
        .await;

    let made = &pair[..server.calls()];
    assert_eq!(made.len(), if pair[0].is_repeated() { 2 } else { 1 }, "{pair:?}");
    let paid = made.iter().filter(|attempt| !attempt.is_free());
    let calls = paid.clone().count() as u64;
    let cost: f64 = paid
        .map(|attempt| match attempt {
            Attempt::Answered => ANSWER_USD,
            Attempt::Status(_) | Attempt::Broken(_) | Attempt::Short(_) | Attempt::Silent => RESERVED_USD,
        })
        .sum();

    let spent = (u64::from(answered.spent.llm_calls), answered.spent.llm_cost_usd);
    assert_eq!(spent, (calls, cost), "{made:?}");
    let record = recorded(bus, &format!("hook.{}", token(&hook))).await;
    assert_eq!(record, (calls, cost, 0), "{made:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_counts_as_paid_unless_the_provider_surely_charges_nothing() {
    let (_nats, bus) = shared::testing::world().await;
    let kinds = [
        Attempt::Answered,
        Attempt::Status(400),
        Attempt::Status(401),
        Attempt::Status(404),
        Attempt::Status(408),
        Attempt::Status(413),
        Attempt::Status(429),
        Attempt::Status(500),
        Attempt::Status(503),
        Attempt::Broken(0),
        Attempt::Broken(60),
        Attempt::Short(60),
    ];

    for first in kinds {
        let seconds = if first.is_repeated() { &kinds[..] } else { &kinds[..1] };
        for second in seconds {
            check_cost(&bus, [first, *second]).await;
        }
    }

    check_cost(&bus, [Attempt::Silent, Attempt::Silent]).await;
    check_cost(&bus, [Attempt::Status(500), Attempt::Silent]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_not_there_is_not_paid_and_one_that_says_nothing_in_time_is() {
    let (_nats, bus) = shared::testing::world().await;
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gone_url = format!("http://{}/v1", gone.local_addr().expect("an address"));
    drop(gone);

    let refused = replica(&gone_url, RICH, &bus)
        .call(call("gone", "sms:1", dear_question()))
        .await;
    assert_eq!((code(&refused), refused.spent), ("provider_down", CallUsage::default()));
    assert_eq!(recorded(&bus, "hook.gone").await, (0, 0.0, 0));

    // The time of the hook ends in a pause between attempts that reached nobody: nothing was sent.
    let mut patient = dear_model(&gone_url);
    patient.retry = RetrySchedule {
        initial_ms: 60_000,
        max_ms: 60_000,
        ..RetrySchedule::default()
    };
    let short = |hook: &str| {
        let mut short = call(hook, "sms:1", dear_question());
        let source = Arc::make_mut(&mut short.hook);
        source.timeout_ms = 2_000;
        short
    };
    let paused = host_of(&patient, RICH, &bus);
    // And in an attempt that the provider has taken.
    let server = ModelServer::ruled(|_, _| Attempt::Silent.answer()).await;
    let waited = replica(&server.base_url("openai"), RICH, &bus);
    let (paused, waited) = tokio::join!(paused.call(short("paused")), waited.call(short("waited")));

    assert_eq!((code(&paused), paused.spent), ("timed_out", CallUsage::default()));
    assert_eq!((code(&waited), waited.spent.llm_calls), ("timed_out", 1));
    assert_eq!(recorded(&bus, "hook.waited").await, (1, RESERVED_USD, 0));
}
