//! Consuming: durable pull consumers that heal themselves, and ordered readers of a whole stream.
//!
//! A pull stream that misses its heartbeat repeats that error without ending (`measured.md`), so it is made anew;
//! what a dropped one had buffered comes again after the ack wait.
//!
//! Readers without acks do not use the client's ordered consumer: where that one is gone it goes on by itself behind the
//! sequence that it had, also in a stream that was put back or made anew and has not come so far.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use futures_util::StreamExt as _;
use tokio::sync::watch;

use crate::clock::pause;

use super::connect::Bus;
use super::error::{ConsumeError, ReadStreamError};
use super::link;
use super::message::Incoming;

/// How long the server holds a pull request; short, so that a restarted server is noticed.
const PULL_EXPIRES: Duration = Duration::from_secs(5);
/// How often an idle pull shows that it lives.
const PULL_HEARTBEAT: Duration = Duration::from_millis(1_500);
/// As [`PULL_HEARTBEAT`], of readers without acks: a silence of twice that has them begin again.
const UNACKED_HEARTBEAT: Duration = Duration::from_millis(2_500);
/// Messages that readers without acks ask for at once.
const UNACKED_BATCH: usize = 500;
/// After how long without a pull the server forgets the consumer of a reader without acks.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);
/// Wait before a broken pull is made anew.
pub(super) const REPAIR_PAUSE: Duration = Duration::from_millis(100);

/// How a consumer is pulled.
#[derive(Debug, Clone, Copy)]
pub struct PullOptions {
    /// Messages asked for at once.
    pub batch: usize,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self { batch: 200 }
    }
}

/// Attempts in a row to reach a consumer, all in vain: a server that comes back takes one or two, a consumer that
/// somebody removed takes for ever and is warned of, ever more rarely.
#[derive(Debug, Default)]
pub(super) struct Missed(u32);

impl Missed {
    /// From this attempt on it is worth a warning.
    const WARN_FROM: u32 = 4;

    pub(super) fn tell(&mut self, error: &ConsumeError) {
        self.0 = self.0.saturating_add(1);
        if self.0 >= Self::WARN_FROM && self.0.is_power_of_two() {
            tracing::warn!(%error, attempts = self.0, "consumer cannot be reached");
        } else {
            tracing::debug!(%error, "consumer is not there yet");
        }
    }
}

/// A durable consumer, pulled. Whoever drops it leaves what was buffered to the ack wait.
pub struct Pull {
    bus: Bus,
    stream: String,
    consumer: String,
    options: PullOptions,
    messages: Option<pull::Stream>,
    missed: Missed,
}

impl std::fmt::Debug for Pull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pull")
            .field("stream", &self.stream)
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

impl Bus {
    /// Pulls the durable `consumer` of `stream`, from the first [`Pull::next`] on; waits for it where it is not there.
    #[must_use]
    pub fn pull(&self, stream: &str, consumer: &str, options: PullOptions) -> Pull {
        Pull {
            bus: self.clone(),
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            options,
            messages: None,
            missed: Missed::default(),
        }
    }

    /// Reads `stream` from sequence `from` on, in order, without acks; `filters` are subjects (none = all).
    ///
    /// # Errors
    /// [`ConsumeError`] where there is no such stream.
    pub async fn ordered(&self, stream: &str, filters: &[String], from: u64) -> Result<Ordered, ConsumeError> {
        let mut ordered = Ordered {
            bus: self.clone(),
            stream: stream.to_owned(),
            filters: filters.to_vec(),
            last: from.max(1) - 1,
            last_at: None,
            incarnation: String::new(),
            reading: Reading::new(self),
        };

        let info = self.stream_info(stream).await;
        ordered.incarnation = info.map_err(|error| ordered.failed(error.to_string()))?.incarnation;
        let messages = ordered.open().await?;
        ordered.reading.stand(messages);

        Ok(ordered)
    }
}

