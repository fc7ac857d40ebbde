//! Context and outcome of a hook: the contract that all four kinds share. *Pure.*
//!
//! Source: seed 002 §2 (`HookContext`, `HookResult`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shared::model::approval::ApprovalAsk;

/// Maximum text that one hook adds to a conversation, bytes; the rest is cut.
pub const MAX_CONTEXT_BYTES: usize = 16 * 1_024;

/// Context in which a hook runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HookContext {
    /// Name of the tool; empty if the point belongs to no call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool_name: String,
    /// Arguments of the tool, as rewritten so far; at points of the stream, the text of the model or the person.
    #[serde(default)]
    pub tool_args: Value,
    /// Result of the tool, after it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_result: Option<Value>,
    /// Name of the persona.
    pub agent_id: String,
    /// Author of the message that the turn answers.
    pub user_id: String,
    /// Other facts of the runtime: session, turn, call, step, event, channel, prompt.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl HookContext {
    /// Returns the metadata under `key` as text; empty if there is none.
    #[must_use]
    pub fn metadata_text(&self, key: &str) -> &str {
        self.metadata.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Outcome of a hook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HookOutcome {
    /// Whether the next step may happen.
    pub allow: bool,
    /// Reason for a denial, for the model to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Arguments that replace the present ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_args: Option<Value>,
    /// Result that replaces the present one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_result: Option<Value>,
    /// Effects that the hook had, for the audit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub side_effects: Vec<String>,
    /// Question to a human, who must decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask: Option<ApprovalAsk>,
    /// Text to add to the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Globs of the tools that the model is not offered in this call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden_tools: Vec<String>,
}

impl Default for HookOutcome {
    fn default() -> Self {
        Self {
            allow: true,
            error: None,
            modified_args: None,
            modified_result: None,
            side_effects: Vec::new(),
            ask: None,
            context: None,
            hidden_tools: Vec::new(),
        }
    }
}

impl HookOutcome {
    /// Returns a denial for the reason `error`.
    #[must_use]
    pub fn denied(error: impl Into<String>) -> Self {
        Self {
            allow: false,
            error: Some(error.into()),
            ..Self::default()
        }
    }

    /// Returns whether the hook changed and reported nothing.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        *self == Self::default()
    }
}

/// Reason for which a hook has no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunHookError {
    /// The hook did not answer within this many milliseconds.
    #[error("no answer within {0} ms")]
    TimedOut(u64),
    /// The hook failed with this error.
    #[error("{0}")]
    Failed(String),
    /// No service that could run the hook is available. This does not count for the hook's breaker.
    #[error("no service runs this hook: {0}")]
    Absent(String),
    /// The hook failed so often lately that it is not asked until this time.
    #[error("paused after repeated errors until {0}")]
    Paused(shared::model::time::UnixMillis),
    /// The hook's command is not on the allow-list: it was never run.
    #[error("command is not allowed: {0}")]
    OffList(String),
}
