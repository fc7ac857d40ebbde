//! One transition of an intent, as `AUDIT` keeps it: replay walks these without asking a model. *Pure.* Source:
//! `docs/design/schedules.md` §3.7 (Lifecycle); seed 000 §7.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::{HookIntent, IntentSchedule, IntentStatus, Rejection};
use crate::model::time::UnixMillis;

/// Why a transition happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntentCode {
    /// It was asked for.
    Proposed,
    /// It was admitted.
    Admitted,
    /// It was refused; the record says why.
    Refused,
    /// An approver said no.
    Declined,
    /// No approver said anything in time.
    ApprovalExpired,
    /// Its time came.
    Due,
    /// Its condition held.
    ConditionMet,
    /// Its condition did not hold in time.
    DeadlinePassed,
    /// It expired before its time came.
    Expired,
    /// A user's message made it moot.
    UserTurn,
    /// It, or an operator, was asked to withdraw it.
    Withdrawn,
    /// A newer intent took its place.
    Superseded,
    /// It got another schedule.
    Rescheduled,
    /// Pending again with its new schedule.
    Rearmed,
    /// Pending again for its next occurrence.
    NextOccurrence,
    /// Its turn, or its hook, has come to its end.
    Done,
    /// Its turn, or its hook, failed.
    TurnFailed,
    /// Its turn was interrupted.
    TurnInterrupted,
    /// Its dispatch was dropped by the session.
    DispatchDropped,
    /// Nobody could say within a day how its turn ended.
    NoOutcome,
}

/// A change of schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// What it was.
    pub old: IntentSchedule,
    /// What it is now.
    pub new: IntentSchedule,
    /// When it would have fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_due: Option<UnixMillis>,
    /// By whom.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// When.
    pub at: UnixMillis,
}

/// One transition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentRecord {
    /// The intent.
    pub intent: Ulid,
    /// Its agent.
    pub agent: String,
    /// The transition's number; the first is 1.
    pub n: u32,
    /// When.
    pub at: UnixMillis,
    /// From where; absent = it is the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IntentStatus>,
    /// To where.
    pub to: IntentStatus,
    /// Why, typed.
    pub code: IntentCode,
    /// By whom: `agent:{persona}`, `runtime`, or an operator's name.
    pub by: String,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// When it fires next, or when this firing was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<UnixMillis>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection: Option<Rejection>,
    /// How its schedule changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Box<Lineage>>,
    /// The whole record of what was asked for, with the first transition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposed: Option<Box<HookIntent>>,
}

impl IntentRecord {
    /// Its topic: `intent.pending`, ….
    #[must_use]
    pub fn topic(&self) -> String {
        format!("intent.{}", self.to.name())
    }

    /// Its name for ever: `{intent}/{n}`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.intent, self.n)
    }
}
