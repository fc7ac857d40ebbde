//! Messages as they come from the server, in our own types.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderName;
use async_nats::jetstream::AckKind;
use bytes::Bytes;
use futures_util::StreamExt as _;

use crate::model::event::Event;
use crate::model::position::Place;
use crate::model::time::UnixMillis;
use crate::wire::envelope::{DecodeError, Wire, decode};
use crate::wire::headers::{Carrier, EXPECTED_LAST_SUBJECT_SEQUENCE, Headers};
use crate::wire::seal::{ReadEventError, Trust};

use super::connect::Bus;
use super::dead_letter::Verdict;
use super::partition::Floor;

/// How often a message of a newer release is given out before it is given up: a rolling update has readers of both.
const NEWER_TRIES: u64 = 5;
/// Wait between these.
const NEWER_PAUSE: Duration = Duration::from_secs(5);
/// Wait before a message whose dead letter was not taken comes again.
const BURY_AGAIN: Duration = Duration::from_secs(1);

/// Our headers of the client's.
pub(super) fn headers_of(map: Option<&async_nats::HeaderMap>) -> Headers {
    let Some(map) = map else { return Headers::new() };
    map.iter()
        .filter_map(|(name, values)| values.last().map(|value| (name, value.as_str())))
        .collect()
}

/// The client's headers of ours.
pub(super) fn header_map(headers: &Headers) -> async_nats::HeaderMap {
    let mut map = async_nats::HeaderMap::new();
    for (name, value) in headers.named() {
        match name {
            Cow::Borrowed(name) => map.insert(HeaderName::from_static(name), value),
            Cow::Owned(name) => map.insert(name.as_str(), value),
        }
    }
    map
}

/// A stored message, read from its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Where it was published.
    pub subject: String,
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Bytes,
    /// Its sequence.
    pub sequence: u64,
    /// When the server stored it.
    pub published_at: UnixMillis,
    /// The same, in nanoseconds since 1970: what a position names.
    pub stored_at_ns: i64,
}

impl Stored {
    /// Reads the payload.
    ///
    /// # Errors
    /// [`DecodeError`], naming type and place.
    pub fn decode<T: Wire>(&self) -> Result<T, DecodeError> {
        decode(&self.headers, &self.payload)
    }

    /// Reads the payload of a message of `EVENTS`, with the origin that its seal proves.
    ///
    /// # Errors
    /// [`ReadEventError`] if nothing may come of it.
    pub fn event(&self, trust: &Trust) -> Result<Event, ReadEventError> {
        trust.read_stored(&self.subject, &self.headers, &self.payload, self.published_at)
    }

    /// The trace that it belongs to.
    #[must_use]
    pub fn carrier(&self) -> Carrier {
        Carrier::read(&self.headers)
    }

    /// The sequence of the message on its subject that it was written upon: 0 = it is the first; none = nobody said.
    #[must_use]
    pub fn upon(&self) -> Option<u64> {
        self.headers.get(EXPECTED_LAST_SUBJECT_SEQUENCE)?.parse().ok()
    }
}

/// A message that a consumer was given.
pub struct Incoming {
    /// Where it is stored.
    pub subject: String,
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Bytes,
    /// Its sequence in the stream.
    pub sequence: u64,
    /// Its sequence at the consumer.
    pub consumer_sequence: u64,
    /// How often it was delivered, this time included.
    pub delivered: u64,
    /// When the server stored it.
    pub published_at: UnixMillis,
    /// The same, in nanoseconds since 1970: what a position names.
    pub stored_at_ns: i64,
    /// How many wait behind it.
    pub pending: u64,
    /// Name of its stream.
    pub stream: String,
    pub(super) acker: Acker,
}

