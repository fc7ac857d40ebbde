//! The Agent Ledger: the entries of a session's subject; their fold *is* the session. *Pure.*
//!
//! Source: `docs/design/sessions.md` §3; seed 001 §7.

mod dispatch_standing;
mod drop_reason;
mod hook_run;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

use super::approval::{ApprovalDecision, ApprovalRequest};
use super::event::Attachment;
use super::intent::service::ProposeIntent;
use super::permission::PermissionSet;
use super::position::StreamPosition;
use super::reply::Reply;
use super::time::UnixMillis;
use crate::wire::tagged::tag_first;
use crate::wire::unknown::lenient;

pub use self::dispatch_standing::DispatchStanding;
pub use self::drop_reason::DropReason;
pub use self::hook_run::{FinishedTurn, HookRunOutcome, HookRunResult, TurnDescription, TurnEnding, UnseenCall};

/// Unique id of one append, by which a broker recognizes its own repeated append (`docs/design/sessions.md` §1.3).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AppendId {
    /// Name of the broker replica.
    pub broker: String,
    /// Epoch of the ownership.
    pub epoch: u64,
    /// Number of the append, which counts up within a process.
    pub counter: u64,
}

/// One message of `LEDGER`: entries that are appended together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerRecord {
    /// Id of the append that wrote the record.
    pub append: AppendId,
    /// Time at which the record was written.
    pub at: UnixMillis,
    /// Time that the writer had held the session then, milliseconds of its boot-time clock; 0 for records that no
    /// owner of the session wrote.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_ms: u64,
    /// Entries of the record, in order.
    pub entries: Vec<LedgerEntry>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over like this")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Position of a session in `DISPATCHES`: everything up to `floor`, and the sequences in `above`, are consumed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LedgerCursor {
    /// Every sequence of the session's subject up to and with this one is consumed.
    pub floor: u64,
    /// Consumed sequences above the floor, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<u64>,
    /// The newest consumed message: while `DISPATCHES` still has it, everything below it is unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<StreamPosition>,
    /// Highest event sequence among the consumed dispatches: a dispatch of a higher event is new.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub event_seq: u64,
}

impl LedgerCursor {
    /// Returns whether the dispatch at `sequence` is consumed.
    #[must_use]
    pub fn contains(&self, sequence: u64) -> bool {
        sequence <= self.floor || self.above.binary_search(&sequence).is_ok()
    }
}

/// Tokens and cost of model calls.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TurnUsage {
    /// Number of input tokens.
    pub tokens_in: u64,
    /// Number of output tokens.
    pub tokens_out: u64,
    /// Cost in US dollars.
    pub cost_usd: f64,
}

/// Limits of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TurnLimits {
    /// Maximum wall time, milliseconds.
    pub wall_ms: u64,
    /// Maximum number of model calls.
    pub model_calls: u32,
    /// Maximum number of tokens, in and out; none = unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Maximum cost, US dollars; none = unlimited.
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
    /// Id of the call within the turn.
    pub call: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments of the call.
    pub arguments: Value,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_nothing(usd: &f64) -> bool {
    *usd == 0.0
}

/// Outcome of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ToolOutcome {
    /// The tool succeeded.
    Ok {
        /// Result of the tool.
        result: Value,
    },
    /// The tool failed.
    Error {
        /// Error text of the tool.
        error: String,
    },
    /// The tool did not run.
    Skipped {
        /// Reason for skipping the call.
        reason: String,
    },
    /// The tool started, and its end is unknown.
    Unknown {
        /// Reason why it is unknown: `interrupted`, …
        reason: String,
    },
}

/// A dispatch, with its position in `DISPATCHES`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatchRef {
    /// Id of the dispatch.
    pub id: Ulid,
    /// Sequence of the dispatch.
    pub sequence: u64,
    /// Id of the event that it came from.
    pub event_id: super::event::EventId,
    /// Text of the user, for history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// Name of the sender, if the sender is not the owner and `content` does not name them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stranger: Option<String>,
}

/// Reason for the failure of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TurnFailure {
    /// No agent serves the persona.
    NoAgent,
    /// A limit of the turn was reached.
    Limit {
        /// Name of the limit.
        limit: String,
    },
    /// The agent failed.
    Agent {
        /// Error text of the agent.
        error: String,
    },
    /// The dispatch cannot be run.
    BadDispatch {
        /// Reason why it cannot be run.
        error: String,
    },
}

