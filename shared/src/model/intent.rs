//! Intents: an agent's typed request for a future action of its own. *Pure.* Source: `docs/design/schedules.md` §3;
//! seed 000.
//!
//! [`IntentWish`] is the part that an agent may set, [`HookIntent`] the whole record with the runtime's data about
//! the requester, and [`Intent`] the value of KV `intents`: the record, its state, and the transitions that its last
//! write made.

pub mod book;
pub mod extract;
pub mod mark;
pub mod record;
pub mod rejection;
pub mod schedule;
pub mod service;
pub mod timer;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use ulid::Ulid;

use super::dispatch::DeliveryContext;
use super::event::{EventId, ParseEventIdError};
use super::permission::PermissionSet;
use super::position::StreamPosition;
use super::session::SessionRef;
use super::time::UnixMillis;
use crate::wire::unknown::read_strict;

pub use extract::extract_wishes;
pub use record::{IntentCode, IntentLineage, IntentRecord};
pub use rejection::IntentRejection;
pub use schedule::{EventMatch, IntentSchedule};

/// Maximum length of an agent's reason, in bytes.
pub const MAX_REASON_BYTES: usize = 1_024;
/// Maximum size of the parameters, in bytes of JSON.
pub const MAX_PARAMETER_BYTES: usize = 16 * 1_024;
/// Maximum number of lineage entries in the value itself, the newest ones; `AUDIT` has all of them.
pub const MAX_LINEAGE: usize = 16;
/// Prefix of the ids of events that intents make.
const EVENT_PREFIX: &str = "timer:intent:";

/// The state of an intent (the lifecycle table of seed 000 §3, and `proposed`, which waits for an approval before
/// admission).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntentStatus {
    /// Requested; an approval is needed before it is admitted.
    Proposed,
    /// Admitted; waiting for its time.
    Pending,
    /// Fired; its turn or hook is running.
    Running,
    /// The turn or hook of its firing ended. Final.
    Completed,
    /// The turn or hook of its firing failed. Final.
    Failed,
    /// Canceled before it completed. Final.
    Canceled,
    /// Given another schedule; becomes pending again.
    Rescheduled,
    /// Refused at admission. Final, never pending.
    Rejected,
}

impl IntentStatus {
    /// All states, in declaration order.
    pub const ALL: [Self; 8] = [
        Self::Proposed,
        Self::Pending,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Canceled,
        Self::Rescheduled,
        Self::Rejected,
    ];

    /// Returns whether no other state may follow.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Canceled | Self::Rejected => true,
            Self::Proposed | Self::Pending | Self::Running | Self::Rescheduled => false,
        }
    }

    /// Returns whether `next` may follow: the lifecycle table of seed 000 §3, cell by cell. `running → pending` is
    /// allowed only for the next occurrence of a recurring intent.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Proposed => matches!(next, Self::Pending | Self::Rejected | Self::Canceled),
            Self::Pending => matches!(next, Self::Running | Self::Canceled | Self::Rescheduled),
            Self::Running => matches!(next, Self::Completed | Self::Failed | Self::Canceled | Self::Pending),
            Self::Rescheduled => matches!(next, Self::Pending),
            Self::Completed | Self::Failed | Self::Canceled | Self::Rejected => false,
        }
    }

    /// Returns the name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Rescheduled => "rescheduled",
            Self::Rejected => "rejected",
        }
    }
}

impl std::fmt::Display for IntentStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The point at which an intent needs an approval. Ordered: a later value is stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalRequirement {
    /// No approval is needed.
    #[default]
    None,
    /// An approval is needed before each firing.
    BeforeFire,
    /// An approval is needed before admission.
    BeforeAdmission,
}

/// The session in which an intent runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "within")]
pub enum IntentScope {
    /// The session that requests it.
    #[default]
    Own,
    /// A session of the requesting persona.
    Session {
        /// Key of the session.
        session: String,
    },
    /// The persona's own session, `main`.
    Persona,
    /// A thread of the requesting session's conversation.
    Thread {
        /// Id of the thread.
        thread: String,
    },
}