/// Where it is said that a message is settled.
#[expect(
    clippy::large_enum_variant,
    reason = "every message has one, and most the large one: a box would be one more allocation each"
)]
pub(super) enum Acker {
    /// To the server.
    Server(async_nats::jetstream::message::Acker),
    /// To the partition's own floor: the server hears nothing.
    Floor(Arc<Floor>),
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("subject", &self.subject)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl Incoming {
    pub(super) fn new(message: async_nats::jetstream::Message) -> Option<Self> {
        let (sequence, consumer_sequence, delivered, stored_at_ns, pending, stream) = {
            let info = message.info().ok()?;
            let nanos = i64::try_from(info.published.unix_timestamp_nanos()).unwrap_or(i64::MAX);

            (
                info.stream_sequence,
                info.consumer_sequence,
                u64::try_from(info.delivered).unwrap_or(1),
                nanos,
                info.pending,
                info.stream.to_owned(),
            )
        };

        let (message, acker) = message.split();
        Some(Self {
            subject: message.subject.to_string(),
            headers: headers_of(message.headers.as_ref()),
            payload: message.payload,
            sequence,
            consumer_sequence,
            delivered,
            published_at: UnixMillis(stored_at_ns / 1_000_000),
            stored_at_ns,
            pending,
            stream,
            acker: Acker::Server(acker),
        })
    }

    /// A message that was handed out as number `handed` before, read again from `stream`, settled at `floor`.
    pub(super) fn again(stored: Stored, stream: &str, handed: u64, floor: Arc<Floor>) -> Self {
        Self {
            subject: stored.subject,
            headers: stored.headers,
            payload: stored.payload,
            sequence: stored.sequence,
            consumer_sequence: handed,
            delivered: 1,
            published_at: stored.published_at,
            stored_at_ns: stored.stored_at_ns,
            pending: 0,
            stream: stream.to_owned(),
            acker: Acker::Floor(floor),
        }
    }

    /// Which message of its stream it is.
    #[must_use]
    pub const fn place(&self) -> Place {
        Place {
            sequence: self.sequence,
            stored_at_ns: self.stored_at_ns,
        }
    }

    /// The same message, settled at `acker`.
    pub(super) fn copy(&self, acker: Acker) -> Self {
        Self {
            subject: self.subject.clone(),
            headers: self.headers.clone(),
            payload: self.payload.clone(),
            stream: self.stream.clone(),
            acker,
            ..*self
        }
    }

    /// Reads the payload.
    ///
    /// # Errors
    /// [`DecodeError`], naming type and place.
    pub fn decode<T: Wire>(&self) -> Result<T, DecodeError> {
        decode(&self.headers, &self.payload)
    }

    /// Reads the payload of a message of `EVENTS`, with the origin that its seal proves.
    ///
    /// # Errors
    /// [`ReadEventError`] if nothing may come of it but a dead letter.
    pub fn event(&self, trust: &Trust) -> Result<Event, ReadEventError> {
        trust.read_stored(&self.subject, &self.headers, &self.payload, self.published_at)
    }

    /// The trace that it belongs to.
    #[must_use]
    pub fn carrier(&self) -> Carrier {
        Carrier::read(&self.headers)
    }

    /// Says that all its effects are durable. A lost ack costs a redelivery, which finds the effects there.
    pub async fn ack(&self) {
        self.answer(AckKind::Ack).await;
    }

    /// Asks for it again, after `delay` or at once.
    pub async fn nak(&self, delay: Option<Duration>) {
        self.answer(AckKind::Nak(delay)).await;
    }

    /// Says that nobody shall be given it again.
    pub async fn term(&self) {
        self.answer(AckKind::Term).await;
    }

    /// Settles this one, which cannot be read because of `error`: it is on the dead letters of `service` before nobody is
    /// given it again. One of a newer release is first left to a replica that reads it.
    pub async fn bury(&self, bus: &Bus, service: &str, error: &DecodeError, now: UnixMillis) {
        if matches!(error, DecodeError::NewerSchema { .. }) && self.delivered < NEWER_TRIES {
            return self.nak(Some(NEWER_PAUSE)).await;
        }

        let verdict = Verdict::new(error.reason(), error.to_string());
        match bus.dead_letter(service, self, &verdict, now).await {
            Ok(()) => self.term().await,
            Err(error) => {
                tracing::warn!(
                    service, subject = %self.subject, sequence = self.sequence, event_id = self.headers.event_id(),
                    %error, "dead letter was not written yet"
                );
                self.nak(Some(BURY_AGAIN)).await;
            }
        }
    }

    /// Says that it is still being worked on.
    pub async fn progress(&self) {
        self.answer(AckKind::Progress).await;
    }

    async fn answer(&self, kind: AckKind) {
        let acker = match &self.acker {
            Acker::Server(acker) => acker,
            Acker::Floor(floor) => {
                // The rest speaks of redeliveries, of which there are none.
                if matches!(kind, AckKind::Ack | AckKind::Term) {
                    floor.settle(self.sequence);
                }
                return;
            }
        };

        if let Err(error) = acker.ack_with(kind).await {
            tracing::debug!(subject = %self.subject, sequence = self.sequence, %error, "ack was not sent");
        }
    }
}

/// Whether `subject` is where a client awaits an answer (`_INBOX.…`; a user of its own: `_INBOX_{user}.…`): nothing
/// that is published there is stored, or an order to the server.
pub(super) fn is_inbox(subject: &str) -> bool {
    subject.starts_with("_INBOX.") || subject.starts_with("_INBOX_")
}

/// A message that is not stored.
#[derive(Debug, Clone)]
pub struct CoreMessage {
    /// Where it was published.
    pub subject: String,
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: Bytes,
    /// Where an answer is awaited: an inbox; where the message names anything else, nobody awaits one.
    pub reply: Option<String>,
}

/// Messages that are not stored, as they come; lossy for a slow reader.
#[derive(Debug)]
pub struct CoreSubscription(async_nats::Subscriber);

impl CoreSubscription {
    /// The next one; none once the bus is closed.
    pub async fn next(&mut self) -> Option<CoreMessage> {
        self.0.next().await.map(|message| CoreMessage {
            subject: message.subject.to_string(),
            headers: headers_of(message.headers.as_ref()),
            reply: message
                .reply
                .filter(|reply| is_inbox(reply))
                .map(|reply| reply.to_string()),
            payload: message.payload,
        })
    }
}

impl Bus {
    /// Publishes without storing and without an answer.
    pub async fn core_publish(&self, subject: &str, headers: &Headers, payload: Bytes) {
        self.core_publish_if(subject, headers, payload, || true).await;
    }

    /// Publishes as [`Bus::core_publish`], if `may` still holds right before the message leaves; answers whether it did. A
    /// process that was stopped finds there that others have taken its work over.
    pub async fn core_publish_if(
        &self,
        subject: &str,
        headers: &Headers,
        payload: Bytes,
        may: impl Fn() -> bool + Send,
    ) -> bool {
        self.pulse.awake(&self.client).await;

        if !may() {
            return false;
        }

        let sent = self
            .client
            .publish_with_headers(subject.to_owned(), header_map(headers), payload)
            .await;
        if let Err(error) = sent {
            tracing::warn!(subject, %error, "message was not published");
        }

        true
    }

    /// Listens to `subject` (wildcards allowed) from now on.
    ///
    /// # Errors
    /// The client's word where the subject is not valid or the bus is closed.
    pub async fn core_subscribe(&self, subject: &str) -> Result<CoreSubscription, String> {
        self.client
            .subscribe(subject.to_owned())
            .await
            .map(CoreSubscription)
            .map_err(|error| error.to_string())
    }
}
