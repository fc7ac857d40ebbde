//! A client of the model server.

use std::sync::Arc;
use std::time::Duration;

use shared::clock::SystemClock;
use shared::llm::{Answer, Ask, AskModelError, LlmConfig, Message, Provider, SharedModel, open};
use shared::process::Shutdown;
use shared::retry::Schedule;
use shared::testing::ModelServer;

pub(crate) const PROVIDERS: [(Provider, &str); 3] = [
    (Provider::OpenAi, "openai"),
    (Provider::Gemini, "gemini"),
    (Provider::Anthropic, "anthropic"),
];

/// A configuration that asks `server` as `provider`, and tries `attempts` times.
pub(crate) fn config(server: &ModelServer, provider: (Provider, &str), attempts: u32) -> LlmConfig {
    LlmConfig {
        provider: provider.0,
        model: "gemini-3-flash-preview".to_owned(),
        base_url: server.base_url(provider.1),
        idle_timeout_ms: 30_000,
        retry: Schedule {
            initial_ms: 1,
            max_ms: 2,
            max_attempts: attempts,
            ..Schedule::default()
        },
        ..LlmConfig::default()
    }
}

pub(crate) fn model(config: LlmConfig) -> SharedModel {
    open(config, Arc::new(SystemClock), Shutdown::default()).expect("a usable configuration")
}

pub(crate) fn question(text: &str) -> Ask {
    Ask {
        system: "be brief".to_owned(),
        messages: vec![Message::user(text)],
        timeout: Duration::from_mins(1),
        ..Ask::default()
    }
}

pub(crate) async fn ask(model: &SharedModel, ask: Ask) -> Result<Answer, AskModelError> {
    model.answer(ask, &mut |_| {}).await
}
