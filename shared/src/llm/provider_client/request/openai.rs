//! Requests for OpenAI's chat completions. *Pure.*

use serde_json::{Value, json};

use super::schema::close_objects;
use super::{call_arguments, file_data, system_prompt};
use crate::llm::ask::{JsonMode, ModelFiles, ModelMessage, ModelRequest};
use crate::llm::config::ModelProvider;
use crate::llm::opaque::OpaqueBlocks;

/// Name of the answer's schema, which the interface requires.
const SCHEMA_NAME: &str = "answer";
/// Prefixes of the models that know only the newer name of the limit of tokens.
const NEWER_BOUND: [&str; 5] = ["gpt-5", "gpt-6", "o1", "o3", "o4"];

pub(super) fn request_body(model: &str, ask: &ModelRequest) -> Value {
    let mut body = json!({ "model": model, "stream": true });
    if !ask.tools.is_empty() {
        let tools = ask.tools.iter().map(|tool| {
            let function = json!({
                "name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": false
            });
            json!({ "type": "function", "function": function })
        });

        body["tools"] = tools.collect();
    }

    let system = system_prompt(ask);
    let before = (!system.is_empty()).then(|| json!({ "role": "system", "content": system }));
    let messages = before.into_iter().chain(ask.messages.iter().map(message_json));
    body["messages"] = messages.collect();
    // Without this option a stream has no usage.
    body["stream_options"] = json!({ "include_usage": true });

    match &ask.json {
        None => {}
        Some(JsonMode::Object) => body["response_format"] = json!({ "type": "json_object" }),
        Some(JsonMode::Schema(schema)) => {
            let schema = json!({ "name": SCHEMA_NAME, "strict": true, "schema": close_objects(schema, true) });
            body["response_format"] = json!({ "type": "json_schema", "json_schema": schema });
        }
    }

    // Newer models refuse the older name of the limit, and other servers know only the older one.
    if let Some(most) = ask.max_tokens {
        let newer = NEWER_BOUND.iter().any(|prefix| model.starts_with(prefix));
        let key = if newer { "max_completion_tokens" } else { "max_tokens" };
        body[key] = json!(most);
    }

    body
}

fn message_json(message: &ModelMessage) -> Value {
    match message {
        ModelMessage::User { content, files } if files.is_empty() => json!({ "role": "user", "content": content }),
        ModelMessage::User { content, files } => json!({ "role": "user", "content": content_parts(content, files) }),
        ModelMessage::Tool { id, content, .. } => json!({ "role": "tool", "content": content, "tool_call_id": id }),
        ModelMessage::Assistant {
            content,
            tool_calls,
            opaque,
        } => {
            let mut message = json!({ "role": "assistant", "content": content });
            if tool_calls.is_empty() {
                return message;
            }

            let calls = tool_calls.iter().map(|call| {
                let function = json!({ "name": call.name, "arguments": call_arguments(call).to_string() });
                json!({ "type": "function", "id": call.id, "function": function })
            });
            message["tool_calls"] = calls.collect();

            // Between a call and its result, some providers need their thoughts back: DeepSeek and Kimi, OpenRouter.
            let opaque = OpaqueBlocks::from_kept(opaque.as_ref(), ModelProvider::OpenAi);
            if !opaque.reasoning.is_empty() {
                message["reasoning_content"] = Value::String(opaque.reasoning);
            }

            if !opaque.blocks.is_empty() {
                message["reasoning_details"] = Value::Array(opaque.blocks);
            }

            message
        }
    }
}

fn content_parts(content: &str, files: &ModelFiles) -> Value {
    let text = json!({ "type": "text", "text": content });
    let images = files.images.iter().map(|image| {
        let url = format!("data:{};base64,{}", image.mime_type, file_data(&image.bytes));
        json!({ "type": "image_url", "image_url": { "url": url } })
    });

    let recordings = files.recordings.iter().map(|recording| {
        // The interface names a format, `wav` or `mp3`, in place of a MIME type.
        let format = recording.mime_type.trim_start_matches("audio/");
        let audio = json!({ "data": file_data(&recording.bytes), "format": format });
        json!({ "type": "input_audio", "input_audio": audio })
    });

    std::iter::once(text).chain(images).chain(recordings).collect()
}
