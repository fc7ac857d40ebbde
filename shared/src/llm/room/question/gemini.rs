//! Requests for Google's `streamGenerateContent`. *Pure.*

use serde_json::{Value, json};

use super::{arguments, system};
use crate::llm::answer::ToolRequest;
use crate::llm::ask::{Ask, Json, Message};
use crate::llm::config::Provider;
use crate::llm::opaque::Opaque;

/// Placeholder for the signature of a call that has none; Gemini 3 rejects the first call of a step without one.
/// Source: ai.google.dev "thought signatures", FAQ.
const UNSIGNED: &str = "skip_thought_signature_validator";

pub(super) fn body(model: &str, ask: &Ask) -> Value {
    let mut body = json!({});
    let system = system(ask);
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
    body["contents"] = contents(&ask.messages, model.contains("gemini-3"));
    let schema = match &ask.json {
        None => None,
        Some(Json::Object) => Some(json!({ "type": "object" })),
        Some(Json::Schema(schema)) => Some(schema.clone()),
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
fn contents(messages: &[Message], signs: bool) -> Value {
    let mut said: Vec<Value> = Vec::new();
    let mut results = Vec::new();
    for message in messages {
        if let Message::Tool { id, name, content } = message {
            results.push(result(id, name, content));
            continue;
        }

        said.extend(answered(&mut results));

        match message {
            Message::User { content } => said.push(json!({ "role": "user", "parts": [{ "text": content }] })),
            Message::Tool { .. } => {}
            Message::Assistant {
                content,
                tool_calls,
                opaque,
            } => {
                let opaque = Opaque::of(opaque.as_ref(), Provider::Gemini);
                let parts = parts(content, tool_calls, opaque, signs);
                // Gemini rejects a turn without parts.
                if !parts.is_empty() {
                    said.push(json!({ "role": "model", "parts": parts }));
                }
            }
        }
    }

    said.extend(answered(&mut results));
    Value::Array(said)
}

fn answered(results: &mut Vec<Value>) -> Option<Value> {
    let results = std::mem::take(results);
    (!results.is_empty()).then(|| json!({ "role": "user", "parts": results }))
}

fn result(id: &str, name: &str, content: &str) -> Value {
    let mut response = json!({ "name": name, "response": { "name": name, "content": content } });
    if let Some(id) = own(id) {
        response["id"] = json!(id);
    }
    json!({ "functionResponse": response })
}

fn parts(content: &str, calls: &[ToolRequest], opaque: Opaque, signs: bool) -> Vec<Value> {
    let mut parts = opaque.blocks;
    if !content.is_empty() {
        let mut text = json!({ "text": content });
        if let Some(signature) = opaque.text_signature {
            text["thoughtSignature"] = Value::String(signature);
        }
        parts.push(text);
    }

    for (place, call) in calls.iter().enumerate() {
        let mut part = json!({ "functionCall": { "name": call.name, "args": arguments(call) } });
        if let Some(id) = own(&call.id) {
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
fn own(id: &str) -> Option<&str> {
    let ours = id
        .strip_prefix("call#")
        .and_then(|rest| rest.rsplit_once('#'))
        .is_some_and(|(name, place)| !name.is_empty() && place.parse::<usize>().is_ok());
    (!id.is_empty() && !ours).then_some(id)
}
