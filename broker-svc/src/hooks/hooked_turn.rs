//! The turn at whose points hooks run: data common to all points, and the context of a hook at one of them. *Pure.*

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use shared::model::ledger::{FinishedTurn, ToolCall, ToolOutcome, TurnDescription};
use shared::model::session::SessionRef;
use ulid::Ulid;

use super::outcome::HookContext;
use super::reminder::ReminderProgress;
use super::rules::HookSet;
use crate::agent::message_text::shorten_text;
use crate::session::PendingDispatch;

/// Maximum length of a message or answer in a hook's context, bytes; the rest is cut.
const MAX_TOLD_BYTES: usize = 64 * 1_024;

/// Maximum length of a message in the context of post-turn hooks, bytes: the fold holds it until they have run.
const MAX_KEPT_BYTES: usize = 2 * 1_024;

/// A turn, as its hooks see it.
#[derive(Debug, Clone)]
pub struct HookedTurn {
    /// Session of the turn.
    pub session: SessionRef,
    /// Id of the turn.
    pub turn: Ulid,
    /// Epoch of the ownership under which the turn runs; it makes the record ids of two owners differ.
    pub epoch: u64,
    /// Hooks of the turn.
    pub set: Arc<HookSet>,
    /// Progress of the turn so far.
    pub progress: ReminderProgress,
    /// Number of the times that this owner has asked hooks in the turn; it makes the record ids of two times differ.
    pub visit: u32,
    /// Keys of the reminders that the session has had and that are given once.
    pub reminded: BTreeSet<String>,
    user: String,
    metadata: Map<String, Value>,
}

impl HookedTurn {
    /// Describes the turn `turn` of `session`, which answers `pendings`, with the hooks of `set`.
    #[must_use]
    pub fn new(session: &SessionRef, turn: Ulid, epoch: u64, set: Arc<HookSet>, pendings: &[PendingDispatch]) -> Self {
        let mut metadata = Map::new();
        metadata.insert("session".to_owned(), json!(session.to_string()));
        metadata.insert("turn".to_owned(), json!(turn));

        // The newest message stands for the turn if it has several.
        if let Some(last) = pendings.last() {
            let dispatch = &last.dispatch;
            metadata.insert("event".to_owned(), json!(dispatch.event_id));
            metadata.insert("channel".to_owned(), json!(dispatch.delivery_context.channel));
            let prompt = shorten_text(&dispatch.message.content, MAX_TOLD_BYTES);
            metadata.insert("prompt".to_owned(), json!(prompt));
        }

        let mut users: Vec<&str> = Vec::new();
        for pending in pendings {
            let user = pending.dispatch.message.from.as_str();
            if !users.contains(&user) {
                users.push(user);
            }
        }

        // Of several authors, `user_id` is the newest.
        if users.len() > 1 {
            metadata.insert("users".to_owned(), json!(users));
        }

        Self {
            session: session.clone(),
            turn,
            epoch,
            set,
            progress: ReminderProgress::default(),
            visit: 0,
            reminded: BTreeSet::new(),
            user: pendings
                .last()
                .map(|last| last.dispatch.message.from.clone())
                .unwrap_or_default(),
            metadata,
        }
    }

    /// Describes the turn `finished` for its post-turn hooks, which are in `set`.
    #[must_use]
    pub fn for_finished_turn(session: &SessionRef, epoch: u64, set: Arc<HookSet>, finished: &FinishedTurn) -> Self {
        let mut moment = Self::new(session, finished.turn, epoch, set, &[]);
        moment.user.clone_from(&finished.description.user);
        moment.metadata.extend(finished.description.metadata.clone());
        moment
    }

    /// Returns the part of the description that is kept for the turn's post-turn hooks.
    #[must_use]
    pub fn description(&self) -> TurnDescription {
        let mut metadata = self.metadata.clone();
        metadata.retain(|key, _| !["session", "turn"].contains(&key.as_str()));
        if let Some(Value::String(prompt)) = metadata.get_mut("prompt") {
            *prompt = shorten_text(prompt, MAX_KEPT_BYTES);
        }
        TurnDescription {
            user: self.user.clone(),
            metadata,
        }
    }

    /// Returns the description under the ownership `epoch`, with `progress`, for the time `visit` that hooks are
    /// asked.
    #[must_use]
    pub fn at(&self, epoch: u64, visit: u32, progress: ReminderProgress, reminded: BTreeSet<String>) -> Self {
        Self {
            epoch,
            visit,
            progress,
            reminded,
            ..self.clone()
        }
    }

    /// Returns the description with `value` under `key` in the metadata for hooks.
    #[must_use]
    pub fn with_metadata(&self, key: &str, value: Value) -> Self {
        let mut moment = self.clone();
        moment.metadata.insert(key.to_owned(), value);
        moment
    }

    /// Returns a hook's context at a point that belongs to no call; `told` is the text or value that it sees.
    #[must_use]
    pub fn hook_context(&self, told: Value) -> HookContext {
        let mut metadata = self.metadata.clone();
        metadata.insert("step".to_owned(), json!(self.progress.turn));
        HookContext {
            tool_args: told,
            agent_id: self.session.persona.clone(),
            user_id: self.user.clone(),
            metadata,
            ..HookContext::default()
        }
    }

    /// Returns a hook's context before `call` runs.
    #[must_use]
    pub fn context_before(&self, call: &ToolCall) -> HookContext {
        let mut context = self.hook_context(call.arguments.clone());
        context.tool_name.clone_from(&call.name);
        context.metadata.insert("call".to_owned(), json!(call.call));
        context
    }

    /// Returns a hook's context after `call` has run.
    #[must_use]
    pub fn context_after(&self, call: &ToolCall, outcome: &ToolOutcome) -> HookContext {
        let mut context = self.context_before(call);
        let (result, error) = match outcome {
            ToolOutcome::Ok { result } => (result.clone(), false),
            ToolOutcome::Error { error } => (json!(error), true),
            ToolOutcome::Skipped { reason } | ToolOutcome::Unknown { reason } => (json!(reason), true),
        };
        context.tool_result = Some(result);
        context.metadata.insert("is_error".to_owned(), json!(error));
        context
    }
}

/// Returns `outcome` with its result replaced by `result`.
#[must_use]
pub fn with_result(outcome: &ToolOutcome, result: Value) -> ToolOutcome {
    let text = |value: Value| match value {
        Value::String(text) => text,
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            other.to_string()
        }
    };

    match outcome {
        ToolOutcome::Ok { result: _ } => ToolOutcome::Ok { result },
        ToolOutcome::Error { error: _ } => ToolOutcome::Error { error: text(result) },
        ToolOutcome::Skipped { reason: _ } => ToolOutcome::Skipped { reason: text(result) },
        ToolOutcome::Unknown { reason: _ } => ToolOutcome::Unknown { reason: text(result) },
    }
}