impl Pull {
    async fn open(&mut self) -> Result<pull::Stream, ConsumeError> {
        let failed = |detail: String| ConsumeError {
            stream: self.stream.clone(),
            consumer: self.consumer.clone(),
            detail,
        };
        let consumer: PullConsumer = self
            .bus
            .jetstream
            .get_consumer_from_stream(&self.consumer, &self.stream)
            .await
            .map_err(|error| failed(error.to_string()))?;

        consumer
            .stream()
            .max_messages_per_batch(self.options.batch)
            .expires(PULL_EXPIRES)
            .heartbeat(PULL_HEARTBEAT)
            .messages()
            .await
            .map_err(|error| failed(error.to_string()))
    }

    /// The next message. Heals itself for ever; the caller bounds the wait by dropping the future, which loses
    /// nothing.
    pub async fn next(&mut self) -> Incoming {
        loop {
            if self.messages.is_none() {
                match self.open().await {
                    Ok(messages) => {
                        self.missed = Missed::default();
                        self.messages = Some(messages);
                    }
                    Err(error) => {
                        self.missed.tell(&error);
                        pause(REPAIR_PAUSE).await;
                        continue;
                    }
                }
            }

            let Some(messages) = self.messages.as_mut() else {
                continue;
            };
            match messages.next().await {
                Some(Ok(message)) => {
                    if let Some(incoming) = Incoming::new(message) {
                        return incoming;
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(consumer = %self.consumer, %error, "pull is made anew");
                    self.messages = None;
                    pause(REPAIR_PAUSE).await;
                }
                None => {
                    self.messages = None;
                    pause(REPAIR_PAUSE).await;
                }
            }
        }
    }
}

/// What a reader without acks asks for.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) stream: &'a str,
    /// Subjects; none = all.
    pub(super) filters: &'a [String],
    pub(super) from: DeliverPolicy,
}

impl Bus {
    /// Begins to read without acks: what comes, and how many messages wait at the beginning. The server forgets the
    /// consumer soon after nobody reads any more.
    pub(super) async fn read_unacked(&self, asked: Asked<'_>) -> Result<(pull::Stream, u64), String> {
        let (filter_subject, filter_subjects) = match asked.filters {
            [one] => (one.clone(), Vec::new()),
            several => (String::new(), several.to_vec()),
        };
        let config = pull::Config {
            deliver_policy: asked.from,
            filter_subject,
            filter_subjects,
            ack_policy: AckPolicy::None,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: FORGOTTEN_AFTER,
            ..pull::Config::default()
        };

        let consumer: PullConsumer = self
            .jetstream
            .create_consumer_on_stream(config, asked.stream)
            .await
            .map_err(|error| error.to_string())?;
        let waiting = consumer.cached_info().num_pending;
        let messages = consumer
            .stream()
            .max_messages_per_batch(UNACKED_BATCH)
            .expires(PULL_EXPIRES)
            .heartbeat(UNACKED_HEARTBEAT)
            .messages()
            .await
            .map_err(|error| error.to_string())?;

        Ok((messages, waiting))
    }
}

/// A stream read in order, whatever happens to servers in between; no message twice, none left out.
///
/// Where the stream was put back, cut or made anew, nothing comes any more: everybody in this process who counts with
/// positions is told as of a new connection ([`super::link::Connections`]), and begins anew.
pub struct Ordered {
    bus: Bus,
    stream: String,
    filters: Vec<String>,
    last: u64,
    /// When the message at `last` was stored, nanoseconds since 1970; none = nothing was read yet.
    last_at: Option<i64>,
    incarnation: String,
    reading: Reading,
}

