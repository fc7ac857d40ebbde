//! A question on each provider's wire. *Pure.*

mod anthropic;
mod gemini;
mod openai;
mod schema;

use serde_json::{Value, json};

use crate::llm::answer::ToolRequest;
use crate::llm::ask::{Ask, Json};
use crate::llm::config::Provider;

/// What is said to a model that is to answer with any JSON object.
const JSON_OBJECT: &str = "Answer with one JSON object and nothing else.";

/// Where the question goes, below the endpoint.
pub(super) fn path(model: &str, provider: Provider) -> String {
    match provider {
        Provider::OpenAi => "chat/completions".to_owned(),
        Provider::Anthropic => "messages".to_owned(),
        Provider::Gemini => format!("models/{model}:streamGenerateContent?alt=sse"),
    }
}

/// The body of the request that asks `model`, for a stream.
pub(super) fn body(model: &str, ask: &Ask, provider: Provider) -> Value {
    match provider {
        Provider::OpenAi => openai::body(model, ask),
        Provider::Anthropic => anthropic::body(model, ask),
        Provider::Gemini => gemini::body(model, ask),
    }
}

/// The system prompt; empty = none.
fn system(ask: &Ask) -> String {
    match ask.json {
        // OpenAI refuses to answer in JSON where the word is not said.
        Some(Json::Object) if ask.system.is_empty() => JSON_OBJECT.to_owned(),
        Some(Json::Object) => format!("{}\n\n{JSON_OBJECT}", ask.system),
        Some(Json::Schema(_)) | None => ask.system.clone(),
    }
}

/// The arguments of an earlier call. Providers take nothing but objects back.
fn arguments(call: &ToolRequest) -> Value {
    match &call.arguments {
        Ok(arguments) => arguments.clone(),
        Err(malformed) => json!({ "malformed": malformed.text }),
    }
}
