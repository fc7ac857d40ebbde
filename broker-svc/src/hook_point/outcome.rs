//! What a hook is told, and what it says: the contract that all four kinds share. *Pure.*
//!
//! Source: seed 002 §2 (`HookContext`, `HookResult`).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shared::model::approval::Ask;

/// Longest text that one hook puts into a conversation, bytes; the rest is cut.
pub const MAX_CONTEXT_BYTES: usize = 16 * 1_024;

/// What a hook is told of the moment at which it runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HookContext {
    /// The tool; empty where the point is not of a call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool_name: String,
    /// Its arguments, as rewritten so far; what a model said or a person wrote at points of the stream.
    #[serde(default)]
    pub tool_args: Value,
    /// What the tool answered, after it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_result: Option<Value>,
    /// The persona.
    pub agent_id: String,
    /// Who wrote the message that the turn answers.
    pub user_id: String,
    /// What the runtime knows besides: session, turn, call, step, event, channel, prompt.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl HookContext {
    /// What is told under `key`, as text; empty where nothing is.
    #[must_use]
    pub fn told(&self, key: &str) -> &str {
        self.metadata.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

/// What a hook says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HookOutcome {
    /// Whether what comes next may happen.
    pub allow: bool,
    /// Why not, for the model to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Other arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_args: Option<Value>,
    /// Another result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_result: Option<Value>,
    /// What it did, for the audit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub side_effects: Vec<String>,
    /// A human is to decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask: Option<Ask>,
    /// Text for the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Tools that the model is not offered in this call: globs.
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
    /// A refusal, with why.
    #[must_use]
    pub fn denied(error: impl Into<String>) -> Self {
        Self {
            allow: false,
            error: Some(error.into()),
            ..Self::default()
        }
    }

    /// Whether it let everything be as it was, without a word.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a hook said nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunHookError {
    /// It did not answer in time.
    #[error("no answer within {0} ms")]
    TimedOut(u64),
    /// It failed, and said this.
    #[error("{0}")]
    Failed(String),
    /// Nobody who could run it is there now. That says nothing of the hook, so it does not count for its breaker.
    #[error("no service runs this hook: {0}")]
    Absent(String),
    /// It failed so often lately that it is not asked.
    #[error("paused after repeated errors until {0}")]
    Paused(shared::model::time::UnixMillis),
    /// Its command is not on the allow-list: it was never run.
    #[error("command is not allowed: {0}")]
    OffList(String),
}
