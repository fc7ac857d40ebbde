//! Events: everything that happens, in normalized form. *Pure.*
//!
//! Source: seed 003 §1–3, §7 and `docs/design/wire.md` §1.1.

mod attachment;
mod former_peer;
mod reference;
mod withheld;

pub use self::attachment::{Attachment, AttachmentState, RefusedAttachment};
pub use self::former_peer::{MIGRATED_FROM, MIGRATED_TO};
pub use self::reference::{EventMention, EventQuote, MERGED_TEXTS, MentionForm, PlatformIds};
pub use self::withheld::{BACKFILLED, FROM_BOT, UNLISTED, UNPAIRED, WITHHELD_TAGS};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::origin::{EVERYBODY, EventOrigin};
use super::time::UnixMillis;
use crate::wire::unknown::{UnknownFields, keeps_unknown};

/// Maximum length of an event id, in bytes.
pub const MAX_EVENT_ID_BYTES: usize = 512;

/// Maximum length of a causal chain: an event with more hops is refused (`docs/design/wire.md`).
pub const MAX_HOPS: u8 = 8;

/// Maximum number of participants of an event.
pub const MAX_PARTICIPANTS: usize = 1_000;

/// Maximum number of attachments of an event.
pub const MAX_ATTACHMENTS: usize = 100;

/// Maximum number of tags of an event.
pub const MAX_TAGS: usize = 256;

/// Maximum number of content types of an event.
pub const MAX_CONTENT_TYPES: usize = 100;

/// Maximum size of an event's content, in bytes; larger data must be an attachment. Metadata is limited only by the
/// maximum message size.
pub const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// The reason why a string is not an event id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseEventIdError {
    /// The string is empty.
    #[error("event id is empty")]
    Empty,
    /// The string is longer than [`MAX_EVENT_ID_BYTES`].
    #[error("event id has {0} bytes; at most {MAX_EVENT_ID_BYTES} are allowed")]
    TooLong(usize),
    /// The string does not start with `{adapter}:`.
    #[error("event id `{0}` is not of the form `adapter:source_id`")]
    NoAdapter(String),
    /// The string contains a control character, such as NUL.
    #[error("event id contains the control character U+{0:04X}")]
    Control(u32),
}

/// The id of an event: `{adapter}:{source_id}`. The same source item always has the same id.
///
/// ```
/// use shared::model::event::EventId;
///
/// let id = EventId::parse("telegram:bot/4711/9")?;
/// assert_eq!(id.adapter(), "telegram");
/// assert!(EventId::parse("no colon").is_err());
/// # Ok::<(), shared::model::event::ParseEventIdError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EventId(String);

impl EventId {
    /// Parses `text`. An id has 1 to [`MAX_EVENT_ID_BYTES`] bytes, an adapter before the first colon, a source id
    /// after it, and no control characters.
    ///
    /// # Errors
    /// Returns [`ParseEventIdError`] with the condition that `text` does not meet.
    pub fn parse(text: impl Into<String>) -> Result<Self, ParseEventIdError> {
        let text = text.into();
        if text.is_empty() {
            return Err(ParseEventIdError::Empty);
        }

        if text.len() > MAX_EVENT_ID_BYTES {
            return Err(ParseEventIdError::TooLong(text.len()));
        }

        if let Some(control) = text.chars().find(|c| c.is_control()) {
            return Err(ParseEventIdError::Control(u32::from(control)));
        }

        match text.split_once(':') {
            Some((adapter, source)) if !adapter.is_empty() && !source.is_empty() => Ok(Self(text)),
            Some(_) | None => Err(ParseEventIdError::NoAdapter(text)),
        }
    }

    /// Returns the whole id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the adapter: the part before the first colon.
    #[must_use]
    pub fn adapter(&self) -> &str {
        self.0.split_once(':').map_or("", |(adapter, _)| adapter)
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for EventId {
    type Error = ParseEventIdError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(text)
    }
}

impl From<EventId> for String {
    fn from(id: EventId) -> Self {
        id.0
    }
}

/// The direction of an item, or the kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventDirection {
    /// The item was sent to this installation.
    #[default]
    Received,
    /// The item was sent through one of the installation's channels.
    Sent,
    /// The item was seen, but not addressed to this installation.
    Observed,
    /// An item was created (a file, a calendar entry).
    Created,
    /// A known item changed at its source.
    Updated,
    /// A known item was deleted at its source.
    Deleted,
}

