//! What the ledger says of hooks inside a turn, and of those that run after it. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use ulid::Ulid;

use super::{ToolCall, ToolOutcome};
use crate::model::session::SessionRef;

/// How one run of a hook inside a turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookRunOutcome {
    /// Its effect on the turn.
    pub result: HookRunResult,
    /// Why it denied or failed, or an error that it reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its own account of what it did outside of the turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub side_effects: Vec<String>,
}

/// The effect of one hook run on the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookRunResult {
    /// Nothing changed.
    Allowed,
    /// What was about to happen must not.
    Denied,
    /// A human must decide.
    Asks,
    /// The arguments of a call, its result, or an answer were replaced.
    Rewrote,
    /// Text was offered for the conversation.
    Injected,
    /// The command is not on the allow-list and did not run.
    Skipped,
    /// The hook did not run, did not finish in time, or failed.
    Failed,
}

/// How a turn ended, as its post-turn hooks are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnEnding {
    /// The agent answered.
    Completed,
    /// The agent failed, or none serves the persona.
    Failed,
    /// A limit of the turn was reached.
    Limit,
    /// The turn was cancelled.
    Interrupted,
}

/// A finished turn, as its post-turn hooks need it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinishedTurn {
    /// The turn's id.
    pub turn: Ulid,
    /// How it ended.
    pub ended: TurnEnding,
    /// Sessions that the turn worked for, whose hooks run as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub works_for: Vec<SessionRef>,
    /// Who asked for the turn, and where.
    #[serde(default, skip_serializing_if = "TurnDescription::is_empty")]
    pub description: TurnDescription,
    /// A call of the turn whose outcome the hooks after tool calls have not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<UnseenCall>,
}

/// Who asked for a turn, and where: what hooks are told at every point of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TurnDescription {
    /// Who wrote the newest message that the turn answers.
    pub user: String,
    /// Event, channel, prompt and further users, by key.
    pub metadata: Map<String, Value>,
}

impl TurnDescription {
    /// Returns whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.user.is_empty() && self.metadata.is_empty()
    }
}

/// A tool call that ended, and whose outcome the hooks after tool calls have not seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnseenCall {
    /// The call, with the arguments that it ran with.
    pub call: ToolCall,
    /// How it ended.
    pub outcome: ToolOutcome,
}
