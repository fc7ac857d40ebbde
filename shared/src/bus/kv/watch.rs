//! Watching a bucket: every value that is there and every change of it, for as long as somebody listens.
//!
//! A watch outlives its bucket. Whatever breaks its reader (the consumer is gone with its stream, the server was away,
//! nothing is heard any more), the bucket is then read again as a whole and compared with what was told; and now and
//! then the leader is asked whether it is still the bucket that is read, for a purge tells nobody. Where it is another
//! one, made anew or put back to an older state, the reader hears [`KvEvent::Anew`] first: revisions count from the
//! beginning then, and keys that it does not hold are told to be gone.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::DeliverPolicy;

use crate::clock::{Clock as _, SystemClock, pause};
use crate::wire::envelope::Wire;

use super::super::consume::{Asked, REPAIR_PAUSE, Reading};
use super::super::error::ReadStreamError;
use super::super::message::{Incoming, Stored};
use super::super::read::StreamInfo;
use super::told::{Says, Told};
use super::{Kv, KvEvent, is_marker};

/// How often the leader is asked whether the bucket is the one that is read.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// Which bucket it is: one that is made anew has another incarnation, or was made at another time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Identity {
    incarnation: String,
    created: String,
}

impl Identity {
    fn of(info: &StreamInfo) -> Self {
        Self {
            incarnation: info.incarnation.clone(),
            // One that has an incarnation keeps it wherever its group's replicas are.
            created: if info.incarnation.is_empty() {
                info.created.clone()
            } else {
                String::new()
            },
        }
    }
}

/// A watch over a bucket; heals itself for ever, and may then tell a value again.
pub struct KvWatch<T> {
    kv: Kv<T>,
    filter: String,
    reading: Reading,
    told: Told,
    /// The bucket as it was when it was read as a whole last; none = never.
    bucket: Option<Identity>,
    /// While it is read as a whole: up to which revision.
    until: Option<u64>,
    /// [`KvEvent::Anew`] is to be told before anything else.
    owes_anew: bool,
    /// [`KvEvent::Current`] is to be told when it was read as a whole.
    owes_current: bool,
    /// What says less than was told: the leader is asked which of the two counts.
    doubtful: Option<Incoming>,
    looked_at: Instant,
}

impl<T> std::fmt::Debug for KvWatch<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvWatch")
            .field("bucket", &self.kv.bucket)
            .field("last", &self.told.last())
            .finish_non_exhaustive()
    }
}

impl<T: Wire> KvWatch<T> {
    pub(super) fn new(kv: &Kv<T>, filter: String) -> Self {
        Self {
            kv: kv.clone(),
            filter,
            reading: Reading::new(&kv.bus),
            told: Told::default(),
            bucket: None,
            until: None,
            owes_anew: false,
            owes_current: true,
            doubtful: None,
            looked_at: SystemClock.monotonic(),
        }
    }