impl EventDirection {
    /// Returns the name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Sent => "sent",
            Self::Observed => "observed",
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
        }
    }
}

/// The sender of an event.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventSender {
    /// Id of the sender at the source.
    pub id: String,
    /// Name that is shown to people.
    #[serde(default, alias = "displayName", skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Roles of the sender at the source (such as guild roles).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
}

/// The role of a participant in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParticipantRole {
    /// The participant wrote the message.
    Sender,
    /// The message was addressed to the participant.
    Recipient,
    /// The participant received a carbon copy.
    Cc,
    /// The participant saw the message.
    Observer,
}

/// A party that took part in an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventParticipant {
    /// Id of the participant at the source.
    pub id: String,
    /// Role of the participant in the event.
    pub role: ParticipantRole,
    /// Name that is shown to people.
    #[serde(default, alias = "displayName", skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// The kind of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerKind {
    /// A direct conversation of two parties.
    #[default]
    Dm,
    /// A conversation of several parties.
    Group,
    /// A room that anyone may enter.
    Channel,
}

impl PeerKind {
    /// Returns the name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dm => "dm",
            Self::Group => "group",
            Self::Channel => "channel",
        }
    }
}

/// The conversation to which an event belongs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventPeer {
    /// Kind of the conversation.
    pub kind: PeerKind,
    /// Id of the conversation at the source.
    pub id: String,
    /// Id of the conversation that contains it.
    #[serde(default, alias = "parentId", skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// Id of the Discord guild.
    #[serde(default, alias = "guildId", skip_serializing_if = "Option::is_none")]
    pub guild_id: Option<String>,
    /// Id of the Slack team.
    #[serde(default, alias = "teamId", skip_serializing_if = "Option::is_none")]
    pub team_id: Option<String>,
}

/// Everything that happens, in normalized form: a chat message, a mail, a webhook, a timer, a file, another agent.
///
/// The wire uses the field names below; the seed's camelCase names are read too.
///
/// ```
/// use shared::model::event::Event;
/// use shared::wire::envelope::{PayloadFormat, decode, encode};
///
/// let event: Event = serde_json::from_value(serde_json::json!({
///     "id": "http:ci/42", "timestamp": 1_795_600_000_000_i64, "received_at": 1_795_600_000_000_i64,
///     "source_adapter": "http", "source_id": "ci/42", "channel": "http", "direction": "received",
///     "peer": {"kind": "dm", "id": "ci"}, "from": {"id": "ci"},
///     "content": "build 42 failed", "content_types": ["text"], "hops": 0,
/// }))?;
/// let (payload, headers) = encode(&event, PayloadFormat::Cbor);
/// assert_eq!(decode::<Event>(&headers, &payload)?, event);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Event {
    /// Deterministic id of the event.
    pub id: EventId,
    /// Time the event happened at its source.
    pub timestamp: UnixMillis,
    /// Time the adapter received the event; for an event that no adapter received, the time the server stored it.
    #[serde(default, alias = "receivedAt")]
    pub received_at: UnixMillis,
    /// Channel name: `webhook`, `webchat`, `telegram`, … (open set).
    pub channel: String,
    /// Name of the adapter that normalized the event.
    #[serde(default, alias = "sourceAdapter")]
    pub source_adapter: String,
    /// Id of the item at the source.
    #[serde(default, alias = "sourceId")]
    pub source_id: String,
    /// Name of the installation's account on the channel; absent = the default one.
    #[serde(default, alias = "accountId", skip_serializing_if = "Option::is_none")]
    pub account_id: Option<String>,
    /// Direction of the item, or kind of change.
    #[serde(default)]
    pub direction: EventDirection,
    /// Sender of the event.
    #[serde(default)]
    pub from: EventSender,
    /// Parties that took part in the event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub participants: Vec<EventParticipant>,
    /// Conversation to which the event belongs.
    #[serde(default)]
    pub peer: EventPeer,
    /// Thread within the conversation.
    #[serde(default, alias = "threadId", skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Id of the event that this one answers.
    #[serde(default, alias = "replyTo", skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Id of the event that this one is about: the message that a reaction, an edit, a deletion or a press of a button
    /// changes or answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Time the item was edited at its source. Sources set it for every edit, so that an edit back to an earlier text
    /// is another message.
    #[serde(default, alias = "editedAt", skip_serializing_if = "Option::is_none")]
    pub edited_at: Option<UnixMillis>,
    /// How the event addresses the installation's account; absent = its source does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mention: Option<EventMention>,
    /// Part of another message that this one quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<EventQuote>,
    /// Text of the event.
    #[serde(default)]
    pub content: String,
    /// Content types: `text`, `image`, `voice`, `video`, `sticker`, `location`, `contact`, `poll`, `reaction`, `press`,
    /// `gap`, … (open set).
    #[serde(default, alias = "contentTypes", skip_serializing_if = "Vec::is_empty")]
    pub content_types: Vec<String>,
    /// Files attached to the event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// All other data from the source.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Labels of the event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Number of dispatches between this event and the first of its causal chain.
    #[serde(default)]
    pub hops: u8,
    /// Party that brought the event. adapter-svc and the services set it and replace a caller's value.
    #[serde(default, skip_serializing_if = "EventOrigin::is_open")]
    pub origin: EventOrigin,
    /// Ids of the persons (`identities.yaml`) for whom its token, webhook source or edge may speak, as configured;
    /// [`EVERYBODY`] = all persons. Set like `origin`.
    #[serde(default, alias = "speaksFor", skip_serializing_if = "Vec::is_empty")]
    pub speaks_for: Vec<String>,
    /// Fields that a later release has set.
    #[serde(skip)]
    pub unknown: UnknownFields,
}

