//! Appending to a session's ledger and reading it back, with the fence (`docs/design/sessions.md` §1.3).
//!
//! Every append carries the expected last sequence of its subject and its attempt, and no message id: with three
//! replicas, a loser would receive `duplicate` for it. After a timeout the identical bytes are sent again with the
//! identical expectation. If that is rejected, the leader is asked which attempt is stored: our own means that the
//! first try succeeded, any other that the fence is lost. The record's content cannot decide this, because two owners
//! may write the same entries at the same time.

use crate::model::ledger::LedgerRecord;
use crate::model::session::SessionRef;
use crate::wire::envelope::{DecodeError, WireMessage as _};
use crate::wire::headers::TraceCarrier;
use crate::wire::subject;
use crate::wire::topology::streams::LEDGER;

use super::connect::{API_TIMEOUT, Bus};
use super::error::{PublishError, ReadStreamError};
use super::message::StoredMessage;
use super::publish::OutgoingMessage;

/// Number of tries of one append while no server answers.
const APPEND_TRIES: u32 = 20;
/// Number of messages read per page.
const PAGE: usize = 256;

/// An append failed, or its outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum AppendLedgerError {
    /// Another writer has appended: this broker no longer owns the session.
    #[error("append to the ledger of {session}: another broker owns the session now")]
    FenceLost {
        /// Session of the ledger.
        session: SessionRef,
    },
    /// No server answers; it is unknown whether the record was written.
    #[error("append to the ledger of {session}: no answer")]
    Unavailable {
        /// Session of the ledger.
        session: SessionRef,
        /// Last error of the bus.
        #[source]
        source: PublishError,
    },
    /// The server rejects the record for good.
    #[error("append to the ledger of {session}: refused")]
    Refused {
        /// Session of the ledger.
        session: SessionRef,
        /// Reason for the rejection.
        #[source]
        source: PublishError,
    },
    /// The last entry cannot be read, so that its author is unknown.
    #[error("append to the ledger of {session}: failed to read the last entry")]
    Unreadable {
        /// Session of the ledger.
        session: SessionRef,
        /// Reason why it cannot be read.
        #[source]
        source: ReadStreamError,
    },
}

/// Appends `record` after the entry with sequence `expected` (0 = the ledger is empty). Returns the sequence of the
/// new entry.
///
/// # Errors
/// Returns [`AppendLedgerError`]. After any variant but `FenceLost` and `Refused`, the caller must read the ledger
/// before it continues.
pub async fn append(
    bus: &Bus,
    session: &SessionRef,
    record: &LedgerRecord,
    expected: u64,
    carrier: &TraceCarrier,
) -> Result<u64, AppendLedgerError> {
    let out = OutgoingMessage::new(subject::ledger(session), record)
        .expect_last(expected)
        .carrier(carrier);
    let size = out.payload.len();
    if size > LedgerRecord::MAX_BYTES {
        // A server with a higher limit might accept it, and the session could not be read after that.
        return Err(AppendLedgerError::Refused {
            session: session.clone(),
            source: PublishError::TooLarge {
                subject: out.subject,
                size,
            },
        });
    }

    let mut tries = 0;
    loop {
        tries += 1;

        match bus.publish_once(&out, API_TIMEOUT).await {
            Ok(published) => return Ok(published.sequence),
            Err(PublishError::WrongLastSequence { .. }) if tries == 1 => {
                return Err(AppendLedgerError::FenceLost {
                    session: session.clone(),
                });
            }
            // An earlier try may have been stored without an ack.
            Err(PublishError::WrongLastSequence { .. }) => return find_earlier_try(bus, session, &out).await,
            Err(error) if error.may_pass() && tries < APPEND_TRIES => {
                crate::clock::pause(API_TIMEOUT / 50).await;
            }
            Err(source) if source.may_pass() => {
                return Err(AppendLedgerError::Unavailable {
                    session: session.clone(),
                    source,
                });
            }
            Err(source) => {
                return Err(AppendLedgerError::Refused {
                    session: session.clone(),
                    source,
                });
            }
        }
    }
}

/// Decides after a repetition of `out` was rejected: returns the sequence of an earlier try if that was stored, else
/// [`AppendLedgerError::FenceLost`].
async fn find_earlier_try(bus: &Bus, session: &SessionRef, out: &OutgoingMessage) -> Result<u64, AppendLedgerError> {
    match bus.stored_attempt(out).await {
        Ok(Some(published)) => Ok(published.sequence),
        Ok(None) => Err(AppendLedgerError::FenceLost {
            session: session.clone(),
        }),
        Err(source) => Err(AppendLedgerError::Unreadable {
            session: session.clone(),
            source,
        }),
    }
}

/// One stored record: its sequence, and the decoded record or the reason why it cannot be decoded.
pub type ReadRecord = (u64, Result<LedgerRecord, DecodeError>);

fn read(stored: &StoredMessage) -> ReadRecord {
    (stored.sequence, stored.decode())
}

/// Returns every record after sequence `after`, oldest first. Most of them are read by direct get, the last one from
/// the leader.
///
/// # Errors
/// Returns [`ReadStreamError`] if the stream cannot be asked.
pub async fn read_after(bus: &Bus, session: &SessionRef, after: u64) -> Result<Vec<ReadRecord>, ReadStreamError> {
    let subject = subject::ledger(session);
    let Some(last) = bus.last_on_subject(LEDGER, &subject).await? else {
        return Ok(Vec::new());
    };

    let mut records = Vec::new();
    let mut from = after + 1;
    while from <= last.sequence {
        // The leader's copy of the last record is certain to be current.
        if from == last.sequence {
            records.push(read(&last));
            return Ok(records);
        }

        let page = bus.read_history(LEDGER, &subject, from, PAGE).await?;
        // A replica that lags behind may lack the next record; the leader has it.
        let page = if page.is_empty() {
            Vec::from_iter(bus.next_on_subject(LEDGER, &subject, from).await?)
        } else {
            page
        };

        let Some(end) = page.last() else { return Ok(records) };
        from = end.sequence + 1;
        records.extend(page.iter().map(read));
    }

    Ok(records)
}
