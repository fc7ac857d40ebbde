//! Layer between the port and a provider: the configured model, retries, timeouts, prices.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::answer::{FinishReason, ModelReply};
use super::ask::ModelRequest;
use super::config::{LlmConfig, LlmFault};
use super::error::AskModelError;
use super::price::{MicroDollars, ModelPrice, estimate, usage_cost};
use super::provider_client::ProviderClient;
use super::{Failures, LanguageModel, SharedModel, Tokens};
use crate::clock::SharedClock;
use crate::process::ShutdownSignal;
use crate::retry::{Failure, RetryError, retry};

/// Returns the model that `config` describes. Pauses between attempts end when `shutdown` is requested.
///
/// # Errors
/// Returns [`LlmFault`] if the configuration lacks something.
pub fn open(config: LlmConfig, clock: SharedClock, shutdown: ShutdownSignal) -> Result<SharedModel, LlmFault> {
    let model = config.usable_model()?.to_owned();
    let room = ProviderClient::new(&config, Arc::clone(&clock))?;
    Ok(Arc::new(ModelClient {
        room,
        model,
        config,
        clock,
        shutdown,
    }))
}

/// A provider behind the port.
#[derive(Debug)]
struct ModelClient {
    room: ProviderClient,
    model: String,
    config: LlmConfig,
    clock: SharedClock,
    shutdown: ShutdownSignal,
}

/// Receiver of the text as it arrives, and whether any text was passed on.
struct TextListener<'a> {
    tokens: &'a mut Tokens<'a>,
    failed: &'a mut Failures<'a>,
    wanted: bool,
    handed_on: bool,
    /// Whether an attempt is under way.
    under_way: bool,
}

impl TextListener<'_> {
    fn push_text(&mut self, text: &str) {
        if self.wanted && !text.is_empty() {
            self.handed_on = true;
            (self.tokens)(text);
        }
    }
}

#[async_trait]
impl LanguageModel for ModelClient {
    fn estimate(&self, ask: &ModelRequest) -> Option<MicroDollars> {
        let model = ask.model.as_deref().unwrap_or(&self.model);
        let price = self.config.prices.price_of(model)?;
        Some(estimate(ask.prompt_bytes(), ask.max_tokens, price))
    }

    fn price(&self, model: Option<&str>) -> Option<ModelPrice> {
        self.config.prices.price_of(model.unwrap_or(&self.model)).copied()
    }

    fn recording_types(&self) -> &'static [&'static str] {
        self.config.provider.recording_types()
    }

    async fn answer(&self, ask: ModelRequest, tokens: &mut Tokens<'_>) -> Result<ModelReply, AskModelError> {
        self.answer_telling(ask, tokens, &mut |_| {}).await
    }

    async fn answer_telling(
        &self,
        ask: ModelRequest,
        tokens: &mut Tokens<'_>,
        failed: &mut Failures<'_>,
    ) -> Result<ModelReply, AskModelError> {
        let deadline = self.clock.monotonic() + ask.timeout;
        let listener = Mutex::new(TextListener {
            tokens,
            failed,
            wanted: ask.stream,
            handed_on: false,
            under_way: false,
        });

        let attempts = retry(&self.config.retry, &self.shutdown, |_| {
            self.attempt_ask(&ask, &listener, deadline)
        });
        // The timeout covers all attempts and the pauses between them.
        let error = match tokio::time::timeout(ask.timeout, attempts).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(RetryError::Refused { source, .. } | RetryError::Exhausted { source, .. })) => return Err(source),
            Ok(Err(RetryError::Stopped)) => AskModelError::Stopped,
            Err(_) => AskModelError::TimedOut {
                waited_ms: u64::try_from(ask.timeout.as_millis()).unwrap_or(u64::MAX),
            },
        };

        // The attempt that was under way has no error of its own.
        let listener = listener.into_inner().unwrap_or_else(PoisonError::into_inner);
        if listener.under_way {
            (listener.failed)(&error);
        }

        Err(error)
    }
}

impl ModelClient {
    async fn attempt_ask(
        &self,
        ask: &ModelRequest,
        listener: &Mutex<TextListener<'_>>,
        deadline: Instant,
    ) -> Result<ModelReply, Failure<AskModelError>> {
        let hear = |text: &str| listener.lock().unwrap_or_else(PoisonError::into_inner).push_text(text);
        let model = ask.model.as_deref().unwrap_or(&self.model);
        listener.lock().unwrap_or_else(PoisonError::into_inner).under_way = true;
        let outcome = self
            .room
            .attempt_once(model, ask, &hear)
            .await
            .and_then(|answer| check_answer(answer, ask));

        metrics::counter!("nexus_llm_attempts_total", "outcome" => outcome_label(&outcome)).increment(1);
        let error = match outcome {
            Ok(answer) => return Ok(self.with_price(answer)),
            Err(error) => error,
        };

        tracing::info!(model, %error, "model call failed");
        let handed_on = {
            let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
            listener.under_way = false;
            (listener.failed)(&error);
            listener.handed_on
        };

        let left = deadline.saturating_duration_since(self.clock.monotonic());
        // After the caller has received the beginning, it must decide how to continue; and a pause beyond the deadline
        // is useless.
        if handed_on || !error.is_transient() || error.retry_after().is_some_and(|after| after >= left) {
            return Err(Failure::permanent(error));
        }

        Err(match error.retry_after() {
            Some(after) => Failure::retry_after(error, after.max(Duration::from_millis(1))),
            None => Failure::transient(error),
        })
    }

    fn with_price(&self, mut answer: ModelReply) -> ModelReply {
        metrics::counter!("nexus_llm_tokens_total", "direction" => "in").increment(answer.usage.input);
        metrics::counter!("nexus_llm_tokens_total", "direction" => "out").increment(answer.usage.output);
        answer.cost = self
            .config
            .prices
            .price_of(&answer.model)
            .map(|price| usage_cost(&answer.usage, price));

        if let Some(cost) = answer.cost {
            metrics::counter!("nexus_llm_cost_microdollars_total").increment(cost.0);
        }

        answer
    }
}

/// Checks an answer that must be JSON: fails if it is not, unless it is known to be cut. Models without a JSON mode
/// tend to put it into a code fence; then the content of the fence is the answer.
fn check_answer(mut answer: ModelReply, ask: &ModelRequest) -> Result<ModelReply, AskModelError> {
    if ask.json.is_none() || answer.finish != FinishReason::Done || !answer.tool_calls.is_empty() {
        return Ok(answer);
    }

    let Err(error) = parse_json(&answer.content) else {
        return Ok(answer);
    };

    match fenced_text(&answer.content).filter(|inner| parse_json(inner).is_ok()) {
        Some(inner) => {
            answer.content = inner.to_owned();
            Ok(answer)
        }
        None => Err(AskModelError::BadAnswer {
            detail: format!("the model's answer is not valid JSON: {error}"),
        }),
    }
}

fn parse_json(text: &str) -> Result<serde::de::IgnoredAny, serde_json::Error> {
    serde_json::from_str(text)
}

/// Returns the content of the only code fence in `text`, with any text around it. Returns `None` if there are more
/// fences, or if it does not end.
fn fenced_text(text: &str) -> Option<&str> {
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

const fn outcome_label(outcome: &Result<ModelReply, AskModelError>) -> &'static str {
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
        let check = |text: &str, inner: Option<&str>| assert_eq!(fenced_text(text), inner, "{text:?}");
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
