//! The tool with which an agent sends a file to its own conversation.
//!
//! The file is a reply of its own, so that it goes out in the order of the conversation's replies and has receipts. Its id
//! follows from the turn and the call, and the file's name in the object store from its bytes: a call that is made again
//! sends the same. Source: `docs/design/channels.md` §2.4.

use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::model::event::Attachment;
use shared::model::ledger::ToolOutcome;
use shared::model::reply::Reply;
use shared::wire::agent::ToolDescription;

use super::call_reply::{empty_reply, queue_reply, read_arguments};
use super::service::described;
use super::{Tool, ToolCall, failed_outcome};
use crate::agent::answer_files::{AnswerFiles, KeepFileError, plain_name};
use crate::agent::port::TurnOrigin;

/// Name of the tool.
pub(super) const NAME: &str = "send_file";

/// Maximum length of a file's text or base64, in bytes: the ledger keeps the call.
const MAX_CONTENT_BYTES: usize = 700 * 1_024;
/// Maximum length of a caption, in bytes.
const MAX_CAPTION_BYTES: usize = 4 * 1_024;

/// The tool `send_file`.
#[derive(Debug)]
pub struct SendFile {
    bus: Bus,
    files: AnswerFiles,
    description: ToolDescription,
}

#[derive(Debug, Deserialize)]
struct Wanted {
    filename: String,
    #[serde(default)]
    mime_type: Option<String>,
    #[serde(default)]
    caption: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    base64: Option<String>,
    #[serde(default)]
    stored: Option<String>,
}

impl SendFile {
    /// Creates the tool, which publishes over `bus`.
    #[must_use]
    pub fn new(bus: &Bus, clock: &SharedClock) -> Self {
        let properties = json!({
            "filename": {"type": "string", "minLength": 1, "maxLength": 200},
            "mime_type": {"type": "string", "maxLength": 100},
            "caption": {"type": "string", "maxLength": MAX_CAPTION_BYTES},
            "text": {"type": "string", "maxLength": MAX_CONTENT_BYTES, "description": "Content of a text file."},
            "base64": {"type": "string", "maxLength": MAX_CONTENT_BYTES, "description": "Content of another file."},
            "stored": {
                "type": "string", "maxLength": 200,
                "description": "nexus-object:… of a file of the messages that you answer, to send it back."
            },
        });
        let text = "Sends a file to the conversation that you answer. Give one of text, base64 and stored.";
        Self {
            bus: bus.clone(),
            files: AnswerFiles::new(bus, clock),
            description: described(NAME, text, &properties, &["filename"]),
        }
    }

    /// Returns the file that is `wanted`, with its bytes stored.
    async fn file(&self, wanted: &Wanted, origin: &TurnOrigin) -> Result<Attachment, ToolOutcome> {
        let said = Attachment {
            filename: Some(wanted.filename.clone()),
            mime_type: wanted.mime_type.clone(),
            media_type: "document".to_owned(),
            ..Attachment::default()
        };
        let kept = match (&wanted.text, &wanted.base64, &wanted.stored) {
            (Some(text), None, None) => {
                let mime_type = said.mime_type.clone().or_else(|| Some("text/plain".to_owned()));
                let bytes = Bytes::from(text.clone().into_bytes());
                self.files.keep_bytes(Attachment { mime_type, ..said }, bytes).await
            }
            (None, Some(data), None) => self.files.keep(said, data).await,
            (None, None, Some(uri)) => {
                let found = origin.files.get_uri(uri).cloned();
                let named = |file: Attachment| Attachment {
                    filename: Some(plain_name(&wanted.filename)),
                    ..file
                };
                return found
                    .map(named)
                    .ok_or_else(|| failed_outcome("stored: no file of the messages that this turn answers"));
            }
            (_, _, _) => return Err(failed_outcome("give one of text, base64 and stored")),
        };
        kept.map_err(|error| match error {
            KeepFileError::NotBase64(_) => failed_outcome(format!("base64: {error}")),
            KeepFileError::TooLarge { .. } | KeepFileError::Store(_) => failed_outcome(error.to_string()),
        })
    }
}

/// Returns the reply that sends `file` with `caption` for `call`.
fn file_reply(call: &ToolCall, caption: String, file: Attachment) -> Reply {
    Reply {
        content: caption,
        attachments: vec![file],
        ..empty_reply(call, "file")
    }
}

#[async_trait]
impl Tool for SendFile {
    fn description(&self) -> &ToolDescription {
        &self.description
    }

    fn is_idempotent(&self) -> bool {
        true
    }

    async fn call(&self, call: ToolCall) -> ToolOutcome {
        let wanted: Wanted = match read_arguments(&call) {
            Ok(wanted) => wanted,
            Err(outcome) => return outcome,
        };
        let file = match self.file(&wanted, &call.call.origin).await {
            Ok(file) => file,
            Err(outcome) => return outcome,
        };

        let reply = file_reply(&call, wanted.caption, file);
        queue_reply(&self.bus, &reply, "delivery").await
    }
}
