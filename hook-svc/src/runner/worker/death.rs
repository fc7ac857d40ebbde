//! Why a process ended, and what follows for whom it ran. *Pure.*

use crate::runner::flight::ImpossibleAnswer;
use crate::runner::protocol::ReadFrameError;

/// Why a worker process ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerDeath {
    #[error("the process could not be started")]
    Start(#[source] std::io::Error),
    #[error("the pipe broke")]
    Pipe(#[source] std::io::Error),
    #[error("the process exited, or closed its pipes")]
    Exited,
    #[error("no progress for {0} ms of processor time")]
    Stuck(u128),
    #[error("no progress for {0} ms: it neither computed nor answered")]
    Still(u128),
    #[error("no end of an evaluation {over_ms} ms after its time-out")]
    Overdue { slot: u32, over_ms: u128 },
    #[error("it sent what no worker sends")]
    Frame(#[source] ReadFrameError),
    #[error("it sent what no worker sends")]
    Hook(#[from] ImpossibleAnswer),
    #[error("it holds {0} MiB of memory")]
    Memory(u64),
    #[error("it has grown to {0} MiB and is replaced")]
    Grown(u64),
    #[error("hooks that it has loaded were deleted or replaced")]
    Replaced,
    #[error("it had nothing to do")]
    Idle,
    #[error("it is another suspect's turn")]
    Turn,
}

impl WorkerDeath {
    /// Whether whoever was running is surely the cause.
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

    /// Whether it is because of what hooks in it did, or left undone.
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

    /// Whether it ended because we wanted it to. Nothing was under way then, unless it had to be replaced after all: what
    /// was runs again, and nobody is to blame.
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
