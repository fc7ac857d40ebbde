//! Requests for Anthropic's messages. *Pure.*

use serde_json::{Value, json};

use super::schema::close_objects;
use super::{call_arguments, file_data, system_prompt};
use crate::llm::ask::{JsonMode, ModelMessage, ModelRequest};
use crate::llm::config::ModelProvider;
use crate::llm::opaque::OpaqueBlocks;

pub(super) fn request_body(model: &str, ask: &ModelRequest) -> Value {
    let mut body = json!({ "model": model, "stream": true });
    let system = system_prompt(ask);
    if !system.is_empty() {
        body["system"] = Value::String(system);
    }

    if !ask.tools.is_empty() {
        let tools = ask
            .tools
            .iter()
            .map(|tool| json!({ "name": tool.name, "input_schema": tool.parameters, "description": tool.description }));
        body["tools"] = tools.collect();
    }

    body["messages"] = message_list(&ask.messages);

    // There is no mode for any object: only the sentence in the system prompt asks for it.
    if let Some(JsonMode::Schema(schema)) = &ask.json {
        let format = json!({ "type": "json_schema", "schema": close_objects(schema, false) });
        body["output_config"] = json!({ "format": format });
    }

    body["max_tokens"] = json!(ask.max_tokens.unwrap_or_else(|| most_tokens(model)));
    body
}

/// Returns the largest limit of tokens that `model` accepts: this provider requires one.
fn most_tokens(model: &str) -> u32 {
    let digits = |text: &str| text.parse::<u32>().ok().filter(|number| *number < 1_000);
    let mut parts = model.split_once("claude-").map_or("", |(_, name)| name).split('-');
    let family = parts.next().unwrap_or_default();
    let major = parts.next().and_then(digits);

    let minor = parts.next().and_then(digits).unwrap_or(0);
    match (family, major) {
        ("opus", Some(major)) if (major, minor) >= (4, 8) => 128_000,
        ("opus", Some(major)) if (major, minor) >= (4, 5) => 64_000,
        ("opus", Some(4..)) => 32_000,
        ("haiku", Some(5..)) | ("fable" | "mythos", _) => 128_000,
        // Names of the third generation have the version first.
        ("3", Some(5)) => 8_192,
        ("3", None) if model.contains("3-opus") || model.contains("3-haiku") => 4_096,
        _ => 64_000,
    }
}

/// Converts the conversation. Results of tools are the user's next turn, all in one message.
fn message_list(messages: &[ModelMessage]) -> Value {
    let mut said: Vec<Value> = Vec::new();
    let mut results = Vec::new();
    for message in messages {
        if let ModelMessage::Tool { id, content, .. } = message {
            results.push(json!({ "type": "tool_result", "content": content, "tool_use_id": id }));
            continue;
        }

        said.extend(flush_results(&mut results));

        match message {
            // This provider takes no recordings, and gets none.
            ModelMessage::User { content, files } if files.images.is_empty() => {
                said.push(json!({ "role": "user", "content": content }));
            }
            ModelMessage::User { content, files } => {
                let images = files.images.iter().map(|image| {
                    let data = file_data(&image.bytes);
                    let source = json!({ "type": "base64", "media_type": image.mime_type, "data": data });
                    json!({ "type": "image", "source": source })
                });
                // The provider advises to send images before the text.
                let blocks: Value = images.chain([json!({ "type": "text", "text": content })]).collect();
                said.push(json!({ "role": "user", "content": blocks }));
            }
            ModelMessage::Tool { .. } => {}
            ModelMessage::Assistant { .. } => {
                said.push(json!({ "role": "assistant", "content": content_blocks(message) }));
            }
        }
    }

    said.extend(flush_results(&mut results));
    Value::Array(said)
}

fn flush_results(results: &mut Vec<Value>) -> Option<Value> {
    let results = std::mem::take(results);
    (!results.is_empty()).then(|| json!({ "role": "user", "content": results }))
}

fn content_blocks(message: &ModelMessage) -> Value {
    let ModelMessage::Assistant {
        content,
        tool_calls,
        opaque,
    } = message
    else {
        return Value::Null;
    };

    let mut blocks = OpaqueBlocks::from_kept(opaque.as_ref(), ModelProvider::Anthropic).blocks;
    if blocks.is_empty() && tool_calls.is_empty() {
        return Value::String(content.clone());
    }

    if !content.is_empty() {
        blocks.push(json!({ "type": "text", "text": content }));
    }

    let calls = tool_calls
        .iter()
        .map(|call| json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call_arguments(call) }));
    blocks.extend(calls);

    Value::Array(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_has_the_largest_bound_that_it_takes() {
        for (model, most) in [
            ("claude-opus-4-8", 128_000),
            ("claude-opus-4-5-20251101", 64_000),
            ("claude-opus-4-20250514", 32_000),
            ("claude-sonnet-4-6", 64_000),
            ("claude-haiku-4-5", 64_000),
            ("claude-haiku-5", 128_000),
            ("claude-3-7-sonnet-latest", 64_000),
            ("claude-3-5-haiku-latest", 8_192),
            ("claude-3-opus-20240229", 4_096),
            ("claude-3-haiku-20240307", 4_096),
            ("anthropic.claude-opus-4-1", 32_000),
            ("another", 64_000),
        ] {
            assert_eq!(most_tokens(model), most, "{model}");
        }
    }
}
