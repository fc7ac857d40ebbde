//! Stores intents in KV and their transitions in `AUDIT`, so that the two always agree.
//!
//! A value contains the records of its last write. The next value is written only after they are in `AUDIT`, each once:
//! records are appended to the intent's own subject, and each expects its predecessor, so that one of two writers
//! fails, and a repeated record is found. After a write its records are published at once, beside the following steps;
//! if a crash prevents that, the next writer or the reconciler does it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shared::bus::{Bus, Kv, KvEntry, OutgoingMessage, PublishError, StoredMessage};
use shared::clock::{SharedClock, pause};
use shared::model::intent::service::IntentList;
use shared::model::intent::{Intent, IntentRecord};
use shared::wire::subject::{intent_audit, token};
use shared::wire::topology::buckets::INTENTS;
use shared::wire::topology::streams::AUDIT;
use tokio::sync::{Notify, Semaphore};
use ulid::Ulid;

use super::error::HandleIntentError;

/// Stream of the bucket.
pub const STREAM: &str = "KV_intents";
/// Largest number of transitions in a history.
const MAX_HISTORY: usize = 1_000;
/// Number of values whose records are published in the background; beyond it the writer waits.
const MAX_TELLING: usize = 256;
/// Attempts to publish the records of one write; after them the reconciler does it.
const TOLD_TRIES: u32 = 300;
/// Pause between two of these attempts.
const TOLD_AGAIN: Duration = Duration::from_secs(2);

/// Reads and writes intents.
#[derive(Debug)]
pub struct IntentStore {
    pub(super) bus: Bus,
    pub(super) clock: SharedClock,
    pub(super) values: Kv<Intent>,
    /// Number of values that were behind `AUDIT` since the process started.
    pub(super) caught_up: AtomicU64,
    /// Notified of each of these values.
    pub(super) put_back: Notify,
    instance: String,
    writes: AtomicU64,
    telling: Arc<Semaphore>,
}

/// Returns the key of intent `id` of `agent`.
#[must_use]
pub fn key(agent: &str, id: Ulid) -> String {
    format!("i.{}.{id}", token(agent))
}

impl IntentStore {
    /// Creates a store on `bus` for the replica `instance`.
    #[must_use]
    pub fn new(bus: Bus, clock: SharedClock, instance: &str) -> Self {
        Self {
            values: bus.kv(INTENTS),
            bus,
            clock,
            caught_up: AtomicU64::new(0),
            put_back: Notify::new(),
            instance: instance.to_owned(),
            writes: AtomicU64::new(0),
            telling: Arc::new(Semaphore::new(MAX_TELLING)),
        }
    }

