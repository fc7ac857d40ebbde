//! Agents' books in KV: reservations by compare-and-set, each under its intent's name, so that repeating one changes
//! nothing.

use shared::bus::{Bus, CasError, Kv};
use shared::model::intent::book::AgentBook;
use shared::model::intent::{HookIntent, IntentSchedule, Rejection};
use shared::model::time::UnixMillis;
use shared::wire::subject::token;
use shared::wire::topology::buckets::INTENTS;
use ulid::Ulid;

use super::admission::{Fit, fit};
use super::error::HandleIntentError;
use super::registry::Registry;

/// Tries of one change while others change the same book.
const MAX_TRIES: u32 = 64;

/// Where agents' books are.
#[derive(Debug)]
pub struct Books {
    values: Kv<AgentBook>,
}

fn key(agent: &str) -> String {
    format!("a.{}", token(agent))
}

impl Books {
    /// On `bus`.
    #[must_use]
    pub fn new(bus: &Bus) -> Self {
        Self {
            values: bus.kv(INTENTS),
        }
    }

    /// Reserves what `intent` needs with `schedule`, in the place of what it had reserved before; or says why not.
    /// `writer` names this write.
    ///
    /// # Errors
    /// [`HandleIntentError`] where the book cannot be read or written.
    pub async fn reserve(
        &self,
        registry: &Registry,
        intent: &HookIntent,
        schedule: &IntentSchedule,
        now: UnixMillis,
        writer: &(dyn Fn() -> String + Sync),
    ) -> Result<Result<Fit, Rejection>, HandleIntentError> {
        for _ in 0..MAX_TRIES {
            let (mut book, revision) = self.read(&intent.agent).await?;
            book.forget_past(now);
            let fit = match fit(registry, intent, schedule, &book, now) {
                Ok(fit) => fit,
                Err(rejection) => return Ok(Err(rejection)),
            };
            book.bookings.insert(intent.id, fit.booking);
            if self.write(&intent.agent, book, revision, writer).await? {
                return Ok(Ok(fit));
            }
        }
        Err(HandleIntentError::Conflict(intent.id))
    }

    /// Clears the booking of `id`, which is over, out of `agent`'s book; `fired`: it was consumed.
    ///
    /// # Errors
    /// [`HandleIntentError`] where the book cannot be read or written.
    pub async fn settle(
        &self,
        agent: &str,
        id: Ulid,
        fired: bool,
        now: UnixMillis,
        writer: &(dyn Fn() -> String + Sync),
    ) -> Result<(), HandleIntentError> {
        for _ in 0..MAX_TRIES {
            let (mut book, revision) = self.read(agent).await?;
            if !book.settle(id, fired, now) {
                return Ok(());
            }
            if self.write(agent, book, revision, writer).await? {
                return Ok(());
            }
        }
        Err(HandleIntentError::Conflict(id))
    }

    async fn read(&self, agent: &str) -> Result<(AgentBook, u64), HandleIntentError> {
        let found = self.values.get(&key(agent)).await?;
        Ok(found.map_or_else(Default::default, |entry| (entry.value, entry.revision)))
    }

    async fn write(
        &self,
        agent: &str,
        mut book: AgentBook,
        revision: u64,
        writer: &(dyn Fn() -> String + Sync),
    ) -> Result<bool, HandleIntentError> {
        book.writer = writer();
        match self.values.update(&key(agent), &book, revision).await {
            Ok(_) => Ok(true),
            Err(CasError::Conflict { .. }) => Ok(false),
            Err(CasError::Publish(error)) => Err(error.into()),
            Err(CasError::Read(error)) => Err(error.into()),
        }
    }
}
