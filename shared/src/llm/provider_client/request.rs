//! A request in the format of each provider. *Pure.*

mod anthropic;
mod gemini;
mod openai;
mod schema;

use serde_json::{Value, json};

use crate::llm::answer::ToolRequest;
use crate::llm::ask::{JsonMode, ModelRequest};
use crate::llm::config::ModelProvider;

/// Sentence for a model that must answer with any JSON object.
const JSON_OBJECT: &str = "Answer with one JSON object and nothing else.";

/// Path of the request, below the endpoint.
pub(super) fn path(model: &str, provider: ModelProvider) -> String {
    match provider {
        ModelProvider::OpenAi => "chat/completions".to_owned(),
        ModelProvider::Anthropic => "messages".to_owned(),
        ModelProvider::Gemini => format!("models/{model}:streamGenerateContent?alt=sse"),
    }
}

/// Returns the body of the request to `model`, for a stream.
pub(super) fn request_body(model: &str, ask: &ModelRequest, provider: ModelProvider) -> Value {
    match provider {
        ModelProvider::OpenAi => openai::request_body(model, ask),
        ModelProvider::Anthropic => anthropic::request_body(model, ask),
        ModelProvider::Gemini => gemini::request_body(model, ask),
    }
}

/// Returns the system prompt; empty for none.
fn system_prompt(ask: &ModelRequest) -> String {
    match ask.json {
        // OpenAI rejects the JSON mode if the prompt does not contain the word.
        Some(JsonMode::Object) if ask.system.is_empty() => JSON_OBJECT.to_owned(),
        Some(JsonMode::Object) => format!("{}\n\n{JSON_OBJECT}", ask.system),
        Some(JsonMode::Schema(_)) | None => ask.system.clone(),
    }
}

/// Returns the arguments of an earlier call. Providers accept only objects back.
fn call_arguments(call: &ToolRequest) -> Value {
    match &call.arguments {
        Ok(arguments) => arguments.clone(),
        Err(malformed) => json!({ "malformed": malformed.text }),
    }
}
