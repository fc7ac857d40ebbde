//! Messages received from the server, in our own types.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::HeaderName;
use async_nats::jetstream::AckKind;
use bytes::Bytes;

use crate::model::event::Event;
use crate::model::ledger::LedgerRecord;
use crate::model::position::StreamPlace;
use crate::model::time::UnixMillis;
use crate::wire::envelope::{DecodeError, WireMessage, decode};
use crate::wire::headers::{EXPECTED_LAST_SUBJECT_SEQUENCE, Headers, TraceCarrier};
use crate::wire::ledger_kinds::decode_known;
use crate::wire::seal::{ReadEventError, TrustKeys};

use super::floor::Floor;
use super::noted_buckets::note_record;

/// Converts the client's headers to ours.
pub(super) fn headers_of(map: Option<&async_nats::HeaderMap>) -> Headers {
    let Some(map) = map else { return Headers::new() };
    map.iter()
        .filter_map(|(name, values)| values.last().map(|value| (name, value.as_str())))
        .collect()
}

/// Converts our headers to the client's.
pub(super) fn header_map(headers: &Headers) -> async_nats::HeaderMap {
    let mut map = async_nats::HeaderMap::new();
    for (name, value) in headers.iter_named() {
        match name {
            Cow::Borrowed(name) => map.insert(HeaderName::from_static(name), value),
            Cow::Owned(name) => map.insert(name.as_str(), value),
        }
    }
    map
}

/// A stored message, read from its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Subject under which it is stored.
    pub subject: String,
    /// Headers of the message.
    pub headers: Headers,
    /// Payload of the message, encoded.
    pub payload: Bytes,
    /// Sequence in the stream.
    pub sequence: u64,
    /// Time at which the server stored it, in milliseconds.
    pub published_at: UnixMillis,
    /// The same time in nanoseconds since 1970, as positions contain it.
    pub stored_at_ns: i64,
}

impl StoredMessage {
    /// Decodes the payload.
    ///
    /// # Errors
    /// Returns [`DecodeError`], which names the type and the place.
    pub fn decode<T: WireMessage>(&self) -> Result<T, DecodeError> {
        let value = decode(&self.headers, &self.payload)?;
        note_record(&self.subject, &self.headers, &self.payload, &value);
        Ok(value)
    }

    /// Decodes a record of `LEDGER` without the entries that only a later release knows; see [`decode_known`].
    ///
    /// # Errors
    /// Returns [`DecodeError`], which names the type and the place.
    pub fn decode_known_entries(&self) -> Result<LedgerRecord, DecodeError> {
        decode_known(&self.headers, &self.payload)
    }

    /// Decodes the payload of a message of `EVENTS`, with the origin that its seal proves.
    ///
    /// # Errors
    /// Returns [`ReadEventError`] if the event must not be processed.
    pub fn read_event(&self, trust: &TrustKeys) -> Result<Event, ReadEventError> {
        trust.read_stored(&self.subject, &self.headers, &self.payload, self.published_at)
    }

    /// Trace context of the message.
    #[must_use]
    pub fn carrier(&self) -> TraceCarrier {
        TraceCarrier::read(&self.headers)
    }

    /// Returns the sequence of the previous message on its subject that the writer expected: 0 if it expected none,
    /// `None` if the writer stated no expectation.
    #[must_use]
    pub fn previous_sequence(&self) -> Option<u64> {
        self.headers.get(EXPECTED_LAST_SUBJECT_SEQUENCE)?.parse().ok()
    }
}

/// A message delivered by a consumer.
pub struct IncomingMessage {
    /// Subject under which it is stored.
    pub subject: String,
    /// Headers of the message.
    pub headers: Headers,
    /// Payload of the message, encoded.
    pub payload: Bytes,
    /// Sequence in the stream.
    pub sequence: u64,
    /// Sequence at the consumer, counted per delivery.
    pub consumer_sequence: u64,
    /// Number of deliveries, this one included.
    pub delivered: u64,
    /// Time at which the server stored it, in milliseconds.
    pub published_at: UnixMillis,
    /// The same time in nanoseconds since 1970, as positions contain it.
    pub stored_at_ns: i64,
    /// Number of messages that wait behind it at the consumer.
    pub pending: u64,
    /// Name of the stream that stores it.
    pub stream: String,
    /// The event in it, once it was read. Its copies share it: the read model and the partition's owner read the same messages.
    pub(super) event: Arc<OnceLock<Arc<Event>>>,
    pub(super) acker: MessageAcker,
}

