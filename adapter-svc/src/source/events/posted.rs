//! An event as a caller of `/v1/events` writes it. *Pure.*
//!
//! The fields are those of [`Event`]. Fields that a caller cannot set are accepted, so that a stored event can be
//! posted again, and replaced: `origin`, `speaks_for`, `received_at` and `source_adapter`. `id`, `reply_to`, `target`
//! and `quote.id` are texts here, because they become ids only with the prefix of the caller's source
//! ([`super::scope`]).

use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use shared::model::event::{
    Attachment, EventDirection, EventMention, EventParticipant, EventPeer, EventQuote, EventSender, PeerKind,
};
use shared::model::time::UnixMillis;

#[cfg(doc)]
use shared::model::event::Event;

/// An event as a caller writes it; see the module. The seed's camelCase names are read too, and so are its flat
/// fields (seed 001 §8), which are used if the field that they replace is absent.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostedEvent {
    /// Id of the item at its source, or an id with the prefix of the caller's source.
    pub id: String,
    /// Time it happened, in Unix milliseconds.
    pub timestamp: UnixMillis,
    /// Channel name, one of those in the caller's scope.
    pub channel: String,
    /// Id of the item at the source; empty = the part of the event's id after the prefix.
    #[serde(default, alias = "sourceId")]
    pub source_id: String,
    /// Name of the installation's account on the channel.
    #[serde(default, alias = "accountId")]
    pub account_id: Option<String>,
    /// Direction of the item, or kind of change.
    #[serde(default)]
    pub direction: EventDirection,
    /// Sender of the event, as an object or as the id alone.
    #[serde(default, deserialize_with = "deserialize_sender")]
    pub from: EventSender,
    /// Flat form of `from.id`.
    #[serde(default, alias = "senderId")]
    pub sender_id: Option<String>,
    /// Parties that took part in the event.
    #[serde(default)]
    pub participants: Vec<EventParticipant>,
    /// Conversation to which the event belongs.
    #[serde(default)]
    pub peer: EventPeer,
    /// Flat form of `peer.kind`.
    #[serde(default, alias = "peerKind")]
    pub peer_kind: Option<PeerKind>,
    /// Flat form of `peer.id`; absent in a direct conversation = the one with the sender.
    #[serde(default, alias = "peerId")]
    pub peer_id: Option<String>,
    /// Thread within the conversation.
    #[serde(default, alias = "threadId")]
    pub thread_id: Option<String>,
    /// Id of the event that this one answers, in the same form as `id`.
    #[serde(default, alias = "replyTo", alias = "replyToId", alias = "reply_to_id")]
    pub reply_to: Option<String>,
    /// Id of the event that this one is about, in the same form as `id`.
    #[serde(default)]
    pub target: Option<String>,
    /// Time the item was edited at its source, in Unix milliseconds.
    #[serde(default, alias = "editedAt")]
    pub edited_at: Option<UnixMillis>,
    /// How the event addresses the installation's account.
    #[serde(default)]
    pub mention: Option<EventMention>,
    /// Part of another message that the event quotes; its `id` has the same form as `id`.
    #[serde(default)]
    pub quote: Option<EventQuote>,
    /// Text of the event.
    #[serde(default)]
    pub content: String,
    /// Content types: `text`, `image`, … (open set).
    #[serde(default, alias = "contentTypes")]
    pub content_types: Vec<String>,
    /// Flat form of `content_types` with one entry.
    #[serde(default, alias = "contentType")]
    pub content_type: Option<String>,
    /// Files attached to the event.
    #[serde(default)]
    pub attachments: Vec<Attachment>,
    /// All other data from the source.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// Labels of the event.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Number of dispatches between this event and the first of its causal chain.
    #[serde(default)]
    pub hops: u8,
    /// Ignored; replaced by the origin that the gateway knows.
    #[serde(default, rename = "origin")]
    _origin: IgnoredAny,
    /// Ignored; replaced by the scope of the caller's token.
    #[serde(default, rename = "speaks_for", alias = "speaksFor")]
    _speaks_for: IgnoredAny,
    /// Ignored; replaced by the time of reception.
    #[serde(default, rename = "received_at", alias = "receivedAt")]
    _received_at: IgnoredAny,
    /// Ignored; replaced by the caller's source.
    #[serde(default, rename = "source_adapter", alias = "sourceAdapter")]
    _source_adapter: IgnoredAny,
}

impl PostedEvent {
    /// Returns the event with its flat fields moved into their nested places.
    #[must_use]
    pub fn with_nested_fields(mut self) -> Self {
        if self.from.id.is_empty() {
            self.from.id = self.sender_id.take().unwrap_or_default();
        }

        if self.peer.id.is_empty() {
            self.peer.kind = self.peer_kind.unwrap_or(self.peer.kind);
            // The default kind is `dm` too, so only an explicit one makes the sender the conversation.
            let with_sender = self.peer_kind == Some(PeerKind::Dm);
            let named = self
                .peer_id
                .take()
                .or_else(|| with_sender.then(|| self.from.id.clone()));

            self.peer.id = named.unwrap_or_default();
        }

        if self.content_types.is_empty() {
            self.content_types.extend(self.content_type.take());
        }

        self
    }
}

/// Parses a sender from an object, or from the id alone.
fn deserialize_sender<'de, D: Deserializer<'de>>(from: D) -> Result<EventSender, D::Error> {
    let said = Value::deserialize(from)?;
    if let Value::String(id) = said {
        return Ok(EventSender {
            id,
            ..EventSender::default()
        });
    }
    EventSender::deserialize(said).map_err(|fault| D::Error::custom(format!("from: {fault}")))
}
