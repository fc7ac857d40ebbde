//! Dispatches: the order of one fired hook to one session. *Pure.*
//!
//! Source: seed 001 §3–4; `docs/design/wire.md` §1.5.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use ulid::Ulid;

use super::event::{Attachment, EventId};
use super::origin::EventOrigin;
use super::permission::PermissionSet;
use super::session::{QueueMode, SessionRef};
use super::time::UnixMillis;
use crate::wire::unknown::{UnknownFields, keeps_unknown};

/// The destination of a reply. Written in camelCase on the wire, as in the seed; snake_case is read too.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeliveryContext {
    /// Channel that delivers the reply.
    pub channel: String,
    /// Name of the installation's account on the channel.
    #[serde(default, alias = "account_id", skip_serializing_if = "Option::is_none")]
    pub account_id: Option<String>,
    /// Id of the conversation on the channel.
    #[serde(default, alias = "peer_id", skip_serializing_if = "Option::is_none")]
    pub peer_id: Option<String>,
    /// Thread within the conversation.
    #[serde(default, alias = "thread_id", skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Id of the event to which this is a reply; the channel translates it to the platform's id.
    #[serde(default, alias = "reply_to_id", skip_serializing_if = "Option::is_none")]
    pub reply_to_id: Option<String>,
}

/// The message that an agent receives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DispatchMessage {
    /// Id of the original sender.
    pub from: String,
    /// Channel of the message; absent = the channel in the event's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Text of the event's content.
    pub content: String,
    /// First content type of the event, or `text`.
    pub content_type: String,
    /// Metadata of the event.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Attachments of the event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Party that brought the event.
    #[serde(default, skip_serializing_if = "EventOrigin::is_open")]
    pub origin: EventOrigin,
    /// Whether the origin proves that `from` wrote the message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proven: bool,
    /// Id of the person who wrote the message, as far as the origin proves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
}

/// The additions of a hook to the agent's context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DispatchContext {
    /// Text appended to the persona's system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Data that the hook extracted from the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extracted: Option<Map<String, Value>>,
    /// Whether the session's history is included.
    pub include_thread_history: bool,
}

/// The cause of a dispatch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DispatchCause {
    /// Id of the event that caused it.
    pub event: EventId,
    /// Number of hops of that event.
    pub hops: u8,
}

/// The order of one fired hook to one session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "camelCase", deny_unknown_fields)]
pub struct Dispatch {
    /// Id of the dispatch; see [`dispatch_id`].
    pub id: Ulid,
    /// Id of the event.
    pub event_id: EventId,
    /// Sequence of the event in `EVENTS`.
    pub event_seq: u64,
    /// Id of the hook that fired.
    pub hook_id: String,
    /// Priority of the hook; a higher priority runs first if several dispatches wait.
    pub priority: i32,
    /// Time the hook was evaluated.
    pub timestamp: UnixMillis,
    /// Session that runs the dispatch.
    pub target: SessionRef,
    /// Queue mode for a busy session; absent = as the session's settings say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_mode: Option<QueueMode>,
    /// Message for the agent.
    pub message: DispatchMessage,
    /// Permissions of the agent.
    pub permissions: PermissionSet,
    /// The hook's additions to the agent's context.
    pub context: DispatchContext,
    /// Destination of the reply.
    pub delivery_context: DeliveryContext,
    /// Cause of the dispatch.
    pub causation: DispatchCause,
    /// Fields that a later release has set.
    #[serde(skip)]
    pub unknown: UnknownFields,
}

keeps_unknown!(Dispatch);

/// Returns the id of the dispatch that `hook` makes of `event`: a ULID with the event's time and, as its randomness,
/// the first 80 bits of SHA-256 over the event id, NUL and the hook id. The same pair always has the same id.
#[must_use]
pub fn dispatch_id(event: &EventId, timestamp: UnixMillis, hook: &str) -> Ulid {
    derived_ulid(timestamp, &[event.as_str(), hook])
}

/// Returns a ULID of `at` and of `parts`, joined by NUL and hashed, for ids that must be the same when computed
/// again.
///
/// ```
/// use shared::model::dispatch::derived_ulid;
/// use shared::model::time::UnixMillis;
///
/// let at = UnixMillis(1_795_600_000_000);
/// assert_eq!(derived_ulid(at, &["http:ci/42", "notify"]), derived_ulid(at, &["http:ci/42", "notify"]));
/// assert_ne!(derived_ulid(at, &["http:ci/42", "notify"]), derived_ulid(at, &["http:ci/43", "notify"]));
/// ```
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
