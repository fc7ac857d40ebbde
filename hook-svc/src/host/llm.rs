//! `ctx.llm()`: the one model that all hooks call, its cost, and the budgets for it.
//!
//! There is one model, without a choice (seed 003 §8.6). Identical prompts within one event are sent once, even from
//! different hooks; the first hook pays. The spending of a hook per day is in KV, one count for all replicas: a call
//! begins only once its price is reserved there. An attempt without an answer counts as its reservation, unless the
//! provider surely charges nothing for it.

mod budget;
mod memo;
mod purse;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;
use shared::clock::SharedClock;
use shared::llm::{
    AskModelError, JsonMode, LlmConfig, LostAttempts, MicroDollars, ModelMessage, ModelPrice, ModelReply, ModelRequest,
    SharedModel,
};
use shared::process::ShutdownSignal;
use shared::serde_text::reword_json_problem;

use self::budget::QuestionSize;
pub use self::budget::{SpendBudget, SpendLimits};
use self::memo::AnswerMemo;
use crate::runner::{CallError, CallResult, CallUsage, HostCall, NOT_AVAILABLE, ScriptHost};

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
    budget: SpendBudget,
    memo: AnswerMemo,
    rest: Arc<dyn ScriptHost>,
}

impl LlmHost {
    /// Creates a host that calls `model`; if there is none, scripts get the reason as `not_available`.
    #[must_use]
    pub fn new(model: Result<SharedModel, String>, budget: SpendBudget, rest: Arc<dyn ScriptHost>) -> Self {
        Self {
            model,
            budget,
            memo: AnswerMemo::default(),
            rest,
        }
    }

    async fn call_model(&self, call: &HostCall) -> CallResult {
        let paid = OnceLock::new();
        let outcome = self.answer_call(call, &paid).await.map(Value::from);
        CallResult {
            outcome,
            spent: paid.into_inner().unwrap_or_default(),
        }
    }

    async fn answer_call(&self, call: &HostCall, paid: &OnceLock<CallUsage>) -> Result<String, CallError> {
        let model = self
            .model
            .as_ref()
            .map_err(|why| CallError::new(NOT_AVAILABLE, format!("llm() is not available: {why}")))?;
        let (ask, size) = ask_of(call)?;
        let cell = self.memo.answer_cell(&call.event_id, &call.args);

        let answered = cell
            .get_or_try_init(|| async {
                let reserved = self.budget.reserve_call(&call.hook.id, size).await?;
                let mut lost = LostAttempts::new(size.prompt_bytes, size.max_tokens);
                let mut note_failed = |error: &AskModelError| lost.note_failed(error);
                let answered = model.answer_telling(ask, &mut |_| {}, &mut note_failed).await;

                // An attempt without an answer may have been paid for, even if a later one was answered.
                let spent = spent_by(answered.as_ref().ok(), &lost, reserved.price());
                reserved.settle_call(call, spent).await;

                // Only the call that initialises the cell sets this.
                let _ = paid.set(spent);

                // The error is shared by all calls that wait: each would wait as long for the same one. A budget belongs
                // to each hook.
                Ok(answered
                    .map(|answer| answer.content)
                    .map_err(|error| call_error(&error)))
            })
            .await?;

        answered.clone()
    }
}

#[async_trait]
impl ScriptHost for LlmHost {
    async fn call(&self, call: HostCall) -> CallResult {
        match call.name.as_str() {
            "llm" => self.call_model(&call).await,
            _ => self.rest.call(call).await,
        }
    }
}

/// Opens the model that `config` describes.
///
/// # Errors
/// Returns a description of what the configuration lacks.
pub fn open_model(config: &LlmConfig, clock: SharedClock, shutdown: ShutdownSignal) -> Result<SharedModel, String> {
    shared::llm::open(config.clone(), clock, shutdown).map_err(|fault| fault.to_string())
}

/// Returns the list price of the model that `config` describes, which budgets use.
///
/// # Errors
/// Returns a description of what the configuration lacks.
pub fn model_price(config: &LlmConfig) -> Result<ModelPrice, String> {
    let model = config.usable_model().map_err(|fault| fault.to_string())?;
    config.prices.bounding_price(model).map_err(|error| error.to_string())
}

/// Returns the request that a script makes, and its size for the budget.
fn ask_of(call: &HostCall) -> Result<(ModelRequest, QuestionSize), CallError> {
    let bad = |text: String| CallError::new("bad_arguments", format!("llm(): {text}"));
    // A script's `undefined` is absent; `null` counts as absent too.
    let given: Arguments = serde_path_to_error::deserialize(call.args.clone()).map_err(|error| {
        let problem = reword_json_problem(&error.inner().to_string());
        match error.path().iter().next() {
            Some(_) => bad(format!("{}: {problem}", error.path())),
            None => bad(problem),
        }
    })?;
    let bytes = given.prompt.len() + given.system.as_ref().map_or(0, String::len);
    if given.prompt.is_empty() || bytes > MAX_PROMPT_BYTES {
        return Err(bad(format!(
            "prompt: expected 1 to {MAX_PROMPT_BYTES} bytes, found {bytes}"
        )));
    }

    // A number in JSON is a float. A range check on it also refuses NaN.
    let wanted = given.max_tokens.unwrap_or(f64::from(MAX_TOKENS));
    if !(1.0..=f64::from(MAX_TOKENS)).contains(&wanted) {
        return Err(bad(format!("max_tokens: expected 1 to {MAX_TOKENS}, found {wanted}")));
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be 1 to MAX_TOKENS"
    )]
    let wanted = wanted as u32;
    let size = QuestionSize {
        // The budget reserves the stated maximum, and its own default if there is none.
        prompt_bytes: bytes,
        max_tokens: given.max_tokens.map(|_| wanted),
    };

    let ask = ModelRequest {
        system: given.system.unwrap_or_default(),
        messages: vec![ModelMessage::user(given.prompt)],
        json: (given.json == Some(true)).then_some(JsonMode::Object),
        max_tokens: Some(wanted),
        timeout: Duration::from_millis(call.hook.timeout_ms),
        ..ModelRequest::default()
    };

    Ok((ask, size))
}

/// Returns the usage of a call that ended with `answer` after the attempts `lost`, of which each counts as a call at the
/// price that was reserved.
fn spent_by(answer: Option<&ModelReply>, lost: &LostAttempts, price: &ModelPrice) -> CallUsage {
    let answered = answer.map_or_else(CallUsage::default, |answer| CallUsage {
        search_calls: 0,
        llm_calls: 1,
        llm_tokens_in: answer.usage.input,
        llm_tokens_out: answer.usage.output,
        llm_cost_usd: answer.cost.map_or(0.0, MicroDollars::dollars),
    });

    CallUsage {
        llm_calls: answered.llm_calls + lost.count(),
        llm_cost_usd: answered.llm_cost_usd + lost.cost(price).dollars(),
        ..answered
    }
}

/// Returns the error that a script sees.
fn call_error(error: &AskModelError) -> CallError {
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
