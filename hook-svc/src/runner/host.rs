//! Calls that scripts may make to their host: `ctx.search()`, `ctx.llm()`, `ctx.fetch()`, `ctx.readFile()`.
//!
//! Workers hold no connection and no credential (`docs/design/hooks.md` §6.1), so a call is a frame to the host and its
//! answer a frame back. A call is identified by event, hook and its number among that hook's calls: an event that loses
//! its worker is evaluated again, and a call that was answered before gets the same answer without a second request.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;
use shared::model::event::EventId;
use shared::model::time::UnixMillis;

use super::HookSource;

/// Error code for a call that the host does not know, or cannot answer.
pub const NOT_AVAILABLE: &str = "not_available";

/// One call of a script.
#[derive(Debug, Clone)]
pub struct HostCall {
    /// Id of the event being evaluated.
    pub event_id: EventId,
    /// Event being evaluated, as JSON by its wire names.
    pub event_json: Bytes,
    /// Sequence of the event in `EVENTS`, which a read model that answers must have applied; 0 requires none.
    pub sequence: u64,
    /// Evaluation time of the event.
    pub now: UnixMillis,
    /// Hook that makes the call.
    pub hook: Arc<HookSource>,
    /// Number of the call among the hook's calls for this event, from 0.
    pub number: u32,
    /// Name of the function: `search`, `llm`, `fetch` or `readFile`.
    pub name: String,
    /// Arguments of the call, by name.
    pub args: Value,
}

/// Usage of calls, billed to their hook.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CallUsage {
    /// Number of `search` calls.
    pub search_calls: u32,
    /// Number of `llm` calls that reached a model.
    pub llm_calls: u32,
    /// Number of tokens sent.
    pub llm_tokens_in: u64,
    /// Number of tokens received.
    pub llm_tokens_out: u64,
    /// Cost by the price table, in US dollars.
    pub llm_cost_usd: f64,
}

impl CallUsage {
    /// Adds the usage of another call.
    pub fn add(&mut self, other: Self) {
        self.search_calls = self.search_calls.saturating_add(other.search_calls);
        self.llm_calls = self.llm_calls.saturating_add(other.llm_calls);
        self.llm_tokens_in = self.llm_tokens_in.saturating_add(other.llm_tokens_in);
        self.llm_tokens_out = self.llm_tokens_out.saturating_add(other.llm_tokens_out);
        self.llm_cost_usd += other.llm_cost_usd;
    }

    /// Returns whether nothing was used.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Answer to a call: a value for the script or an error, and the usage in either case.
#[derive(Debug, Clone, PartialEq)]
pub struct CallResult {
    /// Value that the promise resolves to, or error that it rejects with.
    pub outcome: Result<Value, CallError>,
    /// Usage of the call.
    pub spent: CallUsage,
}

/// Reason why a call failed; scripts see an `Error` with this `code` and `message`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// Error code for scripts: `not_available`, `bad_arguments`, `over_budget`, …
    pub code: &'static str,
    /// Description of the error, for people.
    pub message: String,
}

impl CallError {
    /// Creates an error with `code` and `message`.
    #[must_use]
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

impl From<CallError> for CallResult {
    fn from(error: CallError) -> Self {
        Self {
            outcome: Err(error),
            spent: CallUsage::default(),
        }
    }
}

/// Answers the calls of scripts.
#[async_trait]
pub trait ScriptHost: std::fmt::Debug + Send + Sync {
    /// Returns the answer to `call`, in bounded time. The worker that asked may be gone by then.
    async fn call(&self, call: HostCall) -> CallResult;
}

/// Host that answers no call.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHost;

#[async_trait]
impl ScriptHost for NoHost {
    async fn call(&self, call: HostCall) -> CallResult {
        not_available(&call.name)
    }
}

/// Returns the answer to a call that the host cannot answer.
#[must_use]
pub fn not_available(name: &str) -> CallResult {
    CallError::new(NOT_AVAILABLE, format!("{name}() is not available")).into()
}
