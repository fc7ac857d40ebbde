//! The one room of the client crate `genai`: questions in its words, its stream, its errors in ours.
//!
//! Its streams end without a word where the connection was closed early: no end event (OpenAI, Anthropic) or one
//! without a reason to stop (Gemini). Both are [`AskModelError::Truncated`] here. It joins a carriage return at the end
//! of one packet with the line feed of the next into an empty line, which would part an Anthropic event from its name
//! and drop it in silence: such a frame is looked for and ends the attempt.

mod fault;
mod question;
mod reading;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use genai::adapter::AdapterKind;
use genai::chat::{ChatOptions, ChatResponseFormat, ChatStream, ChatStreamEvent, JsonSpec, RawFrameRef, StreamEnd};
use genai::resolver::{AuthData, Endpoint};
use genai::{Client, ModelIden, ServiceTarget, WebConfig};

use super::answer::Answer;
use super::ask::{Ask, Json};
use super::config::{LlmConfig, LlmFault, Provider};
use super::error::AskModelError;
use crate::clock::SharedClock;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Text of one answer, bytes. What is longer is no answer.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Name of the answer's schema, where the provider wants one.
const SCHEMA_NAME: &str = "answer";

/// The client, bound to one provider.
pub(super) struct Room {
    client: Client,
    provider: Provider,
    endpoint: Endpoint,
    auth: AuthData,
    idle: Duration,
    clock: SharedClock,
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Room")
            .field("provider", &self.provider)
            .field("endpoint", &self.endpoint.base_url())
            .finish_non_exhaustive()
    }
}

/// What the frames of one stream tell beside their content.
#[derive(Debug, Default)]
struct Frames {
    seen: AtomicUsize,
    parted: AtomicBool,
}

impl Room {
    pub(super) fn new(config: &LlmConfig, clock: SharedClock) -> Result<Self, LlmFault> {
        let web = WebConfig::default().with_connect_timeout(CONNECT_TIMEOUT);
        let client = Client::builder()
            .with_web_config(web)
            .build()
            .map_err(|_| LlmFault::NoClient)?;
        let own = match config.provider {
            Provider::Gemini => "https://generativelanguage.googleapis.com/v1beta/",
            Provider::OpenAi => "https://api.openai.com/v1/",
            Provider::Anthropic => "https://api.anthropic.com/v1/",
        };
        let base = match config.base_url.trim_end_matches('/') {
            "" => own.to_owned(),
            base => format!("{base}/"),
        };
        // A server of one's own that wants no key does not look at it.
        let key = config.api_key.as_ref().map_or("none", |key| key.reveal());
        Ok(Self {
            client,
            provider: config.provider,
            endpoint: Endpoint::from_owned(base),
            auth: AuthData::from_single(key),
            idle: Duration::from_millis(config.idle_timeout_ms),
            clock,
        })
    }

    /// One attempt.
    pub(super) async fn ask(
        &self,
        model: &str,
        ask: &Ask,
        hear: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<Answer, AskModelError> {
        let frames = Arc::new(Frames::default());
        let target = ServiceTarget {
            endpoint: self.endpoint.clone(),
            auth: self.auth.clone(),
            model: ModelIden::new(self.adapter(), model),
        };
        let options = self.options(ask, &frames);
        let question = question::of(ask, self.provider);
        let started = self.client.exec_chat_stream(target, question, Some(&options)).await;
        let stream = started
            .map_err(|error| fault::of(error, 0, false, self.clock.now()))?
            .stream;
        let mut text = String::new();
        let end = self.read(stream, &frames, &mut text, hear).await?;
        reading::answer(model, self.provider, text, end)
    }

    const fn adapter(&self) -> AdapterKind {
        match self.provider {
            Provider::Gemini => AdapterKind::Gemini,
            Provider::OpenAi => AdapterKind::OpenAI,
            Provider::Anthropic => AdapterKind::Anthropic,
        }
    }

    fn options(&self, ask: &Ask, frames: &Arc<Frames>) -> ChatOptions {
        let named = self.provider == Provider::Anthropic;
        let frames = Arc::clone(frames);
        let mut options = ChatOptions::default()
            .with_capture_usage(true)
            .with_capture_tool_calls(true)
            // For Gemini this would ask for summaries of its thoughts; its signatures come anyway.
            .with_capture_reasoning_content(named)
            .with_raw_frame_fn(move |_, frame: RawFrameRef<'_>| {
                frames.seen.fetch_add(1, Ordering::Relaxed);
                if named && (frame.event.is_none() != frame.data.is_empty()) {
                    frames.parted.store(true, Ordering::Relaxed);
                }
            });
        if let Some(max) = ask.max_tokens {
            options = options.with_max_tokens(max);
        }
        match (&ask.json, self.provider) {
            (None, _) => options,
            (Some(Json::Schema(schema)), _) => options.with_response_format(JsonSpec::new(SCHEMA_NAME, schema.clone())),
            (Some(Json::Object), Provider::OpenAi) => options.with_response_format(ChatResponseFormat::JsonMode),
            (Some(Json::Object), Provider::Gemini) => {
                options.with_response_format(JsonSpec::new(SCHEMA_NAME, serde_json::json!({"type": "object"})))
            }
            // It has no such mode: the sentence in the system prompt is all there is.
            (Some(Json::Object), Provider::Anthropic) => options,
        }
    }

    /// Reads to the end event; text goes to `text` and to `hear`.
    async fn read(
        &self,
        mut stream: ChatStream,
        frames: &Frames,
        text: &mut String,
        hear: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<StreamEnd, AskModelError> {
        loop {
            let Ok(next) = tokio::time::timeout(self.idle, stream.next()).await else {
                return Err(AskModelError::Silent {
                    silent_ms: u64::try_from(self.idle.as_millis()).unwrap_or(u64::MAX),
                });
            };
            let broken = |detail: &str, received: usize| AskModelError::Truncated {
                received,
                detail: detail.to_owned(),
            };
            let begun = frames.seen.load(Ordering::Relaxed) > 0;
            let event = match next {
                None => return Err(broken("the stream ended", text.len())),
                Some(Err(error)) => return Err(fault::of(error, text.len(), begun, self.clock.now())),
                Some(Ok(event)) => event,
            };
            if frames.parted.load(Ordering::Relaxed) {
                return Err(broken("an event was parted from its name", text.len()));
            }
            match event {
                ChatStreamEvent::Chunk(chunk) => {
                    if text.len() + chunk.content.len() > MAX_ANSWER_BYTES {
                        return Err(AskModelError::BadAnswer {
                            detail: format!("longer than {MAX_ANSWER_BYTES} bytes"),
                        });
                    }
                    text.push_str(&chunk.content);
                    hear(&chunk.content);
                }
                ChatStreamEvent::End(end) if end.captured_stop_reason.is_none() => {
                    return Err(broken("the stream ended without saying why", text.len()));
                }
                ChatStreamEvent::End(end) => return Ok(end),
                ChatStreamEvent::Start
                | ChatStreamEvent::ReasoningChunk(_)
                | ChatStreamEvent::ThoughtSignatureChunk(_)
                | ChatStreamEvent::ToolCallChunk(_)
                | ChatStreamEvent::Heartbeat => {}
            }
        }
    }
}
