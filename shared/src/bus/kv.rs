//! Typed KV buckets: writes are decided by compare-and-set, reads come from the leader.
//!
//! Values are written on the bucket's stream directly: the client has no update with a time to live and cuts times to
//! whole seconds (`docs/contribute/nats-facts.md` "KV and schedules"), and its key check rejects `~`. After a publish
//! with an unknown outcome, a stored value is ours only if it carries our attempt ([`super::writer`]): equal bytes may
//! come from a rival.

mod kept;
mod pages;
mod told_keys;
mod watch;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;

use crate::wire::envelope::WireMessage;
use crate::wire::headers::Headers;

use super::connect::Bus;
use super::error::{CasError, PublishError, ReadStreamError};
use super::message::StoredMessage;
use super::publish::OutgoingMessage;

pub use pages::KvPages;
pub use watch::KvWatch;

/// Time without an event after which a bucket counts as unreadable.
const QUIET: Duration = Duration::from_secs(10);

const OPERATION: &str = "KV-Operation";
const MARKER_REASON: &str = "Nats-Marker-Reason";
const ROLLUP: &str = "Nats-Rollup";

/// A bucket with values of type `T`.
#[derive(Debug)]
pub struct Kv<T> {
    bus: Bus,
    bucket: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for Kv<T> {
    fn clone(&self) -> Self {
        Self {
            bus: self.bus.clone(),
            bucket: self.bucket,
            value: PhantomData,
        }
    }
}

/// A value and its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEntry<T> {
    /// Decoded value of the key.
    pub value: T,
    /// Revision of the entry: the stream sequence, which grows with every change of the bucket.
    pub revision: u64,
}

/// Contents of a bucket at one time.
#[derive(Debug)]
pub struct KvSurvey<T> {
    /// Keys whose values can be decoded, with their entries.
    pub entries: Vec<(String, KvEntry<T>)>,
    /// Keys whose values cannot be decoded, each with the reason.
    pub unread: Vec<(String, String)>,
}

/// Event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent<T> {
    /// A key has this value.
    Put {
        /// Key of the entry.
        key: String,
        /// Decoded value of the entry.
        value: T,
        /// Revision of the entry.
        revision: u64,
    },
    /// A key is gone: deleted, purged or expired.
    Gone {
        /// Key that is gone.
        key: String,
        /// Revision of the delete marker.
        revision: u64,
    },
    /// A value cannot be decoded; for the watcher, the key keeps its former value.
    Bad {
        /// Key of the entry.
        key: String,
        /// Revision at which the value can be overwritten.
        revision: u64,
        /// Reason why the value cannot be decoded.
        error: String,
    },
    /// The bucket was restored to an older state or recreated. Earlier events and their revisions are void. All
    /// entries of the bucket follow again, then [`KvEvent::Gone`] for each key that the bucket no longer holds, then
    /// [`KvEvent::Current`].
    Anew,
    /// All entries that existed when the watch started, or started again, have been sent.
    Current,
}

impl Bus {
    /// The bucket `bucket` (see [`crate::wire::topology::buckets`]).
    #[must_use]
    pub fn kv<T: WireMessage>(&self, bucket: &'static str) -> Kv<T> {
        Kv {
            bus: self.clone(),
            bucket,
            value: PhantomData,
        }
    }
}

/// Message that removes the key on `subject`.
pub(super) fn purge_message(subject: &str) -> OutgoingMessage {
    let headers: Headers = [(OPERATION, "PURGE"), (ROLLUP, "sub")].into_iter().collect();
    OutgoingMessage::raw(subject.to_owned(), headers, Bytes::new())
}

fn is_marker(headers: &Headers) -> bool {
    headers.get(OPERATION).is_some() || headers.get(MARKER_REASON).is_some()
}

impl<T: WireMessage> Kv<T> {
    /// The bus that the bucket is on.
    #[must_use]
    pub const fn bus(&self) -> &Bus {
        &self.bus
    }

    fn stream_name(&self) -> String {
        format!("KV_{}", self.bucket)
    }

