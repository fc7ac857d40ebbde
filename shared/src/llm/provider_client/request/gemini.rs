//! Requests for Google's `streamGenerateContent`. *Pure.*

use bytes::Bytes;
use serde_json::{Value, json};

use super::{call_arguments, file_data, system_prompt};
use crate::llm::answer::ToolRequest;
use crate::llm::ask::{JsonMode, ModelMessage, ModelRequest};
use crate::llm::config::ModelProvider;
use crate::llm::opaque::OpaqueBlocks;

/// Placeholder for the signature of a call that has none; Gemini 3 rejects the first call of a step without one.
/// Source: ai.google.dev "thought signatures", FAQ.
const UNSIGNED: &str = "skip_thought_signature_validator";

pub(super) fn request_body(model: &str, ask: &ModelRequest) -> Value {
    let mut body = json!({});
    let system = system_prompt(ask);
    if !system.is_empty() {
        body["systemInstruction"] = json!({ "parts": [{ "text": system }] });
    }

    if !ask.tools.is_empty() {
        let tools = ask.tools.iter().map(|tool| {
            json!({ "name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters })
        });
        let declarations: Value = tools.collect();
        body["tools"] = json!([{ "functionDeclarations": declarations }]);
    }

    // Gemini 3 rejects a call without a signature; other models need none.
    body["contents"] = content_list(&ask.messages, model.contains("gemini-3"));
    let schema = match &ask.json {
        None => None,
        Some(JsonMode::Object) => Some(json!({ "type": "object" })),
        Some(JsonMode::Schema(schema)) => Some(schema.clone()),
    };

    if let Some(schema) = schema {
        body["generationConfig"]["responseMimeType"] = json!("application/json");
        body["generationConfig"]["responseJsonSchema"] = schema;
    }

    if let Some(most) = ask.max_tokens {
        body["generationConfig"]["maxOutputTokens"] = json!(most);
    }

    body
}

/// Converts the conversation. Results of tools are the user's next turn, all in one content.
fn content_list(messages: &[ModelMessage], signs: bool) -> Value {
    let mut said: Vec<Value> = Vec::new();
    let mut results = Vec::new();
    for message in messages {
        if let ModelMessage::Tool { id, name, content } = message {
            results.push(function_response(id, name, content));
            continue;
        }

        said.extend(flush_results(&mut results));

        match message {
            ModelMessage::User { content, files } => {
                let images = files
                    .images
                    .iter()
                    .map(|image| inline_data(image.mime_type, &image.bytes));
                let recordings = files.recordings.iter();
                let recordings = recordings.map(|recording| inline_data(recording.mime_type, &recording.bytes));
                let parts = images.chain(recordings).chain([json!({ "text": content })]);
                said.push(json!({ "role": "user", "parts": parts.collect::<Value>() }));
            }
            ModelMessage::Tool { .. } => {}
            ModelMessage::Assistant {
                content,
                tool_calls,
                opaque,
            } => {
                let opaque = OpaqueBlocks::from_kept(opaque.as_ref(), ModelProvider::Gemini);
                let parts = content_parts(content, tool_calls, opaque, signs);
                // Gemini rejects a turn without parts.
                if !parts.is_empty() {
                    said.push(json!({ "role": "model", "parts": parts }));
                }
            }
        }
    }

    said.extend(flush_results(&mut results));
    Value::Array(said)
}

fn inline_data(mime_type: &str, bytes: &Bytes) -> Value {
    json!({ "inlineData": { "mimeType": mime_type, "data": file_data(bytes) } })
}

fn flush_results(results: &mut Vec<Value>) -> Option<Value> {
    let results = std::mem::take(results);
    (!results.is_empty()).then(|| json!({ "role": "user", "parts": results }))
}

fn function_response(id: &str, name: &str, content: &str) -> Value {
    let mut response = json!({ "name": name, "response": { "name": name, "content": content } });
    if let Some(id) = own_id(id) {
        response["id"] = json!(id);
    }
    json!({ "functionResponse": response })
}

fn content_parts(content: &str, calls: &[ToolRequest], opaque: OpaqueBlocks, signs: bool) -> Vec<Value> {
    let mut parts = opaque.blocks;
    if !content.is_empty() {
        let mut text = json!({ "text": content });
        if let Some(signature) = opaque.text_signature {
            text["thoughtSignature"] = Value::String(signature);
        }
        parts.push(text);
    }

    for (place, call) in calls.iter().enumerate() {
        let mut part = json!({ "functionCall": { "name": call.name, "args": call_arguments(call) } });
        if let Some(id) = own_id(&call.id) {
            part["functionCall"]["id"] = json!(id);
        }

        let signature = opaque.signatures.get(&place).map(String::as_str);
        if let Some(signature) = signature.or((signs && place == 0).then_some(UNSIGNED)) {
            part["thoughtSignature"] = json!(signature);
        }
        parts.push(part);
    }

    parts
}

/// Returns the id, unless it replaces one that was missing (`call#{name}#{place}`): such calls are matched in order.
fn own_id(id: &str) -> Option<&str> {
    let ours = id
        .strip_prefix("call#")
        .and_then(|rest| rest.rsplit_once('#'))
        .is_some_and(|(name, place)| !name.is_empty() && place.parse::<usize>().is_ok());
    (!id.is_empty() && !ours).then_some(id)
}
