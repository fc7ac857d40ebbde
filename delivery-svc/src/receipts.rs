//! Receipts: read from and written to `RECEIPTS`, each under its predecessor's sequence.
//!
//! The expectation is what keeps two owners apart: a former one that wakes up late finds the subject moved on, reads
//! what the new one wrote, and goes by that. Receipts carry no message id: three replicas would answer `duplicate` to
//! the loser instead of refusing (`measured.md`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use shared::bus::{Bus, Outgoing, PublishError, ReadStreamError, Stored};
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::time::UnixMillis;
use shared::wire::envelope::DecodeError;
use shared::wire::headers::Carrier;
use shared::wire::topology::streams;
use ulid::Ulid;

use crate::destination::Destination;
use crate::job::{DELIVERY_SEQUENCE, Job, delivery_sequence};
use crate::resume::{LastReceipt, Remaining, Standing, standing};

/// Destinations whose last receipt's sequence is remembered, per partition; beyond it all are forgotten and read anew.
const MAX_KNOWN: usize = 16_384;

/// How often a receipt is written again because somebody else wrote one meanwhile.
const MAX_CONFLICTS: u32 = 8;

/// Age from which a delivery may be a copy that the server's duplicate window (2 min) no longer recognises, milliseconds.
const COPY_AGE_MS: i64 = 60_000;

/// How far the clocks of brokers and of deliverers may be apart, milliseconds.
const SKEW_MS: i64 = 60_000;

/// Receipts read at once.
const PAGE: usize = 500;

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
    known: Mutex<HashMap<Destination, Known>>,
}

/// What is known of a destination's last receipt.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Its sequence; 0 = there is none.
    sequence: u64,
    /// The delivery that it says was made.
    made: Option<Ulid>,
}

impl Receipts {
    /// Knowing nothing yet.
    #[must_use]
    pub fn new(bus: Bus) -> Self {
        Self {
            bus,
            known: Mutex::default(),
        }
    }

    /// Where `job` stands at `now`. Read from the leader, unless nobody can have begun it (`untried`), it is young, and
    /// the destination's last receipt is known.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the stream cannot be asked.
    pub async fn standing(&self, job: &Job, untried: bool, now: UnixMillis) -> Result<Standing, ReadStreamError> {
        let suspect = job.is_repeated() || now.since(job.made_at()) > COPY_AGE_MS;
        if untried && !suspect {
            match self.known(&job.destination) {
                Some(known) if known.made == Some(job.reply.id) => return Ok(Standing::Past),
                Some(_) => return Ok(Standing::Open(Remaining::ALL)),
                None => {}
            }
        }
        let last = self.last(job).await?;
        let may_be_copy = suspect
            && last
                .as_ref()
                .is_some_and(|last| last.receipt.at >= job.made_at().plus(-SKEW_MS));
        let told = standing(job.reply.id, job.sequence, last);
        let newest = self.known(&job.destination).map_or(0, |known| known.sequence);
        if may_be_copy && told == Standing::Open(Remaining::ALL) && self.settled_before(job, newest).await? {
            return Ok(Standing::Past);
        }
        Ok(told)
    }

