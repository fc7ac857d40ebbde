//! Watching a bucket: every existing entry and every change, for as long as the caller listens.
//!
//! A watch outlives its bucket. If its reader breaks (the consumer is lost with its stream, the server was away, no
//! heartbeat arrives), the whole bucket is read again and compared with the events sent before. In addition the leader
//! is asked at intervals whether the bucket is still the same, because a purge sends no event. If the bucket was
//! recreated or restored to an older state, the caller receives [`KvEvent::Anew`] first: revisions count from the
//! beginning then, and keys that the bucket no longer holds are reported as gone.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::DeliverPolicy;

use crate::clock::{Clock as _, SystemClock, pause};
use crate::wire::envelope::{DecodeError, WireMessage};

use super::super::consume::{ConnectionWatch, PullRequest, REPAIR_PAUSE};
use super::super::error::ReadStreamError;
use super::super::message::{IncomingMessage, StoredMessage};
use super::super::stream_info::StreamInfo;
use super::told_keys::{ToldKeys, ToldVerdict};
use super::{Kv, KvEvent, is_marker};

/// Interval at which the leader is asked whether the bucket is still the one that is read.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// Silence after which a complete reading begins again: the messages that are missing are gone without a marker.
const STALLED: Duration = Duration::from_secs(4);

/// Identity of a bucket: a recreated bucket has another incarnation or another time of creation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BucketIdentity {
    incarnation: String,
    created: String,
}

impl BucketIdentity {
    fn from_info(info: &StreamInfo) -> Self {
        Self {
            incarnation: info.incarnation.clone(),
            // The time of creation changes with the group's replicas, so it counts only for a bucket without an
            // incarnation.
            created: if info.incarnation.is_empty() {
                info.created.clone()
            } else {
                String::new()
            },
        }
    }
}

/// A reading of the whole bucket. A key that is set again before its message is sent arrives later, and again only if it is
/// left alone for that long: where the bucket ended when the reading began, such keys may be missing. Their number is known,
/// as the server counts the keys at the beginning; which ones they are is asked at the end.
#[derive(Debug)]
struct WholeReading {
    /// Last revision of the bucket when the reading began.
    last: u64,
    /// Number of keys that the bucket had then and that were not read as they were.
    unread: u64,
    /// Whether the messages that the bucket had then were read, as far as they were still there.
    is_over: bool,
    /// Keys that are in the bucket and were not read, as subjects; `None` until they were asked for.
    unsent: Option<Vec<String>>,
}

impl WholeReading {
    /// Records that the message of `revision`, behind which `pending` messages wait, was read.
    const fn read_message(&mut self, revision: u64, pending: u64) {
        if revision <= self.last {
            self.unread = self.unread.saturating_sub(1);
        }
        self.is_over |= self.unread == 0 || pending == 0 || revision >= self.last;
    }
}

/// A watch over a bucket. Repairs itself without limit, and may send a value again after that.
pub struct KvWatch<T> {
    kv: Kv<T>,
    filter: String,
    reading: ConnectionWatch,
    told: ToldKeys,
    /// Identity of the bucket at the last complete reading; `None` if there was none.
    bucket: Option<BucketIdentity>,
    /// The reading of the whole bucket; `None` if none is in progress.
    whole: Option<WholeReading>,
    /// Whether the keys that a complete reading has missed are asked for at its end.
    asks_unsent: bool,
    /// Whether [`KvEvent::Anew`] must be sent before anything else.
    owes_anew: bool,
    /// Whether [`KvEvent::Current`] must be sent at the end of the complete reading.
    owes_current: bool,
    /// Message that is older than an event sent before: the leader is asked which of the two is current.
    doubtful: Option<IncomingMessage>,
    looked_at: Instant,
    /// Why the bucket could not be read at the last try; `None` once a reader was started.
    trouble: Option<String>,
}

// By hand: the stream of messages has no `Debug`.
impl<T> std::fmt::Debug for KvWatch<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvWatch")
            .field("bucket", &self.kv.bucket)
            .field("last", &self.told.last_revision())
            .finish_non_exhaustive()
    }
}

impl<T: WireMessage> KvWatch<T> {
    pub(super) fn new(kv: &Kv<T>, filter: String) -> Self {
        Self {
            kv: kv.clone(),
            filter,
            reading: ConnectionWatch::new(&kv.bus),
            told: ToldKeys::default(),
            bucket: None,
            whole: None,
            asks_unsent: true,
            owes_anew: false,
            owes_current: true,
            doubtful: None,
            looked_at: SystemClock.monotonic(),
            trouble: None,
        }
    }