    /// What comes next. Whoever drops this while it waits loses nothing.
    pub async fn next(&mut self) -> KvEvent<T> {
        loop {
            if std::mem::take(&mut self.owes_anew) {
                return KvEvent::Anew;
            }

            if self.reading.is_broken() {
                if let Err(error) = self.open().await {
                    tracing::debug!(bucket = self.kv.bucket, error, "watch is not there yet");
                    pause(REPAIR_PAUSE).await;
                }
                continue;
            }

            let is_whole = self.until.is_some_and(|until| self.told.last() >= until);
            if self.doubtful.is_some() || is_whole {
                let found = if self.doubtful.is_some() {
                    self.decide().await
                } else {
                    self.end_of_whole().await
                };

                match found {
                    Ok(Some(event)) => return event,
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(bucket = self.kv.bucket, %error, "the leader cannot be asked yet");
                        pause(REPAIR_PAUSE).await;
                    }
                }

                continue;
            }

            let now = SystemClock.monotonic();
            let rest = LOOK_EVERY.saturating_sub(now.saturating_duration_since(self.looked_at));
            let incoming = tokio::select! {
                biased;
                incoming = self.reading.next(self.kv.bucket) => incoming,
                () = pause(rest) => {
                    match self.until {
                        // What was to come is gone without a marker.
                        Some(_) => self.reading.break_off(),
                        None => self.look().await,
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

    /// Begins to read the bucket as a whole.
    async fn open(&mut self) -> Result<(), String> {
        self.reading.begin();
        let stream = self.kv.stream();
        let info = self.kv.bus.stream_info(&stream).await;
        let info = info.map_err(|error| error.to_string())?;
        let filters = [self.filter.clone()];
        let asked = Asked {
            stream: &stream,
            filters: &filters,
            from: DeliverPolicy::LastPerSubject,
        };

        let (messages, waiting) = self.kv.bus.read_unacked(asked).await?;

        self.reading.stand(messages);
        self.looked_at = SystemClock.monotonic();
        self.doubtful = None;
        let found = Identity::of(&info);
        let is_same = self.bucket.as_ref().is_none_or(|bucket| *bucket == found);

        if !is_same || info.state.last < self.told.last() {
            self.begin_anew();
        }

        self.bucket = Some(found);
        self.told.begin();

        // Where all keys have expired, and their markers after them, nothing is told before the next change.
        let is_empty = info.state.messages == 0 || waiting == 0;
        self.until = Some(if is_empty { 0 } else { info.state.last });

        Ok(())
    }

    /// The bucket is another than it was.
    fn begin_anew(&mut self) {
        let bucket = self.kv.bucket;
        let last = self.told.last();
        tracing::error!(
            bucket,
            last,
            "a bucket was put back or made anew: what it holds is read from the beginning"
        );

        metrics::counter!("nexus_kv_buckets_anew_total", "bucket" => bucket).increment(1);
        self.told.forget();
        self.owes_anew = true;
        self.owes_current = true;
    }

    /// Asks whether the bucket is still the one that is read; otherwise it is read again.
    async fn look(&mut self) {
        self.looked_at = SystemClock.monotonic();
        let info = match self.kv.bus.stream_info(&self.kv.stream()).await {
            Ok(info) => info,
            Err(error) => return tracing::debug!(bucket = self.kv.bucket, %error, "the bucket is not looked at now"),
        };
        let is_same = self.bucket.as_ref() == Some(&Identity::of(&info));
        if !is_same || info.state.last < self.told.last() || self.was_purged(info.state.first).await {
            self.reading.break_off();
        }
    }

    /// Whether a key that was told is gone without a marker from a bucket that begins with the revision `first` now.
    async fn was_purged(&self, first: u64) -> bool {
        let Some((key, revision)) = self.told.first() else {
            return false;
        };
        if revision >= first {
            return false;
        }
        // A newer message of it may be on its way.
        let stored = self.kv.raw(key).await;
        stored.is_ok_and(|stored| stored.is_none_or(|stored| stored.sequence <= revision))
    }

    /// Takes in `message`; what it says, where that is to be told.
    fn take(&mut self, message: Incoming) -> Option<KvEvent<T>> {
        let key = self.key_of(&message).to_owned();
        if self.until.is_some() {
            self.looked_at = SystemClock.monotonic();

            match self.told.says(&key, (message.sequence, message.stored_at_ns)) {
                Says::News => {}
                Says::Known => {
                    self.told.met(&key);
                    self.read_to(&message);
                    return None;
                }
                Says::Less => {
                    self.doubtful = Some(message);
                    return None;
                }
            }
        }

        Some(self.tell(key, &message))
    }

    /// While the bucket is read as a whole: `message` may be the last of it.
    fn read_to(&mut self, message: &Incoming) {
        if message.pending == 0 || self.until.is_some_and(|until| message.sequence >= until) {
            self.until = self.until.map(|_| 0);
        }
    }

    /// What `message` says of `key`.
    fn tell(&mut self, key: String, message: &Incoming) -> KvEvent<T> {
        let revision = message.sequence;
        let is_gone = is_marker(&message.headers);
        self.told.tell(&key, (revision, message.stored_at_ns), !is_gone);
        self.read_to(message);

        if is_gone {
            return KvEvent::Gone { key, revision };
        }

        match message.decode() {
            Ok(value) => KvEvent::Put { key, value, revision },
            Err(error) => KvEvent::Bad {
                key,
                revision,
                error: error.to_string(),
            },
        }
    }

    /// Asks the leader about a message that says less than was told. Where the leader says so too, the bucket was put
    /// back; otherwise whoever is read from lags behind, and the rest comes.
    async fn decide(&mut self) -> Result<Option<KvEvent<T>>, ReadStreamError> {
        let Some(message) = &self.doubtful else { return Ok(None) };
        let key = self.key_of(message).to_owned();
        let stored = self.kv.raw(&key).await?;
        let is_behind = stored.is_none_or(|stored| {
            let place = (stored.sequence, stored.stored_at_ns);
            self.told.says(&key, place) == Says::Less
        });

        let Some(message) = self.doubtful.take() else {
            return Ok(None);
        };

        if !is_behind {
            self.told.met(&key);
            self.read_to(&message);
            return Ok(None);
        }

        self.begin_anew();
        // Everything is told again, what was met before this message as well.
        self.reading.break_off();

        Ok(None)
    }

    /// The bucket was read as a whole: what is left to tell is which keys are gone, and that this was all.
    async fn end_of_whole(&mut self) -> Result<Option<KvEvent<T>>, ReadStreamError> {
        let Some(key) = self.told.missing().cloned() else {
            self.until = None;
            return Ok(std::mem::take(&mut self.owes_current).then_some(KvEvent::Current));
        };
        let stored: Option<Stored> = self.kv.raw(&key).await?;
        if stored.as_ref().is_some_and(|stored| !is_marker(&stored.headers)) {
            // Whoever is read from has not heard of it yet.
            self.told.met(&key);
            return Ok(None);
        }

        let revision = stored.map_or_else(|| self.told.last(), |stored| stored.sequence);
        self.told.tell(&key, (revision, 0), false);

        Ok(Some(KvEvent::Gone { key, revision }))
    }

    fn key_of<'a>(&self, message: &'a Incoming) -> &'a str {
        let key = message.subject.strip_prefix("$KV.");
        let key = key.and_then(|rest| rest.strip_prefix(self.kv.bucket)?.strip_prefix('.'));
        key.unwrap_or(&message.subject)
    }
}
