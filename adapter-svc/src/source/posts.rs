//! Events that a platform has posted, from their answer on until the replica that holds their account has stored them (KV
//! `posts`).
//!
//! Every replica takes posts, and messages that belong together may come to several of them. So a post is answered once its
//! events are in the bucket, or on this host's disk on their way there, and the holder reads them in the order in which they came
//! ([`reader`]), as it reads the updates of an account that is polled; all accounts of a process have one watch of the bucket
//! ([`shared_watch`]).
//!
//! The bucket has each event's message with a seal of the cluster's key: a client that can write the bucket, and has no key,
//! cannot speak as an account's user. The seal differs from the one in `EVENTS`, because nothing is decided yet about the event's
//! sender: otherwise a client that can read the bucket could publish the message itself, without the tags that keep a stranger's
//! message from hooks. A message whose seal this replica cannot check stays: while the key is changed, the next holder may have
//! it.

mod feed;
mod inbox;
pub mod late_looks;
pub mod reader;
pub mod shared_watch;

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use shared::bus::{Bus, Kv, KvPages, OutgoingMessage, PublishError};
use shared::model::event::Event;
use shared::model::origin::EventOrigin;
use shared::wire::envelope::{MAX_PAYLOAD_BYTES, WireMessage, decode};
use shared::wire::headers::{Headers, SCHEMA, TraceCarrier};
use shared::wire::seal::{AdmitEventError, ReadEventError, TrustKeys};
use shared::wire::subject::token;
use shared::wire::topology::buckets;
use shared::wire::watermark::watermark_key;

use crate::attachments::note::RefuseNoteError;
use crate::encoded_event::{EncodedEvent, NoteStep};
use crate::error::AcceptEventsError;

/// Size of a posted event beside its message, in bytes, rounded up.
const OVERHEAD_BYTES: usize = 8 * 1024;
/// Time for which the marker of a removed event is kept. Keys are used once, so that markers would gather.
const MARKER_KEPT: Duration = Duration::from_mins(1);
/// Maximum number of posted events that are read or stored together.
const MAX_BATCH: usize = 100;
/// Wait before an event is removed again whose removal failed, or a bucket that cannot be read is asked again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// An event that a platform has posted, as it is stored in the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostedMessage {
    message: EncodedEvent,
}

impl WireMessage for PostedMessage {
    const SCHEMA: &'static str = "posted_message";
    const MAX_BYTES: usize = MAX_PAYLOAD_BYTES + OVERHEAD_BYTES;
}

impl PostedMessage {
    /// Returns the event that is kept under `key`, if a replica with the cluster's key took it for a platform's account.
    fn admit_event(&self, key: &str, trust: &TrustKeys) -> Result<Event, RefuseNoteError> {
        let message = &self.message;
        let event: Event = decode(&message.to_outgoing().headers, &message.payload)?;
        if !trust.is_post(&message.payload, &message.seal) {
            let (id, channel) = (event.id, event.channel);
            return Err(ReadEventError::from(AdmitEventError::Unsealed { id, channel }).into());
        }

        match event.origin {
            EventOrigin::Verified { .. } => {}
            EventOrigin::Token { .. } | EventOrigin::Edge { .. } | EventOrigin::System | EventOrigin::Open => {
                return Err(RefuseNoteError::Origin(event.origin));
            }
        }
        if post_key(&event, &message.message_id) != key {
            return Err(RefuseNoteError::Key(event.id.to_string()));
        }
        Ok(event)
    }

    /// Returns the trace in which the event was posted.
    fn carrier(&self) -> TraceCarrier {
        self.message.carrier()
    }

    /// Returns the size of the event in memory, in bytes, estimated.
    fn held_bytes(&self) -> usize {
        usize::try_from(self.message.spool_bytes()).unwrap_or(usize::MAX)
    }
}

/// The place of a posted event in the bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PostPlace {
    /// Key of the event.
    pub key: String,
    /// Revision of the key.
    pub revision: u64,
}

/// The posted events of one account. Clones share the connection.
#[derive(Debug, Clone)]
pub struct PostQueue {
    bus: Bus,
    kept: Kv<PostedMessage>,
    /// Beginning of the account's keys, with its final dot.
    prefix: String,
}

impl PostQueue {
    /// Returns the queue of `account` on `channel`, on `bus`.
    #[must_use]
    pub fn new(bus: &Bus, channel: &str, account: &str) -> Self {
        Self {
            bus: bus.clone(),
            kept: bus.kv(buckets::POSTS),
            prefix: format!("{}.", watermark_key(channel, account)),
        }
    }

    /// Returns the messages that bring `events` to the bucket, sealed with the keys of the bus.
    ///
    /// # Errors
    /// Returns [`AcceptEventsError::Invalid`] or [`AcceptEventsError::TooLarge`] of the first event that can never be kept.
    pub fn encode_events(
        &self,
        events: &[Event],
        carrier: &TraceCarrier,
    ) -> Result<Vec<EncodedEvent>, AcceptEventsError> {
        let max = self.bus.max_payload();
        let encode = |event: &Event| encode_post(event, self.bus.trust(), carrier, max);
        events.iter().map(encode).collect()
    }

    /// Lists the account's events that are kept, in the order in which they came.
    fn list(&self) -> KvPages<PostedMessage> {
        self.kept.pages(&self.prefix, MAX_BATCH)
    }

