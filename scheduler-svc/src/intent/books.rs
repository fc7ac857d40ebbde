//! Agents' books in KV: reservations by compare-and-set, each under its intent's name, so that repeating one changes
//! nothing.

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

/// Tries of one change while others change the same book.
const MAX_TRIES: u32 = 64;

/// Where agents' books are.
#[derive(Debug)]
pub struct BudgetLedger {
    values: Kv<AgentBook>,
    instance: String,
    writes: AtomicU64,
}

/// A book as it was read, and the revision at which it can be overwritten.
pub type VersionedBook = (AgentBook, u64);

/// What is to be reserved.
#[derive(Debug, Clone, Copy)]
pub struct ReservationRequest<'a> {
    /// For which intent.
    pub intent: &'a HookIntent,
    /// With which schedule.
    pub schedule: &'a IntentSchedule,
    /// When.
    pub now: UnixMillis,
}

fn key(agent: &str) -> String {
    format!("a.{}", token(agent))
}

impl BudgetLedger {
    /// On `bus`, for the replica `instance`.
    #[must_use]
    pub fn new(bus: &Bus, instance: &str) -> Self {
        Self {
            values: bus.kv(INTENTS),
            instance: instance.to_owned(),
            writes: AtomicU64::new(0),
        }
    }

    /// Reserves what is `wanted`, in the place of what its intent had reserved before; or says why not. `known` is the
    /// book where it was just read. Beside the reservation `arm` is done, and with it again where somebody else has
    /// written the book.
    ///
    /// # Errors
    /// [`HandleIntentError`] where the book cannot be read or written; that of `arm`.
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
            book.forget_past(now);
            let fit = match check_fit(registry, intent, schedule, &book, now) {
                Ok(fit) => fit,
                Err(rejection) => return Ok(Err(rejection)),
            };

            book.bookings.insert(intent.id, fit.booking);
            let (written, ()) = tokio::try_join!(self.write(&intent.agent, book, revision), arm(fit))?;
            if written {
                return Ok(Ok(fit));
            }
        }

        Err(HandleIntentError::Conflict(intent.id))
    }

    /// Clears the booking of `id`, which is over, out of `agent`'s book; `fired`: it was consumed.
    ///
    /// # Errors
    /// [`HandleIntentError`] where the book cannot be read or written.
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

    /// The book of `agent`.
    ///
    /// # Errors
    /// [`HandleIntentError`] where it cannot be read.
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
