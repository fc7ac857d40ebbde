//! A client of the model server.

use std::sync::Arc;
use std::time::Duration;

use shared::clock::SystemClock;
use shared::llm::{AskModelError, LlmConfig, ModelMessage, ModelProvider, ModelReply, ModelRequest, SharedModel, open};
use shared::process::ShutdownSignal;
use shared::retry::RetrySchedule;
use shared::testing::ModelServer;

pub(crate) const PROVIDERS: [(ModelProvider, &str); 3] = [
    (ModelProvider::OpenAi, "openai"),
    (ModelProvider::Gemini, "gemini"),
    (ModelProvider::Anthropic, "anthropic"),
];

/// A configuration that asks `server` as `provider`, and tries `attempts` times.
pub(crate) fn config(server: &ModelServer, provider: (ModelProvider, &str), attempts: u32) -> LlmConfig {
    LlmConfig {
        provider: provider.0,
        model: "gemini-3-flash-preview".to_owned(),
        base_url: server.base_url(provider.1),
        idle_timeout_ms: 30_000,
        retry: RetrySchedule {
            initial_ms: 1,
            max_ms: 2,
            max_attempts: attempts,
            ..RetrySchedule::default()
        },
        ..LlmConfig::default()
    }
}

pub(crate) fn model(config: LlmConfig) -> SharedModel {
    open(config, Arc::new(SystemClock), ShutdownSignal::default()).expect("a usable configuration")
}

pub(crate) fn question(text: &str) -> ModelRequest {
    ModelRequest {
        system: "be brief".to_owned(),
        messages: vec![ModelMessage::user(text)],
        timeout: Duration::from_mins(1),
        ..ModelRequest::default()
    }
}

pub(crate) async fn ask(model: &SharedModel, ask: ModelRequest) -> Result<ModelReply, AskModelError> {
    model.answer(ask, &mut |_| {}).await
}