    /// Returns the beginning of the account's keys, with its final dot.
    fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the event of `posted`, which is kept under `key`.
    fn admit_event(&self, key: &str, posted: &PostedMessage) -> Result<Event, RefuseNoteError> {
        posted.admit_event(key, self.bus.trust())
    }

    /// Removes the event at `place`, unless it was posted again.
    async fn remove(&self, place: &PostPlace) -> Result<(), PublishError> {
        let headers: Headers = [("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")]
            .into_iter()
            .collect();
        let marker = OutgoingMessage::raw(post_subject(&place.key), headers, Bytes::new());
        let marker = marker.expect_last(place.revision).ttl(MARKER_KEPT);
        match self.bus.publish(marker).await {
            Ok(_) | Err(PublishError::WrongLastSequence { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the message that brings `event` to the bucket. It has the event's own `Nats-Msg-Id`, so that a post that comes again
/// soon is not kept again.
fn encode_post(
    event: &Event,
    trust: &TrustKeys,
    carrier: &TraceCarrier,
    max_payload: usize,
) -> Result<EncodedEvent, AcceptEventsError> {
    let mut message = EncodedEvent::encode_event(event, trust, carrier, max_payload)?;
    message.seal = trust.seal_post(&message.payload);
    let (id, message_id) = (message.id.clone(), message.message_id.clone());
    let subject = post_subject(&post_key(event, &message_id));
    let kept = OutgoingMessage::new(subject, &PostedMessage { message });
    if kept.payload.len() > max_payload {
        return Err(AcceptEventsError::TooLarge {
            id,
            size: kept.payload.len(),
            max: max_payload,
        });
    }

    Ok(EncodedEvent {
        id,
        message_id,
        schema: kept.headers.get(SCHEMA).unwrap_or_default().to_owned(),
        subject: kept.subject,
        // The message within is sealed.
        seal: String::new(),
        payload: kept.payload,
        traceparent: None,
        tracestate: None,
        note: NoteStep::Settled,
    })
}

/// Returns the key of `event`: the tokens of its channel, account and conversation, and of `message_id`, the name of this
/// version of it.
fn post_key(event: &Event, message_id: &str) -> String {
    let (channel, account, peer) = event.conversation();
    let name = match message_id {
        "" => event.id.as_str(),
        name => name,
    };
    [channel, account, peer, name].map(token).join(".")
}

fn post_subject(key: &str) -> String {
    format!("$KV.{}.{key}", buckets::POSTS)
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;
    use shared::testing::trust;

    use super::*;
    use crate::attachments::note::admit_message;

    fn event(origin: EventOrigin) -> Event {
        let id = EventId::parse("telegram:main/5/1").expect("an id");
        let mut event = Event::new(id, "telegram", "5", UnixMillis(1));
        event.account_id = Some("main".to_owned());
        event.origin = origin;
        event
    }

    fn post(event: &Event, trust: &TrustKeys) -> EncodedEvent {
        encode_post(event, trust, &TraceCarrier::default(), usize::MAX).expect("encoded")
    }

    /// Returns the key of `encoded` in the bucket, and the message under it.
    fn kept(encoded: &EncodedEvent) -> (String, PostedMessage) {
        let key = encoded.subject.strip_prefix("$KV.posts.").expect("a key");
        let posted = ciborium::from_reader(&encoded.payload[..]).expect("a posted message");
        (key.to_owned(), posted)
    }

    #[test]
    fn a_posted_event_is_the_same_event_under_the_key_of_its_conversation() {
        let event = event(EventOrigin::account("telegram", "main"));
        let encoded = post(&event, &trust());
        assert_eq!(encoded.lane(), "$KV.posts.telegram.main.5");
        assert_eq!(encoded, post(&event, &trust()), "the same post has the same key");

        let (key, posted) = kept(&encoded);
        assert!(key.starts_with("telegram.main.5."), "{key}");
        assert_eq!(posted.admit_event(&key, &trust()).expect("admitted"), event);

        let refused = posted.admit_event("telegram.main.6.x", &trust());
        assert_eq!(refused.expect_err("refused").reason(), "key");
    }

    #[test]
    fn what_no_account_has_sealed_is_refused() {
        let own = event(EventOrigin::account("telegram", "main"));
        let reason = |encoded: &EncodedEvent| {
            let (key, posted) = kept(encoded);
            posted.admit_event(&key, &trust()).expect_err("refused").reason()
        };
        assert_eq!(reason(&post(&own, &TrustKeys::default())), "unsealed");
        assert_eq!(reason(&post(&event(EventOrigin::System), &trust())), "origin");

        let (key, mut forged) = kept(&post(&own, &trust()));
        let (_, other) = kept(&post(&event(EventOrigin::account("telegram", "other")), &trust()));
        forged.message.payload = other.message.payload;
        assert_eq!(
            forged.admit_event(&key, &trust()).expect_err("refused").reason(),
            "unsealed"
        );
    }

    #[test]
    fn what_waits_is_no_message_of_the_stream() {
        let (_, posted) = kept(&post(&event(EventOrigin::account("telegram", "main")), &trust()));
        let refused = admit_message(&posted.message, &trust());
        assert_eq!(refused.expect_err("refused").reason(), "unsealed");
    }
}
