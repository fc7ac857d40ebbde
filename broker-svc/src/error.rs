//! Reasons why a session's owner stops before it is done, and the consequence of each.

use shared::bus::ledger::AppendLedgerError;
use shared::bus::{HoldError, PublishError, ReadStreamError, WitnessError};
use shared::wire::envelope::DecodeError;

use crate::approval::store::KeepApprovalError;

/// Error that kept a session from being run to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunSessionError {
    /// The claim's deadline passed: another broker may own the session.
    #[error("the claim's deadline has passed")]
    Stale,
    /// Another owner appended to the ledger since it was read.
    #[error("another broker owns the session now")]
    FenceLost,
    /// The process must stop and the turn would take longer than it may.
    #[error("the turn was released")]
    HandBack,
    /// The ledger holds an entry that this release cannot read.
    #[error("malformed ledger entry {sequence}")]
    BadLedger {
        /// Sequence of the record in `LEDGER`.
        sequence: u64,
        /// Reason why it cannot be decoded.
        #[source]
        source: DecodeError,
    },
    /// The ledger holds an entry that only a later release can read. The session waits for a broker of that release.
    #[error("ledger record {sequence} is of a later release")]
    NewerLedger {
        /// Sequence of the record in `LEDGER`.
        sequence: u64,
        /// Part that is not known.
        #[source]
        source: DecodeError,
    },
    /// The ledger was not written, or it is unknown whether it was.
    #[error("failed to write the ledger")]
    Append(#[source] AppendLedgerError),
    /// A stream could not be read.
    #[error("failed to read a stream")]
    Read(#[from] ReadStreamError),
    /// A message could not be published.
    #[error("failed to publish a message")]
    Publish(#[from] PublishError),
    /// An approval could not be stored.
    #[error("failed to store an approval")]
    Approval(#[from] KeepApprovalError),
    /// The position of the ledger could not be read or noted.
    #[error("failed to read the ledger's witness")]
    Witness(#[from] WitnessError),
    /// A message with unknown state could not be held.
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
    /// Returns the error of the ledger record at `sequence` that cannot be decoded.
    #[must_use]
    pub const fn unread(sequence: u64, source: DecodeError) -> Self {
        if source.is_newer() {
            Self::NewerLedger { sequence, source }
        } else {
            Self::BadLedger { sequence, source }
        }
    }

    /// Returns whether a record is larger than possible: it was not written, and would not be the next time.
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

    /// Returns whether the cause is the server's failure, which says nothing about the session.
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
            | Self::NewerLedger { .. }
            | Self::BadLedger { .. } => false,
        }
    }
}
