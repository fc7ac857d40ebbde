//! Reasons why a message cannot be decoded. *Pure.*

/// The reason why a message cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not CBOR or JSON of this type.
    #[error("{schema}: malformed {format}: {detail}")]
    Malformed {
        /// Name of the expected type.
        schema: &'static str,
        /// Format of the payload: `cbor` or `json`.
        format: &'static str,
        /// Error with its place in the payload.
        detail: String,
    },
    /// `Nexus-Schema` names another type.
    #[error("{expected}: the message is of type `{found}`")]
    OtherSchema {
        /// Name of the expected type.
        expected: &'static str,
        /// Value of the message's `Nexus-Schema`.
        found: String,
    },
    /// The version is newer than this release.
    #[error("{schema}: version {found} is not supported; the newest supported version is {known}")]
    NewerSchema {
        /// Name of the type.
        schema: &'static str,
        /// Version of the message.
        found: u16,
        /// Newest version that this release reads.
        known: u16,
    },
    /// The message has a part that only a later release knows, and that cannot be read past.
    #[error("{schema}: `{part}` is not known; a later release wrote it")]
    NewerPart {
        /// Name of the type.
        schema: &'static str,
        /// Name of the part, such as the kind of a ledger entry.
        part: String,
    },
    /// The version is too old to be read.
    #[error("{schema}: version {found} is no longer supported")]
    TooOld {
        /// Name of the type.
        schema: &'static str,
        /// Version of the message.
        found: u16,
    },
    /// `Content-Type` is neither CBOR nor JSON.
    #[error("{schema}: content type `{found}` is neither application/cbor nor application/json")]
    ContentType {
        /// Name of the expected type.
        schema: &'static str,
        /// Value of the message's `Content-Type`.
        found: String,
    },
    /// The payload is larger than `WireMessage::MAX_BYTES`.
    #[error("{schema}: {size} bytes; at most {max} are allowed")]
    Oversize {
        /// Name of the expected type.
        schema: &'static str,
        /// Maximum size, in bytes.
        max: usize,
        /// Size of the payload, in bytes.
        size: usize,
    },
    /// The payload is well formed, but `WireMessage::check` refused it.
    #[error("{schema}: {detail}")]
    Invalid {
        /// Name of the type.
        schema: &'static str,
        /// Field and error, for people.
        detail: String,
    },
}

impl DecodeError {
    /// Returns the name of the reason in a dead letter.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "malformed",
            Self::OtherSchema { .. } => "other_schema",
            Self::NewerSchema { .. } => "newer_schema",
            Self::NewerPart { .. } => "newer_part",
            Self::TooOld { .. } => "too_old",
            Self::ContentType { .. } => "content_type",
            Self::Oversize { .. } => "oversize",
            Self::Invalid { .. } => "invalid",
        }
    }

    /// Returns whether a later release can read the message.
    #[must_use]
    pub const fn is_newer(&self) -> bool {
        match self {
            Self::NewerSchema { .. } | Self::NewerPart { .. } => true,
            Self::Malformed { .. }
            | Self::OtherSchema { .. }
            | Self::TooOld { .. }
            | Self::ContentType { .. }
            | Self::Oversize { .. }
            | Self::Invalid { .. } => false,
        }
    }
}
