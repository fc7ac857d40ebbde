//! The content of a message, as text, content types and files. *Pure.*
//!
//! URLs of files are signed, and expire at the time that they name. Source:
//! <https://discord.com/developers/docs/reference#signed-attachment-cdn-urls>.

use std::time::Duration;

use shared::model::event::Attachment;
use shared::model::time::UnixMillis;

use super::message::{File, Message, StickerItem};

/// Flag of a message that is a recording of its author's voice.
const IS_VOICE_MESSAGE: u64 = 1 << 13;

/// The content of a message.
#[derive(Debug, Default)]
pub(super) struct MessageContent {
    /// Content types, those of files first.
    pub kinds: Vec<&'static str>,
    /// Text.
    pub text: String,
    /// Files and stickers.
    pub files: Vec<Attachment>,
}

/// Returns the content of `message`. A message without text gets lines that say what it is, so that it is found by its
/// words.
#[must_use]
pub(super) fn content_of(message: &Message) -> MessageContent {
    let mut content = MessageContent::default();
    let mut lines: Vec<String> = Vec::new();

    let is_voice = message.flags.unwrap_or(0) & IS_VOICE_MESSAGE != 0;
    for file in message.attachments.iter().flatten() {
        let (kind, attachment) = read_file(file, is_voice);
        content.kinds.push(kind);
        content.files.push(attachment);
    }

    for sticker in message.sticker_items.iter().flatten() {
        content.kinds.push("sticker");
        content.files.push(read_sticker(sticker));
        lines.extend(sticker.name.clone());
    }

    if let Some(poll) = &message.poll {
        content.kinds.push("poll");
        lines.extend(poll.question.as_ref().and_then(|question| question.text.clone()));
        let answers = poll.answers.iter().flatten();
        let answers = answers.filter_map(|answer| answer.poll_media.as_ref()?.text.as_deref());
        lines.extend(answers.map(|answer| format!("- {answer}")));
    }

    if message
        .message_snapshots
        .as_ref()
        .is_some_and(|forwarded| !forwarded.is_empty())
    {
        content.kinds.push("forward");
    }

    let text = message.text();
    if !text.is_empty() {
        // What people wrote stays as it is.
        content.kinds.push("text");
        text.clone_into(&mut content.text);
    } else {
        content.text = lines.join("\n");
        let is_card = |parts: &Option<Vec<serde_json::Value>>| parts.as_ref().is_some_and(|parts| !parts.is_empty());
        if content.kinds.is_empty() && (is_card(&message.embeds) || is_card(&message.components)) {
            content.kinds.push("embed");
        }
    }

    content
}

fn read_file(file: &File, is_voice: bool) -> (&'static str, Attachment) {
    let mime = file.content_type.as_deref().unwrap_or_default();
    let family = mime.split('/').next().unwrap_or_default();
    let (kind, media_type) = match family {
        "audio" if is_voice => ("voice", "audio"),
        "image" => ("image", "image"),
        "audio" => ("audio", "audio"),
        "video" => ("video", "video"),
        _ => ("document", "document"),
    };

    let seconds = file
        .duration_secs
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let attachment = Attachment {
        id: Some(file.id.clone()).filter(|id| !id.is_empty()),
        filename: file.filename.clone(),
        mime_type: file.content_type.clone(),
        size_bytes: file.size,
        media_type: media_type.to_owned(),
        duration_ms: seconds.and_then(|duration| u64::try_from(duration.as_millis()).ok()),
        handle: file.url.clone(),
        expires_at: file.url.as_deref().and_then(expiry_of),
        ..Attachment::default()
    };
    (kind, attachment)
}

fn read_sticker(sticker: &StickerItem) -> Attachment {
    let (extension, mime, media_type) = match sticker.format_type {
        Some(3) => ("json", "application/json", "document"),
        Some(4) => ("gif", "image/gif", "image"),
        Some(_) | None => ("png", "image/png", "image"),
    };
    Attachment {
        id: Some(sticker.id.clone()),
        filename: sticker.name.clone(),
        mime_type: Some(mime.to_owned()),
        media_type: media_type.to_owned(),
        handle: Some(format!(
            "https://cdn.discordapp.com/stickers/{}.{extension}",
            sticker.id
        )),
        ..Attachment::default()
    }
}

/// Returns the time at which a signed URL expires: the hexadecimal seconds in its query.
fn expiry_of(url: &str) -> Option<UnixMillis> {
    let (_, query) = url.split_once('?')?;
    let expiry = query.split('&').find_map(|pair| pair.strip_prefix("ex="))?;
    let seconds = i64::from_str_radix(expiry, 16).ok()?;
    // Far beyond every date that is meant.
    (0..=0xFFFF_FFFF)
        .contains(&seconds)
        .then(|| UnixMillis::from_seconds(seconds))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn content(keys: serde_json::Value) -> MessageContent {
        content_of(&serde_json::from_value(keys).expect("a message"))
    }

    #[test]
    fn a_file_has_its_kind_and_its_url_expires() {
        let url = "https://cdn.discordapp.com/attachments/1/2/a.png?ex=65d903de&is=65c68ede&hm=2481&";
        let found = content(json!({"content": "look", "attachments": [
            {"id": "9", "filename": "a.png", "content_type": "image/png", "size": 10, "url": url}]}));
        assert_eq!((found.kinds, found.text.as_str()), (vec!["image", "text"], "look"));
        let file = &found.files[0];
        assert_eq!((file.handle.as_deref(), file.size_bytes), (Some(url), Some(10)));
        assert_eq!(file.expires_at, Some(UnixMillis(1_708_721_118_000)));

        for url in [
            "https://x/a",
            "https://x/a?ex=",
            "https://x/a?ex=-1",
            "https://x/a?ex=fffffffffffff",
            "?ex=zz",
        ] {
            let file = content(json!({"attachments": [{"id": "9", "url": url}]}))
                .files
                .remove(0);
            assert_eq!((file.expires_at, file.media_type.as_str()), (None, "document"), "{url}");
        }
    }

    #[test]
    fn a_recording_is_a_voice_if_its_message_is_one() {
        let kinds = |flags: u64, seconds: f64| {
            let file = json!({"id": "9", "content_type": "audio/ogg", "duration_secs": seconds});
            let found = content(json!({"flags": flags, "attachments": [file]}));
            (found.kinds[0], found.files[0].duration_ms)
        };
        assert_eq!(kinds(1 << 13, 2.5), ("voice", Some(2_500)));
        assert_eq!(kinds(0, 1.0), ("audio", Some(1_000)));
        assert_eq!(kinds(0, -1.0), ("audio", None));
    }

    #[test]
    fn contents_without_text_are_found_by_their_words() {
        let poll = json!({"question": {"text": "Lunch?"}, "answers": [{"poll_media": {"text": "Soup"}}, {}]});
        let found = content(json!({"poll": poll}));
        assert_eq!((found.kinds, found.text.as_str()), (vec!["poll"], "Lunch?\n- Soup"));
        let found = content(json!({"sticker_items": [{"id": "5", "name": "Wave", "format_type": 4}]}));
        assert_eq!((found.kinds, found.text.as_str()), (vec!["sticker"], "Wave"));
        assert_eq!(
            found.files[0].handle.as_deref(),
            Some("https://cdn.discordapp.com/stickers/5.gif")
        );
        assert_eq!(content(json!({"embeds": [{"title": "x"}]})).kinds, ["embed"]);
        assert!(content(json!({"content": "", "embeds": []})).kinds.is_empty());
    }
}