/// The part of an intent that an agent may set, in its tool call or as the JSON of the wire form. The runtime fills
/// in the rest of a [`HookIntent`] and refuses these fields from an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntentWish {
    /// Kind of action, by its name in the registry.
    pub kind: String,
    /// Arguments that match the kind's JSON Schema.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// Time, recurrence or condition of the firing.
    #[serde(deserialize_with = "read_strict")]
    pub schedule: IntentSchedule,
    /// Session in which it runs; absent = the requesting session.
    #[serde(default, deserialize_with = "read_strict")]
    pub scope: IntentScope,
    /// Requested approval, which can only be stricter than the kind demands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalRequirement>,
    /// Instant after which it does not fire any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixMillis>,
    /// Reason for the intent, for readers of the audit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A pending intent of the same agent that is canceled once this one is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<Ulid>,
    /// Whether a message from the user before it fires cancels it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancel_on_user_turn: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// The whole typed record of an intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookIntent {
    /// Permanent id of the intent.
    pub id: Ulid,
    /// Kind of action, by its name in the registry.
    pub kind: String,
    /// Arguments of the action.
    pub parameters: Map<String, Value>,
    /// Time, recurrence or condition of the firing.
    pub schedule: IntentSchedule,
    /// Session in which it runs.
    pub scope: IntentScope,
    /// Required approval: the strictest of kind, policy and request.
    pub approval: ApprovalRequirement,
    /// Persona that requests it.
    pub agent: String,
    /// Key of the session that requests it.
    pub session: String,
    /// Turn that requests it; absent if an operator does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Ulid>,
    /// Instant after which it does not fire any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixMillis>,
    /// Reason for the intent, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Id of the intent that this one replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<Ulid>,
    /// Whether a message from the user before it fires cancels it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancel_on_user_turn: bool,
}

/// A firing that is running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentFiring {
    /// Nominal time of the firing.
    pub nominal: UnixMillis,
    /// Time at which it fired.
    pub at: UnixMillis,
    /// Dispatch whose turn completes it; absent if a hook runs instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch: Option<Ulid>,
}

/// A firing that was running when its intent was canceled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithdrawnIntent {
    /// Nominal time of the firing.
    pub nominal: UnixMillis,
    /// Id of the dispatch that is withdrawn.
    pub dispatch: Ulid,
    /// Whether the firing's own turn requested the cancellation and therefore continues.
    #[serde(default, skip_serializing_if = "is_false")]
    pub spares_turn: bool,
}

/// A value of KV `intents` under `i.{agent}.{id}`: the record, its state, and the history that the last write added.
/// The next write happens only after these records are in `AUDIT`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The intent as it was requested.
    pub intent: HookIntent,
    /// State of the intent.
    pub status: IntentStatus,
    /// Number of its last transition; the first is 1.
    pub n: u32,
    /// Transitions that the last write made, ascending up to `n`.
    pub records: Vec<IntentRecord>,
    /// Sequence in `AUDIT` of the record before the first of `records`; 0 = there is none.
    pub audited: u64,
    /// Time of its next firing, or of the next check of its condition; absent = nothing is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<UnixMillis>,
    /// Last instant at which its condition may become true; absent = it has no condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<UnixMillis>,
    /// Sequence in `EVENTS` after which events count for its condition.
    #[serde(default)]
    pub events_from: u64,
    /// Message of `EVENTS` at that sequence ([`mark::IntentMark::position`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_position: Option<StreamPosition>,
    /// Number of its firings so far.
    #[serde(default)]
    pub fired: u32,
    /// The firing that is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<IntentFiring>,
    /// The firing that was running when the intent was canceled; its turn is asked to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<WithdrawnIntent>,
    /// Permissions of its turns: at most those of the requesting turn.
    pub permissions: PermissionSet,
    /// Destination of its turns' replies.
    pub delivery_context: DeliveryContext,
    /// Conversation in which it was requested, if its replies go to another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_in: Option<DeliveryContext>,
    /// Number of intents before it in its chain.
    #[serde(default)]
    pub depth: u8,
    /// Time it was requested.
    pub proposed_at: UnixMillis,
    /// Reason for refusing it at admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection: Option<IntentRejection>,
    /// Changes of its schedule so far, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lineage: Vec<IntentLineage>,
    /// Id of the writer of this value, so that two writers never write the same bytes.
    #[serde(default)]
    pub writer: String,
}

