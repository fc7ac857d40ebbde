//! One transition of an intent, as stored in `AUDIT`. Replay reads these records without asking a model. *Pure.*
//! Source: `docs/design/schedules.md` §3.7 (Lifecycle); seed 000 §7.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::{HookIntent, IntentRejection, IntentSchedule, IntentStatus};
use crate::model::time::UnixMillis;

/// The typed reason for a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntentCode {
    /// An agent or operator requested the intent.
    Proposed,
    /// The intent was admitted.
    Admitted,
    /// The intent was refused; the record has the reason.
    Refused,
    /// An approver denied the intent.
    Denied,
    /// No approver decided in time.
    ApprovalExpired,
    /// The intent's time came.
    Due,
    /// The intent's condition became true.
    ConditionMet,
    /// The condition did not become true before the deadline.
    DeadlinePassed,
    /// The intent expired before its time came.
    Expired,
    /// A user's message canceled the intent.
    UserTurn,
    /// The agent or an operator canceled it.
    Withdrawn,
    /// A newer intent replaced this one.
    Superseded,
    /// The intent got another schedule.
    Rescheduled,
    /// The intent is pending again with its new schedule.
    Rearmed,
    /// The intent is pending again for its next occurrence.
    NextOccurrence,
    /// The turn or hook ended.
    Done,
    /// The turn or hook failed.
    TurnFailed,
    /// The turn was interrupted.
    TurnInterrupted,
    /// The session dropped the dispatch.
    DispatchDropped,
    /// The outcome of the turn was unknown for a day.
    NoOutcome,
}

/// A change of an intent's schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentLineage {
    /// Schedule before the change.
    pub old: IntentSchedule,
    /// Schedule after the change.
    pub new: IntentSchedule,
    /// Time at which it would have fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_due: Option<UnixMillis>,
    /// Name of the party that changed it.
    pub by: String,
    /// Reason for the change, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Time of the change.
    pub at: UnixMillis,
}

/// One transition of an intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentRecord {
    /// Id of the intent.
    pub intent: Ulid,
    /// Persona that requested the intent.
    pub agent: String,
    /// Number of the transition; the first is 1.
    pub n: u32,
    /// Time of the transition.
    pub at: UnixMillis,
    /// State before; absent = this is the first transition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IntentStatus>,
    /// State after the transition.
    pub to: IntentStatus,
    /// Typed reason for the transition.
    pub code: IntentCode,
    /// Party that made it: `agent:{persona}`, `runtime`, or an operator's name.
    pub by: String,
    /// Reason in words, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Time of the next firing, or nominal time of this firing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<UnixMillis>,
    /// Reason for the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejection: Option<IntentRejection>,
    /// Change of the schedule, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Box<IntentLineage>>,
    /// Whole record of the request, with the first transition only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposed: Option<Box<HookIntent>>,
}

impl IntentRecord {
    /// Returns the topic of the record: `intent.pending`, ….
    #[must_use]
    pub fn topic(&self) -> String {
        format!("intent.{}", self.to.name())
    }

    /// Returns the record's permanent name: `{intent}/{n}`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.intent, self.n)
    }
}
