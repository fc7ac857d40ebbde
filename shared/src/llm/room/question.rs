//! A request in the format of each provider. *Pure.*

mod anthropic;
mod gemini;
mod openai;
mod schema;

use serde_json::{Value, json};

use crate::llm::answer::ToolRequest;
use crate::llm::ask::{Ask, Json};
use crate::llm::config::Provider;

/// Sentence for a model that must answer with any JSON object.
const JSON_OBJECT: &str = "Answer with one JSON object and nothing else.";

/// Path of the request, below the endpoint.
pub(super) fn path(model: &str, provider: Provider) -> String {
    match provider {
        Provider::OpenAi => "chat/completions".to_owned(),
        Provider::Anthropic => "messages".to_owned(),
        Provider::Gemini => format!("models/{model}:streamGenerateContent?alt=sse"),
    }
}

/// Returns the body of the request to `model`, for a stream.
pub(super) fn body(model: &str, ask: &Ask, provider: Provider) -> Value {
    match provider {
        Provider::OpenAi => openai::body(model, ask),
        Provider::Anthropic => anthropic::body(model, ask),
        Provider::Gemini => gemini::body(model, ask),
    }
}

/// Returns the system prompt; empty for none.
fn system(ask: &Ask) -> String {
    match ask.json {
        // OpenAI rejects the JSON mode if the prompt does not contain the word.
        Some(Json::Object) if ask.system.is_empty() => JSON_OBJECT.to_owned(),
        Some(Json::Object) => format!("{}\n\n{JSON_OBJECT}", ask.system),
        Some(Json::Schema(_)) | None => ask.system.clone(),
    }
}

/// Returns the arguments of an earlier call. Providers accept only objects back.
fn arguments(call: &ToolRequest) -> Value {
    match &call.arguments {
        Ok(arguments) => arguments.clone(),
        Err(malformed) => json!({ "malformed": malformed.text }),
    }
}
