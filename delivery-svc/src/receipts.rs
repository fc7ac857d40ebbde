//! Reading and writing of `RECEIPTS`; each receipt requires its predecessor's sequence.
//!
//! The required sequence separates two owners: a former owner that resumes late finds that the subject has moved on,
//! reads the new owner's receipts, and follows them. Receipts have no message id, because three replicas would report
//! a `duplicate` to the losing writer instead of refusing it (`docs/contribute/nats-facts.md` "Publishing and
//! storing").

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shared::bus::{Bus, MarkedStream, OutgoingMessage, PublishError, ReadStreamError, StoredMessage, StreamWitness};
use shared::clock::SharedClock;
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::time::UnixMillis;
use shared::wire::envelope::DecodeError;
use shared::wire::headers::TraceCarrier;
use shared::wire::topology::streams;
use ulid::Ulid;

use crate::destination::Destination;
use crate::job::{DELIVERY_COPY, DeliveryJob, delivery_copy};
use crate::plan::MessagePart;
use crate::recent_receipts::{RecentReceipts, Remembered};
use crate::resume::{DeliveryStanding, LastReceipt, RemainingWork, StandingPlan, standing_after};
use crate::sent_events::SentEvents;

/// Maximum number of attempts to write a receipt while others write to the same subject.
const MAX_CONFLICTS: u32 = 8;

/// Age from which the record is asked about a delivery in any case, in milliseconds. Memory covers younger ones.
const OLD_MS: i64 = 60_000;

/// Maximum difference between the clocks of brokers and deliverers, in milliseconds.
const SKEW_MS: i64 = 60_000;

/// Maximum number of receipts kept per partition. A queue of replies to one destination asks for them repeatedly.
const MAX_WALKED: usize = 10_000;

/// Number of receipts read at once.
const PAGE: usize = 500;

/// The reason why a receipt could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteReceiptError {
    /// The destination's last receipt cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The server refuses the receipt.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Other writers wrote a receipt at every attempt.
    #[error("write receipt to {subject}: {MAX_CONFLICTS} concurrent updates in a row")]
    Contended {
        /// Subject of the destination's receipts.
        subject: String,
    },
}

/// The result of writing a receipt.
#[derive(Debug, PartialEq, Eq)]
pub enum ReceiptWrite {
    /// The receipt is stored, at this sequence.
    Stored(u64),
    /// Another owner settled the delivery in the meantime, or made calls by another plan; the value is its state.
    Superseded(DeliveryStanding),
}

/// The receipts of the destinations in one partition.
#[derive(Debug)]
pub struct PartitionReceipts {
    bus: Bus,
    witness: StreamWitness,
    clock: SharedClock,
    sent: SentEvents,
    recent: Mutex<RecentReceipts>,
    /// Receipts read so far by destination, at most [`MAX_WALKED`] in all.
    walks: Mutex<HashMap<Destination, Walk>>,
}

/// Returns the witness of the receipts.
#[must_use]
pub fn receipts_witness(bus: &Bus) -> StreamWitness {
    StreamWitness::new(bus, MarkedStream::Deliveries)
}

/// The receipts of a destination that were read so far: the newest one of each delivery.
#[derive(Debug)]
struct Walk {
    /// Time from which receipts were read.
    since: UnixMillis,
    /// Sequence up to which receipts were read; 0 = none yet.
    through: u64,
    found: HashMap<Ulid, LastReceipt>,
}

impl Walk {
    fn from(since: UnixMillis) -> Self {
        Self {
            since,
            through: 0,
            found: HashMap::new(),
        }
    }
}

impl PartitionReceipts {
    /// Creates an empty cache on `bus`.
    #[must_use]
    pub fn new(bus: Bus, witness: StreamWitness, clock: SharedClock) -> Self {
        Self {
            witness,
            clock,
            recent: Mutex::default(),
            sent: SentEvents::new(bus.clone()),
            bus,
            walks: Mutex::default(),
        }
    }

    /// Returns the state of `job`, which is planned as `parts` now, at `now`. The state is read from the leader, unless no
    /// process can have started the job (`untried`), it is recent, and the remembered receipts of its destination
    /// show that none names it.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be read.
    pub async fn find_standing(
        &self,
        job: &DeliveryJob,
        parts: &[MessagePart],
        untried: bool,
        now: UnixMillis,
    ) -> Result<DeliveryStanding, ReadStreamError> {
        let suspect = job.is_repeated() || now.since(job.made_at()) > OLD_MS;
        // An untried message may still be a copy of a delivery that was made, under another message id.
        if untried && !suspect {
            let since = first_receipt_time(job);
            match self.lock_recent().find_delivery(&job.destination, job.reply.id, since) {
                Remembered::Absent => return Ok(DeliveryStanding::Open(RemainingWork::ALL)),
                Remembered::Named | Remembered::Unknown => {}
            }
        }

        match self.read(job).await? {
            Some(found) => Ok(found),
            None => {
                self.standing_without_receipt(job, parts, untried && !job.is_repeated())
                    .await
            }
        }
    }

