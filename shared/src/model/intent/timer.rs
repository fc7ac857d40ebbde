//! Timers of intents. *Pure.* Source: `docs/design/schedules.md` §3.7 (Lifecycle).

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::time::UnixMillis;

/// The purpose of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimerPurpose {
    /// Fire the intent, or check its condition.
    Fire,
    /// Check whether the turn of its firing has ended.
    Outcome,
    /// Expire its approval.
    Approval,
}

impl TimerPurpose {
    /// Returns the purpose's character in subjects.
    #[must_use]
    pub const fn subject_letter(self) -> &'static str {
        match self {
            Self::Fire => "f",
            Self::Outcome => "o",
            Self::Approval => "a",
        }
    }
}

/// The payload of a message on `nexus.schedule.intent.*`, and of the message it fires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentTimer {
    /// Id of the intent.
    pub intent: Ulid,
    /// Persona that requested the intent.
    pub agent: String,
    /// Purpose of the timer.
    pub purpose: TimerPurpose,
    /// Nominal time of the firing that the timer belongs to.
    pub nominal: UnixMillis,
}
