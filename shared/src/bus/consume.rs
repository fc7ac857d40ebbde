//! Consuming: durable pull consumers that repair themselves, and ordered readers of a whole stream.
//!
//! A pull stream that misses its heartbeat repeats that error without end (`docs/contribute/nats-facts.md` "The
//! client"), so it is replaced by a new one. Messages that the dropped stream had buffered are delivered again after
//! the ack wait.
//!
//! Readers without acks do not use the client's ordered consumer. If that consumer is lost, the client continues
//! silently after the last sequence it had, even in a stream that was restored or recreated and has not reached that
//! sequence.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use futures_util::StreamExt as _;
use tokio::sync::watch;

use crate::clock::pause;

use super::connect::Bus;
use super::error::{ConsumeError, ReadStreamError};
use super::link;
use super::message::IncomingMessage;

/// How long the server holds a pull request; short, so that a restarted server is noticed.
const PULL_EXPIRES: Duration = Duration::from_secs(5);
/// Interval of the heartbeats of an idle pull.
const PULL_HEARTBEAT: Duration = Duration::from_millis(1_500);
/// Interval of the heartbeats of readers without acks. A silence of twice this time makes them start again.
const UNACKED_HEARTBEAT: Duration = Duration::from_millis(2_500);
/// Number of messages that a reader without acks requests at once.
const UNACKED_BATCH: usize = 500;
/// Time without a pull after which the server removes the consumer of a reader without acks.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);
/// Pause before a broken pull is replaced.
pub(super) const REPAIR_PAUSE: Duration = Duration::from_millis(100);

/// Options of a [`PullSettings`].
#[derive(Debug, Clone, Copy)]
pub struct PullOptions {
    /// Number of messages requested at once.
    pub batch: usize,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self { batch: 200 }
    }
}

/// Number of failed attempts in a row to reach a consumer. A server that comes back takes one or two attempts. A
/// consumer that was removed never succeeds; the log warns of it, at doubling intervals.
#[derive(Debug, Default)]
pub(super) struct MissedMessages(u32);

impl MissedMessages {
    /// Number of attempts from which on a failure is logged as a warning.
    const WARN_FROM: u32 = 4;

    pub(super) fn log_missed(&mut self, error: &ConsumeError) {
        self.0 = self.0.saturating_add(1);
        if self.0 >= Self::WARN_FROM && self.0.is_power_of_two() {
            tracing::warn!(%error, attempts = self.0, "consumer unreachable");
        } else {
            tracing::debug!(%error, "consumer does not exist yet");
        }
    }
}

/// A durable consumer, pulled in batches. If it is dropped, its buffered messages are delivered again after the ack
/// wait.
pub struct PullSettings {
    bus: Bus,
    stream: String,
    consumer: String,
    options: PullOptions,
    messages: Option<pull::Stream>,
    missed: MissedMessages,
}

// By hand: the stream of messages has no `Debug`.
impl std::fmt::Debug for PullSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PullSettings")
            .field("stream", &self.stream)
            .field("consumer", &self.consumer)
            .finish_non_exhaustive()
    }
}

impl Bus {
    /// Pulls the durable `consumer` of `stream`, starting with the first [`PullSettings::next`]. If the consumer does
    /// not exist, [`PullSettings::next`] waits for it.
    #[must_use]
    pub fn pull(&self, stream: &str, consumer: &str, options: PullOptions) -> PullSettings {
        PullSettings {
            bus: self.clone(),
            stream: stream.to_owned(),
            consumer: consumer.to_owned(),
            options,
            messages: None,
            missed: MissedMessages::default(),
        }
    }

    /// Reads `stream` in order from sequence `from` on, without acks. `filters` are subjects; an empty slice reads
    /// all.
    ///
    /// # Errors
    /// Returns [`ConsumeError`] if there is no such stream.
    pub async fn read_ordered(
        &self,
        stream: &str,
        filters: &[String],
        from: u64,
    ) -> Result<OrderedReader, ConsumeError> {
        let mut ordered = OrderedReader {
            bus: self.clone(),
            stream: stream.to_owned(),
            filters: filters.to_vec(),
            last: from.max(1) - 1,
            last_at: None,
            incarnation: String::new(),
            reading: ConnectionWatch::new(self),
        };

        let info = self.stream_info(stream).await;
        ordered.incarnation = info
            .map_err(|error| ordered.consume_error(error.to_string()))?
            .incarnation;
        let opened = ordered.open().await?;
        ordered.reading.use_messages(opened);

        Ok(ordered)
    }
}

impl PullSettings {
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