    /// Whether an earlier copy of `job` was delivered, or denied: a broker that recovers publishes a reply again, and the
    /// server no longer recognises it beyond its duplicate window, or after a restart. A copy that was given up comes
    /// again on purpose. The bulk is read directly; what that does not show yet, up to `newest`, comes from the leader.
    async fn settled_before(&self, job: &Job, newest: u64) -> Result<bool, ReadStreamError> {
        let subject = job.destination.receipt_subject();
        let since = job.made_at().plus(-SKEW_MS);
        let mut page = self.bus.history_since(streams::RECEIPTS, &subject, since, PAGE).await?;
        let mut settled = false;
        let mut through = 0;
        loop {
            let ours = page
                .iter()
                .filter_map(|stored| last_receipt(stored).ok().flatten())
                .filter(|found| found.receipt.delivery == job.reply.id && found.delivery_sequence < job.sequence);
            settled = ours.last().map_or(settled, |found| {
                matches!(
                    found.receipt.step,
                    ReceiptStep::Delivered { .. } | ReceiptStep::DeniedByPolicy { .. }
                )
            });
            through = page.last().map_or(through, |stored| stored.sequence);
            if through >= newest {
                return Ok(settled);
            }
            page = self.bus.history(streams::RECEIPTS, &subject, through + 1, PAGE).await?;
            if page.is_empty() {
                let next = self
                    .bus
                    .next_on_subject(streams::RECEIPTS, &subject, through + 1)
                    .await?;
                page = next.into_iter().collect();
            }
            if page.is_empty() {
                return Ok(settled);
            }
        }
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
            let Some(Known { sequence: expected, .. }) = self.known(&job.destination) else {
                let found = self.last(job).await?;
                if let Some(standing) = superseded(job, receipt, found) {
                    return Ok(standing);
                }
                continue;
            };
            match self.bus.publish(out.clone().expect_last(expected)).await {
                Ok(published) => {
                    self.remember(
                        &job.destination,
                        Known {
                            sequence: published.sequence,
                            made: made(receipt),
                        },
                    );
                    return Ok(Written::Stored);
                }
                Err(PublishError::WrongLastSequence { .. }) => self.forget(&job.destination),
                Err(error) => return Err(error.into()),
            }
        }
        Err(WriteReceiptError::Contended { subject })
    }

    /// The last receipt of `job`'s destination that can be read.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the stream cannot be asked, or a newer version has written what is last: only that one
    /// knows how the delivery stands.
    async fn last(&self, job: &Job) -> Result<Option<LastReceipt>, ReadStreamError> {
        let subject = job.destination.receipt_subject();
        let stored = self.bus.last_on_subject(streams::RECEIPTS, &subject).await?;
        let sequence = stored.as_ref().map_or(0, |stored| stored.sequence);
        let mut last = stored.as_ref().map(last_receipt).transpose()?.flatten();
        if last.is_none() && sequence > 0 {
            last = self.last_readable(&subject, job, sequence).await?;
        }
        self.remember(
            &job.destination,
            Known {
                sequence,
                made: last.as_ref().and_then(|last| made(&last.receipt)),
            },
        );
        Ok(last)
    }

    /// What stands before the message `newest` of `subject`, which is no receipt: as far back as it can tell of `job`.
    async fn last_readable(
        &self,
        subject: &str,
        job: &Job,
        newest: u64,
    ) -> Result<Option<LastReceipt>, ReadStreamError> {
        let since = job.made_at().plus(-SKEW_MS);
        let mut page = self.bus.history_since(streams::RECEIPTS, subject, since, PAGE).await?;
        let (mut last, mut from) = (None, 1);
        loop {
            if page.is_empty() {
                // Direct reads may be of a replica that lags behind: the leader knows what comes next.
                page.extend(self.bus.next_on_subject(streams::RECEIPTS, subject, from).await?);
            }
            for stored in &page {
                last = last_receipt(stored)?.or(last);
            }
            match page.last().map(|stored| stored.sequence) {
                Some(through) if through < newest => from = through + 1,
                Some(_) | None => return Ok(last),
            }
            page = self.bus.history(streams::RECEIPTS, subject, from, PAGE).await?;
        }
    }

    fn known(&self, destination: &Destination) -> Option<Known> {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(destination)
            .copied()
    }

    fn remember(&self, destination: &Destination, last: Known) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN && !known.contains_key(destination) {
            known.clear();
        }
        known.insert(destination.clone(), last);
    }

    fn forget(&self, destination: &Destination) {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(destination);
    }
}

/// The delivery that `receipt` says was made.
const fn made(receipt: &Receipt) -> Option<Ulid> {
    match receipt.step {
        ReceiptStep::Delivered { .. } => Some(receipt.delivery),
        ReceiptStep::AttemptStarted { .. }
        | ReceiptStep::AttemptFinished { .. }
        | ReceiptStep::GaveUp { .. }
        | ReceiptStep::DeniedByPolicy { .. } => None,
    }
}

/// A stored receipt that says which delivery it belongs to; none where it is no receipt, and tells nothing about ours.
fn last_receipt(stored: &Stored) -> Result<Option<LastReceipt>, ReadStreamError> {
    let Some(delivery_sequence) = delivery_sequence(&stored.headers) else {
        return Ok(None);
    };
    match stored.decode::<Receipt>() {
        Ok(receipt) => Ok(Some(LastReceipt {
            delivery_sequence,
            receipt,
        })),
        Err(error @ DecodeError::NewerSchema { .. }) => Err(ReadStreamError::Unreadable {
            stream: streams::RECEIPTS.to_owned(),
            detail: format!("{} {}: {error}", stored.subject, stored.sequence),
        }),
        Err(error) => {
            tracing::warn!(subject = %stored.subject, sequence = stored.sequence, %error, "receipt cannot be read");
            Ok(None)
        }
    }
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
    settled.then(|| Written::Superseded(standing(job.reply.id, job.sequence, Some(last))))
}
