//! Answers of a model. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::price::MicroDollars;
use super::usage::TokenUsage;

/// Reason why the model stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum FinishReason {
    /// The answer is complete, or the model waits for its tools.
    Done,
    /// The limit of tokens was reached: the content is cut, and a tool request may be.
    Length,
    /// The provider withheld the rest.
    Filtered {
        /// Reason in the provider's terms.
        reason: String,
    },
    /// Any other reason of the provider.
    Other {
        /// Reason in the provider's terms.
        reason: String,
    },
}

/// Arguments that are not a JSON object. Such a request is never executed, and the model receives the error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("malformed arguments: {detail}")]
pub struct MalformedArguments {
    /// Arguments as the model wrote them, shortened.
    pub text: String,
    /// Reason why they are malformed.
    pub detail: String,
}

/// A tool call that the model requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolRequest {
    /// Id of the request within its answer; another answer may use the same one.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments, always a JSON object, or the reason why they are malformed.
    pub arguments: Result<Value, MalformedArguments>,
}

/// Answer of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelReply {
    /// Text of the answer.
    pub content: String,
    /// Requested tool calls, in order.
    pub tool_calls: Vec<ToolRequest>,
    /// Reason why the model stopped.
    pub finish: FinishReason,
    /// Token counts of the answer.
    pub usage: TokenUsage,
    /// Cost of the answer; `None` if the price of the model is not known.
    pub cost: Option<MicroDollars>,
    /// Name of the model that answered.
    pub model: String,
    /// Data that the provider needs back when the conversation continues (signed thoughts); not for reading.
    pub opaque: Option<Value>,
}
