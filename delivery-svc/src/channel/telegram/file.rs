//! The form of a message with a file. Source: <https://core.telegram.org/bots/api#sending-files>.

use bytes::Bytes;
use reqwest::Body;
use reqwest::multipart::{Form, Part};

use super::message::SendMessage;
use crate::part_file::PartFile;

/// Maximum size of a picture; a larger one is sent as a document.
const MAX_PHOTO_BYTES: u64 = 10_000_000;

/// How Telegram shows a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    Photo,
    Voice,
    Audio,
    Video,
    Document,
}

impl FileKind {
    /// Returns how `file` is shown. Types that Telegram does not take as what they are become documents.
    pub(super) fn of_file(file: &PartFile) -> Self {
        match (file.media_type.as_str(), file.mime_type.as_str()) {
            ("image", "image/png" | "image/jpeg" | "image/webp") if file.size <= MAX_PHOTO_BYTES => Self::Photo,
            ("voice", "audio/ogg" | "application/ogg") => Self::Voice,
            ("audio" | "voice", "audio/mpeg" | "audio/mp4" | "audio/x-m4a" | "audio/m4a") => Self::Audio,
            ("video", "video/mp4") => Self::Video,
            _ => Self::Document,
        }
    }

    /// Returns the method of the Bot API, and the name of the form's file.
    pub(super) const fn method(self) -> (&'static str, &'static str) {
        match self {
            Self::Photo => ("sendPhoto", "photo"),
            Self::Voice => ("sendVoice", "voice"),
            Self::Audio => ("sendAudio", "audio"),
            Self::Video => ("sendVideo", "video"),
            Self::Document => ("sendDocument", "document"),
        }
    }
}

/// Returns the form that sends `file` with `bytes` as `kind`, where `message` goes.
pub(super) fn file_form(message: &SendMessage<'_>, kind: FileKind, file: &PartFile, bytes: &Bytes) -> Form {
    let part = Part::stream_with_length(Body::from(bytes.clone()), file.size).file_name(file.name.clone());
    // The type was found by the content; one that is none is left out.
    let part = match part.mime_str(&file.mime_type) {
        Ok(typed) => typed,
        Err(_) => Part::stream_with_length(Body::from(bytes.clone()), file.size).file_name(file.name.clone()),
    };
    let (_, name) = kind.method();
    let fields = message.place_fields().into_iter();
    fields
        .fold(Form::new(), |form, (name, value)| form.text(name, value))
        .part(name, part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_shown_as_what_telegram_takes_it_for() {
        let kind = |media_type: &str, mime_type: &str, size| {
            FileKind::of_file(&PartFile {
                hash: String::new(),
                size,
                name: "x".to_owned(),
                mime_type: mime_type.to_owned(),
                media_type: media_type.to_owned(),
            })
        };
        assert_eq!(kind("image", "image/png", MAX_PHOTO_BYTES), FileKind::Photo);
        assert_eq!(kind("image", "image/png", MAX_PHOTO_BYTES + 1), FileKind::Document);
        assert_eq!(kind("image", "image/svg+xml", 1), FileKind::Document);
        assert_eq!(kind("voice", "audio/ogg", 1), FileKind::Voice);
        assert_eq!(kind("audio", "audio/mpeg", 1), FileKind::Audio);
        assert_eq!(kind("video", "video/mp4", 1), FileKind::Video);
        assert_eq!(kind("document", "application/pdf", 1), FileKind::Document);
    }
}
