//! Encoded events: one event, encoded once, on its way from the caller to the stream. *Pure.*

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use shared::bus::OutgoingMessage;
use shared::model::event::{Event, EventId};
use shared::model::time::UnixMillis;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::envelope::{MAX_PAYLOAD_BYTES, PayloadFormat, WireMessage};
use shared::wire::headers::{CONTENT_TYPE, EVENT, Headers, MSG_ID, SCHEMA, SEAL, TraceCarrier};
use shared::wire::seal::TrustKeys;

use crate::error::AcceptEventsError;

/// Estimated size of a spool entry without its strings and payload, in bytes: key, field names, lengths.
const OVERHEAD_BYTES: usize = 160;
/// Beginning of the subjects of keys.
const KEYS: &str = "$KV.";

/// An event in the form in which it is published: every attempt has the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodedEvent {
    /// Id of the event.
    pub id: EventId,
    /// Value of `Nats-Msg-Id`.
    pub message_id: String,
    /// Subject of the message.
    pub subject: String,
    /// Value of `Nexus-Seal`; empty without a key.
    pub seal: String,
    /// Value of `Nexus-Schema`.
    pub schema: String,
    /// Encoded event, in CBOR.
    pub payload: Bytes,
    /// Value of `traceparent`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Value of `tracestate`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// What is still to be done about the note of its files before it is published.
    #[serde(default, skip_serializing_if = "NoteStep::is_settled")]
    pub note: NoteStep,
}

/// A step about the note of an event's files ([`crate::attachments::note`]), which could not be made before the event went
/// to the spool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteStep {
    /// Nothing is to be done.
    #[default]
    Settled,
    /// The event is noted, unless a later version of it is.
    Add,
    /// The event is noted in place of an earlier version.
    Replace,
    /// The note of an earlier version is removed.
    Remove,
}

impl NoteStep {
    /// Returns whether nothing is to be done.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        matches!(self, Self::Settled)
    }
}

impl EncodedEvent {
    /// Encodes `event` and seals it with the keys of `trust`. `max_payload` is the server's limit, in bytes.
    ///
    /// # Errors
    /// Returns [`AcceptEventsError::Invalid`] or [`AcceptEventsError::TooLarge`] with the event's id.
    pub fn encode_event(
        event: &Event,
        trust: &TrustKeys,
        carrier: &TraceCarrier,
        max_payload: usize,
    ) -> Result<Self, AcceptEventsError> {
        // The contents are checked before the seal, which vouches for them.
        event.check().map_err(|detail| AcceptEventsError::Invalid {
            id: event.id.clone(),
            detail,
        })?;

        let OutgoingMessage {
            subject,
            headers,
            payload,
        } = OutgoingMessage::event(event, trust);

        let header = |name| headers.get(name).unwrap_or_default().to_owned();
        // Consumers read at most this much, even if the server accepts more.
        let max = max_payload.min(MAX_PAYLOAD_BYTES);
        if payload.len() > max {
            return Err(AcceptEventsError::TooLarge {
                id: event.id.clone(),
                size: payload.len(),
                max,
            });
        }

        Ok(Self {
            id: event.id.clone(),
            message_id: header(MSG_ID),
            seal: header(SEAL),
            schema: header(SCHEMA),
            subject,
            payload,
            traceparent: carrier.traceparent.clone(),
            tracestate: carrier.tracestate.clone(),
            note: NoteStep::Settled,
        })
    }

    /// Returns the key of the order in which messages are published: the subject, which names the conversation. A key of a
    /// bucket ends with the name of a single event.
    #[must_use]
    pub fn lane(&self) -> &str {
        match self.subject.rsplit_once('.') {
            Some((lane, _)) if self.subject.starts_with(KEYS) => lane,
            Some(_) | None => &self.subject,
        }
    }

    /// Returns the trace of the message.
    #[must_use]
    pub fn carrier(&self) -> TraceCarrier {
        TraceCarrier {
            traceparent: self.traceparent.clone(),
            tracestate: self.tracestate.clone(),
        }
    }