        let group = consumer.cached_info().config.priority_groups.first().cloned();
        let pulled = consumer
            .stream()
            .max_messages_per_batch(self.options.batch)
            .expires(PULL_EXPIRES)
            .heartbeat(PULL_HEARTBEAT);
        let pulled = match group {
            Some(group) => pulled.group(group),
            None => pulled,
        };

        pulled.messages().await.map_err(|error| failed(error.to_string()))
    }

    /// Returns the next message. Repairs itself without limit; the caller bounds the wait by dropping the future,
    /// which loses no message.
    pub async fn next(&mut self) -> IncomingMessage {
        loop {
            // Opened on demand, so that a broken pull is replaced at the next call.
            if self.messages.is_none() {
                match self.open().await {
                    Ok(messages) => {
                        self.missed = MissedMessages::default();
                        self.messages = Some(messages);
                    }
                    Err(error) => {
                        self.missed.log_missed(&error);
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
                    if let Some(incoming) = IncomingMessage::new(message) {
                        return incoming;
                    }
                }
                Some(Err(error)) => {
                    // A pull with an error would repeat it without end.
                    tracing::debug!(consumer = %self.consumer, %error, "restarting a pull");
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

/// Request of a reader without acks.
#[derive(Debug)]
pub(super) struct PullRequest<'a> {
    pub(super) stream: &'a str,
    /// Subjects that are read; empty for all subjects.
    pub(super) filters: &'a [String],
    pub(super) from: DeliverPolicy,
}

impl Bus {
    /// Starts to read without acks. The consumer is deleted when the reader is dropped; if that fails, the server
    /// removes it [`FORGOTTEN_AFTER`] the last pull.
    pub(super) async fn read_unacked(&self, asked: PullRequest<'_>) -> Result<UnackedReader, String> {
        // The server has one field for a single filter, and another one for several.
        let (filter_subject, filter_subjects) = match asked.filters {
            [one] => (one.clone(), Vec::new()),
            several => (String::new(), several.to_vec()),
        };
        // In memory and on one replica: the reader can repeat all from its own position.
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
        // The count at the creation: a later one would include new messages.
        let waiting = consumer.cached_info().num_pending;
        let own = UnackedConsumer {
            bus: self.clone(),
            stream: asked.stream.to_owned(),
            name: consumer.cached_info().name.clone(),
        };
        let messages = consumer
            .stream()
            .max_messages_per_batch(UNACKED_BATCH)
            .expires(PULL_EXPIRES)
            .heartbeat(UNACKED_HEARTBEAT)
            .messages()
            .await
            .map_err(|error| error.to_string())?;

        Ok(UnackedReader {
            messages,
            waiting,
            _consumer: own,
        })
    }
}

/// Messages of a reader without acks.
pub(super) struct UnackedReader {
    messages: pull::Stream,
    /// Number of messages that were waiting when the reader was started.
    pub(super) waiting: u64,
    /// Held for its end alone.
    _consumer: UnackedConsumer,
}

/// Consumer of a reader without acks; it is deleted when this is dropped. A caller that lists a bucket again and again
/// would else leave one behind each time.
#[derive(Debug)]
struct UnackedConsumer {
    bus: Bus,
    stream: String,
    name: String,
}

impl Drop for UnackedConsumer {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (bus, stream, name) = (self.bus.clone(), self.stream.clone(), self.name.clone());
        runtime.spawn(async move {
            if let Err(error) = bus.jetstream.delete_consumer_from_stream(&name, &stream).await {
                tracing::debug!(stream, name, %error, "leaving a reader's consumer to expire");
            }
        });
    }
}

/// Reader of a stream in order, across server restarts: no message twice, none left out.
///
/// If the stream was restored, purged or recreated, the reader returns no more messages. All users of positions in
/// this process are notified as after a new connection ([`super::connection_count::ConnectionCount`]), and start again.
pub struct OrderedReader {
    bus: Bus,
    stream: String,
    filters: Vec<String>,
    last: u64,
    /// Time at which the message at `last` was stored, nanoseconds since 1970; `None` if no message was read yet.
    last_at: Option<i64>,
    incarnation: String,
    reading: ConnectionWatch,
}

// By hand: the stream of messages has no `Debug`.
impl std::fmt::Debug for OrderedReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OrderedReader")
            .field("stream", &self.stream)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl OrderedReader {
    async fn open(&mut self) -> Result<UnackedReader, ConsumeError> {
        let asked = PullRequest {
            stream: &self.stream,
            filters: &self.filters,
            from: DeliverPolicy::ByStartSequence {
                start_sequence: self.last + 1,
            },
        };

        let opened = self.bus.read_unacked(asked).await;
        opened.map_err(|detail| self.consume_error(detail))
    }

    fn consume_error(&self, detail: String) -> ConsumeError {
        ConsumeError {
            stream: self.stream.clone(),
            consumer: "(ordered)".to_owned(),
            detail,
        }
    }

    /// Returns the reason why the stream is not the one that was read, or `None` if it is the same. A message that was
    /// read may be missing from the same stream: streams that keep the last message of each subject drop messages, and
    /// so do work queues.
    async fn find_difference(&self) -> Result<Option<&'static str>, ReadStreamError> {
        let there = match self.last {
            0 => None,
            last => self.bus.at_sequence(&self.stream, last).await?,
        };
        let info = self.bus.stream_info(&self.stream).await?;
        let stored_at_ns = there.map(|there| there.stored_at_ns);

        Ok(if info.incarnation != self.incarnation {
            Some("it was recreated or restored")
        } else if self.last_at.is_some() && stored_at_ns.is_some() && stored_at_ns != self.last_at {
            Some("another message has the last sequence that was read")
        } else if stored_at_ns.is_none() && info.state.last < self.last {
            Some("it ends before the last message that was read")
        } else {
            None
        })
    }

    /// Starts again after the last message that was read. Returns false if the stream is another one.
    async fn open_again(&mut self) -> Result<bool, ConsumeError> {
        let difference = self.find_difference().await;
        if let Some(why) = difference.map_err(|error| self.consume_error(error.to_string()))? {
            let (stream, last) = (&self.stream, self.last);
            tracing::error!(stream, last, reason = why, "stream was replaced while being read");
            return Ok(false);
        }
        let opened = self.open().await?;
        self.reading.use_messages(opened);
        Ok(true)
    }

    /// Incarnation of the stream that is read; empty if the stream was not created by us.
    #[must_use]
    pub fn incarnation(&self) -> &str {
        &self.incarnation
    }

    /// Returns the next message, in order.
    pub async fn next(&mut self) -> IncomingMessage {
        loop {
            if self.reading.is_broken() {
                self.reading.count_connections();

                match self.open_again().await {
                    Ok(true) => {}
                    Ok(false) => {
                        self.bus.link.stands_for_another();
                        return std::future::pending().await;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "failed to create an ordered reader; retrying");
                        pause(REPAIR_PAUSE).await;
                        continue;
                    }
                }
            }

            // A reader that started again may deliver messages that were returned before.
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

/// A reader without acks, valid while its consumer and its connection last. Its owner must replace it if it is broken.
pub(super) struct ConnectionWatch {
    reader: Option<UnackedReader>,
    /// Consumer sequence that the next message must have.
    expected: u64,
    connections: watch::Receiver<u64>,
}

impl ConnectionWatch {
    pub(super) fn new(bus: &Bus) -> Self {
        Self {
            reader: None,
            expected: 1,
            connections: bus.link.connections(),
        }
    }

    pub(super) const fn is_broken(&self) -> bool {
        self.reader.is_none()
    }

    /// Ignores connections made so far: a consumer is about to be created over the current one.
    pub(super) fn count_connections(&mut self) {
        self.connections.mark_unchanged();
    }

    pub(super) fn use_messages(&mut self, reader: UnackedReader) {
        self.expected = 1;
        self.reader = Some(reader);
    }

    /// Marks the reader as broken, so that its owner replaces it.
    pub(super) fn break_off(&mut self) {
        self.reader = None;
    }

    /// Returns the next message of `stream`. Returns `None` if the message does not come from a stream, or if the
    /// reader is broken now: after a short pause, or at once if there is a new connection.
    pub(super) async fn next(&mut self, stream: &str) -> Option<IncomingMessage> {
        let reader = self.reader.as_mut()?;
        let next = tokio::select! {
            biased;
            next = reader.messages.next() => next,
            () = link::stands_anew(&mut self.connections) => {
                self.reader = None;
                return None;
            }
        };

        // A gap in the consumer's count means that a message was lost on the way.
        let error = match next {
            Some(Ok(message)) => {
                let incoming = IncomingMessage::new(message)?;
                if incoming.consumer_sequence == self.expected {
                    self.expected += 1;
                    return Some(incoming);
                }
                format!("message {} came as {}", self.expected, incoming.consumer_sequence)
            }
            Some(Err(error)) => error.to_string(),
            None => "it has ended".to_owned(),
        };

        tracing::debug!(stream, error, "restarting a reader");
        self.reader = None;
        pause(REPAIR_PAUSE).await;

        None
    }
}
