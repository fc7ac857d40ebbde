//! Typed KV: compare-and-set decides, reads come from the leader.
//!
//! Written on the bucket's stream directly: the client has no update with a time to live and cuts those to whole
//! seconds (`measured.md`), and its key check knows no `~`.

use std::marker::PhantomData;
use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use bytes::Bytes;

use crate::clock::pause;
use crate::wire::envelope::Wire;
use crate::wire::headers::Headers;

use super::connect::Bus;
use super::consume::{REPAIR_PAUSE, Reading};
use super::error::{CasError, PublishError, ReadStreamError};
use super::message::{Incoming, Stored};
use super::publish::Outgoing;

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
    /// Everything that was there when the watch began has been told.
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
        let value = stored.decode().map_err(|error| ReadStreamError::Unreadable {
            stream: self.stream(),
            detail: format!("key {key}: {error}"),
        })?;
        Ok(Some(Entry {
            value,
            revision: stored.sequence,
        }))
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
        let expected_payload = out.payload.clone();
        match self.bus.publish(out).await {
            Ok(published) => Ok(published.sequence),
            // After a time-out the first try may have made it: then the last entry is this very value.
            Err(error @ PublishError::WrongLastSequence { .. }) => match self.raw(key).await? {
                Some(stored)
                    if stored.payload == expected_payload
                        && !is_marker(&stored.headers)
                        && expected.is_some_and(|e| stored.sequence > e) =>
                {
                    Ok(self.settle(key, &stored))
                }
                Some(_) | None => Err(self.conflict(key, error)),
            },
            Err(error) => Err(self.conflict(key, error)),
        }
    }

    /// An identical value that stands there already is ours only if no rival writes the same bytes: values that
    /// decide a race name their writer, so equality of bytes is equality of writers.
    fn settle(&self, key: &str, stored: &Stored) -> u64 {
        tracing::debug!(
            bucket = self.bucket,
            key,
            revision = stored.sequence,
            "the first try had made it"
        );
        stored.sequence
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
        KvWatch {
            kv: self.clone(),
            filter: format!("$KV.{}.{prefix}>", self.bucket),
            reading: Reading::new(&self.bus),
            last: 0,
            told_current: false,
            at_start: 0,
        }
    }

    /// All keys with their values, as of now.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the bucket cannot be asked.
    pub async fn entries(&self) -> Result<Vec<(String, Entry<T>)>, ReadStreamError> {
        let mut watch = self.watch_all();
        let mut found: Vec<(String, Entry<T>)> = Vec::new();
        loop {
            match watch.next().await {
                KvEvent::Put { key, value, revision } => found.push((key, Entry { value, revision })),
                KvEvent::Gone { .. } => {}
                KvEvent::Bad { key, error, .. } => {
                    tracing::warn!(bucket = self.bucket, key, error, "a value cannot be read");
                }
                KvEvent::Current => return Ok(found),
            }
        }
    }
}

/// A watch over a bucket; heals itself for ever, and may then tell a value again.
pub struct KvWatch<T> {
    kv: Kv<T>,
    filter: String,
    reading: Reading,
    last: u64,
    at_start: u64,
    told_current: bool,
}

impl<T> std::fmt::Debug for KvWatch<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvWatch")
            .field("bucket", &self.kv.bucket)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl<T: Wire> KvWatch<T> {
    async fn open(&mut self) -> Result<pull::Ordered, String> {
        let policy = match self.last {
            0 => DeliverPolicy::LastPerSubject,
            last => DeliverPolicy::ByStartSequence {
                start_sequence: last + 1,
            },
        };
        let config = pull::OrderedConfig {
            deliver_policy: policy,
            filter_subject: self.filter.clone(),
            ..Default::default()
        };
        if !self.told_current {
            let state = self.kv.bus.stream_state(&self.kv.stream()).await;
            let state = state.map_err(|error| error.to_string())?;
            // Where all keys have expired, and their markers after them, nothing is told before the next change.
            self.at_start = if state.messages == 0 { 0 } else { state.last };
        }
        let stream = self
            .kv
            .bus
            .jetstream
            .get_stream_no_info(self.kv.stream())
            .await
            .map_err(|e| e.to_string())?;
        let consumer = stream
            .create_consumer(config)
            .await
            .map_err(|error| error.to_string())?;
        if !self.told_current && consumer.cached_info().num_pending == 0 {
            self.at_start = 0;
        }
        consumer.messages().await.map_err(|error| error.to_string())
    }

    /// What comes next.
    pub async fn next(&mut self) -> KvEvent<T> {
        loop {
            if self.reading.is_broken() {
                self.reading.begin();
                match self.open().await {
                    Ok(messages) => self.reading.stand(messages),
                    Err(error) => {
                        tracing::debug!(bucket = self.kv.bucket, error, "watch is not there yet");
                        pause(REPAIR_PAUSE).await;
                        continue;
                    }
                }
            }
            if !self.told_current && self.last >= self.at_start {
                self.told_current = true;
                return KvEvent::Current;
            }
            if let Some(incoming) = self.reading.next(self.kv.bucket).await {
                self.last = if incoming.pending == 0 {
                    incoming.sequence.max(self.at_start)
                } else {
                    incoming.sequence
                };
                return self.event(&incoming);
            }
        }
    }

    fn event(&self, message: &Incoming) -> KvEvent<T> {
        let prefix = format!("$KV.{}.", self.kv.bucket);
        let key = message
            .subject
            .strip_prefix(&prefix)
            .unwrap_or(&message.subject)
            .to_owned();
        if is_marker(&message.headers) {
            return KvEvent::Gone {
                key,
                revision: message.sequence,
            };
        }
        match message.decode() {
            Ok(value) => KvEvent::Put {
                key,
                value,
                revision: message.sequence,
            },
            Err(error) => KvEvent::Bad {
                key,
                revision: message.sequence,
                error: error.to_string(),
            },
        }
    }
}
