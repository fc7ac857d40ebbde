//! What a model answers. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::price::MicroDollars;

/// Why the model stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Finish {
    /// It had said everything, or waits for its tools.
    Done,
    /// It reached the bound of tokens: the content is cut, and a tool request may be.
    Length,
    /// The provider withheld the rest.
    Filtered {
        /// In the provider's word.
        reason: String,
    },
    /// Something else.
    Other {
        /// In the provider's word.
        reason: String,
    },
}

/// Arguments that are no JSON object: such a request is never carried out, and the model is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("malformed arguments: {detail}")]
pub struct MalformedArguments {
    /// What the model wrote, shortened.
    pub text: String,
    /// What is wrong with it.
    pub detail: String,
}

/// A tool call that the model asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolRequest {
    /// Names the request within its answer; another answer may use the same one.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments, always a JSON object, or what is wrong with them.
    pub arguments: Result<Value, MalformedArguments>,
}

/// Tokens of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens in, cached ones included.
    pub input: u64,
    /// Tokens out, reasoning included.
    pub output: u64,
    /// Tokens in that the provider had in its cache.
    pub cached: u64,
    /// Tokens out that nobody sees.
    pub reasoning: u64,
}

/// What a model answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The text.
    pub content: String,
    /// What it wants done, in order.
    pub tool_calls: Vec<ToolRequest>,
    /// Why it stopped.
    pub finish: Finish,
    /// Tokens.
    pub usage: Usage,
    /// What it cost; none where the price of the model is not known.
    pub cost: Option<MicroDollars>,
    /// Which model answered.
    pub model: String,
    /// What the provider must see again when the conversation goes on (signed thoughts); not for reading.
    pub opaque: Option<Value>,
}