    /// Returns a unique name for one write.
    #[must_use]
    pub fn new_writer(&self) -> String {
        format!("{}/{}", self.instance, self.writes.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns intent `id` of `agent`, or of any agent if none is given (slower).
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the bucket cannot be read.
    pub async fn get(&self, agent: Option<&str>, id: Ulid) -> Result<Option<KvEntry<Intent>>, HandleIntentError> {
        let key = agent.map_or_else(|| format!("i.*.{id}"), |agent| key(agent, id));
        Ok(self.values.get(&key).await?)
    }

    /// Returns intent `id`, which must exist.
    ///
    /// # Errors
    /// Returns [`HandleIntentError::Unknown`] if it does not exist.
    pub async fn find(&self, agent: Option<&str>, id: Ulid) -> Result<KvEntry<Intent>, HandleIntentError> {
        self.get(agent, id).await?.ok_or(HandleIntentError::Unknown(id))
    }

    /// Writes `value`, the first value of its intent.
    ///
    /// # Errors
    /// Returns [`HandleIntentError::Conflict`] if the intent exists already.
    pub async fn create_intent(&self, mut value: Intent) -> Result<KvEntry<Intent>, HandleIntentError> {
        let id = value.intent.id;
        value.writer = self.new_writer();
        let revision = self
            .values
            .create(&key(&value.intent.agent, id), &value)
            .await
            .map_err(|error| HandleIntentError::from_cas(id, error))?;
        self.spawn_audit(&value).await;
        Ok(KvEntry { value, revision })
    }

    /// Publishes the records of `value`, which this process has just written, to `AUDIT` in the background.
    pub(super) async fn spawn_audit(&self, value: &Intent) {
        let Ok(slot) = Arc::clone(&self.telling).try_acquire_owned() else {
            write_audit(&self.bus, value).await;
            return;
        };

        let (bus, value) = (self.bus.clone(), value.clone());
        tokio::spawn(async move {
            // An ended intent has no next writer that would publish its records.
            for _ in 0..TOLD_TRIES {
                if write_audit(&bus, &value).await {
                    break;
                }
                pause(TOLD_AGAIN).await;
            }

            drop(slot);
        });
    }

    /// Replaces `current` by `next`, after the records of `current` are in `AUDIT`.
    ///
    /// # Errors
    /// Returns [`HandleIntentError::Conflict`] if another writer has changed the intent.
    pub async fn advance_intent(
        &self,
        current: &KvEntry<Intent>,
        next: Intent,
    ) -> Result<KvEntry<Intent>, HandleIntentError> {
        self.advance_after(current, next, std::future::ready(Ok(()))).await
    }

    /// Replaces `current` by `next`, after the records of `current` are in `AUDIT` and `before` is done.
    ///
    /// # Errors
    /// Returns [`HandleIntentError::Conflict`] if another writer has changed the intent, or the error of `before`.
    pub async fn advance_after(
        &self,
        current: &KvEntry<Intent>,
        mut next: Intent,
        before: impl Future<Output = Result<(), HandleIntentError>>,
    ) -> Result<KvEntry<Intent>, HandleIntentError> {
        let id = next.intent.id;
        let (audited, ()) = tokio::try_join!(self.ensure_audited(&current.value), before)?;
        next.audited = audited;
        next.writer = self.new_writer();
        let revision = self
            .values
            .update(&key(&next.intent.agent, id), &next, current.revision)
            .await
            .map_err(|error| HandleIntentError::from_cas(id, error))?;

        metrics::counter!("nexus_scheduler_intents_total", "status" => next.status.name()).increment(1);
        self.spawn_audit(&next).await;

        Ok(KvEntry { value: next, revision })
    }

    /// Removes `value`, an ended intent at `revision`. Its history stays in `AUDIT`.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if its last records could not be published, or if the value has changed.
    pub async fn remove(&self, value: &Intent, revision: u64) -> Result<(), HandleIntentError> {
        self.ensure_audited(value).await?;
        let id = value.intent.id;
        let deleted = self.values.delete(&key(&value.intent.agent, id), Some(revision)).await;
        deleted.map_err(|error| HandleIntentError::from_cas(id, error))
    }

    /// Publishes the records of `value` that are missing in `AUDIT`. Returns the sequence of the last record.
    ///
    /// # Errors
    /// Fails as [`IntentStore::check`] does, or if `AUDIT` accepts no record.
    pub async fn ensure_audited(&self, value: &Intent) -> Result<u64, HandleIntentError> {
        // If `AUDIT` has no record although `value` says so, it was emptied or restored to an older state.
        let found = self.newest(value).await?;
        let known = found.map_or((0, 0), |found| (record_number(&found), found.sequence));
        append_records(&self.bus, value, known).await
    }

    /// Checks that `AUDIT` has no later records than those of `value`.
    ///
    /// # Errors
    /// Returns [`HandleIntentError::Conflict`] if it has. Then `value` is out of date: if no other writer has changed
    /// it, KV was restored to an older state, and the value has been brought up to `AUDIT`.
    pub async fn check(&self, value: &Intent) -> Result<(), HandleIntentError> {
        self.newest(value).await.map(drop)
    }

    /// Returns the newest record of `value`'s intent in `AUDIT`, which does not belong to a later value.
    async fn newest(&self, value: &Intent) -> Result<Option<StoredMessage>, HandleIntentError> {
        let id = value.intent.id;
        let found = self.bus.last_on_subject(AUDIT, &intent_audit(&id.to_string())).await?;
        match found {
            Some(last) if record_number(&last) > value.n => {
                self.catch_up(value, last).await?;
                Err(HandleIntentError::Conflict(id))
            }
            found => Ok(found),
        }
    }

    /// Returns the transitions of intent `id` in order, from `AUDIT`.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the stream cannot be read.
    pub async fn read_history(&self, id: Ulid) -> Result<Vec<IntentRecord>, HandleIntentError> {
        let subject = intent_audit(&id.to_string());
        let stored = self.bus.read_history(AUDIT, &subject, 1, MAX_HISTORY).await?;
        Ok(stored.iter().filter_map(|stored| stored.decode().ok()).collect())
    }

    /// Returns at most `limit` intents for which `wanted` holds, of `agent` or of all agents, after the revision
    /// `after_revision`.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the bucket cannot be read.
    pub async fn list(
        &self,
        agent: Option<&str>,
        after_revision: u64,
        limit: usize,
        wanted: impl Fn(&Intent) -> bool,
    ) -> Result<IntentList, HandleIntentError> {
        const PAGE: usize = 256;

        let agent = agent.map_or_else(|| "*".to_owned(), token);
        let subject = format!("$KV.{INTENTS}.i.{agent}.*");
        let mut list = IntentList::default();

        let mut from = after_revision + 1;
        loop {
            let page = self.bus.read_history(STREAM, &subject, from, PAGE).await?;
            for stored in &page {
                from = stored.sequence + 1;
                let Ok(intent) = stored.decode::<Intent>() else {
                    continue;
                };

                // The filter runs here, because a value's fields are not part of its key.
                if wanted(&intent) {
                    list.intents.push(intent);
                }

                if list.intents.len() >= limit {
                    list.next = Some(stored.sequence);
                    return Ok(list);
                }
            }

            // A short page is the last one.
            if page.len() < PAGE {
                return Ok(list);
            }
        }
    }
}

/// Publishes the records of `value`, which were just written. Returns whether they are in `AUDIT`.
async fn write_audit(bus: &Bus, value: &Intent) -> bool {
    match append_records(bus, value, (0, value.audited)).await {
        // Another writer has built on the value: it published these records before.
        Ok(_) | Err(HandleIntentError::Conflict(_)) => true,
        Err(error) => {
            tracing::warn!(
                intent = %value.intent.id, session = %value.target(), n = value.n, %error, "failed to write records to AUDIT; retrying"
            );
            false
        }
    }
}

/// Appends the records of `value` that `AUDIT` lacks. The last record of the intent there has number `known` and
/// sequence `last`. Returns the sequence of the last record.
async fn append_records(
    bus: &Bus,
    value: &Intent,
    (mut known, mut last): (u32, u64),
) -> Result<u64, HandleIntentError> {
    let id = value.intent.id;
    let subject = intent_audit(&id.to_string());
    for record in &value.records {
        if record.n <= known {
            continue;
        }

        let out = OutgoingMessage::new(subject.clone(), record).expect_last(last);
        // Each record expects its predecessor: of two writers one fails here.
        match bus.publish(out).await {
            Ok(published) => last = published.sequence,
            Err(PublishError::WrongLastSequence { .. }) => {
                let found = bus.last_on_subject(AUDIT, &subject).await?;
                let found = found.ok_or(HandleIntentError::Conflict(id))?;
                known = record_number(&found);

                // Another writer has stored other records: this value is out of date.
                if known < record.n {
                    return Err(HandleIntentError::Conflict(id));
                }
                last = found.sequence;
            }
            Err(error) => return Err(error.into()),
        }
    }

    if known > value.n {
        return Err(HandleIntentError::Conflict(id));
    }

    Ok(last)
}

/// Returns the number of the transition in `stored`, a message of `AUDIT`; 0 if it cannot be decoded.
pub(super) fn record_number(stored: &StoredMessage) -> u32 {
    stored.decode::<IntentRecord>().map_or(0, |record| record.n)
}
