//! Intents in KV, and their transitions in `AUDIT`, which never part.
//!
//! A value holds the records of its last write. Nobody writes the next value before they are in `AUDIT`, each once:
//! records are appended to the intent's own subject, each expecting the one before it, so that of two writers one is
//! refused and a record repeated is found there. After the write they are published at once, beside what follows; where a
//! crash comes between, the next writer or the reconciler does it.

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

/// The stream of the bucket.
pub const STREAM: &str = "KV_intents";
/// Transitions told of one intent at most.
const MAX_HISTORY: usize = 1_000;
/// Values whose records are on their way to `AUDIT` while whoever wrote them goes on; beyond that they wait.
const MAX_TELLING: usize = 256;
/// Tries to bring the records of one write into `AUDIT`; then the reconciler does it.
const TOLD_TRIES: u32 = 300;
/// Wait between two of them.
const TOLD_AGAIN: Duration = Duration::from_secs(2);

/// Where intents are.
#[derive(Debug)]
pub struct IntentStore {
    pub(super) bus: Bus,
    pub(super) clock: SharedClock,
    pub(super) values: Kv<Intent>,
    /// Values that were behind `AUDIT`, since the process began.
    pub(super) caught_up: AtomicU64,
    /// Told of each of them.
    pub(super) put_back: Notify,
    instance: String,
    writes: AtomicU64,
    telling: Arc<Semaphore>,
}

/// The key of intent `id` of `agent`.
#[must_use]
pub fn key(agent: &str, id: Ulid) -> String {
    format!("i.{}.{id}", token(agent))
}

impl IntentStore {
    /// On `bus`, for the replica `instance`.
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

    /// A name for one write, that no other has.
    #[must_use]
    pub fn new_writer(&self) -> String {
        format!("{}/{}", self.instance, self.writes.fetch_add(1, Ordering::Relaxed))
    }

    /// Intent `id` of `agent`; of any agent where none is named (slower).
    ///
    /// # Errors
    /// [`HandleIntentError`] where the bucket cannot be read.
    pub async fn get(&self, agent: Option<&str>, id: Ulid) -> Result<Option<KvEntry<Intent>>, HandleIntentError> {
        let key = agent.map_or_else(|| format!("i.*.{id}"), |agent| key(agent, id));
        Ok(self.values.get(&key).await?)
    }

    /// Intent `id`, which is there.
    ///
    /// # Errors
    /// [`HandleIntentError::Unknown`] where it is not.
    pub async fn find(&self, agent: Option<&str>, id: Ulid) -> Result<KvEntry<Intent>, HandleIntentError> {
        self.get(agent, id).await?.ok_or(HandleIntentError::Unknown(id))
    }

    /// Writes `value`, the first of its intent.
    ///
    /// # Errors
    /// [`HandleIntentError::Conflict`] where there is one already.
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

    /// Brings the records of `value`, which this process has just written, into `AUDIT`, while the caller goes on.
    pub(super) async fn spawn_audit(&self, value: &Intent) {
        let Ok(slot) = Arc::clone(&self.telling).try_acquire_owned() else {
            write_audit(&self.bus, value).await;
            return;
        };

        let (bus, value) = (self.bus.clone(), value.clone());
        tokio::spawn(async move {
            // Of a final one nobody writes a next value, with which its records would be seen to.
            for _ in 0..TOLD_TRIES {
                if write_audit(&bus, &value).await {
                    break;
                }
                pause(TOLD_AGAIN).await;
            }

            drop(slot);
        });
    }

    /// Writes `next` in the place of `current`, once `current`'s records are in `AUDIT`.
    ///
    /// # Errors
    /// [`HandleIntentError::Conflict`] where somebody else has written.
    pub async fn advance_intent(
        &self,
        current: &KvEntry<Intent>,
        next: Intent,
    ) -> Result<KvEntry<Intent>, HandleIntentError> {
        self.advance_after(current, next, std::future::ready(Ok(()))).await
    }

    /// Writes `next` in the place of `current`, once `current`'s records are in `AUDIT` and `before` has come about.
    ///
    /// # Errors
    /// [`HandleIntentError::Conflict`] where somebody else has written; that of `before`.
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

