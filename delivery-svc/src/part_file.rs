//! A file of a reply, as a part of its own. *Pure.*

use shared::model::event::Attachment;

/// Name of a file that has none.
const NAMELESS: &str = "file";

/// A file that is a part: its bytes are in the object store, under their hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartFile {
    /// SHA-256 of the bytes, in hex.
    pub hash: String,
    /// Size of the bytes.
    pub size: u64,
    /// Name of the file.
    pub name: String,
    /// MIME type by the content.
    pub mime_type: String,
    /// `image`, `audio`, `voice`, `video` or `document`.
    pub media_type: String,
}

impl PartFile {
    /// Returns the file of `attachment`; `None` if its bytes are not stored.
    #[must_use]
    pub fn of_attachment(attachment: &Attachment) -> Option<Self> {
        let text = |value: &Option<String>, other: &str| value.clone().unwrap_or_else(|| other.to_owned());
        Some(Self {
            hash: attachment.stored_hash()?.to_owned(),
            size: attachment.size_bytes.unwrap_or(0),
            name: text(&attachment.filename, NAMELESS),
            mime_type: text(&attachment.mime_type, "application/octet-stream"),
            media_type: attachment.media_type.clone(),
        })
    }

    /// Returns whether `attachment` is this file.
    #[must_use]
    pub fn is_of(&self, attachment: &Attachment) -> bool {
        attachment.stored_hash() == Some(self.hash.as_str())
    }
}