tag_first! {
    "LedgerEntry" by TagFirstEntry, "kind":

    /// An event in a session. All entries, in order, are the session.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case", tag = "kind")]
    pub enum LedgerEntry {
        /// The session was opened; this is the first entry.
        SessionOpened {
            /// The session's whole names, because encoded subject tokens may be shortened.
            #[serde(deserialize_with = "lenient")]
            session: super::session::SessionRef,
        },
        /// A broker took the session.
        Owned {
            /// Epoch of the ownership, which counts up with every taking.
            epoch: u64,
            /// Name of the broker replica.
            broker: String,
        },
        /// A turn began.
        TurnStarted {
            /// Id of the turn.
            turn: Ulid,
            /// Id of the turn before it.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            parent: Option<Ulid>,
            /// Dispatches that the turn answers.
            dispatches: Vec<DispatchRef>,
            /// Permissions of the turn.
            #[serde(deserialize_with = "lenient")]
            permissions: PermissionSet,
            /// Limits of the turn.
            limits: TurnLimits,
        },
        /// The owner is about to ask the model in a turn with a limit in US dollars. The next
        /// [`LedgerEntry::ModelAnswered`] replaces the reservation with the real cost.
        CostReserved {
            /// Number of the model call in the turn; the first is 1.
            step: u32,
            /// Highest expected cost of the call, US dollars.
            cost_usd: f64,
            /// Cost that counts as spent although there is no answer, US dollars: of attempts of the call before this
            /// one, or of this call if `cost_usd` is 0, that may have been paid for. If it is not known, the call's
            /// reservation.
            #[serde(default, skip_serializing_if = "is_nothing")]
            given_up_usd: f64,
        },
        /// The model answered.
        ModelAnswered {
            /// Number of the model call in the turn; the first is 1.
            step: u32,
            /// Text of the answer.
            content: String,
            /// Tool calls that the model asks for.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            tool_calls: Vec<ToolCall>,
            /// Tokens and cost of the model call.
            usage: TurnUsage,
            /// Opaque part that the provider must get back when the turn goes on (signed thoughts).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            opaque: Option<Value>,
            /// Attachments of the answer, if the turn ends with it; in a record that also ends the turn they are in the
            /// turn's reply.
            #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Vec::is_empty")]
            attachments: Vec<Attachment>,
            /// Name of the model that answered.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            model: Option<String>,
        },
        /// A tool is about to run.
        ToolStarted {
            /// Id of the call.
            call: String,
            /// Name of the tool.
            name: String,
            /// SHA-256 of the canonical arguments, in hex.
            args_hash: String,
            /// Arguments of the call, if hooks or an approver changed the model's: a broker that runs the call again
            /// must use exactly these.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            arguments: Option<Value>,
        },
        /// A tool has run.
        ToolFinished {
            /// Id of the call.
            call: String,
            /// Outcome of the call.
            outcome: ToolOutcome,
            /// Whether the hooks after the call have not seen the outcome: once they have, a second entry follows.
            /// Until then this is the outcome of the tool itself.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            unseen: bool,
        },
        /// A human was asked for an approval.
        ApprovalRequested {
            /// The question with its id.
            #[serde(deserialize_with = "lenient")]
            request: ApprovalRequest,
        },
        /// An approval was decided.
        ApprovalDecided {
            /// The decision with the approval's id.
            #[serde(deserialize_with = "lenient")]
            decision: ApprovalDecision,
            /// Sequence of the notice in `DISPATCHES`; none if the owner ended it itself (a lapse, a newer message).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            sequence: Option<u64>,
            /// Position of the session after the notice.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            cursor: Option<LedgerCursor>,
        },
        /// A hook inside the turn ran.
        HookRan {
            /// Key of the hook.
            hook: String,
            /// Name of the point.
            point: String,
            /// Outcome of the run.
            outcome: HookRunOutcome,
        },
        /// A hook added text to the conversation of the running turn.
        ContextAdded {
            /// Key of the hook.
            hook: String,
            /// Name of the point at which it ran.
            point: String,
            /// Added text, shortened to the maximum that a hook may add.
            text: String,
        },
        /// A hook hides tools from the next model call of the running turn.
        ToolsHidden {
            /// Key of the hook.
            hook: String,
            /// Glob patterns of the tools' names.
            tools: Vec<String>,
        },
        /// A reminder that a session gets only once was added to its conversation.
        ReminderShown {
            /// Key of the hook that declares the reminder.
            hook: String,
        },
        /// An intent in the agent's answer was refused; the next turn reads why.
        IntentRefused {
            /// Reason for the refusal, for the agent to read.
            note: String,
        },
        /// The scheduler did not answer for an intent in the agent's answer: it is asked again until it does.
        IntentOwed {
            /// The proposal for the scheduler.
            #[serde(deserialize_with = "lenient")]
            proposal: Box<ProposeIntent>,
        },
        /// The scheduler answered for an owed intent, or the broker gave it up.
        IntentSettled {
            /// Id of the intent.
            id: Ulid,
            /// Reason for the refusal or for giving up, for the agent to read; absent if the scheduler took the intent.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            note: Option<String>,
        },
        /// The post-turn hooks of a turn must run; written with the turn's end.
        PostHooksDue {
            /// The turn, as its hooks need it.
            #[serde(deserialize_with = "lenient")]
            finished: Box<FinishedTurn>,
        },
        /// The hooks after tool calls have seen the call that the finished turn left unseen.
        UnseenCallShown {
            /// Id of the turn.
            turn: Ulid,
        },
        /// A post-turn hook ran, and does not run again for this turn.
        PostHookRan {
            /// Id of the turn.
            turn: Ulid,
            /// Key of the hook.
            hook: String,
        },
        /// The next post-turn hook failed and runs again.
        PostHookFailed {
            /// Id of the turn.
            turn: Ulid,
            /// Earliest time of the next run.
            retry_at: UnixMillis,
        },
        /// All post-turn hooks of a turn ran, or were given up.
        PostHooksSettled {
            /// Id of the turn.
            turn: Ulid,
        },
        /// A dispatch was put into the running turn, before its next model call.
        Steered {
            /// The dispatch with its text.
            dispatch: DispatchRef,
            /// Whether the dispatch also gets a turn of its own afterwards.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            backlog: bool,
        },
        /// The turn is done: the commit.
        TurnCompleted {
            /// Id of the turn.
            turn: Ulid,
            /// Reply of the turn; none = nothing to deliver.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            reply: Option<Box<Reply>>,
            /// Id of the session's new head.
            head: Ulid,
            /// Position of the session after the turn.
            cursor: LedgerCursor,
        },
        /// The reply of a turn was published.
        ReplyPublished {
            /// Id of the turn.
            turn: Ulid,
        },
        /// The fold so far, so that a reader need not begin at the first record.
        Checkpoint {
            /// The fold, as the broker writes it.
            fold: Value,
            /// Position of the session.
            cursor: LedgerCursor,
            /// Ledger sequence through which the fold covers the records.
            through: u64,
        },
        /// The turn failed.
        TurnFailed {
            /// Id of the turn.
            turn: Ulid,
            /// Reason for the failure.
            failure: TurnFailure,
            /// Reply that tells the user; none = no reply.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            reply: Option<Box<Reply>>,
            /// Position of the session after the turn.
            cursor: LedgerCursor,
        },
        /// The turn was canceled.
        TurnInterrupted {
            /// Id of the turn.
            turn: Ulid,
            /// Reason for the cancellation.
            reason: String,
            /// Text that the agent had produced.
            #[serde(default, skip_serializing_if = "String::is_empty")]
            partial: String,
            /// Position of the session after the turn.
            cursor: LedgerCursor,
        },
        /// A dispatch will not be run.
        DispatchDropped {
            /// The dispatch that is dropped.
            dispatch: DispatchRef,
            /// Reason for dropping the dispatch.
            reason: DropReason,
            /// Exact fault of the message, for people to read.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            detail: Option<String>,
            /// Position of the session after the dispatch.
            cursor: LedgerCursor,
        },
        /// A summary replaces the beginning of the history in the context.
        Compacted {
            /// Id of the last turn that the summary covers.
            through: Ulid,
            /// Text of the summary.
            summary: String,
        },
        /// The history was reset.
        SessionReset {
            /// Reason for the reset.
            reason: String,
        },
        /// An order was carried out.
        Ordered {
            /// The order with its id.
            #[serde(deserialize_with = "lenient")]
            order: Box<super::order::SessionOrder>,
            /// Sequence of the order in `DISPATCHES`.
            sequence: u64,
            /// Position of the session after the order.
            cursor: LedgerCursor,
        },
    }
}