    /// Returns the state of `job` according to the receipts that name it; `None` if there is none. The destination's
    /// last receipt often suffices. If it is of another delivery and not older than `job`, the earlier ones are
    /// searched: a broker that recovers publishes a reply again, and so does a queue that was restored to an older
    /// state, long after later deliveries.
    async fn read(&self, job: &DeliveryJob) -> Result<Option<DeliveryStanding>, ReadStreamError> {
        let last = self.last_receipt(job).await?;
        let found = match last {
            Some(last) if last.receipt.delivery == job.reply.id => Some(last),
            Some(last) if last.receipt.at >= first_receipt_time(job) => {
                let newest = self.last_sequence(&job.destination).unwrap_or(0);
                self.newest_of(job, newest).await?
            }
            Some(_) | None => None,
        };

        Ok(found.map(|found| standing_after(job.reply.id, job.place, Some(found))))
    }

    /// Returns the state of `job`, which is planned as `parts` now and has no receipt. If a process may have started
    /// it, or the receipts are older than it, the events of its parts are searched, so that a sent part is not sent
    /// again even if its receipt is lost. If receipts are known to be lost and there is no event either, or if the sent
    /// parts are of another plan, the state is unknown.
    async fn standing_without_receipt(
        &self,
        job: &DeliveryJob,
        parts: &[MessagePart],
        is_fresh: bool,
    ) -> Result<DeliveryStanding, ReadStreamError> {
        let doubt = self.doubt_until().await?;
        let is_in_doubt = doubt.is_some_and(|until| job.made_at() <= until);
        // No process has started it, and no receipt of its time is lost.
        if is_fresh && !is_in_doubt {
            return Ok(DeliveryStanding::Open(RemainingWork::ALL));
        }

        // The events of sent parts are a second record: they tell what the receipts have lost.
        let since = first_receipt_time(job);
        let found = self.sent.find_sent_parts(&job.destination, &job.reply, parts, since);
        let sent = found.await?;
        let planned = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        if sent.count > 0 {
            metrics::counter!("nexus_delivery_told_by_events_total").increment(1);
            tracing::warn!(
                delivery_id = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
                sent = sent.count, parts = planned,
                "RECEIPTS is incomplete: sent events exist for a delivery without a receipt"
            );
        }
        if !sent.are_planned {
            metrics::counter!("nexus_delivery_replanned_total").increment(1);
            tracing::warn!(
                delivery_id = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session,
                sent = sent.count, parts = planned,
                "the parts that were sent are of another plan, which is lost"
            );
        }

        Ok(match sent.count {
            // The receipts are older than the delivery, and no event helps: only an operator can decide.
            0 if is_in_doubt => DeliveryStanding::Unknown,
            0 => DeliveryStanding::Open(RemainingWork::ALL),
            // Which words are still to be sent can be told of no other plan than today's.
            _ if !sent.are_planned => DeliveryStanding::Unknown,
            sent if sent >= planned => DeliveryStanding::Past,
            part => DeliveryStanding::Open(RemainingWork {
                part,
                ..RemainingWork::ALL
            }),
        })
    }

    /// Returns the time up to which deliveries may have been made without a receipt.
    async fn doubt_until(&self) -> Result<Option<UnixMillis>, ReadStreamError> {
        let until = self.witness.doubt_until(self.clock.now()).await;
        until.map_err(|error| ReadStreamError::Unavailable {
            stream: streams::RECEIPTS.to_owned(),
            detail: error.to_string(),
        })
    }

