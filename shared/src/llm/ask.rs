//! A question to a model. *Pure.*

use std::time::Duration;

use serde_json::Value;

use super::answer::{Answer, ToolRequest};

/// How long an answer may take where nobody says otherwise, attempts and waits included.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);

/// A tool that the model may ask for.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name: letters, digits, `_` and `-`, at most 64 of them; what providers agree on.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of its arguments, an object.
    pub parameters: Value,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// What the person said, or what happened.
    User {
        /// The text.
        content: String,
    },
    /// What the model said before.
    Assistant {
        /// The text; may be empty where it only asked for tools.
        content: String,
        /// What it asked for.
        tool_calls: Vec<ToolRequest>,
        /// [`Answer::opaque`] of then: some providers refuse a conversation whose tool calls come back without it.
        opaque: Option<Value>,
    },
    /// What a tool answered to a request of the assistant message before.
    Tool {
        /// [`ToolRequest::id`] of the request.
        id: String,
        /// The tool.
        name: String,
        /// What it answered, or why it did not.
        content: String,
    },
}

impl Message {
    /// What a person says.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self::User {
            content: content.into(),
        }
    }

    /// What the model said, without tools.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::Assistant {
            content: content.into(),
            tool_calls: Vec::new(),
            opaque: None,
        }
    }

    /// A whole answer, to be continued after its tools have run.
    #[must_use]
    pub fn answered(answer: &Answer) -> Self {
        Self::Assistant {
            content: answer.content.clone(),
            tool_calls: answer.tool_calls.clone(),
            opaque: answer.opaque.clone(),
        }
    }
}

/// Which JSON is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// Any object. Not the same as a schema without properties: providers that hold to schemas strictly could then
    /// answer nothing but the empty object.
    Object,
    /// What this JSON Schema allows.
    Schema(Value),
}

/// A question.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The model; none = the configured one.
    pub model: Option<String>,
    /// The system prompt; empty = none.
    pub system: String,
    /// The conversation, the newest message last.
    pub messages: Vec<Message>,
    /// What the model may ask for.
    pub tools: Vec<ToolSpec>,
    /// The answer's content is JSON then, or the answer is refused as bad.
    pub json: Option<Json>,
    /// Tokens that the answer may have; none = the provider's own bound.
    pub max_tokens: Option<u32>,
    /// How long the answer may take, attempts and waits included.
    pub timeout: Duration,
    /// Whether the text is wanted as it comes. A stream that breaks after text was handed on is not repeated then.
    pub stream: bool,
}

impl Default for Ask {
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
