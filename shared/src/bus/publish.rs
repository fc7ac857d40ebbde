//! Publishing to a stream: identical bytes are sent until the server stores them or rejects them for good.
//!
//! The client's in-flight acks never fail on a disconnect; their outcome stays unknown
//! (`docs/contribute/nats-facts.md` "The client"). They are given up soon after the next connection. Every publish that may be repeated therefore carries a message id
//! or an expected sequence, and is repeated unchanged. The number of publishes in flight is bounded over the whole
//! process. Order per key is the caller's duty: it must await one publish before it starts the next of the same key.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use crate::clock::pause;
use crate::model::event::Event;
use crate::model::reply::Reply;
use crate::retry::RetryWaits;
use crate::wire::envelope::{PayloadFormat, WireMessage, encode, encode_payload};
use crate::wire::headers::{
    CAUSATION, EVENT, EXPECTED_LAST_SUBJECT_SEQUENCE, HOPS, Headers, MSG_ID, REPEATED, SEAL, TTL, TraceCarrier, WRITER,
};
use crate::wire::seal::TrustKeys;
use crate::wire::subject;

use super::connect::{API_TIMEOUT, Bus};
use super::error::{PublishError, ReadStreamError};
use super::message::header_map;
use super::writer;

/// Pause before the second try; doubled up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// Number of tries without a stream (the server is restarting or electing a leader) before the caller gets the error.
const NO_STREAM_TRIES: u32 = 120;
/// The server's error codes for a wrong expected last sequence.
const WRONG_LAST_SEQUENCE: [u64; 2] = [10_071, 10_164];
/// The server's error code for "not stored". A full subject is recognised by the text; any other cause may pass.
const STORE_FAILED: u64 = 10_077;
/// Error codes for "not now": no leader, shutting down, resources being moved, insufficient resources; the limits of
/// the account, the memory or the disk are used up, until an operator makes room; the same message is being
/// replicated, with an open outcome.
const PASSING: [u64; 10] = [
    10_002, 10_008, 10_009, 10_023, 10_028, 10_047, 10_076, 10_118, 10_158, 10_167,
];

/// A message to be published.
#[derive(Debug, Clone)]
pub struct OutgoingMessage {
    /// Subject of the publish.
    pub subject: String,
    /// Headers of the message.
    pub headers: Headers,
    /// Payload of the message, encoded.
    pub payload: Bytes,
}

impl OutgoingMessage {
    /// Builds a message with `value` in CBOR, to `subject`.
    #[must_use]
    pub fn new<T: WireMessage>(subject: String, value: &T) -> Self {
        let (payload, headers) = encode(value, PayloadFormat::Cbor);
        Self {
            subject,
            headers,
            payload,
        }
    }

    /// Builds a message from bytes that are encoded already, to `subject`.
    #[must_use]
    pub const fn raw(subject: String, headers: Headers, payload: Bytes) -> Self {
        Self {
            subject,
            headers,
            payload,
        }
    }

    /// Builds a message with `value` in JSON, to `subject`.
    #[must_use]
    pub fn json<T: WireMessage>(subject: String, value: &T) -> Self {
        let mut out = Self::new(subject, value);
        out.payload = encode_payload(value, PayloadFormat::Json);
        out.headers
            .insert(crate::wire::headers::CONTENT_TYPE, PayloadFormat::Json.content_type());
        out
    }

    /// Builds the message of `event`, with the seal and the message id from `trust`; every event is published in this
    /// form.
    ///
    /// Without a key of the cluster it has neither, and its readers accept no origin for it.
    #[must_use]
    pub fn event(event: &Event, trust: &TrustKeys) -> Self {
        let out = Self::new(subject::event(event), event).header(EVENT, event.id.as_str());
        let Some(key) = trust.cluster_key() else { return out };
        let seal = key.seal(&event.id, &out.payload, &event.origin);
        out.msg_id(key.message_id(event)).header(SEAL, seal)
    }

    /// Sets the deduplication id to `id`.
    #[must_use]
    pub fn msg_id(self, id: impl Into<String>) -> Self {
        self.header(MSG_ID, id)
    }

    /// Makes the publish fail unless the subject's last sequence is `sequence` (0 = the subject is empty). The message
    /// then carries its writer; each call creates a new attempt.
    #[must_use]
    pub fn expect_last(self, sequence: u64) -> Self {
        self.header(EXPECTED_LAST_SUBJECT_SEQUENCE, sequence.to_string())
            .header(WRITER, writer::next_attempt())
    }