    /// Removes `value`, which stands there at `revision` and is over; `AUDIT` keeps what happened to it.
    ///
    /// # Errors
    /// [`HandleIntentError`] where its last records could not be brought into `AUDIT`, or it is not there any more.
    pub async fn remove(&self, value: &Intent, revision: u64) -> Result<(), HandleIntentError> {
        self.ensure_audited(value).await?;
        let id = value.intent.id;
        let deleted = self.values.delete(&key(&value.intent.agent, id), Some(revision)).await;
        deleted.map_err(|error| HandleIntentError::from_cas(id, error))
    }

    /// Makes sure that the records of `value` are in `AUDIT`, once each; answers the sequence of the last.
    ///
    /// # Errors
    /// As [`IntentStore::check`]; [`HandleIntentError`] if `AUDIT` takes no record.
    pub async fn ensure_audited(&self, value: &Intent) -> Result<u64, HandleIntentError> {
        // Nothing there, whatever `value` says: it was emptied, or put back to an older state.
        let found = self.newest(value).await?;
        let known = found.map_or((0, 0), |found| (record_number(&found), found.sequence));
        append_records(&self.bus, value, known).await
    }

    /// Checks that `AUDIT` has no later records than those of `value`.
    ///
    /// # Errors
    /// [`HandleIntentError::Conflict`] if it has. Then `value` is not what stands there any more: if nobody else has written,
    /// KV was put back to an older state, and the value is brought up to `AUDIT` before.
    pub async fn check(&self, value: &Intent) -> Result<(), HandleIntentError> {
        self.newest(value).await.map(drop)
    }

    /// The newest record of `value`'s intent in `AUDIT`, which is none of a later value.
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

    /// The transitions of intent `id` in order, out of `AUDIT`.
    ///
    /// # Errors
    /// [`HandleIntentError`] where they cannot be read.
    pub async fn read_history(&self, id: Ulid) -> Result<Vec<IntentRecord>, HandleIntentError> {
        let subject = intent_audit(&id.to_string());
        let stored = self.bus.read_history(AUDIT, &subject, 1, MAX_HISTORY).await?;
        Ok(stored.iter().filter_map(|stored| stored.decode().ok()).collect())
    }

    /// Up to `limit` intents that `wanted` takes, of `agent` or of all, behind the revision `after`.
    ///
    /// # Errors
    /// [`HandleIntentError`] where they cannot be read.
    pub async fn list(
        &self,
        agent: Option<&str>,
        after: u64,
        limit: usize,
        wanted: impl Fn(&Intent) -> bool,
    ) -> Result<IntentList, HandleIntentError> {
        const PAGE: usize = 256;

        let agent = agent.map_or_else(|| "*".to_owned(), token);
        let subject = format!("$KV.{INTENTS}.i.{agent}.*");
        let mut list = IntentList::default();

        let mut from = after + 1;
        loop {
            let page = self.bus.read_history(STREAM, &subject, from, PAGE).await?;
            for stored in &page {
                from = stored.sequence + 1;
                let Ok(intent) = stored.decode::<Intent>() else {
                    continue;
                };

                if wanted(&intent) {
                    list.intents.push(intent);
                }

                if list.intents.len() >= limit {
                    list.next = Some(stored.sequence);
                    return Ok(list);
                }
            }

            if page.len() < PAGE {
                return Ok(list);
            }
        }
    }
}

/// Brings the records of `value`, which were just written, into `AUDIT`; whether they are there.
async fn write_audit(bus: &Bus, value: &Intent) -> bool {
    match append_records(bus, value, (0, value.audited)).await {
        // Where somebody stands on it already, they brought its records there before.
        Ok(_) | Err(HandleIntentError::Conflict(_)) => true,
        Err(error) => {
            tracing::warn!(
                intent = %value.intent.id, session = %value.target(), n = value.n, %error, "failed to write records to AUDIT; retrying"
            );
            false
        }
    }
}

/// Appends those records of `value` that `AUDIT` does not have: the last one of the intent there is number `known`, at
/// sequence `last`. Answers the sequence of the last.
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
        match bus.publish(out).await {
            Ok(published) => last = published.sequence,
            Err(PublishError::WrongLastSequence { .. }) => {
                let found = bus.last_on_subject(AUDIT, &subject).await?;
                let found = found.ok_or(HandleIntentError::Conflict(id))?;
                known = record_number(&found);

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

/// Which transition `stored`, a message of `AUDIT`, tells of; 0 if it cannot be read.
pub(super) fn record_number(stored: &StoredMessage) -> u32 {
    stored.decode::<IntentRecord>().map_or(0, |record| record.n)
}