    fn key_subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.bucket)
    }

    /// Returns the key of a message's subject.
    fn key_of<'a>(&self, subject: &'a str) -> &'a str {
        let key = subject.strip_prefix("$KV.");
        let key = key.and_then(|rest| rest.strip_prefix(self.bucket)?.strip_prefix('.'));
        key.unwrap_or(subject)
    }

    fn to_cas_error(&self, key: &str, error: PublishError) -> CasError {
        match error {
            PublishError::WrongLastSequence { .. } => CasError::Conflict {
                bucket: self.bucket.to_owned(),
                key: key.to_owned(),
            },
            error @ (PublishError::SubjectFull { .. }
            | PublishError::TooLarge { .. }
            | PublishError::NoStream { .. }
            | PublishError::Rejected { .. }
            | PublishError::Unknown { .. }
            | PublishError::Closed { .. }) => CasError::Publish(error),
        }
    }

    async fn read_stored(&self, key: &str) -> Result<Option<StoredMessage>, ReadStreamError> {
        self.bus
            .last_on_subject(&self.stream_name(), &self.key_subject(key))
            .await
    }

    /// Returns the entry of `key` from the leader, or `None` if the key has no value.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked or the value cannot be decoded.
    pub async fn get(&self, key: &str) -> Result<Option<KvEntry<T>>, ReadStreamError> {
        let Some(stored) = self
            .read_stored(key)
            .await?
            .filter(|stored| !is_marker(&stored.headers))
        else {
            return Ok(None);
        };
        self.decode_entry(key, &stored).map(Some)
    }

    fn decode_entry(&self, key: &str, stored: &StoredMessage) -> Result<KvEntry<T>, ReadStreamError> {
        let value = stored.decode().map_err(|error| ReadStreamError::Unreadable {
            stream: self.stream_name(),
            detail: format!("key {key}: {error}"),
        })?;
        Ok(KvEntry {
            value,
            revision: stored.sequence,
        })
    }

    /// Returns the entry of `key` from the leader, if this process wrote it under an expected revision.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked or the value cannot be decoded.
    pub(super) async fn written_here(&self, key: &str) -> Result<Option<KvEntry<T>>, ReadStreamError> {
        let ours = self
            .read_stored(key)
            .await?
            .filter(|stored| !is_marker(&stored.headers) && super::writer::is_of_this_process(&stored.headers));
        ours.map(|stored| self.decode_entry(key, &stored)).transpose()
    }

    /// Returns the value of `key` from the leader, and the revision at which it can be overwritten. A value that
    /// cannot be decoded counts as none and is logged: this is for records that are rebuilt from current activity,
    /// which a broken value would otherwise block for ever.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub async fn find(&self, key: &str) -> Result<(Option<T>, u64), ReadStreamError> {
        let Some(stored) = self.read_stored(key).await? else {
            return Ok((None, 0));
        };
        if is_marker(&stored.headers) {
            return Ok((None, stored.sequence));
        }

        let value = stored.decode();
        if let Err(error) = &value {
            tracing::warn!(bucket = self.bucket, key, %error, "unreadable value treated as absent");
        }

        Ok((value.ok(), stored.sequence))
    }

    /// Sets `key` if it has no value. Returns the new revision.
    ///
    /// # Errors
    /// Returns [`CasError::Conflict`] if the key has a value.
    pub async fn create(&self, key: &str, value: &T) -> Result<u64, CasError> {
        self.create_with(key, value, None).await
    }

    /// Sets `key` if it has no value; the value expires after `ttl` (whole seconds). Returns the new revision.
    ///
    /// # Errors
    /// Returns [`CasError::Conflict`] if the key has a value.
    pub async fn create_ttl(&self, key: &str, value: &T, ttl: Duration) -> Result<u64, CasError> {
        self.create_with(key, value, Some(ttl)).await
    }

    async fn create_with(&self, key: &str, value: &T, ttl: Option<Duration>) -> Result<u64, CasError> {
        match self.write(key, value, Some(0), ttl).await {
            Err(CasError::Conflict { bucket, key: taken }) => match self.read_stored(key).await? {
                Some(stored) if is_marker(&stored.headers) => self.write(key, value, Some(stored.sequence), ttl).await,
                Some(_) | None => Err(CasError::Conflict { bucket, key: taken }),
            },
            other => other,
        }
    }

    /// Sets `key` if its revision is `revision`. Returns the new revision.
    ///
    /// # Errors
    /// Returns [`CasError::Conflict`] if the revision is another.
    pub async fn update(&self, key: &str, value: &T, revision: u64) -> Result<u64, CasError> {
        self.write(key, value, Some(revision), None).await
    }

    /// Sets `key` if its revision is `revision`; the value expires after `ttl` (whole seconds). Returns the new
    /// revision.
    ///
    /// # Errors
    /// Returns [`CasError::Conflict`] if the revision is another.
    pub async fn update_ttl(&self, key: &str, value: &T, revision: u64, ttl: Duration) -> Result<u64, CasError> {
        self.write(key, value, Some(revision), Some(ttl)).await
    }

    /// Sets `key` without a condition. Returns the new revision.
    ///
    /// # Errors
    /// Returns [`CasError::Publish`] if the server rejects the write.
    pub async fn put(&self, key: &str, value: &T) -> Result<u64, CasError> {
        self.write(key, value, None, None).await
    }

    /// Sets `key` without a condition; the value expires after `ttl` (whole seconds). Returns the new revision.
    ///
    /// # Errors
    /// Returns [`CasError::Publish`] if the server rejects the write.
    pub async fn put_ttl(&self, key: &str, value: &T, ttl: Duration) -> Result<u64, CasError> {
        self.write(key, value, None, Some(ttl)).await
    }

    async fn write(&self, key: &str, value: &T, expected: Option<u64>, ttl: Option<Duration>) -> Result<u64, CasError> {
        let mut out = OutgoingMessage::new(self.key_subject(key), value);
        if let Some(expected) = expected {
            out = out.expect_last(expected);
            if let Some(payload) = self.with_unknown(key, value, expected).await? {
                out.payload = payload;
            }
        }

        if let Some(ttl) = ttl {
            out = out.ttl(ttl);
        }

        self.bus
            .publish(out)
            .await
            .map(|published| published.sequence)
            .map_err(|error| self.to_cas_error(key, error))
    }

    /// Removes `key`. If `revision` is given, only if the key has that revision.
    ///
    /// # Errors
    /// Returns [`CasError::Conflict`] if the revision is another.
    pub async fn delete(&self, key: &str, revision: Option<u64>) -> Result<(), CasError> {
        let mut out = purge_message(&self.key_subject(key));
        if let Some(revision) = revision {
            out = out.expect_last(revision);
        }
        self.bus
            .publish(out)
            .await
            .map(|_| ())
            .map_err(|error| self.to_cas_error(key, error))
    }

    /// Watches all keys: every entry that exists and every later change, in order.
    #[must_use]
    pub fn watch_all(&self) -> KvWatch<T> {
        self.watch("")
    }

    /// Watches the keys that begin with `prefix` (empty, or whole tokens with the final dot): every entry that exists
    /// and every later change, in order.
    #[must_use]
    pub fn watch(&self, prefix: &str) -> KvWatch<T> {
        KvWatch::new(self, format!("$KV.{}.{prefix}>", self.bucket))
    }

    /// Returns all keys with their entries, as of now. Values that cannot be decoded are logged and left out.
    ///
    /// # Errors
    /// As [`Kv::survey`].
    pub async fn entries(&self) -> Result<Vec<(String, KvEntry<T>)>, ReadStreamError> {
        let survey = self.survey().await?;
        for (key, error) in &survey.unread {
            tracing::warn!(bucket = self.bucket, key, error, "failed to read a value");
        }
        Ok(survey.entries)
    }

    /// Returns all keys with their entries, as of now, and the keys whose values cannot be decoded.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the bucket does not exist, cannot be asked, or sends nothing for ten seconds.
    pub async fn survey(&self) -> Result<KvSurvey<T>, ReadStreamError> {
        // A watch of a bucket that does not exist waits until it does, and an empty one needs no watch.
        if self.bus.stream_state(&self.stream_name()).await?.messages == 0 {
            return Ok(KvSurvey {
                entries: Vec::new(),
                unread: Vec::new(),
            });
        }

        let mut watch = self.watch_all();
        let mut found: BTreeMap<String, KvEntry<T>> = BTreeMap::new();

        let mut unread: BTreeMap<String, String> = BTreeMap::new();
        loop {
            let next = tokio::time::timeout(QUIET, watch.next()).await;
            let next = next.map_err(|_| ReadStreamError::Unavailable {
                stream: self.stream_name(),
                detail: format!(
                    "the bucket sent nothing for {} s: {}",
                    QUIET.as_secs(),
                    watch.describe_wait()
                ),
            })?;

            match next {
                KvEvent::Put { key, value, revision } => {
                    unread.remove(&key);
                    found.insert(key, KvEntry { value, revision });
                }
                KvEvent::Gone { key, .. } => {
                    unread.remove(&key);
                    found.remove(&key);
                }
                KvEvent::Bad { key, error, .. } => drop(unread.insert(key, error)),
                // All entries follow again, and then the keys that are gone.
                KvEvent::Anew => {}
                KvEvent::Current => {
                    return Ok(KvSurvey {
                        entries: found.into_iter().collect(),
                        unread: unread.into_iter().collect(),
                    });
                }
            }
        }
    }
}
