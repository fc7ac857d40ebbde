//! Consuming: durable pull consumers that heal themselves, and ordered readers of a whole stream.
//!
//! A pull stream that misses its heartbeat repeats that error without ending (`measured.md`), so it is made anew;
//! what a dropped one had buffered comes again after the ack wait.

use std::time::Duration;

use async_nats::jetstream::consumer::{self, PullConsumer, pull};
use futures_util::StreamExt as _;
use tokio::sync::watch;

use crate::clock::pause;

use super::connect::Bus;
use super::error::ConsumeError;
use super::link;
use super::message::Incoming;

/// How long the server holds a pull request; short, so that a restarted server is noticed.
const PULL_EXPIRES: Duration = Duration::from_secs(5);
/// How often an idle pull shows that it lives.
const PULL_HEARTBEAT: Duration = Duration::from_millis(1_500);
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
            reading: Reading::new(self),
        };
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

/// A stream read in order, whatever happens to servers in between; no message twice, none left out.
pub struct Ordered {
    bus: Bus,
    stream: String,
    filters: Vec<String>,
    last: u64,
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
    async fn open(&mut self) -> Result<pull::Ordered, ConsumeError> {
        let failed = |detail: String| ConsumeError {
            stream: self.stream.clone(),
            consumer: "(ordered)".to_owned(),
            detail,
        };
        let config = pull::OrderedConfig {
            deliver_policy: consumer::DeliverPolicy::ByStartSequence {
                start_sequence: self.last + 1,
            },
            filter_subjects: self.filters.clone(),
            // Bounds the heartbeat as well: one whose server died is made anew within seconds, not half a minute.
            max_expires: PULL_EXPIRES,
            ..Default::default()
        };
        let stream = self
            .bus
            .jetstream
            .get_stream_no_info(&self.stream)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let consumer = stream
            .create_consumer(config)
            .await
            .map_err(|error| failed(error.to_string()))?;
        consumer.messages().await.map_err(|error| failed(error.to_string()))
    }

    /// The next message, in order.
    pub async fn next(&mut self) -> Incoming {
        loop {
            if self.reading.is_broken() {
                self.reading.begin();
                match self.open().await {
                    Ok(messages) => self.reading.stand(messages),
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
                return incoming;
            }
        }
    }
}

/// An ordered consumer as long as its connection stands; made anew by whoever reads where it is broken.
pub(super) struct Reading {
    messages: Option<pull::Ordered>,
    connections: watch::Receiver<u64>,
}

impl Reading {
    pub(super) fn new(bus: &Bus) -> Self {
        Self {
            messages: None,
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

    pub(super) fn stand(&mut self, messages: pull::Ordered) {
        self.messages = Some(messages);
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
            Some(Ok(message)) => return Incoming::new(message),
            Some(Err(error)) => error.to_string(),
            None => "it has ended".to_owned(),
        };
        tracing::debug!(stream, error, "reader is made anew");
        self.messages = None;
        pause(REPAIR_PAUSE).await;
        None
    }
}
