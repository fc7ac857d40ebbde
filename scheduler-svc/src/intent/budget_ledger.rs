//! Agents' budget books in KV. Each reservation is stored under its intent's id by compare-and-set, so that repeating
//! it changes nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use shared::bus::{Bus, CasError, Kv};
use shared::model::intent::book::AgentBook;
use shared::model::intent::{HookIntent, IntentRejection, IntentSchedule};
use shared::model::time::UnixMillis;
use shared::wire::subject::token;
use shared::wire::topology::buckets::INTENTS;
use ulid::Ulid;

use super::admission::{AdmissibleIntent, check_fit};
use super::error::HandleIntentError;
use super::registry::KindRegistry;

/// Attempts at one change while others change the same book.
const MAX_TRIES: u32 = 64;

/// Reads and writes the budget books of agents.
#[derive(Debug)]
pub struct BudgetLedger {
    values: Kv<AgentBook>,
    instance: String,
    writes: AtomicU64,
}

/// A book with the revision at which it was read, which a write must expect.
pub type VersionedBook = (AgentBook, u64);

/// The reservation to make.
#[derive(Debug, Clone, Copy)]
pub struct ReservationRequest<'a> {
    /// Intent that the reservation is for.
    pub intent: &'a HookIntent,
    /// Schedule that the intent will have.
    pub schedule: &'a IntentSchedule,
    /// Time of the request.
    pub now: UnixMillis,
}

fn key(agent: &str) -> String {
    format!("a.{}", token(agent))
}

impl BudgetLedger {
    /// Creates a ledger on `bus` for the replica `instance`.
    #[must_use]
    pub fn new(bus: &Bus, instance: &str) -> Self {
        Self {
            values: bus.kv(INTENTS),
            instance: instance.to_owned(),
            writes: AtomicU64::new(0),
        }
    }

    /// Reserves the budget that is `wanted`, in place of the earlier reservation of the same intent. Returns the
    /// rejection if it does not fit. `known` is the book, if the caller has just read it. Runs `arm` beside the write,
    /// and again after each conflict with another writer.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the book cannot be read or written, or if `arm` fails.
    pub async fn reserve_budget<Armed: Future<Output = Result<(), HandleIntentError>>>(
        &self,
        registry: &KindRegistry,
        wanted: ReservationRequest<'_>,
        mut known: Option<VersionedBook>,
        arm: impl Fn(AdmissibleIntent) -> Armed,
    ) -> Result<Result<AdmissibleIntent, IntentRejection>, HandleIntentError> {
        let ReservationRequest { intent, schedule, now } = wanted;
        for _ in 0..MAX_TRIES {
            let (mut book, revision) = match known.take() {
                Some(read) => read,
                None => self.read(&intent.agent).await?,
            };
            // Bookings of past days are removed with the next write, and need no task of their own.
            book.forget_past(now);
            let fit = match check_fit(registry, intent, schedule, &book, now) {
                Ok(fit) => fit,
                Err(rejection) => return Ok(Err(rejection)),
            };

            // The timer is stored beside the book: if only one of them is written, the repetition writes both.
            book.bookings.insert(intent.id, fit.booking);
            let (written, ()) = tokio::try_join!(self.write(&intent.agent, book, revision), arm(fit))?;
            if written {
                return Ok(Ok(fit));
            }
        }

        Err(HandleIntentError::Conflict(intent.id))
    }

    /// Removes the booking of the ended intent `id` from `agent`'s book. `fired` says that the booking was consumed.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the book cannot be read or written.
    pub async fn settle_booking(
        &self,
        agent: &str,
        id: Ulid,
        fired: bool,
        now: UnixMillis,
    ) -> Result<(), HandleIntentError> {
        for _ in 0..MAX_TRIES {
            let (mut book, revision) = self.read(agent).await?;
            if !book.settle_booking(id, fired, now) {
                return Ok(());
            }

            if self.write(agent, book, revision).await? {
                return Ok(());
            }
        }

        Err(HandleIntentError::Conflict(id))
    }

    /// Returns the book of `agent`; an empty one if there is none.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the bucket cannot be read.
    pub async fn read(&self, agent: &str) -> Result<VersionedBook, HandleIntentError> {
        let found = self.values.get(&key(agent)).await?;
        Ok(found.map_or_else(Default::default, |entry| (entry.value, entry.revision)))
    }

    async fn write(&self, agent: &str, mut book: AgentBook, revision: u64) -> Result<bool, HandleIntentError> {
        book.writer = format!("{}/book/{}", self.instance, self.writes.fetch_add(1, Ordering::Relaxed));
        match self.values.update(&key(agent), &book, revision).await {
            Ok(_) => Ok(true),
            Err(CasError::Conflict { .. }) => Ok(false),
            Err(CasError::Publish(error)) => Err(error.into()),
            Err(CasError::Read(error)) => Err(error.into()),
        }
    }
}
