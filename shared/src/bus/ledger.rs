//! Appending to a session's ledger, and reading it back: the fence (`docs/design/sessions.md` §1.3).
//!
//! Every append carries the expected last sequence of its subject and its attempt, and no message id: three replicas
//! would answer `duplicate` to a loser. After a time-out the identical bytes go out again with the identical
//! expectation; where that is refused, the leader tells which attempt took the place: our own means that the first try
//! was stored, anything else that the fence is lost. Two owners may write the same entries at the same time, so the
//! record's content tells nothing.

use crate::model::ledger::LedgerRecord;
use crate::model::session::SessionRef;
use crate::wire::envelope::{DecodeError, Wire as _};
use crate::wire::headers::Carrier;
use crate::wire::subject;
use crate::wire::topology::streams::LEDGER;

use super::connect::{API_TIMEOUT, Bus};
use super::error::{PublishError, ReadStreamError};
use super::message::Stored;
use super::publish::Outgoing;

/// Tries of one append while nobody answers.
const APPEND_TRIES: u32 = 20;
/// Messages read at once.
const PAGE: usize = 256;

/// An append did not happen, or nobody knows.
#[derive(Debug, thiserror::Error)]
pub enum AppendLedgerError {
    /// Somebody else has written: this broker owns the session no longer.
    #[error("append to the ledger of {session}: the fence is lost")]
    FenceLost {
        /// The session.
        session: SessionRef,
    },
    /// Nobody answers; whether it was written is unknown.
    #[error("append to the ledger of {session}: no answer")]
    Unavailable {
        /// The session.
        session: SessionRef,
        /// The last word of the bus.
        #[source]
        source: PublishError,
    },
    /// The server refuses it for good.
    #[error("append to the ledger of {session}: refused")]
    Refused {
        /// The session.
        session: SessionRef,
        /// Why.
        #[source]
        source: PublishError,
    },
    /// Whose the last entry is cannot be told.
    #[error("append to the ledger of {session}: the last entry cannot be read")]
    Unreadable {
        /// The session.
        session: SessionRef,
        /// Why.
        #[source]
        source: ReadStreamError,
    },
}

/// Appends `record` after the entry at `expected` (0 = the first); answers its sequence.
///
/// # Errors
/// [`AppendLedgerError`]; after anything but `FenceLost` and `Refused` the caller must read before it goes on.
pub async fn append(
    bus: &Bus,
    session: &SessionRef,
    record: &LedgerRecord,
    expected: u64,
    carrier: &Carrier,
) -> Result<u64, AppendLedgerError> {
    let out = Outgoing::new(subject::ledger(session), record)
        .expect_last(expected)
        .carrier(carrier);
    let size = out.payload.len();
    if size > LedgerRecord::MAX_BYTES {
        // The server might take it, and then nobody could read the session any more.
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
            Err(PublishError::WrongLastSequence { .. }) => return whose(bus, session, &out).await,
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

/// After a repetition of `out` was refused: the sequence at which an earlier try was stored, else the fence is lost.
async fn whose(bus: &Bus, session: &SessionRef, out: &Outgoing) -> Result<u64, AppendLedgerError> {
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

/// One stored record: where it stands, and what it says if it can be read.
pub type ReadRecord = (u64, Result<LedgerRecord, DecodeError>);

fn read(stored: &Stored) -> ReadRecord {
    (stored.sequence, stored.decode())
}

/// Every record after sequence `after`, oldest first: the bulk by direct get, the end by the leader.
///
/// # Errors
/// [`ReadStreamError`] where the stream cannot be asked.
pub async fn read_after(bus: &Bus, session: &SessionRef, after: u64) -> Result<Vec<ReadRecord>, ReadStreamError> {
    let subject = subject::ledger(session);
    let Some(last) = bus.last_on_subject(LEDGER, &subject).await? else {
        return Ok(Vec::new());
    };

    let mut records = Vec::new();
    let mut from = after + 1;
    while from <= last.sequence {
        if from == last.sequence {
            records.push(read(&last));
            return Ok(records);
        }

        let page = bus.history(LEDGER, &subject, from, PAGE).await?;
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
