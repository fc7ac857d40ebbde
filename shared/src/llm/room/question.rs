//! A question in the words of the client crate. *Pure.*

use genai::chat::{ChatMessage, ChatRequest, ContentPart, MessageContent, Tool, ToolCall, ToolResponse};
use serde_json::json;

use crate::llm::answer::ToolRequest;
use crate::llm::ask::{Ask, Json, Message};
use crate::llm::config::Provider;

use super::reading::Opaque;

/// What is said to a model that is to answer with any JSON object.
const JSON_OBJECT: &str = "Answer with one JSON object and nothing else.";

pub(super) fn of(ask: &Ask, provider: Provider) -> ChatRequest {
    let messages = ask.messages.iter().map(|message| said(message, provider));
    let mut request = ChatRequest::new(messages.collect());
    let system = match ask.json {
        // OpenAI refuses to answer in JSON where the word is not said.
        Some(Json::Object) if ask.system.is_empty() => JSON_OBJECT.to_owned(),
        Some(Json::Object) => format!("{}\n\n{JSON_OBJECT}", ask.system),
        Some(Json::Schema(_)) | None => ask.system.clone(),
    };
    if !system.is_empty() {
        request = request.with_system(system);
    }
    if !ask.tools.is_empty() {
        let tools = ask.tools.iter().map(|tool| {
            Tool::new(tool.name.clone())
                .with_description(tool.description.clone())
                .with_schema(tool.parameters.clone())
        });
        request = request.with_tools(tools);
    }
    request
}

fn said(message: &Message, provider: Provider) -> ChatMessage {
    match message {
        Message::User { content } => ChatMessage::user(content.clone()),
        Message::Tool { id, name, content } => {
            let response = ToolResponse::new(id.clone(), content.clone()).with_fn_name(name.clone());
            ChatMessage::tool(MessageContent::from_tool_responses(vec![response]))
        }
        Message::Assistant {
            content,
            tool_calls,
            opaque,
        } => {
            // Written by another provider, or by another version: it is of no use here.
            let opaque = opaque
                .as_ref()
                .and_then(|opaque| serde_json::from_value::<Opaque>(opaque.clone()).ok())
                .filter(|opaque| opaque.provider == provider)
                .unwrap_or_else(|| Opaque::of(provider));
            let mut parts = opaque.leading;
            if !content.is_empty() {
                parts.push(ContentPart::Text(content.clone()));
            }
            let calls = tool_calls.iter().enumerate().map(|(index, request)| {
                let signatures = opaque.signatures.get(&index).cloned();
                ContentPart::ToolCall(call(request, signatures))
            });
            parts.extend(calls);
            ChatMessage::assistant(MessageContent::from_parts(parts))
        }
    }
}

fn call(request: &ToolRequest, thought_signatures: Option<Vec<String>>) -> ToolCall {
    let fn_arguments = match &request.arguments {
        Ok(arguments) => arguments.clone(),
        // Providers take nothing but objects back.
        Err(malformed) => json!({ "malformed": malformed.text }),
    };
    ToolCall {
        call_id: request.id.clone(),
        fn_name: request.name.clone(),
        fn_arguments,
        thought_signatures,
    }
}
