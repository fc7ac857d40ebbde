//! Layer between the port and a provider: the configured model, retries, timeouts, prices.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::answer::{Answer, Finish};
use super::ask::Ask;
use super::config::{LlmConfig, LlmFault};
use super::error::AskModelError;
use super::price::{MicroDollars, cost, estimate};
use super::room::Room;
use super::{Failures, Model, SharedModel, Tokens};
use crate::clock::SharedClock;
use crate::process::Shutdown;
use crate::retry::{Failure, RetryError, retry};

/// Returns the model that `config` describes. Pauses between attempts end when `shutdown` is requested.
///
/// # Errors
/// Returns [`LlmFault`] if the configuration lacks something.
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

/// Receiver of the text as it arrives, and whether any text was passed on.
struct Listener<'a> {
    tokens: &'a mut Tokens<'a>,
    failed: &'a mut Failures<'a>,
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
    fn estimate(&self, ask: &Ask) -> Option<MicroDollars> {
        let model = ask.model.as_deref().unwrap_or(&self.model);
        let price = self.config.prices.of(model)?;
        Some(estimate(ask.prompt_bytes(), ask.max_tokens, price))
    }

    async fn answer(&self, ask: Ask, tokens: &mut Tokens<'_>) -> Result<Answer, AskModelError> {
        self.answer_telling(ask, tokens, &mut |_| {}).await
    }

    async fn answer_telling(
        &self,
        ask: Ask,
        tokens: &mut Tokens<'_>,
        failed: &mut Failures<'_>,
    ) -> Result<Answer, AskModelError> {
        let deadline = self.clock.monotonic() + ask.timeout;
        let listener = Mutex::new(Listener {
            tokens,
            failed,
            wanted: ask.stream,
            handed_on: false,
        });

        let attempts = retry(&self.config.retry, &self.shutdown, |_| {
            self.attempt(&ask, &listener, deadline)
        });
        // The timeout covers all attempts and the pauses between them.
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

        tracing::info!(model, %error, "model call failed");
        let handed_on = {
            let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
            (listener.failed)(&error);
            listener.handed_on
        };

        let left = deadline.saturating_duration_since(self.clock.monotonic());
        // After the caller has received the beginning, it must decide how to continue; and a pause beyond the deadline
        // is useless.
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

/// Checks an answer that must be JSON: fails if it is not, unless it is known to be cut. Models without a JSON mode
/// tend to put it into a code fence; then the content of the fence is the answer.
fn checked(mut answer: Answer, ask: &Ask) -> Result<Answer, AskModelError> {
    if ask.json.is_none() || answer.finish != Finish::Done || !answer.tool_calls.is_empty() {
        return Ok(answer);
    }

    let Err(error) = json(&answer.content) else {
        return Ok(answer);
    };

    match fenced(&answer.content).filter(|inner| json(inner).is_ok()) {
        Some(inner) => {
            answer.content = inner.to_owned();
            Ok(answer)
        }
        None => Err(AskModelError::BadAnswer {
            detail: format!("JSON was asked for: {error}"),
        }),
    }
}

fn json(text: &str) -> Result<serde::de::IgnoredAny, serde_json::Error> {
    serde_json::from_str(text)
}

/// Returns the content of the only code fence in `text`, with any text around it. Returns `None` if there are more
/// fences, or if it does not end.
fn fenced(text: &str) -> Option<&str> {
    let mut marks = text.match_indices("```").map(|(at, _)| at).filter(|at| {
        let line = text[..*at].rfind('\n').map_or(0, |end| end + 1);
        text[line..*at].trim().is_empty()
    });
    let (begin, end) = (marks.next()?, marks.next()?);

    if marks.next().is_some() {
        return None;
    }

    let inner = &text[begin..end];
    Some(inner[inner.find('\n')?..].trim())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_found_in_the_one_fence_that_holds_it() {
        let check = |text: &str, inner: Option<&str>| assert_eq!(fenced(text), inner, "{text:?}");
        check("```json\n{\"a\": 1}\n```", Some("{\"a\": 1}"));
        check("Here it is:\n\n  ```\n[1]\n  ```\nAnything else?", Some("[1]"));
        check("```json\r\n{}\r\n```\r\n", Some("{}"));
        check("{\"text\": \"```\"}", None);
        check("```json\n{}", None);
        check("```\n1\n```\n```\n2\n```", None);
        check(
            "```json\n{\"fence\": \"a ``` in a line\"}\n```",
            Some("{\"fence\": \"a ``` in a line\"}"),
        );
    }
}