    /// Sets the time to live to `ttl`, in whole seconds, at least one.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.header(TTL, format!("{}s", ttl.as_secs().max(1)))
    }

    /// Builds the message of `reply` for delivery-svc, under the reply's own id and with its causation.
    #[must_use]
    pub fn reply(reply: &Reply) -> Self {
        Self::new(subject::delivery(&reply.delivery_context), reply)
            .msg_id(reply.id.to_string())
            .header(CAUSATION, reply.causation.event.as_str())
            .header(HOPS, reply.causation.hops.to_string())
    }

    /// Marks the message as possibly published before: its reader must check whether it is done.
    #[must_use]
    pub fn repeated(self) -> Self {
        self.header(REPEATED, "1")
    }

    /// Sets the trace context to `carrier`.
    #[must_use]
    pub fn carrier(mut self, carrier: &TraceCarrier) -> Self {
        carrier.write(&mut self.headers);
        self
    }

    /// Adds one header, or replaces it.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.insert(name, value);
        self
    }
}

/// Ack of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedMessage {
    /// Sequence of the message; for a duplicate, the sequence of the first copy.
    pub sequence: u64,
    /// Whether the server had the message already, by its message id.
    pub duplicate: bool,
}

#[derive(Deserialize)]
struct PubAck {
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    error: Option<ApiError>,
}

/// Error of the JetStream API.
#[derive(Debug, Deserialize)]
pub(super) struct ApiError {
    #[serde(default)]
    pub(super) code: u64,
    #[serde(default)]
    pub(super) err_code: u64,
    #[serde(default)]
    pub(super) description: String,
}

impl Bus {
    /// Publishes, and repeats the message until the server acks or rejects it. A repetition has the same bytes except
    /// for the header [`REPEATED`]. If a repetition of a message with an expected sequence is rejected, the leader is
    /// asked whether an earlier try was stored; if so, that one is returned.
    ///
    /// # Errors
    /// Returns [`PublishError`] if the server rejects it for good or the bus is closed; never `Unknown`.
    pub async fn publish(&self, mut out: OutgoingMessage) -> Result<PublishedMessage, PublishError> {
        let mut waits = RetryWaits::new(FIRST_PAUSE, MAX_PAUSE);
        let mut without_stream = 0_u32;

        // A message that the caller marks as repeated may have been stored by an earlier try.
        let mut is_in_doubt = out.headers.get(REPEATED).is_some();
        loop {
            let error = match self.publish_once(&out, API_TIMEOUT).await {
                Ok(published) => return Ok(published),
                Err(error @ PublishError::WrongLastSequence { .. }) if is_in_doubt => {
                    match self.stored_attempt(&out).await {
                        Ok(Some(published)) => return Ok(published),
                        Ok(None) => return Err(error),
                        // It is unknown yet who was first: the message is sent again, rejected again, and looked up
                        // again.
                        Err(error) => {
                            tracing::debug!(subject = %out.subject, %error, "failed to read the stored message; retrying");
                            PublishError::Unknown {
                                subject: out.subject.clone(),
                            }
                        }
                    }
                }
                Err(error) => error,
            };

            if matches!(error, PublishError::NoStream { .. }) && self.is_connected() {
                without_stream += 1;
            }

            if !error.may_pass() || without_stream > NO_STREAM_TRIES {
                return Err(error);
            }

            is_in_doubt = true;
            tracing::debug!(subject = %out.subject, %error, "repeating a publish");
            out.headers.insert(REPEATED, "1");
            metrics::counter!("nexus_bus_publish_retries_total").increment(1);
            pause(waits.next_wait()).await;
        }
    }

