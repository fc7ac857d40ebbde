//! An event as a caller of `/v1/events` writes it. *Pure.*
//!
//! The fields are those of [`Event`]. What a caller cannot say is read, so that a stored event can be posted again, and
//! replaced: `origin`, `speaks_for`, `received_at` and `source_adapter`. `id` and `reply_to` are texts here, for they become
//! ids only below the prefix of the caller's source ([`super::scope`]).

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use shared::model::event::{Attachment, Direction, Participant, Peer, Sender};
use shared::model::time::UnixMillis;

#[cfg(doc)]
use shared::model::event::Event;

/// See the module. The seed's camelCase spellings are read too.
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
    /// Who sent it.
    #[serde(default)]
    pub from: Sender,
    /// Who took part.
    #[serde(default)]
    pub participants: Vec<Participant>,
    /// The conversation.
    #[serde(default)]
    pub peer: Peer,
    /// Thread within the conversation.
    #[serde(default, alias = "threadId")]
    pub thread_id: Option<String>,
    /// Id of the event that this one answers, spelled as `id` is.
    #[serde(default, alias = "replyTo")]
    pub reply_to: Option<String>,
    /// The text.
    #[serde(default)]
    pub content: String,
    /// `text`, `image`, …
    #[serde(default, alias = "contentTypes")]
    pub content_types: Vec<String>,
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
