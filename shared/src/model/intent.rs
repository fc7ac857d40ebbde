//! HookIntents: an agent's typed wish for its own future. *Pure.* Source: `schedule.md` "HookIntent"; `000_099080dba6287950.txt`.

use serde::{Deserialize, Serialize};

/// Where an intent stands (000's lifecycle table).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntentStatus {
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
    /// Whether nothing may follow.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Canceled | Self::Rejected => true,
            Self::Pending | Self::Running | Self::Rescheduled => false,
        }
    }
}
