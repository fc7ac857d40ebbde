//! Ledger types for hooks inside a turn, and for hooks that run after it. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use ulid::Ulid;

use super::{ToolCall, ToolOutcome};
use crate::model::session::SessionRef;

/// Outcome of one run of a hook inside a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookRunOutcome {
    /// Effect of the run on the turn.
    pub result: HookRunResult,
    /// Reason for a denial or failure, or an error that the hook reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Effects outside of the turn, as the hook describes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub side_effects: Vec<String>,
}

/// Effect of one hook run on the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookRunResult {
    /// The hook changed nothing.
    Allowed,
    /// The next step must not happen.
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

/// Ending of a turn, for its post-turn hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnEnding {
    /// The agent answered.
    Completed,
    /// The agent failed, or none serves the persona.
    Failed,
    /// A limit of the turn was reached.
    Limit,
    /// The turn was canceled.
    Interrupted,
}

/// A finished turn, as its post-turn hooks need it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinishedTurn {
    /// Id of the turn.
    pub turn: Ulid,
    /// Ending of the turn.
    pub ended: TurnEnding,
    /// Sessions that the turn worked for, whose hooks run as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub works_for: Vec<SessionRef>,
    /// Author and origin of the turn's messages.
    #[serde(default, skip_serializing_if = "TurnDescription::is_empty")]
    pub description: TurnDescription,
    /// A call of the turn whose outcome the hooks after tool calls have not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<UnseenCall>,
}

/// Author and origin of a turn's messages, which hooks get at every point of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TurnDescription {
    /// Author of the newest message that the turn answers.
    pub user: String,
    /// Event, channel, prompt and further users, by key.
    pub metadata: Map<String, Value>,
}

impl TurnDescription {
    /// Returns whether the description is empty.
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
    /// Outcome of the call.
    pub outcome: ToolOutcome,
}
