//! A request in the format of each provider. *Pure.*

mod anthropic;
mod gemini;
mod openai;
mod schema;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
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

/// Returns the bytes of a file as all providers take them.
fn file_data(bytes: &Bytes) -> String {
    STANDARD.encode(bytes)
}

/// Returns the arguments of an earlier call. Providers accept only objects back.
fn call_arguments(call: &ToolRequest) -> Value {
    match &call.arguments {
        Ok(arguments) => arguments.clone(),
        Err(malformed) => json!({ "malformed": malformed.text }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::ask::{ModelFiles, ModelImage, ModelMessage, ModelRecording};

    /// A question without files, and one with `files`.
    fn asked_with(files: ModelFiles) -> ModelRequest {
        let content = "look".to_owned();
        ModelRequest {
            messages: vec![ModelMessage::user("before"), ModelMessage::User { content, files }],
            ..ModelRequest::default()
        }
    }

    #[test]
    fn images_are_parts_in_the_form_of_each_provider() {
        let image = ModelImage {
            mime_type: "image/png",
            bytes: Bytes::from_static(b"\x89PNG"),
        };
        let ask = asked_with(ModelFiles {
            images: vec![image],
            ..ModelFiles::default()
        });

        // By the vendors' references: OpenAI "Images and vision", Anthropic "Vision", Google "Image understanding".
        let body = request_body("m", &ask, ModelProvider::OpenAi);
        let expected = json!([
            {"role": "user", "content": "before"},
            {"role": "user", "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
            ]},
        ]);
        assert_eq!(body["messages"], expected);

        let body = request_body("claude-sonnet-4-6", &ask, ModelProvider::Anthropic);
        let expected = json!([
            {"role": "user", "content": "before"},
            {"role": "user", "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
                {"type": "text", "text": "look"},
            ]},
        ]);
        assert_eq!(body["messages"], expected);

        let body = request_body("gemini-3-flash-preview", &ask, ModelProvider::Gemini);
        let expected = json!([
            {"role": "user", "parts": [{"text": "before"}]},
            {"role": "user", "parts": [
                {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
                {"text": "look"},
            ]},
        ]);
        assert_eq!(body["contents"], expected);
    }

    #[test]
    fn recordings_are_parts_where_the_provider_takes_them() {
        let recording = |mime_type: &'static str| ModelRecording {
            mime_type,
            bytes: Bytes::from_static(b"RIFF"),
            seconds: 2,
        };
        let both = ["audio/wav", "audio/mp3"].map(recording).to_vec();
        let ask = asked_with(ModelFiles {
            recordings: both,
            ..ModelFiles::default()
        });

        // By the vendors' references: OpenAI "Audio and speech", Google "Audio understanding".
        let body = request_body("m", &ask, ModelProvider::OpenAi);
        let expected = json!([
            {"type": "text", "text": "look"},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "mp3"}},
        ]);
        assert_eq!(body["messages"][1]["content"], expected);

        let body = request_body("gemini-3-flash-preview", &ask, ModelProvider::Gemini);
        let expected = json!([
            {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}},
            {"inlineData": {"mimeType": "audio/mp3", "data": "UklGRg=="}},
            {"text": "look"},
        ]);
        assert_eq!(body["contents"][1]["parts"], expected);

        assert_eq!(ModelProvider::Anthropic.recording_types(), [""; 0]);
        let body = request_body("claude-sonnet-4-6", &ask, ModelProvider::Anthropic);
        assert_eq!(body["messages"][1]["content"], "look");
    }

    #[test]
    fn files_count_in_the_price_of_a_prompt() {
        let length = |files: ModelFiles| asked_with(files).prompt_bytes();
        let none = length(ModelFiles::default());
        let image = ModelImage {
            mime_type: "image/png",
            bytes: Bytes::new(),
        };
        let images = ModelFiles {
            images: vec![image; 2],
            ..ModelFiles::default()
        };
        assert_eq!(length(images) - none, 12_800);

        let recording = ModelRecording {
            mime_type: "audio/wav",
            bytes: Bytes::new(),
            seconds: 60,
        };
        let recordings = ModelFiles {
            recordings: vec![recording; 2],
            ..ModelFiles::default()
        };
        assert_eq!(length(recordings) - none, 4 * 2 * 60 * 32, "32 tokens a second");
    }
}
