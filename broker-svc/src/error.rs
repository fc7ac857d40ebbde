//! Why a session's owner stops before it is done. One place says what follows.

use shared::bus::ledger::AppendLedgerError;
use shared::bus::{HoldError, PublishError, ReadStreamError, WitnessError};
use shared::wire::envelope::DecodeError;

use crate::approval::desk::KeepApprovalError;

/// A session could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunSessionError {
    /// The claim's deadline passed: somebody else may own the session.
    #[error("the claim's deadline has passed")]
    Stale,
    /// Somebody else appended to the ledger since we read it.
    #[error("another broker owns the session now")]
    FenceLost,
    /// The process is asked to stop and the turn would take longer than it may.
    #[error("the turn was released")]
    HandBack,
    /// The ledger holds an entry that this release cannot read.
    #[error("malformed ledger entry {sequence}")]
    BadLedger {
        /// Its sequence in `LEDGER`.
        sequence: u64,
        /// What is wrong with it.
        #[source]
        source: DecodeError,
    },
    /// The ledger was not written, or nobody knows.
    #[error("failed to write the ledger")]
    Append(#[source] AppendLedgerError),
    /// A stream was not read.
    #[error("failed to read a stream")]
    Read(#[from] ReadStreamError),
    /// A message was not published.
    #[error("failed to publish a message")]
    Publish(#[from] PublishError),
    /// An approval was not kept.
    #[error("failed to store an approval")]
    Approval(#[from] KeepApprovalError),
    /// How far the ledger had come could not be asked or noted.
    #[error("failed to read the ledger's witness")]
    Witness(#[from] WitnessError),
    /// What nobody can tell to be done was not held.
    #[error("failed to hold a dispatch")]
    Hold(#[from] HoldError),
}

impl From<AppendLedgerError> for RunSessionError {
    fn from(error: AppendLedgerError) -> Self {
        match error {
            AppendLedgerError::FenceLost { session: _ } => Self::FenceLost,
            error @ (AppendLedgerError::Unavailable { .. }
            | AppendLedgerError::Refused { .. }
            | AppendLedgerError::Unreadable { .. }) => Self::Append(error),
        }
    }
}

impl RunSessionError {
    /// Whether a record is larger than one can be: it is not written, and would not be the next time.
    #[must_use]
    pub const fn is_too_large(&self) -> bool {
        matches!(
            self,
            Self::Append(AppendLedgerError::Refused {
                source: PublishError::TooLarge { .. },
                ..
            })
        )
    }

    /// Whether the server did not answer as it should, which says nothing about the session.
    #[must_use]
    pub const fn is_the_servers(&self) -> bool {
        match self {
            Self::Append(AppendLedgerError::Unavailable { .. } | AppendLedgerError::Unreadable { .. })
            | Self::Read(_)
            | Self::Publish(_)
            | Self::Approval(_)
            | Self::Witness(_)
            | Self::Hold(_) => true,
            Self::Append(AppendLedgerError::Refused { .. } | AppendLedgerError::FenceLost { .. })
            | Self::Stale
            | Self::FenceLost
            | Self::HandBack
            | Self::BadLedger { .. } => false,
        }
    }
}
