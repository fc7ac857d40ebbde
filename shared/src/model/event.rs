//! The Event: everything that happens, normalised. *Pure.*
//!
//! Source: seed 003 §1–3, §7 and `docs/design/wire.md` §1.1.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::origin::{EVERYBODY, Origin};
use super::time::UnixMillis;

/// Longest id of an event, in bytes.
pub const MAX_EVENT_ID_BYTES: usize = 512;

/// Deepest causal chain: an event with more hops is refused (`docs/design/wire.md`).
pub const MAX_HOPS: u8 = 8;

/// Most participants of an event.
pub const MAX_PARTICIPANTS: usize = 1_000;

/// Most attachments of an event.
pub const MAX_ATTACHMENTS: usize = 100;

/// Most tags of an event.
pub const MAX_TAGS: usize = 256;

/// Most content types of an event.
pub const MAX_CONTENT_TYPES: usize = 100;

/// Largest content of an event, in bytes; larger things are attachments. Metadata is bounded by the size of a message alone.
pub const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// Id prefixes of what our own services say (a delivery, a timer, an agent): no human wrote it.
pub const OWN_ADAPTERS: [&str; 3] = ["out", "timer", "agent"];

/// Why a string is not an event id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseEventIdError {
    /// Nothing stands in it.
    #[error("event id is empty")]
    Empty,
    /// More than [`MAX_EVENT_ID_BYTES`].
    #[error("event id has {0} bytes, at most {MAX_EVENT_ID_BYTES} are allowed")]
    TooLong(usize),
    /// No `{adapter}:` in front.
    #[error("event id `{0}` is not of the form `adapter:source_id`")]
    NoAdapter(String),
    /// A control character, NUL among them.
    #[error("event id holds the control character U+{0:04X}")]
    Control(u32),
}

/// The id of an event: `{adapter}:{source_id}`, the same for the same source item for ever.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EventId(String);

impl EventId {
    /// Checks `text`: non-empty, at most [`MAX_EVENT_ID_BYTES`], with an adapter before the first colon,
    /// without control characters.
    ///
    /// # Errors
    /// [`ParseEventIdError`] says which of these does not hold.
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

    /// The whole id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The adapter before the first colon.
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

/// Which way the item went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Came to us.
    #[default]
    Received,
    /// Went out through one of our channels.
    Sent,
    /// Seen, addressed to nobody here.
    Observed,
    /// A thing came to be (file, calendar entry).
    Created,
    /// An item that was known changed at its source.
    Updated,
    /// An item that was known is gone at its source.
    Deleted,
}

impl Direction {
    /// The word on the wire.
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

/// Who sent it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sender {
    /// The sender's id at the source.
    pub id: String,
    /// The name shown to people.
    #[serde(default, alias = "displayName", skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Roles at the source (guild roles, e.g.).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
}

/// A participant's part in an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParticipantRole {
    /// Wrote it.
    Sender,
    /// It was addressed to them.
    Recipient,
    /// Carbon copy.
    Cc,
    /// Saw it.
    Observer,
}

/// Somebody who took part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Participant {
    /// Id at the source.
    pub id: String,
    /// Their part.
    pub role: ParticipantRole,
    /// The name shown to people.
    #[serde(default, alias = "displayName", skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// What sort of conversation it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerKind {
    /// Between two.
    #[default]
    Dm,
    /// Among several.
    Group,
    /// A room anybody may enter.
    Channel,
}

impl PeerKind {
    /// The word on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dm => "dm",
            Self::Group => "group",
            Self::Channel => "channel",
        }
    }
}

/// The conversation an event belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// What sort.
    pub kind: PeerKind,
    /// Its id at the source.
    pub id: String,
    /// The conversation it hangs under.
    #[serde(default, alias = "parentId", skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// Discord's guild.
    #[serde(default, alias = "guildId", skip_serializing_if = "Option::is_none")]
    pub guild_id: Option<String>,
    /// Slack's team.
    #[serde(default, alias = "teamId", skip_serializing_if = "Option::is_none")]
    pub team_id: Option<String>,
}

/// Something that came along; its bytes stay in the object store or at the source.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// Name of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// MIME type.
    #[serde(default, alias = "mimeType", skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Size in bytes.
    #[serde(default, alias = "sizeBytes", skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// `image`, `audio`, `video`, `document`, … (open set).
    #[serde(alias = "mediaType")]
    pub media_type: String,
    /// Where the bytes are.
    #[serde(default, alias = "storageUri", skip_serializing_if = "Option::is_none")]
    pub storage_uri: Option<String>,
    /// SHA-256 of the bytes, in hex.
    #[serde(default, alias = "contentHash", skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
}