    /// Publishes once, and waits for the ack for at most `timeout`.
    ///
    /// # Errors
    /// Returns [`PublishError`]; after `Unknown` the server may have stored the message or not.
    pub async fn publish_once(
        &self,
        out: &OutgoingMessage,
        timeout: Duration,
    ) -> Result<PublishedMessage, PublishError> {
        let subject = || out.subject.clone();
        let _slot = self
            .in_flight
            .acquire()
            .await
            .map_err(|_| PublishError::Closed { subject: subject() })?;

        if tokio::time::timeout(timeout, self.pulse.wait_awake(&self.client))
            .await
            .is_err()
        {
            return Err(PublishError::Unknown { subject: subject() });
        }

        let size = out.payload.len();
        if size > self.max_payload() {
            return Err(PublishError::TooLarge {
                subject: subject(),
                size,
            });
        }

        let request = async_nats::Request::new()
            .headers(header_map(&out.headers))
            .payload(out.payload.clone())
            // One timer covers the whole request: a client without a connection blocks before it waits for the
            // response.
            .timeout(None);
        let connection = self.link.number();
        let asked = tokio::time::timeout(timeout, self.client.send_request(out.subject.clone(), request));
        // An ack that was on its way when the connection was lost never comes: to wait for it would hold up its key.
        let answer = tokio::select! {
            biased;
            answer = asked => answer.ok(),
            () = self.link.wait_for_lost_answer(connection) => None,
        };
        let answer = answer.ok_or_else(|| PublishError::Unknown { subject: subject() })?;

        let message = answer.map_err(|error| match error.kind() {
            async_nats::RequestErrorKind::NoResponders => PublishError::NoStream { subject: subject() },
            async_nats::RequestErrorKind::InvalidSubject => PublishError::Rejected {
                subject: subject(),
                code: 0,
                text: "the subject is not valid".to_owned(),
            },
            async_nats::RequestErrorKind::MaxPayloadExceeded => PublishError::TooLarge {
                subject: subject(),
                size,
            },
            async_nats::RequestErrorKind::TimedOut | async_nats::RequestErrorKind::Other => {
                PublishError::Unknown { subject: subject() }
            }
        })?;

        let ack: PubAck =
            serde_json::from_slice(&message.payload).map_err(|_| PublishError::Unknown { subject: subject() })?;
        match ack.error {
            None => Ok(PublishedMessage {
                sequence: ack.seq,
                duplicate: ack.duplicate,
            }),
            Some(error) => Err(publish_error(subject(), size, error)),
        }
    }

    /// Asks the leader whether an earlier try of `out` was stored: the message at the place that `out` expected to be
    /// free carries its attempt. Returns `None` if another writer's message is there, or if `out` expects no sequence.
    /// In a bucket that keeps one value per key, also returns `None` if our value was overwritten since.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be asked.
    pub(super) async fn stored_attempt(
        &self,
        out: &OutgoingMessage,
    ) -> Result<Option<PublishedMessage>, ReadStreamError> {
        let expected = out.headers.get(EXPECTED_LAST_SUBJECT_SEQUENCE);
        let (Some(attempt), Some(expected)) = (
            out.headers.get(WRITER),
            expected.and_then(|expected| expected.parse::<u64>().ok()),
        ) else {
            return Ok(None);
        };

        let Some(stream) = self.stream_of(&out.subject).await? else {
            return Ok(None);
        };
        let first = self.next_on_subject(&stream, &out.subject, expected + 1).await?;
        let ours = first.filter(|stored| stored.headers.get(WRITER) == Some(attempt));

        Ok(ours.map(|stored| PublishedMessage {
            sequence: stored.sequence,
            duplicate: false,
        }))
    }

    /// Returns the stream that stores messages published on `subject`, or `None` if there is none.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the server cannot be asked.
    pub async fn stream_of(&self, subject: &str) -> Result<Option<String>, ReadStreamError> {
        #[derive(Deserialize)]
        struct Named {
            #[serde(default)]
            streams: Option<Vec<String>>,
        }
        let named: Named = self
            .call_api(subject, "STREAM.NAMES", &json!({ "subject": subject }))
            .await?;
        Ok(named.streams.unwrap_or_default().into_iter().next())
    }
}

fn publish_error(subject: String, size: usize, error: ApiError) -> PublishError {
    match error.err_code {
        code if WRONG_LAST_SEQUENCE.contains(&code) => PublishError::WrongLastSequence { subject },
        STORE_FAILED if error.description.contains("per subject") => PublishError::SubjectFull { subject },
        STORE_FAILED => PublishError::Unknown { subject },
        10_054 => PublishError::TooLarge { subject, size },
        code if PASSING.contains(&code) || error.code == 503 => PublishError::Unknown { subject },
        code => PublishError::Rejected {
            subject,
            code,
            text: error.description,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(err_code: u64, code: u64) -> bool {
        let error = ApiError {
            code,
            err_code,
            description: String::new(),
        };
        publish_error("nexus.event.a.b.c".to_owned(), 1, error).may_pass()
    }

    #[test]
    fn what_an_operator_can_make_room_for_is_tried_again() {
        for used_up in [10_002, 10_028, 10_047] {
            assert!(check(used_up, 500), "{used_up}");
        }
        assert!(check(10_158, 409), "the first copy is under way");
        assert!(check(10_999, 503), "any code with status 503, not available");
        assert!(!check(10_054, 400) && !check(10_071, 400) && !check(10_999, 400));
    }
}
