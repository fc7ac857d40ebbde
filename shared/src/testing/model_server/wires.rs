//! The three wires, and the contents of a request on each of them. *Pure.*

use serde_json::Value;

use super::script::ScriptedSpeech;
use super::{anthropic, gemini, openai};

/// Wire format of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelWire {
    /// `POST …/chat/completions`.
    OpenAi,
    /// `POST …/models/{model}:streamGenerateContent?alt=sse`.
    Gemini,
    /// `POST …/messages`.
    Anthropic,
}

impl ModelWire {
    pub(super) fn of(path: &str) -> Option<Self> {
        if path.ends_with("/chat/completions") {
            Some(Self::OpenAi)
        } else if path.ends_with(":streamGenerateContent") {
            Some(Self::Gemini)
        } else if path.ends_with("/messages") {
            Some(Self::Anthropic)
        } else {
            None
        }
    }

    /// Returns the bytes of the event stream for `speech`.
    #[must_use]
    pub fn stream(self, speech: &ScriptedSpeech) -> Vec<u8> {
        match self {
            Self::OpenAi => openai::stream(speech),
            Self::Gemini => gemini::stream(speech),
            Self::Anthropic => anthropic::stream(speech),
        }
    }

    pub(super) fn last_user_text(self, body: &Value) -> String {
        let list = match self {
            Self::OpenAi | Self::Anthropic => "messages",
            Self::Gemini => "contents",
        };
        let users = elements(&body[list]).filter(|message| message["role"] == "user");
        users.last().map(text_of).unwrap_or_default()
    }

    pub(super) fn tool_results(self, body: &Value) -> Vec<String> {
        match self {
            Self::OpenAi => elements(&body["messages"])
                .filter(|message| message["role"] == "tool")
                .map(text_of)
                .collect(),
            Self::Gemini => elements(&body["contents"])
                .flat_map(|content| elements(&content["parts"]))
                .filter_map(|part| part.get("functionResponse"))
                .map(|response| said(&response["response"]["content"]))
                .collect(),
            Self::Anthropic => elements(&body["messages"])
                .flat_map(|message| elements(&message["content"]))
                .filter(|block| block["type"] == "tool_result")
                .map(text_of)
                .collect(),
        }
    }

    pub(super) fn offered_tools(self, body: &Value) -> Vec<String> {
        let tools = elements(&body["tools"]);
        let named = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
        match self {
            Self::OpenAi => tools.map(|tool| named(&tool["function"])).collect(),
            Self::Gemini => tools
                .flat_map(|tool| elements(&tool["functionDeclarations"]))
                .map(named)
                .collect(),
            Self::Anthropic => tools.map(named).collect(),
        }
    }
}

fn elements(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns the text of a message: its content as it is, or the texts of its parts.
fn text_of(message: &Value) -> String {
    let content = message.get("content").or_else(|| message.get("parts"));
    match content {
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        Some(content) => said(content),
        None => String::new(),
    }
}

fn said(content: &Value) -> String {
    content.as_str().map_or_else(|| content.to_string(), str::to_owned)
}