impl Intent {
    /// Returns the conversation in which it was requested. Idle conditions and user messages are those of this
    /// conversation.
    #[must_use]
    pub fn asked_in(&self) -> &DeliveryContext {
        self.asked_in.as_ref().unwrap_or(&self.delivery_context)
    }

    /// Returns the session in which it runs.
    #[must_use]
    pub fn target(&self) -> SessionRef {
        let own = || self.intent.session.clone();
        let session = match &self.intent.scope {
            IntentScope::Own => own(),
            IntentScope::Session { session } => session.clone(),
            IntentScope::Persona => "main".to_owned(),
            IntentScope::Thread { thread } => format!("{}:thread:{thread}", own()),
        };

        SessionRef {
            persona: self.intent.agent.clone(),
            session,
        }
    }
}

/// Returns the id of the event that the intent `id` makes at `nominal`.
///
/// # Errors
/// Never fails for these two values; the id's type requires the check.
pub fn event_id(id: Ulid, nominal: UnixMillis) -> Result<EventId, ParseEventIdError> {
    EventId::parse(format!("{EVENT_PREFIX}{id}:{nominal}"))
}

/// Returns the intent and the nominal time of a firing's event; `None` if `event` is not a firing.
#[must_use]
pub fn firing_of(event: &EventId) -> Option<(Ulid, UnixMillis)> {
    let (id, nominal) = event.as_str().strip_prefix(EVENT_PREFIX)?.split_once(':')?;
    Some((id.parse().ok()?, UnixMillis(nominal.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every cell of the table, by hand: rows are `from` in the order of `ALL`, columns `to`.
    const TABLE: [&str; 8] = [
        // proposed pending running completed failed canceled rescheduled rejected
        "-x---x-x", // proposed
        "--x--xx-", // pending
        "-x-xxx--", // running
        "--------", // completed
        "--------", // failed
        "--------", // canceled
        "-x------", // rescheduled
        "--------", // rejected
    ];

    #[test]
    fn the_lifecycle_is_the_table() {
        for (from, row) in IntentStatus::ALL.into_iter().zip(TABLE) {
            for (to, cell) in IntentStatus::ALL.into_iter().zip(row.chars()) {
                assert_eq!(from.may_become(to), cell == 'x', "{from} → {to}");
            }
            assert_eq!(from.is_final(), !row.contains('x'), "{from}");
        }
    }

    #[test]
    fn events_name_their_intent() {
        let id = Ulid::from_parts(1, 2);
        let event = event_id(id, UnixMillis(1_700_000_000_000)).expect("an id");
        assert!(event.as_str().starts_with("timer:intent:"), "{event}");
        assert_eq!(firing_of(&event), Some((id, UnixMillis(1_700_000_000_000))));

        for other in [
            "timer:tick:5",
            "timer:intent:x:5",
            "timer:intent:5",
            "x:timer:intent:a:1",
        ] {
            assert_eq!(firing_of(&EventId::parse(other).expect("an id")), None, "{other}");
        }
    }

    #[test]
    fn a_wish_says_only_what_an_agent_may_say() {
        let wish = r#"{"kind":"remind","schedule":{"type":"after","seconds":60}}"#;
        let read: IntentWish = serde_json::from_str(wish).expect("a wish");
        assert_eq!(read.scope, IntentScope::Own);
        for field in ["agent", "session", "turn", "id", "permissions", "color"] {
            let more = wish.replacen('{', &format!("{{\"{field}\":\"x\","), 1);
            let error = serde_json::from_str::<IntentWish>(&more).expect_err("not an agent's to say");
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}