    /// Returns the newest receipt that names the delivery of `job`, up to the sequence `newest`.
    async fn newest_of(&self, job: &DeliveryJob, newest: u64) -> Result<Option<LastReceipt>, ReadStreamError> {
        // Back to where the memory begins to suffice for young deliveries, so that the next ones need no search.
        let young = self.clock.now().plus(-OLD_MS - SKEW_MS);
        let since = first_receipt_time(job).min(young);
        // Taken out for the read, so that the lock is not held across it.
        let known = self.lock_walks().remove(&job.destination);
        let mut walk = known
            .filter(|walk| walk.since <= since)
            .unwrap_or_else(|| Walk::from(since));
        self.walk_on(&job.destination, &mut walk, newest).await?;
        let found = walk.found.get(&job.reply.id).cloned();
        self.remember_walk(&job.destination, &walk, newest);

        let mut walks = self.lock_walks();
        let held: usize = walks.values().map(|walk| walk.found.len()).sum();
        if held + walk.found.len() > MAX_WALKED {
            walks.clear();
        }

        if walk.found.len() <= MAX_WALKED {
            walks.insert(job.destination.clone(), walk);
        }

        Ok(found)
    }

    /// Reads on to `newest`. Most receipts are read directly from any replica; the rest comes from the leader.
    async fn walk_on(&self, destination: &Destination, walk: &mut Walk, newest: u64) -> Result<(), ReadStreamError> {
        let subject = destination.receipt_subject();
        while walk.through < newest {
            let mut page = match walk.through {
                0 => {
                    self.bus
                        .history_since(streams::RECEIPTS, &subject, walk.since, PAGE)
                        .await?
                }
                through => {
                    self.bus
                        .read_history(streams::RECEIPTS, &subject, through + 1, PAGE)
                        .await?
                }
            };

            // The replica that was read may lag behind: the leader has the next receipt.
            if page.is_empty() {
                let from = walk.through + 1;
                let next = self.bus.next_on_subject(streams::RECEIPTS, &subject, from).await?;
                page.extend(next);
            }

            let Some(through) = page.last().map(|stored| stored.sequence) else {
                return Ok(());
            };

            for stored in &page {
                if let Some(last) = last_receipt(stored)? {
                    walk.found.insert(last.receipt.delivery, last);
                }
            }

            walk.through = through;
        }

        Ok(())
    }

    /// Remembers the deliveries of `walk`, which has read up to the destination's last receipt `newest`.
    fn remember_walk(&self, destination: &Destination, walk: &Walk, newest: u64) {
        let named = walk.found.values().map(|last| (last.receipt.at, last.receipt.delivery));
        let mut named: Vec<_> = named.collect();
        named.sort_unstable();
        self.lock_recent().note_search(destination, newest, walk.since, named);
    }

    fn lock_walks(&self) -> MutexGuard<'_, HashMap<Destination, Walk>> {
        self.walks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a receipt for `job`.
    ///
    /// # Errors
    /// Returns [`WriteReceiptError`]; it is then unknown whether the receipt is stored.
    pub async fn write(
        &self,
        job: &DeliveryJob,
        receipt: &Receipt,
        carrier: &TraceCarrier,
    ) -> Result<ReceiptWrite, WriteReceiptError> {
        let subject = job.destination.receipt_subject();
        let out = OutgoingMessage::new(subject.clone(), receipt)
            .header(DELIVERY_COPY, job.place.to_string())
            .carrier(carrier);
        // The receipt expects the last one of its destination: of two processes one fails here.
        for _ in 0..MAX_CONFLICTS {
            let Some(expected) = self.last_sequence(&job.destination) else {
                // Another process has written in the meantime, which matters only if the delivery is settled by it, or
                // goes by another plan: the first one holds.
                let overrules = |found: &DeliveryStanding| is_settled(found) || has_other_plan(found, &receipt.step);
                if let Some(found) = self.read(job).await?.filter(overrules) {
                    return Ok(ReceiptWrite::Superseded(found));
                }
                continue;
            };

            match self.bus.publish(out.clone().expect_last(expected)).await {
                Ok(published) => {
                    self.lock_recent().note_written(
                        &job.destination,
                        expected,
                        published.sequence,
                        receipt.at,
                        receipt.delivery,
                    );

                    return Ok(ReceiptWrite::Stored(published.sequence));
                }
                Err(PublishError::WrongLastSequence { .. }) => self.lock_recent().forget(&job.destination),
                Err(error) => return Err(error.into()),
            }
        }

        Err(WriteReceiptError::Contended { subject })
    }

