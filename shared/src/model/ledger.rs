//! The Agent Ledger: the entries of a session's subject; their fold *is* the session. *Pure.*
//!
//! Source: `docs/design/sessions.md` §3; seed 001 §7.

mod drop_reason;
mod hook_run;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

use super::approval::{ApprovalDecision, ApprovalRequest};
use super::event::Attachment;
use super::intent::service::ProposeIntent;
use super::permission::PermissionSet;
use super::position::Position;
use super::reply::Reply;
use super::time::UnixMillis;

pub use self::drop_reason::DropReason;
pub use self::hook_run::{FinishedTurn, HookRunOutcome, HookRunResult, TurnDescription, TurnEnding, UnseenCall};

/// Names one append for ever, so that a repeated one is recognised as our own (`docs/design/sessions.md` §1.3).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AppendId {
    /// The broker replica.
    pub broker: String,
    /// The ownership.
    pub epoch: u64,
    /// Counts up within it.
    pub counter: u64,
}

/// One message of `LEDGER`: entries that arose together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerRecord {
    /// Whose append it is.
    pub append: AppendId,
    /// When it was written.
    pub at: UnixMillis,
    /// How long its writer had held the session then, milliseconds of its boot-time clock; 0 for records that no owner
    /// of the session wrote.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_ms: u64,
    /// In order.
    pub entries: Vec<LedgerEntry>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over like this")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How far a session has come in `DISPATCHES`: everything up to `floor`, and `above` one by one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// Every sequence of the session's subject up to and with this one is consumed.
    pub floor: u64,
    /// Consumed sequences above the floor, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<u64>,
    /// The newest message consumed: while `DISPATCHES` has it, everything below it is what it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<Position>,
    /// The highest event sequence among the dispatches consumed: one of a higher event was never here before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub event_seq: u64,
}

impl Cursor {
    /// Whether the dispatch at `sequence` is consumed.
    #[must_use]
    pub fn contains(&self, sequence: u64) -> bool {
        sequence <= self.floor || self.above.binary_search(&sequence).is_ok()
    }
}

/// Tokens and cost of model calls.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens in.
    pub tokens_in: u64,
    /// Tokens out.
    pub tokens_out: u64,
    /// US dollars.
    pub cost_usd: f64,
}

/// What bounds a turn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TurnLimits {
    /// Wall time, milliseconds.
    pub wall_ms: u64,
    /// Model calls.
    pub model_calls: u32,
    /// Tokens in and out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

impl Default for TurnLimits {
    fn default() -> Self {
        Self {
            wall_ms: 600_000,
            model_calls: 50,
            tokens: None,
            cost_usd: None,
        }
    }
}

/// A tool call that a model asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's id within the turn.
    pub call: String,
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub arguments: Value,
}

/// How a tool call ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ToolOutcome {
    /// It answered.
    Ok {
        /// What.
        result: Value,
    },
    /// It failed, and said why.
    Error {
        /// Why.
        error: String,
    },
    /// It did not run.
    Skipped {
        /// Why.
        reason: String,
    },
    /// It started, and nobody knows how it ended.
    Unknown {
        /// `interrupted`, …
        reason: String,
    },
}

/// A dispatch and where it stands in `DISPATCHES`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatchRef {
    /// The dispatch.
    pub id: Ulid,
    /// Its sequence.
    pub sequence: u64,
    /// The event it came from.
    pub event_id: super::event::EventId,
    /// What the user said, for history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// Who said it, where that is not the owner and `content` does not say so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stranger: Option<String>,
}

/// Why a turn failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TurnFailure {
    /// Nobody serves the persona.
    NoAgent,
    /// A limit was reached.
    Limit {
        /// Which.
        limit: String,
    },
    /// The agent said that it cannot.
    Agent {
        /// What it said.
        error: String,
    },
    /// The dispatch cannot be run.
    BadDispatch {
        /// What is wrong with it.
        error: String,
    },
}

