//! Files that agents hand over: their bytes go to the object store, and what an agent claims about a file does not count.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use shared::attachments::{AttachmentStore, FileType};
use shared::bus::{Bus, StoreObjectError};
use shared::clock::SharedClock;
use shared::model::event::Attachment;
use shared::wire::agent::AgentFile;

use crate::agent::port::{AskAgentError, TurnOrigin};

/// Maximum size of a file that an agent hands over, in bytes.
pub const MAX_FILE_BYTES: usize = 20 * 1024 * 1024;
/// Maximum number of files of an answer.
pub const MAX_FILES: usize = 10;
/// Maximum length of a file's name, in bytes.
const MAX_NAME_BYTES: usize = 200;
/// Name of a file that has none.
const NAMELESS: &str = "file";

/// The reason why a file of an agent is not stored.
#[derive(Debug, thiserror::Error)]
pub enum KeepFileError {
    /// The text is not the file's bytes.
    #[error("not base64: {0}")]
    NotBase64(#[from] base64::DecodeError),
    /// The file is too large.
    #[error("{bytes} bytes, at most {MAX_FILE_BYTES} are taken")]
    TooLarge {
        /// Size of the file.
        bytes: usize,
    },
    /// The object store does not take it now.
    #[error(transparent)]
    Store(#[from] StoreObjectError),
}

/// Keeps the files of agents. Clones share the store.
#[derive(Debug, Clone)]
pub struct AnswerFiles {
    store: AttachmentStore,
}

impl AnswerFiles {
    /// Returns the keeper of files on `bus`.
    #[must_use]
    pub fn new(bus: &Bus, clock: &SharedClock) -> Self {
        Self {
            store: AttachmentStore::new(bus, Arc::clone(clock)),
        }
    }

    /// Returns the attachments of an answer with `files` in a turn from `origin`. Those with bytes are stored. Of the others,
    /// only files of the messages that the turn answers stay stored: an agent that knows a hash must not come to the file
    /// of another conversation.
    ///
    /// # Errors
    /// Returns [`AskAgentError::Malformed`] with the file's place, or [`AskAgentError::Refused`] if it is too large or the
    /// store does not take it now.
    pub async fn admit(&self, files: Vec<AgentFile>, origin: &TurnOrigin) -> Result<Vec<Attachment>, AskAgentError> {
        if files.len() > MAX_FILES {
            let error = format!("attachments: {} files, at most {MAX_FILES} are taken", files.len());
            return Err(AskAgentError::Malformed(error));
        }

        let mut admitted = Vec::with_capacity(files.len());
        for (place, AgentFile { mut file, data }) in files.into_iter().enumerate() {
            match data {
                Some(data) => {
                    let kept = self.keep(file, &data).await;
                    file = kept.map_err(|error| refusal(&format!("attachments[{place}].data"), &error))?;
                }
                None if file.stored_hash().is_some_and(|hash| origin.files.contains(hash)) => {}
                None => file.forget_stored(),
            }
            admitted.push(file);
        }
        Ok(admitted)
    }

    /// Stores the bytes of `file`, which are `data` in base64. Returns it with what is known of them.
    ///
    /// # Errors
    /// Returns [`KeepFileError`].
    pub async fn keep(&self, file: Attachment, data: &str) -> Result<Attachment, KeepFileError> {
        let bytes = STANDARD.decode(data.trim())?;
        self.keep_bytes(file, Bytes::from(bytes)).await
    }

    /// Stores the `bytes` of `file`. Returns it with what is known of them.
    ///
    /// # Errors
    /// Returns [`KeepFileError`].
    pub async fn keep_bytes(&self, file: Attachment, bytes: Bytes) -> Result<Attachment, KeepFileError> {
        let size = bytes.len();
        if size > MAX_FILE_BYTES {
            return Err(KeepFileError::TooLarge { bytes: size });
        }
        let found = FileType::of(&bytes, file.mime_type.as_deref(), &file.media_type);
        let hash = self.store.store(bytes).await?;

        // The source's own words are those of a platform, and an agent is none.
        let mut kept = Attachment {
            filename: Some(plain_name(file.filename.as_deref().unwrap_or_default())),
            mime_type: Some(found.mime_type),
            media_type: found.media_type,
            duration_ms: file.duration_ms,
            transcript: file.transcript,
            ..Attachment::default()
        };
        kept.set_stored(&hash, u64::try_from(size).unwrap_or(u64::MAX));
        Ok(kept)
    }
}

fn refusal(place: &str, error: &KeepFileError) -> AskAgentError {
    match error {
        KeepFileError::NotBase64(_) => AskAgentError::Malformed(format!("{place}: {error}")),
        KeepFileError::TooLarge { .. } => AskAgentError::Refused {
            error: format!("{place}: {error}"),
            retryable: false,
        },
        KeepFileError::Store(_) => AskAgentError::Refused {
            error: format!("{place}: {error}"),
            retryable: true,
        },
    }
}

/// Returns the name of a file without folders and characters that no name has.
#[must_use]
pub fn plain_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain: String = last.chars().filter(|letter| !letter.is_control()).collect();
    let plain = plain.trim().trim_start_matches('.');
    match &plain[..plain.floor_char_boundary(MAX_NAME_BYTES)] {
        "" => NAMELESS.to_owned(),
        plain => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_folders_and_no_control_characters() {
        for (name, expected) in [
            ("chart.png", "chart.png"),
            ("../../etc/passwd", "passwd"),
            ("C:\\temp\\ü.txt", "ü.txt"),
            ("a\r\nb\0.txt", "ab.txt"),
            (".hidden", "hidden"),
            ("", NAMELESS),
            ("x/", NAMELESS),
        ] {
            assert_eq!(plain_name(name), expected, "{name:?}");
        }
        assert!(plain_name(&"ü".repeat(500)).len() <= MAX_NAME_BYTES);
    }
}
