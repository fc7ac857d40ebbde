//! Receipts: read from and written to `RECEIPTS`, each under its predecessor's sequence.
//!
//! The expectation is what keeps two owners apart: a former one that wakes up late finds the subject moved on, reads
//! what the new one wrote, and goes by that. Receipts carry no message id: three replicas would answer `duplicate` to
//! the loser instead of refusing (`measured.md`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use shared::bus::{Bus, Outgoing, PublishError, ReadStreamError, Stored};
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::wire::headers::Carrier;
use shared::wire::topology::streams;

use crate::destination::Destination;
use crate::job::{DELIVERY_SEQUENCE, Job, delivery_sequence};
use crate::resume::{LastReceipt, Standing, standing};

/// Destinations whose last receipt's sequence is remembered, per partition; beyond it all are forgotten and read anew.
const MAX_KNOWN: usize = 16_384;

/// How often a receipt is written again because somebody else wrote one meanwhile.
const MAX_CONFLICTS: u32 = 8;

/// A receipt could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteReceiptError {
    /// The destination's last receipt cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The server refuses it.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Others write as fast as we do.
    #[error("write receipt to {subject}: {MAX_CONFLICTS} times somebody else was first")]
    Contended {
        /// The destination's subject.
        subject: String,
    },
}

/// How writing a receipt ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// It is stored.
    Stored,
    /// Another owner settled the delivery, or a later one: this is how it stands.
    Superseded(Standing),
}

/// The receipts of one partition's destinations.
#[derive(Debug)]
pub struct Receipts {
    bus: Bus,
    /// Sequence of the last receipt, by destination.
    known: Mutex<HashMap<Destination, u64>>,
}

impl Receipts {
    /// Knowing nothing yet.
    #[must_use]
    pub fn new(bus: Bus) -> Self {
        Self { bus, known: Mutex::default() }
    }

    /// Whether the destination's last receipt is ours, or was read.
    #[must_use]
    pub fn knows(&self, destination: &Destination) -> bool {
        self.expected(destination).is_some()
    }

    /// Where `job` stands, read from the leader.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the leader cannot be asked.
    pub async fn standing(&self, job: &Job) -> Result<Standing, ReadStreamError> {
        Ok(standing(job.sequence, self.last(&job.destination).await?))
    }

    /// Writes what happened to `job`.
    ///
    /// # Errors
    /// [`WriteReceiptError`]; whether it is stored is then unknown.
    pub async fn write(&self, job: &Job, receipt: &Receipt, carrier: &Carrier) -> Result<Written, WriteReceiptError> {
        let subject = job.destination.receipt_subject();
        let out = Outgoing::new(subject.clone(), receipt)
            .header(DELIVERY_SEQUENCE, job.sequence.to_string())
            .carrier(carrier);
        for _ in 0..MAX_CONFLICTS {
            let Some(expected) = self.expected(&job.destination) else {
                let found = self.last(&job.destination).await?;
                if let Some(standing) = superseded(job, receipt, found) {
                    return Ok(standing);
                }
                continue;
            };
            match self.bus.publish(out.clone().expect_last(expected)).await {
                Ok(published) => {
                    self.remember(&job.destination, published.sequence);
                    return Ok(Written::Stored);
                }
                Err(PublishError::WrongLastSequence { .. }) => self.forget(&job.destination),
                Err(error) => return Err(error.into()),
            }
        }
        Err(WriteReceiptError::Contended { subject })
    }

    async fn last(&self, destination: &Destination) -> Result<Option<LastReceipt>, ReadStreamError> {
        let stored = self.bus.last_on_subject(streams::RECEIPTS, &destination.receipt_subject()).await?;
        self.remember(destination, stored.as_ref().map_or(0, |stored| stored.sequence));
        Ok(stored.as_ref().and_then(last_receipt))
    }

    fn expected(&self, destination: &Destination) -> Option<u64> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(destination).copied()
    }

    fn remember(&self, destination: &Destination, sequence: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN && !known.contains_key(destination) {
            known.clear();
        }
        known.insert(destination.clone(), sequence);
    }

    fn forget(&self, destination: &Destination) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(destination);
    }
}

/// A stored receipt that can be read and says which delivery it belongs to; another tells nothing about ours.
fn last_receipt(stored: &Stored) -> Option<LastReceipt> {
    let receipt = stored.decode::<Receipt>();
    if let Err(error) = &receipt {
        tracing::warn!(subject = %stored.subject, sequence = stored.sequence, %error, "receipt cannot be read");
    }
    Some(LastReceipt { delivery_sequence: delivery_sequence(&stored.headers)?, receipt: receipt.ok()? })
}

/// Whether `last` makes writing `receipt` needless: it is the same one, or the delivery is settled.
fn superseded(job: &Job, receipt: &Receipt, last: Option<LastReceipt>) -> Option<Written> {
    let last = last?;
    if last.delivery_sequence < job.sequence {
        return None;
    }
    if last.delivery_sequence == job.sequence && last.receipt == *receipt {
        return Some(Written::Stored);
    }
    let settled = match last.receipt.step {
        ReceiptStep::Delivered { .. } | ReceiptStep::GaveUp { .. } | ReceiptStep::DeniedByPolicy { .. } => true,
        ReceiptStep::AttemptStarted { .. } | ReceiptStep::AttemptFinished { .. } => {
            last.delivery_sequence > job.sequence
        }
    };
    settled.then(|| Written::Superseded(standing(job.sequence, Some(last))))
}