keeps_unknown!(Event);

/// Maximum time between an event's own timestamp and its reception, in milliseconds: one hour.
pub const MOST_BACKDATED_MS: i64 = 3_600_000;

/// Name of the account if an event, a context or a target names none.
pub const DEFAULT_ACCOUNT: &str = "default";

impl Event {
    /// Returns a received event with this `id` on `channel` in the direct conversation with `peer`; other fields are
    /// empty.
    #[must_use]
    pub fn new(id: EventId, channel: &str, peer: &str, timestamp: UnixMillis) -> Self {
        let (adapter, source) = id.as_str().split_once(':').unwrap_or((channel, id.as_str()));
        Self {
            source_adapter: adapter.to_owned(),
            source_id: source.to_owned(),
            timestamp,
            received_at: timestamp,
            channel: channel.to_owned(),
            account_id: None,
            direction: EventDirection::Received,
            from: EventSender::default(),
            participants: Vec::new(),
            peer: EventPeer {
                kind: PeerKind::Dm,
                id: peer.to_owned(),
                ..EventPeer::default()
            },
            thread_id: None,
            reply_to: None,
            target: None,
            edited_at: None,
            mention: None,
            quote: None,
            content: String::new(),
            content_types: vec!["text".to_owned()],
            attachments: Vec::new(),
            metadata: Map::new(),
            tags: Vec::new(),
            hops: 0,
            origin: EventOrigin::Open,
            speaks_for: Vec::new(),
            unknown: UnknownFields::default(),
            id,
        }
    }

    /// Returns whether the event may resolve to the person `id` if its origin resolves only persons it may speak for.
    #[must_use]
    pub fn may_speak_for(&self, id: &str) -> bool {
        self.speaks_for.iter().any(|named| named == id || named == EVERYBODY)
    }

    /// Returns the event's time as far as its source is trusted: at most [`MOST_BACKDATED_MS`] before it was
    /// received, and never later than that. Ids of an event's consequences contain this time, so a source's clock
    /// must not move them outside the windows in which duplicates are detected.
    #[must_use]
    pub fn believed_at(&self) -> UnixMillis {
        let oldest = self.received_at.plus(-MOST_BACKDATED_MS);
        self.timestamp.max(oldest).min(self.received_at)
    }

    /// Returns the account's name, or [`DEFAULT_ACCOUNT`] if the event names none.
    #[must_use]
    pub fn account(&self) -> &str {
        self.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT)
    }

    /// Returns the key of the event's order: events of one conversation are handled in stream order.
    #[must_use]
    pub fn conversation(&self) -> (&str, &str, &str) {
        (&self.channel, self.account(), &self.peer.id)
    }
}
