//! Intents in KV, and their transitions in `AUDIT`, which never part.
//!
//! A value holds the records of its last write. Nobody writes the next value before they are in `AUDIT`, each once:
//! records are appended to the intent's own subject, each expecting the one before it, so that of two writers one is
//! refused and a record repeated is found there. After the write they are published at once; where a crash comes between,
//! the next writer or the reconciler does it.

use std::sync::atomic::{AtomicU64, Ordering};

use shared::bus::{Bus, Entry, Kv, Outgoing, PublishError, Stored};
use shared::model::intent::service::IntentList;
use shared::model::intent::{Intent, IntentRecord};
use shared::wire::subject::{intent_audit, token};
use shared::wire::topology::buckets::INTENTS;
use shared::wire::topology::streams::AUDIT;
use ulid::Ulid;

use super::error::HandleIntentError;

/// The stream of the bucket.
pub const STREAM: &str = "KV_intents";
/// Transitions told of one intent at most.
const MAX_HISTORY: usize = 1_000;

/// Where intents are.
#[derive(Debug)]
pub struct Store {
    bus: Bus,
    values: Kv<Intent>,
    instance: String,
    writes: AtomicU64,
}

/// The key of intent `id` of `agent`.
#[must_use]
pub fn key(agent: &str, id: Ulid) -> String {
    format!("i.{}.{id}", token(agent))
}

impl Store {
    /// On `bus`, for the replica `instance`.
    #[must_use]
    pub fn new(bus: Bus, instance: &str) -> Self {
        Self {
            values: bus.kv(INTENTS),
            bus,
            instance: instance.to_owned(),
            writes: AtomicU64::new(0),
        }
    }

    /// A name for one write, that no other has.
    #[must_use]
    pub fn writer(&self) -> String {
        format!("{}/{}", self.instance, self.writes.fetch_add(1, Ordering::Relaxed))
    }

    /// Intent `id` of `agent`; of any agent where none is named (slower).
    ///
    /// # Errors
    /// [`HandleIntentError`] where the bucket cannot be read.
    pub async fn get(&self, agent: Option<&str>, id: Ulid) -> Result<Option<Entry<Intent>>, HandleIntentError> {
        let key = agent.map_or_else(|| format!("i.*.{id}"), |agent| key(agent, id));
        Ok(self.values.get(&key).await?)
    }

    /// Intent `id`, which is there.
    ///
    /// # Errors
    /// [`HandleIntentError::Unknown`] where it is not.
    pub async fn find(&self, agent: Option<&str>, id: Ulid) -> Result<Entry<Intent>, HandleIntentError> {
        self.get(agent, id).await?.ok_or(HandleIntentError::Unknown(id))
    }

    /// Writes `value`, the first of its intent.
    ///
    /// # Errors
    /// [`HandleIntentError::Conflict`] where there is one already.
    pub async fn create(&self, mut value: Intent) -> Result<Entry<Intent>, HandleIntentError> {
        let id = value.intent.id;
        value.writer = self.writer();
        let revision = self
            .values
            .create(&key(&value.intent.agent, id), &value)
            .await
            .map_err(|error| HandleIntentError::cas(id, error))?;
        self.told(&value).await?;
        Ok(Entry { value, revision })
    }

    /// Brings the records of `value`, which this process has just written, into `AUDIT`.
    async fn told(&self, value: &Intent) -> Result<(), HandleIntentError> {
        match self.audit(value).await {
            // Somebody stands on it already, and brought its records there before that.
            Ok(_) | Err(HandleIntentError::Conflict(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes `next` in the place of `current`, once `current`'s records are in `AUDIT`.
    ///
    /// # Errors
    /// [`HandleIntentError::Conflict`] where somebody else has written.
    pub async fn advance(&self, current: &Entry<Intent>, mut next: Intent) -> Result<Entry<Intent>, HandleIntentError> {
        let id = next.intent.id;
        next.audited = self.audit(&current.value).await?;
        next.writer = self.writer();
        let revision = self
            .values
            .update(&key(&next.intent.agent, id), &next, current.revision)
            .await
            .map_err(|error| HandleIntentError::cas(id, error))?;
        metrics::counter!("nexus_scheduler_intents_total", "status" => next.status.name()).increment(1);
        self.told(&next).await?;
        Ok(Entry { value: next, revision })
    }

    /// Removes `value`, which stands there at `revision` and is over; `AUDIT` keeps what happened to it.
    ///
    /// # Errors
    /// [`HandleIntentError`] where its last records could not be brought into `AUDIT`, or it is not there any more.
    pub async fn remove(&self, value: &Intent, revision: u64) -> Result<(), HandleIntentError> {
        self.audit(value).await?;
        let id = value.intent.id;
        let deleted = self.values.delete(&key(&value.intent.agent, id), Some(revision)).await;
        deleted.map_err(|error| HandleIntentError::cas(id, error))
    }

    /// Makes sure that the records of `value` are in `AUDIT`, once each; answers the sequence of the last.
    ///
    /// # Errors
    /// [`HandleIntentError::Conflict`] where `AUDIT` knows of later ones: `value` is not what stands there any more.
    pub async fn audit(&self, value: &Intent) -> Result<u64, HandleIntentError> {
        let subject = intent_audit(&value.intent.id.to_string());
        let mut last = value.audited;
        let mut known = 0;
        for record in &value.records {
            if record.n <= known {
                continue;
            }
            let out = Outgoing::new(subject.clone(), record).expect_last(last);
            match self.bus.publish(out).await {
                Ok(published) => last = published.sequence,
                Err(PublishError::WrongLastSequence { .. }) => {
                    let found = self.bus.last_on_subject(AUDIT, &subject).await?;
                    let found = found.ok_or(HandleIntentError::Conflict(value.intent.id))?;
                    known = number(&found);
                    if known < record.n || known > value.n {
                        return Err(HandleIntentError::Conflict(value.intent.id));
                    }
                    last = found.sequence;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(last)
    }

    /// Whether the records of `value` are in `AUDIT`, as far as one look tells.
    ///
    /// # Errors
    /// [`HandleIntentError`] where `AUDIT` cannot be read.
    pub async fn is_audited(&self, value: &Intent) -> Result<bool, HandleIntentError> {
        let subject = intent_audit(&value.intent.id.to_string());
        let found = self.bus.last_on_subject(AUDIT, &subject).await?;
        Ok(found.is_some_and(|stored| number(&stored) >= value.n))
    }

    /// The transitions of intent `id` in order, out of `AUDIT`.
    ///
    /// # Errors
    /// [`HandleIntentError`] where they cannot be read.
    pub async fn history(&self, id: Ulid) -> Result<Vec<IntentRecord>, HandleIntentError> {
        let subject = intent_audit(&id.to_string());
        let stored = self.bus.history(AUDIT, &subject, 1, MAX_HISTORY).await?;
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
            let page = self.bus.history(STREAM, &subject, from, PAGE).await?;
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

fn number(stored: &Stored) -> u32 {
    stored.decode::<IntentRecord>().map_or(0, |record| record.n)
}
