//! The type of a file by its content. *Pure.* What its sender or its platform says about it is not trusted.

/// Type of a file of which nothing is known.
const UNKNOWN: &str = "application/octet-stream";

/// Image types that every provider of models takes.
const MODEL_IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Types of recordings that providers of models name, each with the other MIME types of the same.
const RECORDINGS: [(&str, &[&str]); 6] = [
    ("audio/wav", &["audio/x-wav", "audio/wave", "audio/vnd.wave"]),
    ("audio/mp3", &["audio/mpeg"]),
    ("audio/aiff", &["audio/x-aiff"]),
    ("audio/aac", &["audio/x-aac"]),
    ("audio/ogg", &["audio/opus", "application/ogg"]),
    ("audio/flac", &["audio/x-flac"]),
];

/// The type of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileType {
    /// MIME type.
    pub mime_type: String,
    /// `image`, `audio`, `video` or `document`.
    pub media_type: String,
}

impl FileType {
    /// Returns the type of `bytes`, which are said to be of `mime_type` and `media_type`. The content decides. Text and
    /// other content without a signature keeps the said type, unless that names an image, a sound or a video; the
    /// containers of sounds and videos are the same, so that the said one of the two stays.
    #[must_use]
    pub fn of(bytes: &[u8], mime_type: Option<&str>, media_type: &str) -> Self {
        let said = mime_type.unwrap_or_default();
        let found = infer::get(bytes).map(|found| found.mime_type());
        let family = found.map_or("", family_of);
        let is_recording = |family: &str| matches!(family, "audio" | "video");

        let mime_type = match found {
            Some(_) if is_recording(family) && is_recording(family_of(said)) => said,
            Some(found) => found,
            None if is_recording(family_of(said)) || family_of(said) == "image" || said.is_empty() => UNKNOWN,
            None => said,
        };
        let media_type = match family {
            "image" => "image",
            _ if is_recording(family) && is_recording(media_type) => media_type,
            "audio" => "audio",
            "video" => "video",
            _ => "document",
        };
        Self {
            mime_type: mime_type.to_owned(),
            media_type: media_type.to_owned(),
        }
    }
}

/// Returns the type of an image that models take; `None` if `bytes` are none.
#[must_use]
pub fn find_image_type(bytes: &[u8]) -> Option<&'static str> {
    let found = infer::get(bytes)?.mime_type();
    MODEL_IMAGES.into_iter().find(|known| *known == found)
}

/// Returns the type of a recording by the name that providers of models have for it; `None` if `bytes` are no recording of
/// a type that any takes.
#[must_use]
pub fn find_recording_type(bytes: &[u8]) -> Option<&'static str> {
    recording_type(infer::get(bytes)?.mime_type())
}

/// Returns the name that providers of models have for recordings of `mime_type`; `None` if none takes them.
///
/// ```
/// use shared::attachments::recording_type;
///
/// assert_eq!(recording_type("audio/mpeg"), Some("audio/mp3"));
/// assert_eq!(recording_type("audio/midi"), None);
/// ```
#[must_use]
pub fn recording_type(mime_type: &str) -> Option<&'static str> {
    let mut known = RECORDINGS.iter();
    let found = known.find(|(name, others)| *name == mime_type || others.contains(&mime_type));
    found.map(|(name, _)| *name)
}

fn family_of(mime_type: &str) -> &str {
    mime_type.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    const OGG: &[u8] = b"OggS\0\x02\0\0\0\0\0\0\0\0";
    const PDF: &[u8] = b"%PDF-1.7\n";
    const MP4: &[u8] = b"\0\0\0\x20ftypisom\0\0\x02\0isomiso2avc1mp41";
    const PAGE: &[u8] = b"<!DOCTYPE html><html><body>Sign in</body></html>";

    #[test]
    fn the_content_decides() {
        for (bytes, said, media, expected) in [
            (PNG, Some("image/png"), "image", ("image/png", "image")),
            (PNG, Some("image/jpeg"), "image", ("image/png", "image")),
            (PNG, Some("text/plain"), "document", ("image/png", "image")),
            (PNG, None, "document", ("image/png", "image")),
            (PDF, Some("image/png"), "image", ("application/pdf", "document")),
            (PAGE, Some("image/png"), "image", ("text/html", "document")),
            (b"nothing", Some("image/png"), "image", (UNKNOWN, "document")),
            (b"words", Some("text/plain"), "document", ("text/plain", "document")),
            (b"", None, "image", (UNKNOWN, "document")),
            (OGG, Some("audio/ogg"), "audio", ("audio/ogg", "audio")),
            (MP4, Some("audio/mp4"), "audio", ("audio/mp4", "audio")),
            (MP4, Some("application/pdf"), "document", ("video/mp4", "video")),
        ] {
            let found = FileType::of(bytes, said, media);
            assert_eq!(
                (found.mime_type.as_str(), found.media_type.as_str()),
                expected,
                "{said:?}"
            );
        }
    }

    #[test]
    fn models_take_four_types_of_images() {
        let jpeg = b"\xff\xd8\xff\xe0\0\x10JFIF";
        let webp = b"RIFF\x24\0\0\0WEBPVP8 ";
        let types = [PNG, jpeg, b"GIF89a\x01\0", webp].map(find_image_type);
        assert_eq!(
            types,
            [
                Some("image/png"),
                Some("image/jpeg"),
                Some("image/gif"),
                Some("image/webp")
            ]
        );
        let bitmap = b"BM\x46\0\0\0\0\0\0\0\x36\0";
        assert_eq!([bitmap.as_slice(), PDF, b""].map(find_image_type), [None, None, None]);
    }

    #[test]
    fn recordings_have_the_names_of_providers() {
        let wav = b"RIFF\x24\0\0\0WAVEfmt ";
        let mut opus = b"OggS\0\x02".to_vec();
        opus.resize(28, 0);
        opus.extend(b"OpusHead\x01\x01");

        let types = [wav.as_slice(), b"ID3\x04\0", OGG, opus.as_slice(), b"fLaC\0\0"].map(find_recording_type);
        assert_eq!(
            types,
            [
                Some("audio/wav"),
                Some("audio/mp3"),
                Some("audio/ogg"),
                Some("audio/ogg"),
                Some("audio/flac")
            ]
        );
        assert_eq!([MP4, PNG, PAGE, b""].map(find_recording_type), [None; 4]);
    }
}
