//! Files of messages → attachments. *Pure.*
//!
//! The bytes stay at Slack: the handle is the file's id, with which its current address can be asked for (`files.info`).
//! A file may be announced before it can be read. Source: <https://docs.slack.dev/reference/objects/file-object>.

use serde::Deserialize;
use shared::model::event::{Attachment, AttachmentState, RefusedAttachment};

/// Subtype of a recording that was made in Slack.
const RECORDING: &str = "slack_audio";

/// A file, as the vendor describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SlackFile {
    /// Id of the file.
    pub id: Option<String>,
    /// Name of the file.
    pub name: Option<String>,
    /// MIME type, as Slack found it.
    pub mimetype: Option<String>,
    /// Size of the file, in bytes.
    pub size: Option<u64>,
    /// `hosted`, `external`, `snippet`, `tombstone` of a deleted file, `hidden_by_limit`, …
    pub mode: Option<String>,
    /// Kind of a recording.
    pub subtype: Option<String>,
    /// Length of a recording, in milliseconds.
    pub duration_ms: Option<u64>,
}

/// Returns the content type and the attachment of `file`.
#[must_use]
pub fn attachment_of(file: &SlackFile) -> (&'static str, Attachment) {
    let mime_type = file.mimetype.as_deref().unwrap_or_default();
    let (kind, media_type) = match mime_type.split('/').next() {
        Some("image") => ("image", "image"),
        Some("audio") if file.subtype.as_deref() == Some(RECORDING) => ("voice", "audio"),
        Some("audio") => ("audio", "audio"),
        Some("video") => ("video", "video"),
        Some(_) | None => ("document", "document"),
    };

    let is_gone = matches!(file.mode.as_deref(), Some("tombstone" | "hidden_by_limit"));
    let attachment = Attachment {
        id: file.id.clone(),
        filename: file.name.clone(),
        mime_type: file.mimetype.clone(),
        size_bytes: file.size,
        media_type: media_type.to_owned(),
        duration_ms: file.duration_ms,
        state: if is_gone {
            AttachmentState::Refused(RefusedAttachment::Unavailable)
        } else {
            AttachmentState::Remote
        },
        handle: file.id.clone(),
        ..Attachment::default()
    };
    (kind, attachment)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn files_are_of_their_kind_and_named_by_their_id() {
        for (keys, kind, state) in [
            (json!({"mimetype": "image/png"}), "image", AttachmentState::Remote),
            (
                json!({"mimetype": "audio/mp4", "subtype": "slack_audio"}),
                "voice",
                AttachmentState::Remote,
            ),
            (json!({"mimetype": "audio/mpeg"}), "audio", AttachmentState::Remote),
            (
                json!({"mimetype": "video/mp4", "subtype": "slack_video"}),
                "video",
                AttachmentState::Remote,
            ),
            (
                json!({"mimetype": "text/plain", "mode": "snippet"}),
                "document",
                AttachmentState::Remote,
            ),
            (json!({}), "document", AttachmentState::Remote),
            (
                json!({"mode": "tombstone"}),
                "document",
                AttachmentState::Refused(RefusedAttachment::Unavailable),
            ),
        ] {
            let mut file = keys;
            file["id"] = json!("F1");
            file["size"] = json!(7);
            let (found, attachment) = attachment_of(&serde_json::from_value(file.clone()).expect("a file"));
            assert_eq!((found, attachment.state), (kind, state), "{file}");
            assert_eq!(
                (attachment.handle.as_deref(), attachment.size_bytes),
                (Some("F1"), Some(7))
            );
        }
    }
}
