//! What stands between the port and a provider: the configured model, repeating, time-outs, prices.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::answer::{Answer, Finish};
use super::ask::Ask;
use super::config::{LlmConfig, LlmFault};
use super::error::AskModelError;
use super::price::cost;
use super::room::Room;
use super::{Model, SharedModel, Tokens};
use crate::clock::SharedClock;
use crate::process::Shutdown;
use crate::retry::{Failure, RetryError, retry};

/// The model that `config` describes. Waits between attempts end when `shutdown` is requested.
///
/// # Errors
/// [`LlmFault`] says what is missing in the configuration.
pub fn open(config: LlmConfig, clock: SharedClock, shutdown: Shutdown) -> Result<SharedModel, LlmFault> {
    let model = config.usable()?.to_owned();
    let room = Room::new(&config, Arc::clone(&clock))?;
    Ok(Arc::new(Client {
        room,
        model,
        config,
        clock,
        shutdown,
    }))
}

/// A provider behind the port.
#[derive(Debug)]
struct Client {
    room: Room,
    model: String,
    config: LlmConfig,
    clock: SharedClock,
    shutdown: Shutdown,
}

/// Who wants the text as it comes, and how much was handed on.
struct Listener<'a> {
    tokens: &'a mut Tokens<'a>,
    wanted: bool,
    handed_on: bool,
}

impl Listener<'_> {
    fn hear(&mut self, text: &str) {
        if self.wanted && !text.is_empty() {
            self.handed_on = true;
            (self.tokens)(text);
        }
    }
}

#[async_trait]
impl Model for Client {
    async fn answer(&self, ask: Ask, tokens: &mut Tokens<'_>) -> Result<Answer, AskModelError> {
        let deadline = self.clock.monotonic() + ask.timeout;
        let listener = Mutex::new(Listener {
            tokens,
            wanted: ask.stream,
            handed_on: false,
        });
        let attempts = retry(&self.config.retry, &self.shutdown, |_| {
            self.attempt(&ask, &listener, deadline)
        });
        match tokio::time::timeout(ask.timeout, attempts).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(RetryError::Refused { source, .. } | RetryError::Exhausted { source, .. })) => Err(source),
            Ok(Err(RetryError::Stopped)) => Err(AskModelError::Stopped),
            Err(_) => Err(AskModelError::TimedOut {
                waited_ms: u64::try_from(ask.timeout.as_millis()).unwrap_or(u64::MAX),
            }),
        }
    }
}

impl Client {
    async fn attempt(
        &self,
        ask: &Ask,
        listener: &Mutex<Listener<'_>>,
        deadline: Instant,
    ) -> Result<Answer, Failure<AskModelError>> {
        let hear = |text: &str| listener.lock().unwrap_or_else(PoisonError::into_inner).hear(text);
        let model = ask.model.as_deref().unwrap_or(&self.model);
        let outcome = self
            .room
            .ask(model, ask, &hear)
            .await
            .and_then(|answer| checked(answer, ask));
        metrics::counter!("nexus_llm_attempts_total", "outcome" => label(&outcome)).increment(1);
        let error = match outcome {
            Ok(answer) => return Ok(self.priced(answer)),
            Err(error) => error,
        };
        tracing::info!(model, %error, "model gave no answer");
        let handed_on = listener.lock().unwrap_or_else(PoisonError::into_inner).handed_on;
        let left = deadline.saturating_duration_since(self.clock.monotonic());
        // Who has heard the beginning must decide what becomes of it; and a wait beyond the deadline helps nobody.
        if handed_on || !error.is_transient() || error.after().is_some_and(|after| after >= left) {
            return Err(Failure::permanent(error));
        }
        Err(match error.after() {
            Some(after) => Failure::retry_after(error, after.max(Duration::from_millis(1))),
            None => Failure::transient(error),
        })
    }

    fn priced(&self, mut answer: Answer) -> Answer {
        metrics::counter!("nexus_llm_tokens_total", "direction" => "in").increment(answer.usage.input);
        metrics::counter!("nexus_llm_tokens_total", "direction" => "out").increment(answer.usage.output);
        answer.cost = self
            .config
            .prices
            .of(&answer.model)
            .map(|price| cost(&answer.usage, price));
        if let Some(cost) = answer.cost {
            metrics::counter!("nexus_llm_cost_microdollars_total").increment(cost.0);
        }
        answer
    }
}

/// An answer that should be JSON and is not is bad, unless it is known to be cut.
fn checked(answer: Answer, ask: &Ask) -> Result<Answer, AskModelError> {
    if ask.json.is_some()
        && answer.finish == Finish::Done
        && answer.tool_calls.is_empty()
        && let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&answer.content)
    {
        return Err(AskModelError::BadAnswer {
            detail: format!("JSON was asked for: {error}"),
        });
    }
    Ok(answer)
}

const fn label(outcome: &Result<Answer, AskModelError>) -> &'static str {
    match outcome {
        Ok(_) => "answered",
        Err(AskModelError::Unauthorised { .. }) => "unauthorised",
        Err(AskModelError::RateLimited { .. }) => "rate_limited",
        Err(AskModelError::Overloaded { .. }) => "overloaded",
        Err(AskModelError::Unreachable { .. }) => "unreachable",
        Err(AskModelError::Truncated { .. }) => "truncated",
        Err(AskModelError::Silent { .. } | AskModelError::TimedOut { .. }) => "timed_out",
        Err(AskModelError::TooLong { .. }) => "too_long",
        Err(AskModelError::Refused { .. }) => "refused",
        Err(AskModelError::BadAnswer { .. }) => "bad_answer",
        Err(AskModelError::Stopped) => "stopped",
    }
}