/// Everything that happens, normalised: a chat message, a mail, a webhook, a timer, a file, another agent.
///
/// Field names on the wire are these; the seed's camelCase spellings are read too.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Deterministic id.
    pub id: EventId,
    /// When it happened, at the source.
    pub timestamp: UnixMillis,
    /// When our adapter received it; of what came past the adapters, when the server stored it.
    #[serde(default, alias = "receivedAt")]
    pub received_at: UnixMillis,
    /// `webhook`, `webchat`, `telegram`, … (open set).
    pub channel: String,
    /// The adapter that normalised it.
    #[serde(default, alias = "sourceAdapter")]
    pub source_adapter: String,
    /// The item's id at the source.
    #[serde(default, alias = "sourceId")]
    pub source_id: String,
    /// Which of our accounts on the channel; absent = the default one.
    #[serde(default, alias = "accountId", skip_serializing_if = "Option::is_none")]
    pub account_id: Option<String>,
    /// Which way it went.
    #[serde(default)]
    pub direction: Direction,
    /// Who sent it.
    #[serde(default)]
    pub from: Sender,
    /// Who took part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub participants: Vec<Participant>,
    /// The conversation.
    #[serde(default)]
    pub peer: Peer,
    /// Thread within the conversation.
    #[serde(default, alias = "threadId", skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Id of the event that this one answers.
    #[serde(default, alias = "replyTo", skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// The text.
    #[serde(default)]
    pub content: String,
    /// `text`, `image`, …
    #[serde(default, alias = "contentTypes", skip_serializing_if = "Vec::is_empty")]
    pub content_types: Vec<String>,
    /// What came along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Everything else that the source said.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// How many dispatches lie between this event and the first of its causal chain.
    #[serde(default)]
    pub hops: u8,
    /// Who brought it. adapter-svc and the services set it; what a caller says here is replaced.
    #[serde(default, skip_serializing_if = "Origin::is_open")]
    pub origin: Origin,
    /// Ids of the persons (`identities.yaml`) whom its token, webhook source or edge may speak for, as configured;
    /// [`EVERYBODY`] stands for all. Set like `origin`.
    #[serde(default, alias = "speaksFor", skip_serializing_if = "Vec::is_empty")]
    pub speaks_for: Vec<String>,
}

/// How long before it was received an event is believed to have happened, milliseconds: one hour.
pub const MOST_BACKDATED_MS: i64 = 3_600_000;

/// The account's name where an event, a context or a target names none.
pub const DEFAULT_ACCOUNT: &str = "default";

impl Event {
    /// A received event of `id` on `channel` in the dm with `peer`, all else empty.
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
            direction: Direction::Received,
            from: Sender::default(),
            participants: Vec::new(),
            peer: Peer {
                kind: PeerKind::Dm,
                id: peer.to_owned(),
                ..Peer::default()
            },
            thread_id: None,
            reply_to: None,
            content: String::new(),
            content_types: vec!["text".to_owned()],
            attachments: Vec::new(),
            metadata: Map::new(),
            tags: Vec::new(),
            hops: 0,
            origin: Origin::Open,
            speaks_for: Vec::new(),
            id,
        }
    }

    /// Whether it may resolve to the person `id`, where its origin resolves only persons that are spoken for.
    #[must_use]
    pub fn may_speak_for(&self, id: &str) -> bool {
        self.speaks_for.iter().any(|named| named == id || named == EVERYBODY)
    }

    /// When it happened, as far as its source is believed: at most [`MOST_BACKDATED_MS`] before it was received, and never
    /// after that. The time in the ids of what comes of it: a source's clock must not place those beyond every window in
    /// which repetitions are looked for.
    #[must_use]
    pub fn believed_at(&self) -> UnixMillis {
        let oldest = self.received_at.plus(-MOST_BACKDATED_MS);
        self.timestamp.max(oldest).min(self.received_at)
    }

    /// The account's name, [`DEFAULT_ACCOUNT`] where none is given.
    #[must_use]
    pub fn account(&self) -> &str {
        self.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT)
    }

    /// What keeps order: events of one conversation are handled in the order of the stream.
    #[must_use]
    pub fn conversation(&self) -> (&str, &str, &str) {
        (&self.channel, self.account(), &self.peer.id)
    }
}
