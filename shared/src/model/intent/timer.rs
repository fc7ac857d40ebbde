//! What an intent's timer says when it rings. *Pure.* Source: `docs/design/schedules.md` §3.7 (Lifecycle).

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::time::UnixMillis;

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimerPurpose {
    /// It is due, or its condition is to be looked at.
    Fire,
    /// Look whether the turn of its firing has ended.
    Outcome,
    /// An approval lapses.
    Approval,
}

impl TimerPurpose {
    /// Its letter in subjects.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Fire => "f",
            Self::Outcome => "o",
            Self::Approval => "a",
        }
    }
}

/// The payload of a message on `nexus.schedule.intent.*`, and of what it fires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentTimer {
    /// The intent.
    pub intent: Ulid,
    /// Its agent.
    pub agent: String,
    /// What for.
    pub purpose: TimerPurpose,
    /// The time that it is about: the firing's nominal one.
    pub nominal: UnixMillis,
}