impl std::fmt::Debug for Ordered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ordered")
            .field("stream", &self.stream)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl Ordered {
    async fn open(&mut self) -> Result<pull::Stream, ConsumeError> {
        let asked = Asked {
            stream: &self.stream,
            filters: &self.filters,
            from: DeliverPolicy::ByStartSequence {
                start_sequence: self.last + 1,
            },
        };

        let opened = self.bus.read_unacked(asked).await;
        let (messages, _) = opened.map_err(|detail| self.failed(detail))?;

        Ok(messages)
    }

    fn failed(&self, detail: String) -> ConsumeError {
        ConsumeError {
            stream: self.stream.clone(),
            consumer: "(ordered)".to_owned(),
            detail,
        }
    }

    /// Why the stream is another one than was read; none = it is the same. Messages that were read may be gone: streams
    /// that keep the last of each subject drop them, and so do those that work is taken from.
    async fn difference(&self) -> Result<Option<&'static str>, ReadStreamError> {
        let there = match self.last {
            0 => None,
            last => self.bus.at_sequence(&self.stream, last).await?,
        };
        let info = self.bus.stream_info(&self.stream).await?;
        let stored_at_ns = there.map(|there| there.stored_at_ns);

        Ok(if info.incarnation != self.incarnation {
            Some("it was made anew or restored")
        } else if self.last_at.is_some() && stored_at_ns.is_some() && stored_at_ns != self.last_at {
            Some("another message stands where reading ended")
        } else if stored_at_ns.is_none() && info.state.last < self.last {
            Some("it ends before what was read")
        } else {
            None
        })
    }

    /// Begins again behind what was read; false where the stream is another one.
    async fn open_again(&mut self) -> Result<bool, ConsumeError> {
        let difference = self.difference().await;
        if let Some(why) = difference.map_err(|error| self.failed(error.to_string()))? {
            let (stream, last) = (&self.stream, self.last);
            tracing::error!(stream, last, why, "a stream that is read is not what it was");
            return Ok(false);
        }
        let messages = self.open().await?;
        self.reading.stand(messages);
        Ok(true)
    }

    /// The incarnation of the stream that is read; empty = it was made by somebody else.
    #[must_use]
    pub fn incarnation(&self) -> &str {
        &self.incarnation
    }

    /// The next message, in order.
    pub async fn next(&mut self) -> Incoming {
        loop {
            if self.reading.is_broken() {
                self.reading.begin();

                match self.open_again().await {
                    Ok(true) => {}
                    Ok(false) => {
                        self.bus.link.stands_for_another();
                        return std::future::pending().await;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "ordered reader is not there yet");
                        pause(REPAIR_PAUSE).await;
                        continue;
                    }
                }
            }

            if let Some(incoming) = self.reading.next(&self.stream).await
                && incoming.sequence > self.last
            {
                self.last = incoming.sequence;
                self.last_at = Some(incoming.stored_at_ns);
                return incoming;
            }
        }
    }
}

/// A reader without acks as long as its consumer and its connection stand; made anew by whoever reads where it is broken.
pub(super) struct Reading {
    messages: Option<pull::Stream>,
    /// The consumer sequence of the next message.
    expected: u64,
    connections: watch::Receiver<u64>,
}

impl Reading {
    pub(super) fn new(bus: &Bus) -> Self {
        Self {
            messages: None,
            expected: 1,
            connections: bus.link.connections(),
        }
    }

    pub(super) const fn is_broken(&self) -> bool {
        self.messages.is_none()
    }

    /// Counts connections from now on: a consumer is about to be made over this one.
    pub(super) fn begin(&mut self) {
        self.connections.mark_unchanged();
    }

    pub(super) fn stand(&mut self, messages: pull::Stream) {
        self.expected = 1;
        self.messages = Some(messages);
    }

    /// It is to be made anew.
    pub(super) fn break_off(&mut self) {
        self.messages = None;
    }

    /// The next message of `stream`; none where it is broken now, after a short wait, or holds no message of a stream.
    pub(super) async fn next(&mut self, stream: &str) -> Option<Incoming> {
        let messages = self.messages.as_mut()?;
        let next = tokio::select! {
            biased;
            next = messages.next() => next,
            () = link::stands_anew(&mut self.connections) => {
                self.messages = None;
                return None;
            }
        };

        let error = match next {
            Some(Ok(message)) => {
                let incoming = Incoming::new(message)?;
                if incoming.consumer_sequence == self.expected {
                    self.expected += 1;
                    return Some(incoming);
                }
                format!("message {} came as {}", self.expected, incoming.consumer_sequence)
            }
            Some(Err(error)) => error.to_string(),
            None => "it has ended".to_owned(),
        };

        tracing::debug!(stream, error, "reader is made anew");
        self.messages = None;
        pause(REPAIR_PAUSE).await;

        None
    }
}