/// Receiver of a message's ack.
#[expect(
    clippy::large_enum_variant,
    reason = "every message has one, and most the large one: a box would be one more allocation each"
)]
pub(super) enum MessageAcker {
    /// The server, with the ack protocol of JetStream.
    Server(async_nats::jetstream::message::Acker),
    /// The partition's own floor; the server receives no ack.
    Floor(Arc<Floor>),
}

// By hand: the headers and the payload are private, and the payload may be large.
impl std::fmt::Debug for IncomingMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IncomingMessage")
            .field("subject", &self.subject)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl IncomingMessage {
    pub(super) fn new(message: async_nats::jetstream::Message) -> Option<Self> {
        // Copied out, because `split` below consumes the message that `info` borrows from.
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
            event: Arc::default(),
            acker: MessageAcker::Server(acker),
        })
    }

    /// Builds a message that was delivered as number `handed` before, read again from `stream` and settled at `floor`.
    pub(super) fn from_reread(stored: StoredMessage, stream: &str, handed: u64, floor: Arc<Floor>) -> Self {
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
            event: Arc::default(),
            acker: MessageAcker::Floor(floor),
        }
    }

    /// Position of the message in its stream.
    #[must_use]
    pub const fn place(&self) -> StreamPlace {
        StreamPlace {
            sequence: self.sequence,
            stored_at_ns: self.stored_at_ns,
        }
    }

    /// Returns a copy of the message that is settled at `acker`.
    pub(super) fn copy_for(&self, acker: MessageAcker) -> Self {
        Self {
            subject: self.subject.clone(),
            headers: self.headers.clone(),
            payload: self.payload.clone(),
            stream: self.stream.clone(),
            event: Arc::clone(&self.event),
            acker,
            ..*self
        }
    }

    /// Decodes the payload.
    ///
    /// # Errors
    /// Returns [`DecodeError`], which names the type and the place.
    pub fn decode<T: WireMessage>(&self) -> Result<T, DecodeError> {
        let value = decode(&self.headers, &self.payload)?;
        note_record(&self.subject, &self.headers, &self.payload, &value);
        Ok(value)
    }

    /// Decodes a record of `LEDGER` without the entries that only a later release knows; see [`decode_known`].
    ///
    /// # Errors
    /// Returns [`DecodeError`], which names the type and the place.
    pub fn decode_known_entries(&self) -> Result<LedgerRecord, DecodeError> {
        decode_known(&self.headers, &self.payload)
    }

    /// Decodes the payload of a message of `EVENTS`, with the origin that its seal proves. A message and its copies are decoded
    /// once.
    ///
    /// # Errors
    /// Returns [`ReadEventError`] if nothing but a dead letter may result from it.
    pub fn read_event(&self, trust: &TrustKeys) -> Result<Arc<Event>, ReadEventError> {
        if let Some(event) = self.event.get() {
            return Ok(Arc::clone(event));
        }
        let event = trust.read_stored(&self.subject, &self.headers, &self.payload, self.published_at)?;
        Ok(Arc::clone(self.event.get_or_init(|| Arc::new(event))))
    }

    /// Trace context of the message.
    #[must_use]
    pub fn carrier(&self) -> TraceCarrier {
        TraceCarrier::read(&self.headers)
    }

    /// Acks the message: all its effects are durable. A lost ack causes a redelivery, whose handler finds the effects
    /// done.
    pub async fn ack(&self) {
        self.send_ack(AckKind::Ack).await;
    }

    /// Requests a redelivery, after `delay` or at once.
    pub async fn nak(&self, delay: Option<Duration>) {
        self.send_ack(AckKind::Nak(delay)).await;
    }

    /// Terminates the message: it must never be delivered again.
    pub async fn term(&self) {
        self.send_ack(AckKind::Term).await;
    }

    /// Extends the ack wait: the message is still being processed.
    pub async fn send_progress(&self) {
        self.send_ack(AckKind::Progress).await;
    }

    async fn send_ack(&self, kind: AckKind) {
        let acker = match &self.acker {
            MessageAcker::Server(acker) => acker,
            MessageAcker::Floor(floor) => {
                // The other kinds concern redeliveries, of which a floor has none.
                if matches!(kind, AckKind::Ack | AckKind::Term) {
                    floor.settle_message(self.sequence);
                }
                return;
            }
        };

        if let Err(error) = acker.ack_with(kind).await {
            tracing::debug!(subject = %self.subject, sequence = self.sequence, %error, "failed to send an ack");
        }
    }
}
