//! HookIntents: an agent's typed wish for its own future. *Pure.* Source: `docs/design/schedules.md` §3; seed 000.
//!
//! [`IntentWish`] is what an agent may say, [`HookIntent`] the whole record with what the runtime knows of its asker,
//! [`Intent`] the value of KV `intents`: the record, where it stands, and the transitions that its last write made.

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
use super::position::Position;
use super::session::SessionRef;
use super::time::UnixMillis;

pub use extract::extract;
pub use record::{IntentCode, IntentRecord, Lineage};
pub use rejection::Rejection;
pub use schedule::{EventMatch, IntentSchedule};

/// Longest reason that an agent may give, in bytes.
pub const MAX_REASON_BYTES: usize = 1_024;
/// Largest parameters, in bytes of JSON.
pub const MAX_PARAMETER_BYTES: usize = 16 * 1_024;
/// Lineage entries kept in the value itself, the newest; `AUDIT` has all of them.
pub const MAX_LINEAGE: usize = 16;
/// What begins the id of every event that an intent makes.
const EVENT_PREFIX: &str = "timer:intent:";

/// Where an intent stands (the lifecycle table of seed 000 §3, and `proposed`, which waits for a human before
/// admission).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntentStatus {
    /// Asked for; an approver's word is awaited before it is admitted.
    Proposed,
    /// Admitted, waiting for its time.
    Pending,
    /// Fired, under way.
    Running,
    /// Done. Final.
    Completed,
    /// Went wrong. Final.
    Failed,
    /// Withdrawn. Final.
    Canceled,
    /// Given another time; pending again.
    Rescheduled,
    /// Refused at admission. Final, never pending.
    Rejected,
}

impl IntentStatus {
    /// All of them.
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

    /// Whether nothing may follow.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Canceled | Self::Rejected => true,
            Self::Proposed | Self::Pending | Self::Running | Self::Rescheduled => false,
        }
    }

    /// Whether `next` may follow: the lifecycle table of seed 000 §3, cell by cell. `running → pending` is the next
    /// occurrence of a recurring intent and nothing else.
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

    /// Its name on the wire.
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

/// Whether, and when, a human is asked. Ordered: the later, the stricter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalRequirement {
    /// Nobody is asked.
    #[default]
    None,
    /// Before each firing.
    BeforeFire,
    /// Before it is admitted.
    BeforeAdmission,
}

/// Within whose context it runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "within", deny_unknown_fields)]
pub enum IntentScope {
    /// The session that asks for it.
    #[default]
    Own,
    /// A session of the asking persona.
    Session {
        /// Its key.
        session: String,
    },
    /// The persona's own session, `main`.
    Persona,
    /// A thread of the asking session's conversation.
    Thread {
        /// Which.
        thread: String,
    },
}

/// What an agent may say of an intent: in its tool call, or as the JSON of the wire form. Everything else of a
/// [`HookIntent`] is filled in by the runtime, and refused where an agent gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntentWish {
    /// What sort of action.
    pub kind: String,
    /// Its arguments, by the kind's JSON Schema.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// When.
    pub schedule: IntentSchedule,
    /// Within whose context; absent = the asking session.
    #[serde(default)]
    pub scope: IntentScope,
    /// Whether a human is asked; can only be stricter than what the kind demands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalRequirement>,
    /// After this instant it does not fire any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixMillis>,
    /// Why, for whoever reads the audit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A pending intent of the same agent that is canceled once this one is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<Ulid>,
    /// Whether a user's message in the meantime makes it moot.
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
    /// Its name for ever.
    pub id: Ulid,
    /// What sort of action.
    pub kind: String,
    /// Its arguments.
    pub parameters: Map<String, Value>,
    /// When.
    pub schedule: IntentSchedule,
    /// Within whose context.
    pub scope: IntentScope,
    /// Whether a human is asked: the strictest of kind, policy and wish.
    pub approval: ApprovalRequirement,
    /// The persona that asks.
    pub agent: String,
    /// The session that asks.
    pub session: String,
    /// The turn that asks; absent where an operator does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Ulid>,
    /// After this instant it does not fire any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixMillis>,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The intent that it takes the place of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<Ulid>,
    /// Whether a user's message in the meantime makes it moot.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancel_on_user_turn: bool,
}

/// A firing under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    /// When it was due.
    pub nominal: UnixMillis,
    /// When it fired.
    pub at: UnixMillis,
    /// The dispatch whose turn ends it; absent where a hook runs instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch: Option<Ulid>,
}

/// A firing that was under way when its intent was withdrawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawn {
    /// When it was due.
    pub nominal: UnixMillis,
    /// The dispatch that is taken back.
    pub dispatch: Ulid,
    /// Whether its own turn wanted it, which goes on.
    #[serde(default, skip_serializing_if = "is_false")]
    pub spares_turn: bool,
}

/// A value of KV `intents` under `i.{agent}.{id}`: the record, where it stands, and what the last write added to its
/// history. The next write is made only once these records are in `AUDIT`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// What was asked for.
    pub intent: HookIntent,
    /// Where it stands.
    pub status: IntentStatus,
    /// Number of its last transition; the first is 1.
    pub n: u32,
    /// The transitions that the last write made, ascending up to `n`.
    pub records: Vec<IntentRecord>,
    /// Sequence in `AUDIT` of the record before the first of `records`; 0 = there is none.
    pub audited: u64,
    /// When it fires next, or its condition is looked at next; absent = nothing is planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<UnixMillis>,
    /// When its condition has to hold at the latest; absent = it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<UnixMillis>,
    /// Sequence in `EVENTS` after which events count for its condition.
    #[serde(default)]
    pub events_from: u64,
    /// The message of `EVENTS` at that sequence ([`mark::IntentMark::position`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_position: Option<Position>,
    /// How often it has fired.
    #[serde(default)]
    pub fired: u32,
    /// The firing under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Firing>,
    /// The firing that was under way when it was withdrawn: its turn is told to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<Withdrawn>,
    /// What its turns may do: at most what the asking turn might.
    pub permissions: PermissionSet,
    /// Where its turns' answers go.
    pub delivery_context: DeliveryContext,
    /// The conversation that it was asked for in, where its answers go elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_in: Option<DeliveryContext>,
    /// How many intents stand before it in its chain.
    #[serde(default)]
    pub depth: u8,
    /// When it was asked for.
    pub proposed_at: UnixMillis,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection: Option<Rejection>,
    /// Its schedules so far, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lineage: Vec<Lineage>,
    /// Who wrote this value: two writers never write the same bytes.
    #[serde(default)]
    pub writer: String,
}

impl Intent {
    /// The conversation that it was asked for in: whose quiet, and whose user, it looks at.
    #[must_use]
    pub fn asked_in(&self) -> &DeliveryContext {
        self.asked_in.as_ref().unwrap_or(&self.delivery_context)
    }

    /// The session within which it runs.
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

/// The id of the event that intent `id` makes at `nominal`.
///
/// # Errors
/// Never for an id made of these two; the type of the id demands the check.
pub fn event_id(id: Ulid, nominal: UnixMillis) -> Result<EventId, ParseEventIdError> {
    EventId::parse(format!("{EVENT_PREFIX}{id}:{nominal}"))
}

/// The intent and the nominal time that `event` is the firing of; none = it is something else.
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
