//! Requests to a model. *Pure.*

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use super::answer::{ModelReply, ToolRequest};

/// Default timeout of an answer, attempts and pauses included.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);

/// A tool that the model may request.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Name of the tool: at most 64 letters, digits, `_` and `-`, which all providers accept.
    pub name: String,
    /// Description of its effect, for the model.
    pub description: String,
    /// JSON Schema of its arguments, an object.
    pub parameters: Value,
}

/// Length that an image counts for in a prompt, in bytes: providers count some 250 to 1,600 tokens.
const IMAGE_PROMPT_BYTES: usize = 6_400;

/// An image of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelImage {
    /// MIME type of the image: `image/png`, `image/jpeg`, `image/gif` or `image/webp`, which all providers take.
    pub mime_type: &'static str,
    /// Bytes of the image.
    pub bytes: Bytes,
}

/// Length that a second of a recording counts for in a prompt, in bytes: the provider that counts most counts 32 tokens.
const RECORDING_SECOND_BYTES: usize = 128;

/// A recording of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRecording {
    /// MIME type of the recording, one of [`LanguageModel::recording_types`](super::LanguageModel::recording_types).
    pub mime_type: &'static str,
    /// Bytes of the recording.
    pub bytes: Bytes,
    /// Length of the recording, in seconds, by which its price is estimated.
    pub seconds: usize,
}

/// Files of a message that a model gets as such.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelFiles {
    /// Images of the message.
    pub images: Vec<ModelImage>,
    /// Recordings of the message.
    pub recordings: Vec<ModelRecording>,
}

impl ModelFiles {
    /// Returns whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.images.is_empty() && self.recordings.is_empty()
    }

    fn prompt_bytes(&self) -> usize {
        let seconds = self.recordings.iter().map(|recording| recording.seconds);
        let recordings = seconds.sum::<usize>().saturating_mul(RECORDING_SECOND_BYTES);
        recordings.saturating_add(self.images.len() * IMAGE_PROMPT_BYTES)
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelMessage {
    /// Message of the person, or a report of an event.
    User {
        /// Text of the message.
        content: String,
        /// Files of the message.
        files: ModelFiles,
    },
    /// Earlier answer of the model.
    Assistant {
        /// Text of the answer; may be empty if the model only requested tools.
        content: String,
        /// Requested tool calls.
        tool_calls: Vec<ToolRequest>,
        /// [`ModelReply::opaque`] of that answer: some providers reject a conversation whose tool calls come back without
        /// it.
        opaque: Option<Value>,
    },
    /// Result of a tool that the previous assistant message requested.
    Tool {
        /// [`ToolRequest::id`] of the request.
        id: String,
        /// Name of the tool.
        name: String,
        /// Result of the tool, or the reason why there is none.
        content: String,
    },
}

impl ModelMessage {
    /// Builds a message of the person.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self::User {
            content: content.into(),
            files: ModelFiles::default(),
        }
    }

    /// Builds an earlier answer of the model, without tools.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::Assistant {
            content: content.into(),
            tool_calls: Vec::new(),
            opaque: None,
        }
    }

    fn prompt_bytes(&self) -> usize {
        let written = |value: &Value| value.to_string().len();
        match self {
            Self::User { content, files } => content.len().saturating_add(files.prompt_bytes()),
            Self::Tool { content, .. } => content.len(),
            Self::Assistant {
                content,
                tool_calls,
                opaque,
            } => {
                let calls = tool_calls.iter().map(|call| {
                    let arguments = call.arguments.as_ref().map_or(0, written);
                    call.name.len() + arguments
                });
                content.len() + calls.sum::<usize>() + opaque.as_ref().map_or(0, written)
            }
        }
    }

    /// Builds a message from a complete answer, to be continued after its tools have run.
    #[must_use]
    pub fn from_answer(answer: &ModelReply) -> Self {
        Self::Assistant {
            content: answer.content.clone(),
            tool_calls: answer.tool_calls.clone(),
            opaque: answer.opaque.clone(),
        }
    }
}

/// Form of JSON that is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonMode {
    /// Any object. Not the same as a schema without properties: providers that enforce schemas strictly could then
    /// return only the empty object.
    Object,
    /// An object that this JSON Schema allows.
    Schema(Value),
}

/// A request to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// Name of the model; `None` for the configured one.
    pub model: Option<String>,
    /// System prompt; empty for none.
    pub system: String,
    /// Conversation, the newest message last.
    pub messages: Vec<ModelMessage>,
    /// Tools that the model may request.
    pub tools: Vec<ToolSpec>,
    /// Form of JSON that the answer's content must have, if any; otherwise the answer is rejected as bad.
    pub json: Option<JsonMode>,
    /// Maximum number of tokens of the answer; `None` for the provider's own limit.
    pub max_tokens: Option<u32>,
    /// Timeout of the answer, attempts and pauses included.
    pub timeout: Duration,
    /// Whether the text is passed on as it arrives. A stream that breaks after that is not retried.
    pub stream: bool,
}

impl ModelRequest {
    /// Returns the approximate length of everything that the model reads, bytes.
    #[must_use]
    pub fn prompt_bytes(&self) -> usize {
        let messages = self.messages.iter().map(ModelMessage::prompt_bytes);
        let tools = self.tools.iter().map(ToolSpec::prompt_bytes);
        self.system.len() + messages.chain(tools).sum::<usize>()
    }
}

impl ToolSpec {
    fn prompt_bytes(&self) -> usize {
        self.name.len() + self.description.len() + self.parameters.to_string().len()
    }
}

impl Default for ModelRequest {
    fn default() -> Self {
        Self {
            model: None,
            system: String::new(),
            messages: Vec::new(),
            tools: Vec::new(),
            json: None,
            max_tokens: None,
            timeout: DEFAULT_TIMEOUT,
            stream: false,
        }
    }
}
