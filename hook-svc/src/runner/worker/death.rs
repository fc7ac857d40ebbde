//! Reasons why a process ends, and their consequences for the hook that was running. *Pure.*

use crate::runner::in_flight::ImpossibleAnswer;
use crate::runner::protocol::ReadFrameError;

/// Reason why a worker process ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerDeath {
    #[error("failed to start the process")]
    Start(#[source] std::io::Error),
    #[error("broken pipe")]
    Pipe(#[source] std::io::Error),
    #[error("the process exited or closed its pipes")]
    Exited,
    #[error("no progress for {0} ms of processor time")]
    Stuck(u128),
    #[error("no progress for {0} ms: idle without an answer")]
    Still(u128),
    #[error("evaluation still running {over_ms} ms after its time-out")]
    Overdue { slot: u32, over_ms: u128 },
    #[error("protocol violation by the worker")]
    Frame(#[source] ReadFrameError),
    #[error("protocol violation by the worker")]
    Hook(#[from] ImpossibleAnswer),
    #[error("worker exceeded its memory limit ({0} MiB)")]
    Memory(u64),
    #[error("worker grew to {0} MiB; replacing it")]
    Grown(u64),
    #[error("hooks that it has loaded were deleted or replaced")]
    Replaced,
    #[error("worker was idle")]
    Idle,
    #[error("worker ended so that another suspected hook can run alone")]
    Turn,
}

impl WorkerDeath {
    /// Returns whether the hook that was running is certainly the cause.
    pub(super) const fn is_of_who_ran(&self) -> bool {
        match self {
            Self::Stuck(_) => true,
            Self::Start(_)
            | Self::Pipe(_)
            | Self::Exited
            | Self::Still(_)
            | Self::Overdue { .. }
            | Self::Frame(_)
            | Self::Hook(_)
            | Self::Memory(_)
            | Self::Grown(_)
            | Self::Replaced
            | Self::Idle
            | Self::Turn => false,
        }
    }

    /// Returns whether the cause is something that its hooks did, or failed to do.
    pub(super) const fn is_of_its_hooks(&self) -> bool {
        match self {
            Self::Stuck(_)
            | Self::Still(_)
            | Self::Overdue { .. }
            | Self::Frame(_)
            | Self::Hook(_)
            | Self::Memory(_) => true,
            Self::Start(_)
            | Self::Pipe(_)
            | Self::Exited
            | Self::Grown(_)
            | Self::Replaced
            | Self::Idle
            | Self::Turn => false,
        }
    }

    /// Returns whether we ended the process on purpose. No event was under way then, unless it had to be replaced
    /// anyway: such events run again, and no hook is blamed.
    pub(super) const fn is_orderly(&self) -> bool {
        match self {
            Self::Grown(_) | Self::Replaced | Self::Idle | Self::Turn => true,
            Self::Start(_)
            | Self::Pipe(_)
            | Self::Exited
            | Self::Stuck(_)
            | Self::Still(_)
            | Self::Overdue { .. }
            | Self::Frame(_)
            | Self::Hook(_)
            | Self::Memory(_) => false,
        }
    }
}