    /// Returns the message to publish.
    #[must_use]
    pub fn to_outgoing(&self) -> OutgoingMessage {
        let message = OutgoingMessage::raw(self.subject.clone(), self.message_headers(), self.payload.clone());
        message.carrier(&self.carrier())
    }

    /// Returns the estimated size in the spool, in bytes.
    #[must_use]
    pub fn spool_bytes(&self) -> u64 {
        let ids = self.id.as_str().len() + self.message_id.len() + self.seal.len();
        let strings = ids + self.subject.len() + self.schema.len();
        let trace = self.traceparent.as_ref().map_or(0, String::len) + self.tracestate.as_ref().map_or(0, String::len);
        u64::try_from(strings + trace + self.payload.len() + OVERHEAD_BYTES).unwrap_or(u64::MAX)
    }

    /// Returns the dead letter of an event that the server refused for good.
    #[must_use]
    pub fn dead_letter(&self, service: &str, detail: String, at: UnixMillis) -> DeadLetter {
        DeadLetter {
            service: service.to_owned(),
            subject: self.subject.clone(),
            redrive_subject: self.subject.clone(),
            // The event was never stored in a stream.
            stream: String::new(),
            sequence: 0,
            headers: self
                .to_outgoing()
                .headers
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            payload: DeadLetter::encode_payload(&self.payload),
            reason: "refused".to_owned(),
            detail,
            attempts: 1,
            at,
        }
    }

    fn message_headers(&self) -> Headers {
        [
            (CONTENT_TYPE, PayloadFormat::Cbor.content_type()),
            (SCHEMA, self.schema.as_str()),
            (MSG_ID, self.message_id.as_str()),
            (SEAL, self.seal.as_str()),
            (EVENT, self.id.as_str()),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use shared::model::origin::EventOrigin;
    use shared::testing::trust;

    use super::*;

    fn event() -> Event {
        Event::new(EventId::parse("crm:9").unwrap(), "crm", "p.1", UnixMillis(1))
    }

    #[test]
    fn a_parcel_is_the_same_message_each_time() {
        let carrier = TraceCarrier {
            traceparent: Some("00-aa-bb-01".to_owned()),
            tracestate: None,
        };
        let parcel = EncodedEvent::encode_event(&event(), &trust(), &carrier, 1 << 20).unwrap();
        let mut bytes = Vec::new();
        ciborium::into_writer(&parcel, &mut bytes).unwrap();

        let again: EncodedEvent = ciborium::from_reader(bytes.as_slice()).unwrap();
        assert_eq!(again, parcel);

        let out = again.to_outgoing();
        assert_eq!(out.subject, "nexus.event.crm.default.p=2E1");

        let key = trust().cluster_key().cloned().unwrap();
        let seal = key.seal(&event().id, &parcel.payload, &EventOrigin::Open);
        assert_eq!(out.headers.get("Nats-Msg-Id"), Some(key.message_id(&event()).as_str()));
        assert_eq!(out.headers.get("Nexus-Seal"), Some(seal.as_str()));
        assert_eq!(out.headers.get("Nexus-Schema"), Some("event/2"));
        assert_eq!(out.headers.get("traceparent"), Some("00-aa-bb-01"));
        assert!(u64::try_from(bytes.len()).unwrap() + 16 <= parcel.spool_bytes());
    }

    #[test]
    fn what_cannot_be_stored_is_refused_with_its_id() {
        let carrier = TraceCarrier::default();
        let large = Event {
            content: "x".repeat(5_000),
            ..event()
        };

        assert!(matches!(
            EncodedEvent::encode_event(&large, &trust(), &carrier, 4_096),
            Err(AcceptEventsError::TooLarge { size: 5_000.., .. })
        ));

        let nul = Event {
            content: "a\0".to_owned(),
            ..event()
        };
        let error = EncodedEvent::encode_event(&nul, &trust(), &carrier, 4_096)
            .unwrap_err()
            .to_string();
        assert!(error.contains("crm:9") && error.contains("content"), "{error}");
    }
}
