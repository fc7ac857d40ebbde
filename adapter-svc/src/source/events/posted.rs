//! An event as a caller of `/v1/events` writes it. *Pure.*
//!
//! The fields are those of [`Event`]. What a caller cannot say is read, so that a stored event can be posted again, and
//! replaced: `origin`, `speaks_for`, `received_at` and `source_adapter`. `id` and `reply_to` are texts here, for they become
//! ids only below the prefix of the caller's source ([`super::scope`]).

use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use shared::model::event::{Attachment, Direction, Participant, Peer, PeerKind, Sender};
use shared::model::time::UnixMillis;

#[cfg(doc)]
use shared::model::event::Event;

/// See the module. The seed's camelCase spellings are read too, and so are its flat fields (seed 001 §8), which count where
/// the field they stand for is not given.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostedEvent {
    /// The item's id at its source, or an id below the prefix of the caller's source.
    pub id: String,
    /// When it happened, Unix milliseconds.
    pub timestamp: UnixMillis,
    /// The channel, one of those in the caller's scope.
    pub channel: String,
    /// The item's id at the source; empty: what follows the prefix of the event's id.
    #[serde(default, alias = "sourceId")]
    pub source_id: String,
    /// Which account of ours on the channel.
    #[serde(default, alias = "accountId")]
    pub account_id: Option<String>,
    /// Which way the item went.
    #[serde(default)]
    pub direction: Direction,
    /// Who sent it; a text is the sender's id.
    #[serde(default, deserialize_with = "sender")]
    pub from: Sender,
    /// Stands for `from.id`.
    #[serde(default, alias = "senderId")]
    pub sender_id: Option<String>,
    /// Who took part.
    #[serde(default)]
    pub participants: Vec<Participant>,
    /// The conversation.
    #[serde(default)]
    pub peer: Peer,
    /// Stands for `peer.kind`.
    #[serde(default, alias = "peerKind")]
    pub peer_kind: Option<PeerKind>,
    /// Stands for `peer.id`; a direct conversation that names none is the one with its sender.
    #[serde(default, alias = "peerId")]
    pub peer_id: Option<String>,
    /// Thread within the conversation.
    #[serde(default, alias = "threadId")]
    pub thread_id: Option<String>,
    /// Id of the event that this one answers, spelled as `id` is.
    #[serde(default, alias = "replyTo", alias = "replyToId", alias = "reply_to_id")]
    pub reply_to: Option<String>,
    /// The text.
    #[serde(default)]
    pub content: String,
    /// `text`, `image`, …
    #[serde(default, alias = "contentTypes")]
    pub content_types: Vec<String>,
    /// Stands for `content_types` of one.
    #[serde(default, alias = "contentType")]
    pub content_type: Option<String>,
    /// What came along.
    #[serde(default)]
    pub attachments: Vec<Attachment>,
    /// Everything else that the source said.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// Labels.
    #[serde(default)]
    pub tags: Vec<String>,
    /// How many dispatches lie between this event and the first of its causal chain.
    #[serde(default)]
    pub hops: u8,
    /// Replaced by what the gateway knows.
    #[serde(default, rename = "origin")]
    _origin: IgnoredAny,
    /// Replaced by the scope of the caller's token.
    #[serde(default, rename = "speaks_for", alias = "speaksFor")]
    _speaks_for: IgnoredAny,
    /// Replaced by the time of receipt.
    #[serde(default, rename = "received_at", alias = "receivedAt")]
    _received_at: IgnoredAny,
    /// Replaced by the caller's source.
    #[serde(default, rename = "source_adapter", alias = "sourceAdapter")]
    _source_adapter: IgnoredAny,
}

impl PostedEvent {
    /// The same with its flat fields where they belong.
    #[must_use]
    pub fn nested(mut self) -> Self {
        if self.from.id.is_empty() {
            self.from.id = self.sender_id.take().unwrap_or_default();
        }

        if self.peer.id.is_empty() {
            self.peer.kind = self.peer_kind.unwrap_or(self.peer.kind);
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

/// A sender as an object, or as the id alone.
fn sender<'de, D: Deserializer<'de>>(from: D) -> Result<Sender, D::Error> {
    let said = Value::deserialize(from)?;
    if let Value::String(id) = said {
        return Ok(Sender {
            id,
            ..Sender::default()
        });
    }
    Sender::deserialize(said).map_err(|fault| D::Error::custom(format!("from: {fault}")))
}