/// What happened in a session. The whole of it, in order, is the session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LedgerEntry {
    /// The first entry.
    SessionOpened {
        /// Encoded tokens may be shortened: the whole names stand here.
        session: super::session::SessionRef,
    },
    /// A broker took the session.
    Owned {
        /// Counts up with every taking.
        epoch: u64,
        /// Which replica.
        broker: String,
    },
    /// A turn began.
    TurnStarted {
        /// The turn.
        turn: Ulid,
        /// The turn before it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<Ulid>,
        /// What it answers.
        dispatches: Vec<DispatchRef>,
        /// What it may do.
        permissions: PermissionSet,
        /// What bounds it.
        limits: TurnLimits,
    },
    /// The model answered.
    ModelAnswered {
        /// First model call of the turn = 1.
        step: u32,
        /// What it said.
        content: String,
        /// What it wants done.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
        /// What it cost.
        usage: Usage,
        /// What its provider must see again when the turn goes on (signed thoughts).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opaque: Option<Value>,
        /// What goes along with what it said, where the turn ends with it; in a record that also ends the turn they are
        /// in its reply.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        attachments: Vec<Attachment>,
        /// Which model it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    /// A tool is about to run.
    ToolStarted {
        /// The call.
        call: String,
        /// The tool.
        name: String,
        /// SHA-256 of the canonical arguments, in hex.
        args_hash: String,
        /// What it is run with, where hooks or an approver made other arguments of what the model asked for: whoever
        /// runs the call again runs it with exactly these.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments: Option<Value>,
    },
    /// A tool has run.
    ToolFinished {
        /// The call.
        call: String,
        /// How it ended.
        outcome: ToolOutcome,
        /// The hooks behind the call have not seen it: the call is told of once more when they have. What stands here
        /// until then is what the tool itself answered.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unseen: bool,
    },
    /// A human is asked.
    ApprovalRequested {
        /// What.
        request: ApprovalRequest,
    },
    /// A human has answered.
    ApprovalDecided {
        /// What.
        decision: ApprovalDecision,
        /// Its sequence in `DISPATCHES`; none where the owner found it out itself (a lapse, a newer message).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sequence: Option<u64>,
        /// How far the session has come with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cursor: Option<Cursor>,
    },
    /// A hook inside the turn ran.
    HookRan {
        /// Which.
        hook: String,
        /// At which point.
        point: String,
        /// How the run ended.
        outcome: HookRunOutcome,
    },
    /// A hook added text to the conversation of the running turn.
    ContextAdded {
        /// The hook.
        hook: String,
        /// The point at which it ran.
        point: String,
        /// The text, shortened to the longest that a hook may add.
        text: String,
    },
    /// A hook hides tools from the next model call of the running turn.
    ToolsHidden {
        /// The hook.
        hook: String,
        /// Glob patterns of tool names.
        tools: Vec<String>,
    },
    /// A reminder that a session gets only once was added to its conversation.
    ReminderShown {
        /// The hook that declares the reminder.
        hook: String,
    },
    /// An intent in the agent's answer was refused; the next turn is told.
    IntentRefused {
        /// Why, for the agent to read.
        note: String,
    },
    /// The scheduler did not answer for an intent in the agent's answer: it is asked again until it does.
    IntentOwed {
        /// The question to the scheduler.
        proposal: Box<ProposeIntent>,
    },
    /// The scheduler answered for an owed intent, or the broker gave it up.
    IntentSettled {
        /// The intent's id.
        id: Ulid,
        /// Why it was refused or given up, for the agent to read; absent if the scheduler took it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// The post-turn hooks of a turn are to run; written with the turn's end.
    PostHooksDue {
        /// The turn.
        finished: Box<FinishedTurn>,
    },
    /// The hooks after tool calls have seen the call that the finished turn left unseen.
    UnseenCallShown {
        /// The turn.
        turn: Ulid,
    },
    /// A post-turn hook ran, and does not run again for this turn.
    PostHookRan {
        /// The turn.
        turn: Ulid,
        /// The hook.
        hook: String,
    },
    /// The next post-turn hook failed and runs again.
    PostHookFailed {
        /// The turn.
        turn: Ulid,
        /// The earliest time of the next run.
        retry_at: UnixMillis,
    },
    /// All post-turn hooks of a turn ran, or were given up.
    PostHooksSettled {
        /// The turn.
        turn: Ulid,
    },
    /// A dispatch was put into the running turn, before its next model call.
    Steered {
        /// Which, with what it says.
        dispatch: DispatchRef,
        /// It also gets a turn of its own afterwards.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        backlog: bool,
    },
    /// The turn is done: the commit.
    TurnCompleted {
        /// The turn.
        turn: Ulid,
        /// What it says; none = nothing to deliver.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reply: Option<Box<Reply>>,
        /// The session's new head.
        head: Ulid,
        /// How far it has come.
        cursor: Cursor,
    },
    /// The reply is on its way.
    ReplyPublished {
        /// The turn.
        turn: Ulid,
    },
    /// The fold so far, so that nobody need begin at the beginning.
    Checkpoint {
        /// The fold, as the broker writes it.
        fold: Value,
        /// How far the session has come.
        cursor: Cursor,
        /// The ledger sequence that the fold covers.
        through: u64,
    },
    /// The turn cannot be done.
    TurnFailed {
        /// The turn.
        turn: Ulid,
        /// Why.
        failure: TurnFailure,
        /// What the user is told; none = nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reply: Option<Box<Reply>>,
        /// How far the session has come.
        cursor: Cursor,
    },
    /// The turn was cancelled.
    TurnInterrupted {
        /// The turn.
        turn: Ulid,
        /// Why.
        reason: String,
        /// What it had said.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        partial: String,
        /// How far the session has come.
        cursor: Cursor,
    },
    /// A dispatch will not be run.
    DispatchDropped {
        /// Which.
        dispatch: DispatchRef,
        /// Why.
        reason: DropReason,
        /// What exactly is wrong with it, for people to read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
        /// How far the session has come.
        cursor: Cursor,
    },
    /// A summary stands for the beginning, in context.
    Compacted {
        /// The last turn that it covers.
        through: Ulid,
        /// The summary.
        summary: String,
    },
    /// History begins anew.
    SessionReset {
        /// Why.
        reason: String,
    },
    /// An order was carried out.
    Ordered {
        /// Which.
        order: Box<super::order::SessionOrder>,
        /// Its sequence in `DISPATCHES`.
        sequence: u64,
        /// How far the session has come.
        cursor: Cursor,
    },
}

impl LedgerRecord {
    /// The dispatches and orders that this consumes.
    #[must_use]
    pub fn consumed(&self) -> Vec<Ulid> {
        let mut ids = Vec::new();
        for entry in &self.entries {
            match entry {
                LedgerEntry::TurnStarted { dispatches, .. } => {
                    ids.extend(dispatches.iter().map(|dispatch| dispatch.id));
                }
                LedgerEntry::Steered { dispatch, .. } | LedgerEntry::DispatchDropped { dispatch, .. } => {
                    ids.push(dispatch.id);
                }
                LedgerEntry::Ordered { order, .. } => ids.push(order.id),
                LedgerEntry::SessionOpened { .. }
                | LedgerEntry::Owned { .. }
                | LedgerEntry::ModelAnswered { .. }
                | LedgerEntry::ToolStarted { .. }
                | LedgerEntry::ToolFinished { .. }
                | LedgerEntry::ApprovalRequested { .. }
                | LedgerEntry::ApprovalDecided { .. }
                | LedgerEntry::HookRan { .. }
                | LedgerEntry::ContextAdded { .. }
                | LedgerEntry::ToolsHidden { .. }
                | LedgerEntry::ReminderShown { .. }
                | LedgerEntry::IntentRefused { .. }
                | LedgerEntry::IntentOwed { .. }
                | LedgerEntry::IntentSettled { .. }
                | LedgerEntry::PostHooksDue { .. }
                | LedgerEntry::UnseenCallShown { .. }
                | LedgerEntry::PostHookRan { .. }
                | LedgerEntry::PostHookFailed { .. }
                | LedgerEntry::PostHooksSettled { .. }
                | LedgerEntry::TurnCompleted { .. }
                | LedgerEntry::ReplyPublished { .. }
                | LedgerEntry::Checkpoint { .. }
                | LedgerEntry::TurnFailed { .. }
                | LedgerEntry::TurnInterrupted { .. }
                | LedgerEntry::Compacted { .. }
                | LedgerEntry::SessionReset { .. } => {}
            }
        }

        ids
    }
}
