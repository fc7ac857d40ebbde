//! Receipts: read from and written to `RECEIPTS`, each under its predecessor's sequence.
//!
//! The expectation is what keeps two owners apart: a former one that wakes up late finds the subject moved on, reads
//! what the new one wrote, and goes by that. Receipts carry no message id: three replicas would answer `duplicate` to
//! the loser instead of refusing (`docs/contribute/nats-facts.md` "Publishing and storing").

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use shared::bus::{Bus, Marked, Outgoing, PublishError, ReadStreamError, Stored, Witness};
use shared::clock::SharedClock;
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::time::UnixMillis;
use shared::wire::envelope::DecodeError;
use shared::wire::headers::Carrier;
use shared::wire::topology::streams;
use ulid::Ulid;

use crate::destination::Destination;
use crate::job::{DELIVERY_COPY, Job, delivery_copy};
use crate::resume::{LastReceipt, Remaining, Standing, standing};
use crate::sent::SentEvents;

/// Destinations whose last receipt's sequence is remembered, per partition; beyond it all are forgotten and read anew.
const MAX_KNOWN: usize = 16_384;

/// How often a receipt is written again because somebody else wrote one meanwhile.
const MAX_CONFLICTS: u32 = 8;

/// Age from which a delivery may be a copy that the server's duplicate window (2 min) no longer recognises, milliseconds.
const COPY_AGE_MS: i64 = 60_000;

/// How far the clocks of brokers and of deliverers may be apart, milliseconds.
const SKEW_MS: i64 = 60_000;

/// Receipts kept of what was looked through, per partition; a queue of replies to one destination asks for them again and
/// again.
const MAX_WALKED: usize = 10_000;

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
    witness: Witness,
    clock: SharedClock,
    sent: SentEvents,
    known: Mutex<HashMap<Destination, Known>>,
    /// Receipts of destinations that were looked through, [`MAX_WALKED`] at most.
    walks: Mutex<HashMap<Destination, Walk>>,
}

/// The witness of the receipts.
#[must_use]
pub fn witness(bus: &Bus) -> Witness {
    Witness::new(bus, Marked::Deliveries)
}

/// The receipts of a destination that were looked through: the newest of each delivery.
#[derive(Debug)]
struct Walk {
    /// From this time on.
    since: UnixMillis,
    /// Up to this sequence; 0 = nothing yet.
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
    pub fn new(bus: Bus, witness: Witness, clock: SharedClock) -> Self {
        Self {
            witness,
            clock,
            known: Mutex::default(),
            sent: SentEvents::new(bus.clone()),
            bus,
            walks: Mutex::default(),
        }
    }

    /// Where `job` of `parts` parts stands at `now`. Read from the leader, unless nobody can have begun it (`untried`), it is
    /// young, and the destination's last receipt is known.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the stream cannot be asked.
    pub async fn standing(
        &self,
        job: &Job,
        parts: u32,
        untried: bool,
        now: UnixMillis,
    ) -> Result<Standing, ReadStreamError> {
        let suspect = job.is_repeated() || now.since(job.made_at()) > COPY_AGE_MS;
        if untried && !suspect {
            match self.known(&job.destination) {
                Some(known) if known.made == Some(job.reply.id) => return Ok(Standing::Past),
                Some(_) => return Ok(Standing::Open(Remaining::ALL)),
                None => {}
            }
        }

        match self.read(job).await? {
            Some(found) => Ok(found),
            None => self.unknown(job, parts, untried && !job.is_repeated()).await,
        }
    }

    /// Where `job` stands by the receipts that name it. The destination's last one often does; where it is of another
    /// delivery and not older than `job`, the others are looked through: a broker that recovers publishes a reply again, and
    /// a queue that was put back to an older state gives it again, long after others were made. None = no receipt names it.
    async fn read(&self, job: &Job) -> Result<Option<Standing>, ReadStreamError> {
        let last = self.last(job).await?;
        let found = match last {
            Some(last) if last.receipt.delivery == job.reply.id => Some(last),
            Some(last) if last.receipt.at >= job.made_at().plus(-SKEW_MS) => {
                let newest = self.known(&job.destination).map_or(0, |known| known.sequence);
                self.newest_of(job, newest).await?
            }
            Some(_) | None => None,
        };

        Ok(found.map(|found| standing(job.reply.id, job.place, Some(found))))
    }

