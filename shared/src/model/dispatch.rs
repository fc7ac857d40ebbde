//! The Dispatch: one fired hook's order to one session. *Pure.*
//!
//! Source: seed 001 §3–4; `docs/design/wire.md` §1.5.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use ulid::Ulid;

use super::event::{Attachment, EventId};
use super::origin::Origin;
use super::permission::PermissionSet;
use super::session::{QueueMode, SessionRef};
use super::time::UnixMillis;

/// Where an answer goes. camelCase on the wire, as in the seed; snake_case is read too.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeliveryContext {
    /// The channel that delivers it.
    pub channel: String,
    /// Which of our accounts there.
    #[serde(default, alias = "account_id", skip_serializing_if = "Option::is_none")]
    pub account_id: Option<String>,
    /// The conversation.
    #[serde(default, alias = "peer_id", skip_serializing_if = "Option::is_none")]
    pub peer_id: Option<String>,
    /// Thread within it.
    #[serde(default, alias = "thread_id", skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Id of the event answered; the channel translates it to the platform's id.
    #[serde(default, alias = "reply_to_id", skip_serializing_if = "Option::is_none")]
    pub reply_to_id: Option<String>,
}

/// The message that the agent is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Message {
    /// The original sender's id.
    pub from: String,
    /// The channel on which it was said; absent = that of the event's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The event's content.
    pub content: String,
    /// The first of the event's content types, or `text`.
    pub content_type: String,
    /// The event's metadata.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// The event's attachments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Who brought the event.
    #[serde(default, skip_serializing_if = "Origin::is_open")]
    pub origin: Origin,
    /// Whether the origin proves that `from` wrote it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proven: bool,
    /// Id of the person who wrote it, as far as the origin proves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
}

/// What the hook adds to the agent's context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DispatchContext {
    /// Appended to the persona's system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Data that the hook read out of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extracted: Option<Map<String, Value>>,
    /// Whether the session's history goes along.
    pub include_thread_history: bool,
}

/// What a dispatch came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Causation {
    /// The event.
    pub event: EventId,
    /// The event's hops.
    pub hops: u8,
}

/// One fired hook's order to one session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dispatch {
    /// See [`dispatch_id`].
    pub id: Ulid,
    /// The event.
    pub event_id: EventId,
    /// The event's sequence in `EVENTS`.
    pub event_seq: u64,
    /// The hook that fired.
    pub hook_id: String,
    /// The hook's priority; higher first where several wait.
    pub priority: i32,
    /// When the hook was evaluated.
    pub timestamp: UnixMillis,
    /// Which session runs it.
    pub target: SessionRef,
    /// How it meets a busy session; absent = as the session's settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_mode: Option<QueueMode>,
    /// What the agent is given.
    pub message: Message,
    /// What the agent may do.
    pub permissions: PermissionSet,
    /// What the hook adds.
    pub context: DispatchContext,
    /// Where the answer goes.
    pub delivery_context: DeliveryContext,
    /// What it came from.
    pub causation: Causation,
}

/// The id of the dispatch that `hook` makes of `event`: a ULID of the event's time and, as its randomness,
/// the first 80 bits of SHA-256 over event id, NUL and hook id. The same pair has the same id for ever.
#[must_use]
pub fn dispatch_id(event: &EventId, timestamp: UnixMillis, hook: &str) -> Ulid {
    derived_ulid(timestamp, &[event.as_str(), hook])
}

/// A ULID of `at` and of `parts`, joined by NUL and hashed: for ids that must come out the same again.
#[must_use]
pub fn derived_ulid(at: UnixMillis, parts: &[&str]) -> Ulid {
    let mut hash = Sha256::new();
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            hash.update([0]);
        }
        hash.update(part.as_bytes());
    }

    let digest = hash.finalize();
    let mut random = [0_u8; 16];
    random[6..].copy_from_slice(&digest[..10]);
    let millis = u64::try_from(at.0).unwrap_or(0);

    Ulid::from_parts(millis, u128::from_be_bytes(random))
}
