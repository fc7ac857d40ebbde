//! `ctx.llm()`: the one model that all hooks call, its cost, and the budgets for it.
//!
//! There is one model, without a choice (seed 003 §8.6). Identical prompts within one event are sent once, even from
//! different hooks; the first hook pays. The spending of a hook per day is in KV, one count for all replicas: a call
//! begins only once its price is reserved there.

mod budget;
mod memo;
mod purse;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;
use shared::clock::SharedClock;
use shared::llm::{Answer, Ask, AskModelError, Json, LlmConfig, Message, Price, SharedModel};
use shared::process::Shutdown;

use self::budget::Size;
pub use self::budget::{Budget, Limits};
use self::memo::Memo;
use crate::runner::{Answered, Call, CallError, Host, NOT_AVAILABLE, Spent};

/// Longest prompt and system prompt together, in bytes.
const MAX_PROMPT_BYTES: usize = 256 * 1024;

/// Most tokens of an answer, used if the script names no number; the script may not name a larger one.
const MAX_TOKENS: u32 = 4_096;

/// Arguments that scripts pass.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    prompt: String,
    #[serde(default)]
    system: Option<String>,
    #[serde(default)]
    json: Option<bool>,
    #[serde(default)]
    max_tokens: Option<f64>,
}

/// Host that answers `llm`, and passes all other calls to another host.
#[derive(Debug)]
pub struct LlmHost {
    /// Model to call, or the reason why there is none.
    model: Result<SharedModel, String>,
    budget: Budget,
    memo: Memo,
    rest: Arc<dyn Host>,
}

impl LlmHost {
    /// Creates a host that calls `model`; if there is none, scripts get the reason as `not_available`.
    #[must_use]
    pub fn new(model: Result<SharedModel, String>, budget: Budget, rest: Arc<dyn Host>) -> Self {
        Self {
            model,
            budget,
            memo: Memo::default(),
            rest,
        }
    }

    async fn llm(&self, call: &Call) -> Answered {
        let paid = OnceLock::new();
        let outcome = self.answer(call, &paid).await.map(Value::from);
        Answered {
            outcome,
            spent: paid.into_inner().unwrap_or_default(),
        }
    }

    async fn answer(&self, call: &Call, paid: &OnceLock<Spent>) -> Result<String, CallError> {
        let model = self
            .model
            .as_ref()
            .map_err(|why| CallError::new(NOT_AVAILABLE, format!("llm() is not available: {why}")))?;
        let (ask, size) = ask_of(call)?;
        let cell = self.memo.cell(&call.event_id, &call.args);

        let answered = cell
            .get_or_try_init(|| async {
                let reserved = self.budget.reserve(&call.hook.id, size).await?;
                let answer = match model.answer(ask, &mut |_| {}).await {
                    Ok(answer) => answer,
                    // The error is shared by all calls that wait: each would wait as long for the same one. A budget
                    // belongs to each hook.
                    Err(error) => {
                        reserved.release().await;
                        return Ok(Err(told(&error)));
                    }
                };

                let spent = spent(&answer);
                reserved.settle(call, spent).await;

                // Only the call that initialises the cell sets this.
                let _ = paid.set(spent);
                Ok(Ok(answer.content))
            })
            .await?;

        answered.clone()
    }
}

#[async_trait]
impl Host for LlmHost {
    async fn call(&self, call: Call) -> Answered {
        match call.name.as_str() {
            "llm" => self.llm(&call).await,
            _ => self.rest.call(call).await,
        }
    }
}

/// Opens the model that `config` describes.
///
/// # Errors
/// Returns a description of what the configuration lacks.
pub fn model(config: &LlmConfig, clock: SharedClock, shutdown: Shutdown) -> Result<SharedModel, String> {
    shared::llm::open(config.clone(), clock, shutdown).map_err(|fault| fault.to_string())
}

/// Returns the list price of the model that `config` describes, which budgets use.
///
/// # Errors
/// Returns a description of what the configuration lacks.
pub fn price(config: &LlmConfig) -> Result<Price, String> {
    let model = config.usable().map_err(|fault| fault.to_string())?;
    config.prices.bounding(model).map_err(|error| error.to_string())
}

/// Returns the request that a script makes, and its size for the budget.
fn ask_of(call: &Call) -> Result<(Ask, Size), CallError> {
    let bad = |text: String| CallError::new("bad_arguments", format!("llm(): {text}"));
    // A script's `undefined` is absent; `null` counts as absent too.
    let given: Arguments = serde_json::from_value(call.args.clone()).map_err(|error| bad(error.to_string()))?;
    let bytes = given.prompt.len() + given.system.as_ref().map_or(0, String::len);
    if given.prompt.is_empty() || bytes > MAX_PROMPT_BYTES {
        return Err(bad(format!(
            "a prompt of 1 to {MAX_PROMPT_BYTES} bytes is expected, {bytes} found"
        )));
    }

    // A number in JSON is a float. A range check on it also refuses NaN.
    let wanted = given.max_tokens.unwrap_or(f64::from(MAX_TOKENS));
    if !(1.0..=f64::from(MAX_TOKENS)).contains(&wanted) {
        return Err(bad(format!(
            "max_tokens of 1 to {MAX_TOKENS} is expected, {wanted} found"
        )));
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be 1 to MAX_TOKENS"
    )]
    let wanted = wanted as u32;
    let size = Size {
        // The budget reserves the stated maximum, and its own default if there is none.
        prompt_bytes: bytes,
        max_tokens: given.max_tokens.map(|_| wanted),
    };

    let ask = Ask {
        system: given.system.unwrap_or_default(),
        messages: vec![Message::user(given.prompt)],
        json: (given.json == Some(true)).then_some(Json::Object),
        max_tokens: Some(wanted),
        timeout: Duration::from_millis(call.hook.timeout_ms),
        ..Ask::default()
    };

    Ok((ask, size))
}

fn spent(answer: &Answer) -> Spent {
    Spent {
        search_calls: 0,
        llm_calls: 1,
        llm_tokens_in: answer.usage.input,
        llm_tokens_out: answer.usage.output,
        llm_cost_usd: answer.cost.map_or(0.0, shared::llm::MicroDollars::dollars),
    }
}

/// Returns the error that a script sees.
fn told(error: &AskModelError) -> CallError {
    let code = match error {
        AskModelError::Unauthorised { .. } => "unauthorised",
        AskModelError::RateLimited { .. } => "rate_limited",
        AskModelError::Overloaded { .. } | AskModelError::Unreachable { .. } => "provider_down",
        AskModelError::Truncated { .. } => "broken_answer",
        AskModelError::Silent { .. } | AskModelError::TimedOut { .. } => "timed_out",
        AskModelError::TooLong { .. } => "too_long",
        AskModelError::Refused { .. } => "refused",
        AskModelError::BadAnswer { .. } => "bad_answer",
        AskModelError::Stopped => "stopped",
    };

    CallError::new(code, error.to_string())
}

#[cfg(test)]
mod tests;