    /// Where `job` of `parts` parts stands, of which no receipt tells. Where somebody may have begun it, or the receipts are
    /// older than it is, the events of its parts are asked: what was sent is not sent again, whatever the receipts have lost.
    /// Where receipts are known to be lost and no event is there either, nobody can tell.
    async fn unknown(&self, job: &Job, parts: u32, is_fresh: bool) -> Result<Standing, ReadStreamError> {
        let doubt = self.doubt_until().await?;
        let is_in_doubt = doubt.is_some_and(|until| job.made_at() <= until);
        if is_fresh && !is_in_doubt {
            return Ok(Standing::Open(Remaining::ALL));
        }

        let since = job.made_at().plus(-SKEW_MS);
        let sent = self.sent.parts(&job.destination, &job.reply, since).await?;
        if sent > 0 {
            metrics::counter!("nexus_delivery_told_by_events_total").increment(1);
            tracing::warn!(
                delivery = %job.reply.id, event_id = %job.reply.causation.event, session = %job.reply.session, sent, parts,
                "no receipt tells of a delivery whose parts are among the sent events: RECEIPTS lost its end"
            );
        }

        Ok(match sent {
            0 if is_in_doubt => Standing::Unknown,
            0 => Standing::Open(Remaining::ALL),
            sent if sent >= parts => Standing::Past,
            part => Standing::Open(Remaining { part, ..Remaining::ALL }),
        })
    }

    /// Until when deliveries may have been made of which no receipt tells.
    async fn doubt_until(&self) -> Result<Option<UnixMillis>, ReadStreamError> {
        let until = self.witness.doubt_until(self.clock.now()).await;
        until.map_err(|error| ReadStreamError::Unavailable {
            stream: streams::RECEIPTS.to_owned(),
            detail: error.to_string(),
        })
    }

    /// The newest receipt that names `job`'s delivery, among those up to `newest`.
    async fn newest_of(&self, job: &Job, newest: u64) -> Result<Option<LastReceipt>, ReadStreamError> {
        let since = job.made_at().plus(-SKEW_MS);
        let known = self.lock_walks().remove(&job.destination);
        let mut walk = known
            .filter(|walk| walk.since <= since)
            .unwrap_or_else(|| Walk::from(since));
        self.walk_on(&job.destination, &mut walk, newest).await?;
        let found = walk.found.get(&job.reply.id).cloned();

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

    /// Walks on to `newest`. The bulk is read directly; what that does not show yet comes from the leader.
    async fn walk_on(&self, destination: &Destination, walk: &mut Walk, newest: u64) -> Result<(), ReadStreamError> {
        let subject = destination.receipt_subject();
        while walk.through < newest {
            let mut page = match walk.through {
                0 => {
                    self.bus
                        .history_since(streams::RECEIPTS, &subject, walk.since, PAGE)
                        .await?
                }
                through => self.bus.history(streams::RECEIPTS, &subject, through + 1, PAGE).await?,
            };

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

    fn lock_walks(&self) -> MutexGuard<'_, HashMap<Destination, Walk>> {
        self.walks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what happened to `job`.
    ///
    /// # Errors
    /// [`WriteReceiptError`]; whether it is stored is then unknown.
    pub async fn write(&self, job: &Job, receipt: &Receipt, carrier: &Carrier) -> Result<Written, WriteReceiptError> {
        let subject = job.destination.receipt_subject();
        let out = Outgoing::new(subject.clone(), receipt)
            .header(DELIVERY_COPY, job.place.to_string())
            .carrier(carrier);
        for _ in 0..MAX_CONFLICTS {
            let Some(Known { sequence: expected, .. }) = self.known(&job.destination) else {
                // Somebody else has written meanwhile: it counts where it says that this delivery is settled.
                if let Some(found) = self.read(job).await?.filter(is_settled) {
                    return Ok(Written::Superseded(found));
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
    let Some(copy) = delivery_copy(&stored.headers) else {
        return Ok(None);
    };

    match stored.decode::<Receipt>() {
        Ok(receipt) => Ok(Some(LastReceipt { copy, receipt })),
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

/// Whether nothing is left to be sent.
pub(crate) const fn is_settled(standing: &Standing) -> bool {
    match standing {
        Standing::Past | Standing::Delivered(_) | Standing::GaveUp { .. } | Standing::Denied => true,
        Standing::Open(_) | Standing::Unknown => false,
    }
}
