//! Files of messages → attachments. *Pure.*
//!
//! The bytes stay at Telegram until they are fetched: the handle is the `file_id`, which is valid for this bot alone and
//! does not expire. Source: <https://core.telegram.org/bots/api#getfile>.

use shared::model::event::{Attachment, AttachmentState, RefusedAttachment};

use super::file::FileFields;
use super::update::Message;

/// Maximum size of a file that the vendor hands out to bots, in bytes.
pub const MAX_FETCHED_BYTES: u64 = 20 * 1024 * 1024;

/// Returns the files of `message` with the content type of each.
#[must_use]
pub fn attachments_of(message: &Message) -> Vec<(&'static str, Attachment)> {
    let mut found = Vec::new();

    // The largest size; the others are copies of it.
    let photo = message.photo.as_deref().unwrap_or_default();
    if let Some(size) = photo.iter().max_by_key(|size| size.width.saturating_mul(size.height)) {
        found.push(("image", attachment(&size.file, "image", Some("image/jpeg"))));
    }

    if let Some(file) = &message.voice {
        found.push(("voice", attachment(file, "audio", Some("audio/ogg"))));
    }
    if let Some(file) = &message.audio {
        found.push(("audio", attachment(file, "audio", None)));
    }
    if let Some(file) = &message.video {
        found.push(("video", attachment(file, "video", None)));
    }
    if let Some(file) = &message.video_note {
        found.push(("video", attachment(file, "video", Some("video/mp4"))));
    }

    match (&message.animation, &message.document) {
        // An animation is named as a document too, for clients that do not know it.
        (Some(file), _) => found.push(("video", attachment(file, "video", None))),
        (None, Some(file)) => found.push(("document", attachment(file, "document", None))),
        (None, None) => {}
    }

    if let Some(sticker) = &message.sticker {
        let (media_type, mime_type) = match (sticker.is_video, sticker.is_animated) {
            (true, _) => ("video", "video/webm"),
            (false, true) => ("document", "application/x-tgsticker"),
            (false, false) => ("image", "image/webp"),
        };
        found.push(("sticker", attachment(&sticker.file, media_type, Some(mime_type))));
    }

    found
}

fn attachment(file: &FileFields, media_type: &str, mime_type: Option<&str>) -> Attachment {
    let is_too_large = file.file_size.is_some_and(|size| size > MAX_FETCHED_BYTES);
    Attachment {
        id: file.file_unique_id.clone(),
        filename: file.file_name.clone(),
        mime_type: file.mime_type.clone().or_else(|| mime_type.map(str::to_owned)),
        size_bytes: file.file_size,
        media_type: media_type.to_owned(),
        duration_ms: file.duration.map(|seconds| seconds.saturating_mul(1_000)),
        state: if is_too_large {
            AttachmentState::Refused(RefusedAttachment::TooLarge)
        } else {
            AttachmentState::Remote
        },
        max_bytes: is_too_large.then_some(MAX_FETCHED_BYTES),
        handle: Some(file.file_id.clone()),
        ..Attachment::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn files(message: serde_json::Value) -> Vec<(&'static str, Attachment)> {
        attachments_of(&serde_json::from_value(message).expect("a message"))
    }

    #[test]
    fn a_photo_is_its_largest_size() {
        let size = |id: &str, width: u64| json!({"file_id": id, "file_unique_id": "u", "width": width, "height": 9});
        let found = files(json!({"photo": [size("s", 90), size("l", 1280), size("m", 320)]}));
        assert_eq!(found.len(), 1);
        let (kind, photo) = &found[0];
        assert_eq!((*kind, photo.handle.as_deref()), ("image", Some("l")));
        assert_eq!(photo.mime_type.as_deref(), Some("image/jpeg"));
    }

    #[test]
    fn a_file_one_byte_above_the_vendor_s_limit_is_refused() {
        let state = |size: u64| {
            files(json!({"document": {"file_id": "d", "file_size": size}}))[0]
                .1
                .state
        };
        assert_eq!(state(MAX_FETCHED_BYTES), AttachmentState::Remote);
        assert_eq!(
            state(MAX_FETCHED_BYTES + 1),
            AttachmentState::Refused(RefusedAttachment::TooLarge)
        );
    }

    #[test]
    fn an_animation_is_one_file() {
        let file = json!({"file_id": "a", "file_unique_id": "u", "duration": 3});
        let found = files(json!({"animation": file, "document": file}));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0, found[0].1.duration_ms), ("video", Some(3_000)));
    }

    #[test]
    fn stickers_name_their_form() {
        for (keys, mime) in [
            (json!({"file_id": "s"}), "image/webp"),
            (json!({"file_id": "s", "is_animated": true}), "application/x-tgsticker"),
            (json!({"file_id": "s", "is_video": true}), "video/webm"),
        ] {
            let found = files(json!({"sticker": keys}));
            assert_eq!((found[0].0, found[0].1.mime_type.as_deref()), ("sticker", Some(mime)));
        }
    }
}
