//! Files of messages, as the vendor describes them. *Pure.*
//!
//! Source: <https://core.telegram.org/bots/api#photosize> and the types below it.

use serde::Deserialize;

/// The fields of every file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct FileFields {
    /// Handle of the file for this bot.
    pub file_id: String,
    /// Id of the file, the same for every bot.
    pub file_unique_id: Option<String>,
    /// Size of the file, in bytes.
    pub file_size: Option<u64>,
    /// Name of the file.
    pub file_name: Option<String>,
    /// MIME type, as its sender says.
    pub mime_type: Option<String>,
    /// Length in seconds.
    pub duration: Option<u64>,
}

/// A size of a photo.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PhotoSize {
    /// File.
    #[serde(flatten)]
    pub file: FileFields,
    /// Width in pixels.
    pub width: u64,
    /// Height in pixels.
    pub height: u64,
}

/// Music.
pub type Audio = FileFields;
/// Any file.
pub type Document = FileFields;
/// Video.
pub type Video = FileFields;
/// Round video.
pub type VideoNote = FileFields;
/// Voice note.
pub type Voice = FileFields;

/// A sticker.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Sticker {
    /// File.
    #[serde(flatten)]
    pub file: FileFields,
    /// Emoji that it stands for.
    pub emoji: Option<String>,
    /// Whether it is a Lottie animation.
    pub is_animated: bool,
    /// Whether it is a video.
    pub is_video: bool,
}
