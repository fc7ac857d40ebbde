//! Typed KV: compare-and-set decides, reads come from the leader.
//!
//! Written on the bucket's stream directly: the client has no update with a time to live and cuts those to whole
//! seconds (`docs/contribute/nats-facts.md` "KV and schedules"), and its key check knows no `~`. A value that stands
//! there is ours only if it carries our attempt ([`super::writer`]): equal bytes may be a rival's.

mod told;
mod watch;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use bytes::Bytes;

use crate::wire::envelope::Wire;
use crate::wire::headers::Headers;

use super::connect::Bus;
use super::error::{CasError, PublishError, ReadStreamError};
use super::message::Stored;
use super::publish::Outgoing;

pub use watch::KvWatch;

const OPERATION: &str = "KV-Operation";
const MARKER_REASON: &str = "Nats-Marker-Reason";
const ROLLUP: &str = "Nats-Rollup";

/// A bucket whose values are `T`.
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
pub struct Entry<T> {
    /// The value.
    pub value: T,
    /// Counts up with every change of the bucket.
    pub revision: u64,
}

/// What a bucket holds.
#[derive(Debug)]
pub struct Survey<T> {
    /// The keys with their values.
    pub entries: Vec<(String, Entry<T>)>,
    /// The keys whose values cannot be read, and what is wrong with each.
    pub unread: Vec<(String, String)>,
}

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent<T> {
    /// A key has this value.
    Put {
        /// The key.
        key: String,
        /// Its value.
        value: T,
        /// Its revision.
        revision: u64,
    },
    /// A key is gone: deleted, purged or expired.
    Gone {
        /// The key.
        key: String,
        /// The marker's revision.
        revision: u64,
    },
    /// A value cannot be read; the key stays as it was for the watcher.
    Bad {
        /// The key.
        key: String,
        /// The revision at which it can be overwritten.
        revision: u64,
        /// What is wrong.
        error: String,
    },
    /// The bucket is another than it was: put back to an older state, or made anew. What was told counts no more, no
    /// revision with it. All that the bucket holds now is told again, then [`KvEvent::Gone`] of each key that it does not
    /// hold any more, then [`KvEvent::Current`].
    Anew,
    /// Everything that was there when the watch began, or began anew, has been told.
    Current,
}

impl Bus {
    /// The bucket `bucket` (see [`crate::wire::topology::buckets`]).
    #[must_use]
    pub fn kv<T: Wire>(&self, bucket: &'static str) -> Kv<T> {
        Kv {
            bus: self.clone(),
            bucket,
            value: PhantomData,
        }
    }
}

/// What removes the key on `subject`.
pub(super) fn purge(subject: &str) -> Outgoing {
    let headers: Headers = [(OPERATION, "PURGE"), (ROLLUP, "sub")].into_iter().collect();
    Outgoing::raw(subject.to_owned(), headers, Bytes::new())
}

fn is_marker(headers: &Headers) -> bool {
    headers.get(OPERATION).is_some() || headers.get(MARKER_REASON).is_some()
}

impl<T: Wire> Kv<T> {
    /// The bus it is on.
    #[must_use]
    pub const fn bus(&self) -> &Bus {
        &self.bus
    }

    fn stream(&self) -> String {
        format!("KV_{}", self.bucket)
    }

    fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.bucket)
    }

    fn conflict(&self, key: &str, error: PublishError) -> CasError {
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

    async fn raw(&self, key: &str) -> Result<Option<Stored>, ReadStreamError> {
        self.bus.last_on_subject(&self.stream(), &self.subject(key)).await
    }

    /// The value of `key`, from the leader.
    ///
    /// # Errors
    /// [`ReadStreamError`] where it cannot be asked or the value cannot be read.
    pub async fn get(&self, key: &str) -> Result<Option<Entry<T>>, ReadStreamError> {
        let Some(stored) = self.raw(key).await?.filter(|stored| !is_marker(&stored.headers)) else {
            return Ok(None);
        };
        self.entry(key, &stored).map(Some)
    }

    fn entry(&self, key: &str, stored: &Stored) -> Result<Entry<T>, ReadStreamError> {
        let value = stored.decode().map_err(|error| ReadStreamError::Unreadable {
            stream: self.stream(),
            detail: format!("key {key}: {error}"),
        })?;
        Ok(Entry {
            value,
            revision: stored.sequence,
        })
    }

    /// The value of `key`, from the leader, if this process wrote it under an expected revision.
    ///
    /// # Errors
    /// [`ReadStreamError`] if the leader cannot be asked or the value cannot be read.
    pub(super) async fn written_here(&self, key: &str) -> Result<Option<Entry<T>>, ReadStreamError> {
        let ours = self
            .raw(key)
            .await?
            .filter(|stored| !is_marker(&stored.headers) && super::writer::is_of_this_process(&stored.headers));
        ours.map(|stored| self.entry(key, &stored)).transpose()
    }

    /// The value of `key`, from the leader, and the revision at which it can be overwritten. A value that cannot be read
    /// counts as none and is told of in the log: for records that are made anew from what goes on, where a broken one
    /// would otherwise hold it up for ever.
    ///
    /// # Errors
    /// [`ReadStreamError`] where it cannot be asked.
    pub async fn find(&self, key: &str) -> Result<(Option<T>, u64), ReadStreamError> {
        let Some(stored) = self.raw(key).await? else {
            return Ok((None, 0));
        };
        if is_marker(&stored.headers) {
            return Ok((None, stored.sequence));
        }

        let value = stored.decode();
        if let Err(error) = &value {
            tracing::warn!(bucket = self.bucket, key, %error, "a value cannot be read and counts as none");
        }

        Ok((value.ok(), stored.sequence))
    }

    /// Sets `key` where it has no value.
    ///
    /// # Errors
    /// [`CasError::Conflict`] where it has one.
    pub async fn create(&self, key: &str, value: &T) -> Result<u64, CasError> {
        self.create_with(key, value, None).await
    }

    /// Sets `key` where it has no value, to vanish after `ttl` (whole seconds).
    ///
    /// # Errors
    /// [`CasError::Conflict`] where it has one.
    pub async fn create_ttl(&self, key: &str, value: &T, ttl: Duration) -> Result<u64, CasError> {
        self.create_with(key, value, Some(ttl)).await
    }

    async fn create_with(&self, key: &str, value: &T, ttl: Option<Duration>) -> Result<u64, CasError> {
        match self.write(key, value, Some(0), ttl).await {
            Err(CasError::Conflict { bucket, key: taken }) => match self.raw(key).await? {
                Some(stored) if is_marker(&stored.headers) => self.write(key, value, Some(stored.sequence), ttl).await,
                Some(_) | None => Err(CasError::Conflict { bucket, key: taken }),
            },
            other => other,
        }
    }

    /// Sets `key` where its revision is `revision`.
    ///
    /// # Errors
    /// [`CasError::Conflict`] where it is another.
    pub async fn update(&self, key: &str, value: &T, revision: u64) -> Result<u64, CasError> {
        self.write(key, value, Some(revision), None).await
    }

    /// Sets `key` where its revision is `revision`, to vanish after `ttl` (whole seconds).
    ///
    /// # Errors
    /// [`CasError::Conflict`] where it is another.
    pub async fn update_ttl(&self, key: &str, value: &T, revision: u64, ttl: Duration) -> Result<u64, CasError> {
        self.write(key, value, Some(revision), Some(ttl)).await
    }

    /// Sets `key`, whatever it was.
    ///
    /// # Errors
    /// [`CasError::Publish`] where the server refuses it.
    pub async fn put(&self, key: &str, value: &T) -> Result<u64, CasError> {
        self.write(key, value, None, None).await
    }

    /// Sets `key`, whatever it was, to vanish after `ttl` (whole seconds).
    ///
    /// # Errors
    /// [`CasError::Publish`] where the server refuses it.
    pub async fn put_ttl(&self, key: &str, value: &T, ttl: Duration) -> Result<u64, CasError> {
        self.write(key, value, None, Some(ttl)).await
    }

    async fn write(&self, key: &str, value: &T, expected: Option<u64>, ttl: Option<Duration>) -> Result<u64, CasError> {
        let mut out = Outgoing::new(self.subject(key), value);
        if let Some(expected) = expected {
            out = out.expect_last(expected);
        }

        if let Some(ttl) = ttl {
            out = out.ttl(ttl);
        }

        self.bus
            .publish(out)
            .await
            .map(|published| published.sequence)
            .map_err(|error| self.conflict(key, error))
    }

    /// Removes `key`; where `revision` is given only if it is that.
    ///
    /// # Errors
    /// [`CasError::Conflict`] where it is another.
    pub async fn delete(&self, key: &str, revision: Option<u64>) -> Result<(), CasError> {
        let mut out = purge(&self.subject(key));
        if let Some(revision) = revision {
            out = out.expect_last(revision);
        }
        self.bus
            .publish(out)
            .await
            .map(|_| ())
            .map_err(|error| self.conflict(key, error))
    }

    /// Everything in the bucket and every change from now on, in order.
    #[must_use]
    pub fn watch_all(&self) -> KvWatch<T> {
        self.watch("")
    }

    /// The keys that begin with `prefix` (empty, or whole tokens with their last dot) and every change of them from now
    /// on, in order.
    #[must_use]
    pub fn watch(&self, prefix: &str) -> KvWatch<T> {
        KvWatch::new(self, format!("$KV.{}.{prefix}>", self.bucket))
    }

    /// All keys with their values, as of now.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the bucket cannot be asked.
    pub async fn entries(&self) -> Result<Vec<(String, Entry<T>)>, ReadStreamError> {
        let survey = self.look().await;
        for (key, error) in &survey.unread {
            tracing::warn!(bucket = self.bucket, key, error, "a value cannot be read");
        }
        Ok(survey.entries)
    }

    /// All keys with their values, as of now, and those whose values cannot be read.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the bucket is not there or cannot be asked.
    pub async fn survey(&self) -> Result<Survey<T>, ReadStreamError> {
        // A watch of a bucket that is not there waits until it is.
        self.bus.stream_state(&self.stream()).await?;
        Ok(self.look().await)
    }

    async fn look(&self) -> Survey<T> {
        let mut watch = self.watch_all();
        let mut found: BTreeMap<String, Entry<T>> = BTreeMap::new();

        let mut unread: BTreeMap<String, String> = BTreeMap::new();
        loop {
            match watch.next().await {
                KvEvent::Put { key, value, revision } => {
                    unread.remove(&key);
                    found.insert(key, Entry { value, revision });
                }
                KvEvent::Gone { key, .. } => {
                    unread.remove(&key);
                    found.remove(&key);
                }
                KvEvent::Bad { key, error, .. } => drop(unread.insert(key, error)),
                KvEvent::Anew => {}
                KvEvent::Current => {
                    return Survey {
                        entries: found.into_iter().collect(),
                        unread: unread.into_iter().collect(),
                    };
                }
            }
        }
    }
}