    /// Sends values in the order of their revisions, whatever is written while the whole bucket is read: what else would be
    /// asked for at the end of that is sent when its message comes, which may be after [`KvEvent::Current`].
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.asks_unsent = false;
        self
    }

    /// Describes how far the watch has read, for errors.
    pub(super) fn describe_wait(&self) -> String {
        match (&self.trouble, &self.whole) {
            (Some(error), _) => error.clone(),
            (None, Some(WholeReading { last, unread, .. })) => {
                let read = self.told.last_revision();
                format!("read up to revision {read} of {last}; {unread} keys are missing")
            }
            (None, None) => "no reader was started".to_owned(),
        }
    }

    /// Returns the next event. Dropping the future while it waits loses no event.
    pub async fn next(&mut self) -> KvEvent<T> {
        loop {
            if std::mem::take(&mut self.owes_anew) {
                return KvEvent::Anew;
            }

            if self.reading.is_broken() {
                self.trouble = self.open().await.err();
                if let Some(error) = &self.trouble {
                    tracing::debug!(bucket = self.kv.bucket, error, "failed to start a watch; retrying");
                    pause(REPAIR_PAUSE).await;
                }
                continue;
            }

            let is_whole = self.whole.as_ref().is_some_and(|whole| whole.is_over);
            if self.doubtful.is_some() || is_whole {
                let found = if self.doubtful.is_some() {
                    self.resolve_older().await
                } else {
                    self.end_of_whole().await
                };

                match found {
                    Ok(Some(event)) => return event,
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(bucket = self.kv.bucket, %error, "failed to query the leader; retrying");
                        self.trouble = Some(error.to_string());
                        pause(REPAIR_PAUSE).await;
                    }
                }

                continue;
            }

            let now = SystemClock.monotonic();
            // A quiet watch must still find out that its bucket was replaced.
            let every = if self.whole.is_some() { STALLED } else { LOOK_EVERY };
            let rest = every.saturating_sub(now.saturating_duration_since(self.looked_at));
            let incoming = tokio::select! {
                biased;
                incoming = self.reading.next(self.kv.bucket) => incoming,
                () = pause(rest) => {
                    match self.whole {
                        // The messages that were expected are gone without a marker.
                        Some(_) => self.reading.break_off(),
                        None => self.check_bucket().await,
                    }
                    None
                }
            };

            if let Some(incoming) = incoming
                && let Some(event) = self.take(incoming)
            {
                return event;
            }
        }
    }

    /// Starts a reading of the whole bucket.
    async fn open(&mut self) -> Result<(), String> {
        self.reading.count_connections();
        let stream = self.kv.stream_name();
        let info = self.kv.bus.stream_info(&stream).await;
        let info = info.map_err(|error| error.to_string())?;
        let filters = [self.filter.clone()];
        let asked = PullRequest {
            stream: &stream,
            filters: &filters,
            from: DeliverPolicy::LastPerSubject,
        };

        let opened = self.kv.bus.read_unacked(asked).await?;
        let waiting = opened.waiting;
        self.reading.use_messages(opened);
        self.looked_at = SystemClock.monotonic();
        self.doubtful = None;
        let found = BucketIdentity::from_info(&info);
        let is_same = self.bucket.as_ref().is_none_or(|bucket| *bucket == found);

        // Another bucket, or a shorter one: the events sent of the former one no longer hold.
        if !is_same || info.state.last < self.told.last_revision() {
            self.begin_anew();
        }

        self.bucket = Some(found);
        self.told.start_reread();

        // If all keys have expired, and then their markers, no message arrives before the next change.
        let is_empty = info.state.messages == 0 || waiting == 0;
        self.whole = Some(WholeReading {
            last: info.state.last,
            unread: waiting,
            is_over: is_empty,
            unsent: None,
        });

        Ok(())
    }

    /// Handles a bucket that was restored or recreated.
    fn begin_anew(&mut self) {
        let bucket = self.kv.bucket;
        let last = self.told.last_revision();
        tracing::error!(
            bucket,
            last,
            "bucket was restored or recreated: reading it from the beginning"
        );

        metrics::counter!("nexus_kv_buckets_anew_total", "bucket" => bucket).increment(1);
        self.told.reset_bucket();
        self.owes_anew = true;
        self.owes_current = true;
    }

    /// Asks whether the bucket is still the one that is read; if not, breaks the reader, so that it is read again.
    async fn check_bucket(&mut self) {
        self.looked_at = SystemClock.monotonic();
        let info = match self.kv.bus.stream_info(&self.kv.stream_name()).await {
            Ok(info) => info,
            Err(error) => return tracing::debug!(bucket = self.kv.bucket, %error, "failed to check a bucket"),
        };
        let is_same = self.bucket.as_ref() == Some(&BucketIdentity::from_info(&info));
        if !is_same || info.state.last < self.told.last_revision() || self.was_purged(info.state.first).await {
            self.reading.break_off();
        }
    }

    /// Returns whether a key that was sent is gone, without a marker, from a bucket whose first revision is now
    /// `first`.
    async fn was_purged(&self, first: u64) -> bool {
        let Some((key, revision)) = self.told.lowest_key() else {
            return false;
        };
        if revision >= first {
            return false;
        }
        // A newer message of the key may be on its way.
        let stored = self.kv.read_stored(key).await;
        stored.is_ok_and(|stored| stored.is_none_or(|stored| stored.sequence <= revision))
    }

    /// Records `message`, and returns its event if it must be sent.
    fn take(&mut self, message: IncomingMessage) -> Option<KvEvent<T>> {
        let key = self.kv.key_of(&message.subject).to_owned();
        if self.whole.is_some() {
            self.looked_at = SystemClock.monotonic();

            match self
                .told
                .compare_message(&key, (message.sequence, message.stored_at_ns))
            {
                ToldVerdict::News => {}
                ToldVerdict::Known => {
                    self.told.mark_met(&key);
                    self.read_to(&message);
                    return None;
                }
                ToldVerdict::Less => {
                    self.doubtful = Some(message);
                    return None;
                }
            }
        }

        Some(self.record_event(key, &message))
    }

    /// Records in the complete reading, if there is one, that `message` was read.
    fn read_to(&mut self, message: &IncomingMessage) {
        if let Some(whole) = &mut self.whole {
            whole.read_message(message.sequence, message.pending);
        }
    }

    /// Records `message` of `key` as sent, and returns its event.
    fn record_event(&mut self, key: String, message: &IncomingMessage) -> KvEvent<T> {
        let revision = message.sequence;
        let is_gone = is_marker(&message.headers);
        self.told.record_told(&key, (revision, message.stored_at_ns), !is_gone);
        self.read_to(message);

        if is_gone {
            return KvEvent::Gone { key, revision };
        }

        decoded_event(key, revision, message.decode())
    }

    /// Asks the leader about a message that is older than an event sent before. If the leader has the older one too,
    /// the bucket was restored; otherwise the server that is read lags behind, and the newer messages follow.
    async fn resolve_older(&mut self) -> Result<Option<KvEvent<T>>, ReadStreamError> {
        let Some(message) = &self.doubtful else { return Ok(None) };
        let key = self.kv.key_of(&message.subject).to_owned();
        let stored = self.kv.read_stored(&key).await?;
        let is_behind = stored.is_none_or(|stored| {
            let place = (stored.sequence, stored.stored_at_ns);
            self.told.compare_message(&key, place) == ToldVerdict::Less
        });

        let Some(message) = self.doubtful.take() else {
            return Ok(None);
        };

        if !is_behind {
            self.told.mark_met(&key);
            self.read_to(&message);
            return Ok(None);
        }

        self.begin_anew();
        // Every entry is sent again, also those met before this message.
        self.reading.break_off();

        Ok(None)
    }

    /// Ends a complete reading: returns one event for each key that is gone, then [`KvEvent::Current`] if it is due.
    async fn end_of_whole(&mut self) -> Result<Option<KvEvent<T>>, ReadStreamError> {
        let Some(key) = self.told.unmet_key().cloned() else {
            let unsent = self.next_unsent().await?;
            if unsent.is_some() {
                return Ok(unsent);
            }

            self.whole = None;
            return Ok(std::mem::take(&mut self.owes_current).then_some(KvEvent::Current));
        };
        let stored: Option<StoredMessage> = self.kv.read_stored(&key).await?;
        if stored.as_ref().is_some_and(|stored| !is_marker(&stored.headers)) {
            // The server that is read has not received this message yet.
            self.told.mark_met(&key);
            return Ok(None);
        }

        let revision = stored.map_or_else(|| self.told.last_revision(), |stored| stored.sequence);
        self.told.record_told(&key, (revision, 0), false);

        Ok(Some(KvEvent::Gone { key, revision }))
    }

    /// Returns the event of a key that the complete reading has missed, if there is one: each is read from the leader.
    async fn next_unsent(&mut self) -> Result<Option<KvEvent<T>>, ReadStreamError> {
        let Some(whole) = &self.whole else { return Ok(None) };
        if whole.unread == 0 || !self.asks_unsent {
            return Ok(None);
        }

        if whole.unsent.is_none() {
            let subjects = self.kv.bus.list_subjects(&self.kv.stream_name(), &self.filter).await?;
            let is_unsent = |subject: &String| !self.told.has_value(self.kv.key_of(subject));
            let unsent = subjects.into_keys().filter(is_unsent).collect();
            if let Some(whole) = &mut self.whole {
                whole.unsent = Some(unsent);
            }
        }

        while let Some(subject) = self.last_unsent() {
            let key = self.kv.key_of(&subject).to_owned();
            let stored = self.kv.read_stored(&key).await?;
            if let Some(unsent) = self.whole.as_mut().and_then(|whole| whole.unsent.as_mut()) {
                unsent.pop();
            }

            let Some(stored) = stored.filter(|stored| !is_marker(&stored.headers)) else {
                continue;
            };
            self.told
                .record_told(&key, (stored.sequence, stored.stored_at_ns), true);
            return Ok(Some(decoded_event(key, stored.sequence, stored.decode())));
        }

        Ok(None)
    }

    fn last_unsent(&self) -> Option<String> {
        self.whole.as_ref()?.unsent.as_ref()?.last().cloned()
    }
}

/// Returns the event of a value of `key` at `revision`.
pub(super) fn decoded_event<T>(key: String, revision: u64, value: Result<T, DecodeError>) -> KvEvent<T> {
    match value {
        Ok(value) => KvEvent::Put { key, value, revision },
        Err(error) => KvEvent::Bad {
            key,
            revision,
            error: error.to_string(),
        },
    }
}
