//! What scripts may ask their host: `ctx.search()`, `ctx.llm()`, `ctx.fetch()`.
//!
//! Workers hold no connection and no credential (`docs/design/hooks.md` §6.1), so such a call is a frame to the host
//! and its answer a frame back. A call is named by event, hook and its number among that hook's calls: an event that
//! loses its worker is evaluated again, and what was answered before is answered the same again without asking twice.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use shared::model::event::EventId;
use shared::model::time::UnixMillis;

use super::HookSource;

/// What a host refuses that does not know the call, or has nothing to answer it with.
pub const NOT_AVAILABLE: &str = "not_available";

/// One call of a script.
#[derive(Debug, Clone)]
pub struct Call {
    /// The event being evaluated.
    pub event_id: EventId,
    /// Its evaluation time.
    pub now: UnixMillis,
    /// Who asks.
    pub hook: Arc<HookSource>,
    /// Counts the hook's calls on this event, from 0.
    pub number: u32,
    /// `search`, `llm`, `fetch`.
    pub name: String,
    /// The arguments by name.
    pub args: Value,
}

/// What calls have used, to be billed to their hook.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spent {
    /// Calls of `search`.
    pub search_calls: u32,
    /// Calls of `llm` that reached a model.
    pub llm_calls: u32,
    /// Tokens sent.
    pub llm_tokens_in: u64,
    /// Tokens received.
    pub llm_tokens_out: u64,
    /// By the price table, US dollars.
    pub llm_cost_usd: f64,
}

impl Spent {
    /// Adds what another call used.
    pub fn add(&mut self, other: Self) {
        self.search_calls = self.search_calls.saturating_add(other.search_calls);
        self.llm_calls = self.llm_calls.saturating_add(other.llm_calls);
        self.llm_tokens_in = self.llm_tokens_in.saturating_add(other.llm_tokens_in);
        self.llm_tokens_out = self.llm_tokens_out.saturating_add(other.llm_tokens_out);
        self.llm_cost_usd += other.llm_cost_usd;
    }

    /// Whether nothing was used.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// What a call came to: a value for the script or why there is none, and what it used either way.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    /// What the promise resolves to or rejects with.
    pub outcome: Result<Value, CallError>,
    /// What it used.
    pub spent: Spent,
}

/// Why a call has no answer; scripts see an `Error` with this `code` and `message`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// For scripts: `not_available`, `bad_arguments`, `over_budget`, …
    pub code: &'static str,
    /// For people.
    pub message: String,
}

impl CallError {
    /// An error of `code`.
    #[must_use]
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

impl From<CallError> for Answered {
    fn from(error: CallError) -> Self {
        Self {
            outcome: Err(error),
            spent: Spent::default(),
        }
    }
}

/// Answers scripts' calls.
#[async_trait]
pub trait Host: std::fmt::Debug + Send + Sync {
    /// Answers `call`; always, and in bounded time. Who asks may be gone by then.
    async fn call(&self, call: Call) -> Answered;
}

/// A host that has nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHost;

#[async_trait]
impl Host for NoHost {
    async fn call(&self, call: Call) -> Answered {
        not_available(&call.name)
    }
}

/// The answer to a call that nobody here can answer.
#[must_use]
pub fn not_available(name: &str) -> Answered {
    CallError::new(NOT_AVAILABLE, format!("{name}() is not available")).into()
}
