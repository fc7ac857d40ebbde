//! Files of events. *Pure.* Source: `docs/design/wire.md` §1.1.

use serde::{Deserialize, Serialize};

use crate::model::time::UnixMillis;

/// A file of an event; its bytes stay in the object store or at the source.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// Id of the file at the source, the same for the same file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name of the attached file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// MIME type of the file.
    #[serde(default, alias = "mimeType", skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// Size of the file, in bytes.
    #[serde(default, alias = "sizeBytes", skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// `image`, `audio`, `video`, `document`, … (open set).
    #[serde(alias = "mediaType")]
    pub media_type: String,
    /// Length of a recording, in milliseconds.
    #[serde(default, alias = "durationMs", skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Words that are spoken in a recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
    /// Where the bytes are.
    #[serde(default, skip_serializing_if = "AttachmentState::is_remote")]
    pub state: AttachmentState,
    /// Largest size that was allowed where the file was refused as too large, in bytes.
    #[serde(default, alias = "maxBytes", skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Handle by which the source's adapter fetches the bytes: a file id or a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// Time from which `handle` is void.
    #[serde(default, alias = "expiresAt", skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UnixMillis>,
    /// URI at which the bytes are stored.
    #[serde(default, alias = "storageUri", skip_serializing_if = "Option::is_none")]
    pub storage_uri: Option<String>,
    /// SHA-256 of the bytes, in hex.
    #[serde(default, alias = "contentHash", skip_serializing_if = "Option::is_none")]
    pub content_hash: Option<String>,
}

/// Length of a SHA-256 in hex.
const HASH_DIGITS: usize = 64;
/// Scheme of the URIs of stored bytes.
const OBJECT_SCHEME: &str = "nexus-object:";

impl Attachment {
    /// Notes that the bytes are stored under `hash`, their SHA-256 in hex, and have `size` bytes.
    pub fn set_stored(&mut self, hash: &str, size: u64) {
        self.state = AttachmentState::Stored;
        self.storage_uri = Some(format!("{OBJECT_SCHEME}{hash}"));
        self.content_hash = Some(hash.to_owned());
        self.size_bytes = Some(size);
    }

    /// Notes that the file is larger than `max` bytes, and that its bytes are not fetched for that reason.
    pub fn refuse_too_large(&mut self, max: u64) {
        self.state = AttachmentState::Refused(RefusedAttachment::TooLarge);
        self.max_bytes = Some(max);
    }

    /// Removes the claim that the bytes are stored, which only their store's own service may make.
    pub fn forget_stored(&mut self) {
        match self.state {
            AttachmentState::Stored => self.state = AttachmentState::Remote,
            AttachmentState::Remote | AttachmentState::Refused(_) => {}
        }
        self.storage_uri.take_if(|uri| uri.starts_with(OBJECT_SCHEME));
        self.content_hash = None;
    }

    /// Returns the hash under which the bytes are stored; `None` if they are not.
    ///
    /// ```
    /// use shared::model::event::Attachment;
    ///
    /// let mut file = Attachment::default();
    /// assert_eq!(file.stored_hash(), None);
    /// let hash = "0".repeat(64);
    /// file.set_stored(&hash, 5);
    /// assert_eq!((file.stored_hash(), file.size_bytes), (Some(hash.as_str()), Some(5)));
    /// ```
    #[must_use]
    pub fn stored_hash(&self) -> Option<&str> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_hash = |hash: &&str| hash.len() == HASH_DIGITS && hash.bytes().all(is_digit);
        match self.state {
            AttachmentState::Stored => self.content_hash.as_deref().filter(is_hash),
            AttachmentState::Remote | AttachmentState::Refused(_) => None,
        }
    }
}

/// Where the bytes of an attachment are.
///
/// ```
/// use shared::model::event::{AttachmentState, RefusedAttachment};
///
/// let refused: AttachmentState = serde_json::from_str(r#"{"refused":"too_large"}"#)?;
/// assert_eq!(refused, AttachmentState::Refused(RefusedAttachment::TooLarge));
/// assert_eq!(serde_json::to_string(&AttachmentState::Stored)?, r#""stored""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachmentState {
    /// At the source alone.
    #[default]
    Remote,
    /// At `storage_uri`.
    Stored,
    /// At the source alone, and they will not be fetched.
    Refused(RefusedAttachment),
}

impl AttachmentState {
    /// Returns whether this is [`AttachmentState::Remote`].
    #[must_use]
    pub const fn is_remote(&self) -> bool {
        matches!(self, Self::Remote)
    }

    /// Returns the name of the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Remote => "remote",
            Self::Stored => "stored",
            Self::Refused(_) => "refused",
        }
    }
}

/// The reason why the bytes of an attachment are not fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedAttachment {
    /// The file is larger than the adapter or the platform allows.
    TooLarge,
    /// The object store is full.
    Full,
    /// The handle was void before the bytes were fetched.
    Expired,
    /// The source named an address that the adapter must not ask.
    ForbiddenAddress,
    /// The source did not hand out the bytes.
    Unavailable,
}

impl RefusedAttachment {
    /// Returns the name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooLarge => "too_large",
            Self::Full => "full",
            Self::Expired => "expired",
            Self::ForbiddenAddress => "forbidden_address",
            Self::Unavailable => "unavailable",
        }
    }
}