    /// Returns the last readable receipt of the destination of `job`.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be read, or if a newer version wrote the last receipt, so
    /// that only that version can tell the delivery's state.
    async fn last_receipt(&self, job: &DeliveryJob) -> Result<Option<LastReceipt>, ReadStreamError> {
        let subject = job.destination.receipt_subject();
        let stored = self.bus.last_on_subject(streams::RECEIPTS, &subject).await?;
        let (sequence, stored_at) = stored
            .as_ref()
            .map_or((0, UnixMillis(0)), |stored| (stored.sequence, stored.published_at));

        let mut last = stored.as_ref().map(last_receipt).transpose()?.flatten();
        // The last message is not a readable receipt; an earlier one may have the state.
        if last.is_none() && sequence > 0 {
            last = self.last_readable(&subject, job, sequence).await?;
        }

        let names = last.as_ref().map(|last| last.receipt.delivery);
        self.lock_recent()
            .note_last(&job.destination, sequence, stored_at, names);

        Ok(last)
    }

    /// Returns the last receipt before the message `newest`, which is not one, from the time of `job` on.
    async fn last_readable(
        &self,
        subject: &str,
        job: &DeliveryJob,
        newest: u64,
    ) -> Result<Option<LastReceipt>, ReadStreamError> {
        // Bounded by the time of the delivery: older receipts cannot be about it.
        let since = first_receipt_time(job);
        let mut page = self.bus.history_since(streams::RECEIPTS, subject, since, PAGE).await?;

        let (mut last, mut from) = (None, 1);
        loop {
            if page.is_empty() {
                // Direct reads may use a replica that lags behind; the leader has the next message.
                page.extend(self.bus.next_on_subject(streams::RECEIPTS, subject, from).await?);
            }

            for stored in &page {
                last = last_receipt(stored)?.or(last);
            }

            match page.last().map(|stored| stored.sequence) {
                Some(through) if through < newest => from = through + 1,
                Some(_) | None => return Ok(last),
            }

            page = self.bus.read_history(streams::RECEIPTS, subject, from, PAGE).await?;
        }
    }

    fn last_sequence(&self, destination: &Destination) -> Option<u64> {
        self.lock_recent().last_sequence(destination)
    }

    fn lock_recent(&self) -> MutexGuard<'_, RecentReceipts> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the time from which receipts of `job` can be stored, by any clock.
fn first_receipt_time(job: &DeliveryJob) -> UnixMillis {
    job.made_at().plus(-SKEW_MS)
}

/// Decodes a stored receipt with the copy of its delivery. Returns `None` for other messages, which have no effect.
fn last_receipt(stored: &StoredMessage) -> Result<Option<LastReceipt>, ReadStreamError> {
    let Some(copy) = delivery_copy(&stored.headers) else {
        return Ok(None);
    };

    match stored.decode::<Receipt>() {
        Ok(mut receipt) => {
            // The text of a plan is read only if it is needed.
            if let ReceiptStep::Planned { first: _, parts } = &mut receipt.step {
                parts.clear();
            }
            Ok(Some(LastReceipt { copy, receipt }))
        }
        Err(error @ DecodeError::NewerSchema { .. }) => Err(ReadStreamError::Unreadable {
            stream: streams::RECEIPTS.to_owned(),
            detail: format!("{} {}: {error}", stored.subject, stored.sequence),
        }),
        Err(error) => {
            tracing::warn!(subject = %stored.subject, sequence = stored.sequence, %error, "failed to read a receipt");
            Ok(None)
        }
    }
}

/// Returns whether nothing is left to be sent.
pub(crate) const fn is_settled(standing: &DeliveryStanding) -> bool {
    match standing {
        DeliveryStanding::Past
        | DeliveryStanding::Delivered { .. }
        | DeliveryStanding::GaveUp { .. }
        | DeliveryStanding::Denied => true,
        DeliveryStanding::Open(_) | DeliveryStanding::Unknown => false,
    }
}

/// Returns whether the delivery, which is at `found`, goes by another plan than a receipt with `step`.
fn has_other_plan(found: &DeliveryStanding, step: &ReceiptStep) -> bool {
    let ours = match step {
        ReceiptStep::Planned { .. } => StandingPlan::Unmade,
        ReceiptStep::AttemptStarted { plan, .. }
        | ReceiptStep::AttemptFinished { plan, .. }
        | ReceiptStep::Delivered { plan, .. } => plan.clone().into(),
        ReceiptStep::GaveUp { .. } | ReceiptStep::DeniedByPolicy { .. } | ReceiptStep::Preview { .. } => return false,
    };
    match found {
        DeliveryStanding::Open(remaining) => remaining.plan != StandingPlan::Unmade && remaining.plan != ours,
        DeliveryStanding::Past
        | DeliveryStanding::Delivered { .. }
        | DeliveryStanding::GaveUp { .. }
        | DeliveryStanding::Denied
        | DeliveryStanding::Unknown => false,
    }
}
