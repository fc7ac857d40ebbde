//! The end of the client crate's stream as an answer. *Pure.*

use std::collections::{BTreeMap, BTreeSet};

use genai::chat::{ContentPart, StopReason, StreamEnd, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::llm::answer::{Answer, Finish, MalformedArguments, ToolRequest, Usage};
use crate::llm::config::Provider;
use crate::llm::error::AskModelError;

/// What is kept of arguments that are no JSON, bytes.
const MAX_MALFORMED_BYTES: usize = 2_000;
/// Tool requests of one answer.
const MAX_REQUESTS: usize = 128;

/// What a provider must see again with an answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Opaque {
    pub(super) provider: Provider,
    /// Signed thoughts that stand before text and calls.
    pub(super) leading: Vec<ContentPart>,
    /// Signatures of calls, by their place among the calls.
    pub(super) signatures: BTreeMap<usize, Vec<String>>,
}

impl Opaque {
    pub(super) const fn of(provider: Provider) -> Self {
        Self {
            provider,
            leading: Vec::new(),
            signatures: BTreeMap::new(),
        }
    }
}

pub(super) fn answer(
    model: &str,
    provider: Provider,
    content: String,
    end: StreamEnd,
) -> Result<Answer, AskModelError> {
    let bad = |detail: String| AskModelError::BadAnswer { detail };
    let mut opaque = Opaque::of(provider);
    let mut tool_calls = Vec::new();
    let mut ids = BTreeSet::new();
    for part in end.captured_content.map(|c| c.into_parts()).unwrap_or_default() {
        match part {
            ContentPart::ToolCall(call) => {
                if tool_calls.len() == MAX_REQUESTS {
                    return Err(bad(format!("more than {MAX_REQUESTS} tool requests")));
                }
                if call.fn_name.is_empty() {
                    return Err(bad("a tool request without a name".to_owned()));
                }
                let index = tool_calls.len();
                if let Some(signatures) = call.thought_signatures.clone() {
                    opaque.signatures.insert(index, signatures);
                }
                tool_calls.push(request(call, index, &mut ids));
            }
            part @ (ContentPart::ThoughtSignature(_) | ContentPart::ReasoningContent(_) | ContentPart::Custom(_)) => {
                opaque.leading.push(part);
            }
            // The text was heard as it came; nothing else can be said back.
            ContentPart::Text(_) | ContentPart::Binary(_) | ContentPart::ToolResponse(_) => {}
        }
    }
    let bare = opaque.leading.is_empty() && opaque.signatures.is_empty();
    let opaque = if bare { None } else { serde_json::to_value(&opaque).ok() };
    Ok(Answer {
        content,
        tool_calls,
        finish: finish(end.captured_stop_reason),
        usage: end.captured_usage.map(usage).unwrap_or_default(),
        cost: None,
        model: model.to_owned(),
        opaque,
    })
}

/// A request whose id is unique within its answer: Gemini's may be missing, and the stand-ins that the client crate
/// makes then repeat from packet to packet. Ours have the same form, so that they are not sent back as Gemini's.
fn request(call: ToolCall, index: usize, ids: &mut BTreeSet<String>) -> ToolRequest {
    let mut id = call.call_id;
    if id.is_empty() || ids.contains(&id) {
        id = format!("call#{}#{index}", call.fn_name);
    }
    ids.insert(id.clone());
    ToolRequest {
        id,
        name: call.fn_name,
        arguments: arguments(call.fn_arguments),
    }
}

fn arguments(written: Value) -> Result<Value, MalformedArguments> {
    let malformed = |text: &str, detail: String| {
        let cut = text.floor_char_boundary(MAX_MALFORMED_BYTES);
        Err(MalformedArguments {
            text: text[..cut].to_owned(),
            detail,
        })
    };
    match written {
        Value::Object(_) => Ok(written),
        Value::Null => Ok(Value::Object(serde_json::Map::new())),
        Value::String(text) if text.trim().is_empty() => Ok(Value::Object(serde_json::Map::new())),
        // The client crate gives the bare text where it is no JSON.
        Value::String(text) => match serde_json::from_str::<Value>(&text) {
            Ok(_) => malformed(&text, "expected an object".to_owned()),
            Err(error) => malformed(&text, error.to_string()),
        },
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            malformed(&written.to_string(), "expected an object".to_owned())
        }
    }
}

fn finish(reason: Option<StopReason>) -> Finish {
    match reason {
        Some(StopReason::MaxTokens(_)) => Finish::Length,
        Some(StopReason::ContentFilter(reason)) => Finish::Filtered { reason },
        Some(StopReason::Other(reason)) => Finish::Other { reason },
        Some(StopReason::Completed(_) | StopReason::ToolCall(_) | StopReason::StopSequence(_)) | None => Finish::Done,
    }
}

fn usage(counted: genai::chat::Usage) -> Usage {
    let tokens = |count: Option<i32>| count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
    let cached = counted.prompt_tokens_details.and_then(|details| details.cached_tokens);
    let reasoning = counted
        .completion_tokens_details
        .and_then(|details| details.reasoning_tokens);
    let reasoning = tokens(reasoning);
    Usage {
        input: tokens(counted.prompt_tokens),
        // Where Gemini has thought and said nothing, only the thoughts are counted.
        output: tokens(counted.completion_tokens).max(reasoning),
        cached: tokens(cached),
        reasoning,
    }
}
