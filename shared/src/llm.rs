//! The model client: one port, [`LanguageModel`], for agents and for hooks.
//!
//! [`open`] returns a model of the configured provider: Gemini, any server that implements OpenAI's chat completions
//! (with any base URL), or Anthropic. The code between the port and the provider is ours: retries (429, 5xx, broken
//! streams, with the delay that the provider asks for), timeouts, and the check that a stream which ended early is not
//! taken for an answer. The providers' bytes are decoded in `wire`, which is pure; only `provider_client.rs` names the HTTP
//! client.
//!
//! Source: `docs/adr/0016-model-wires-are-ours.md`; `docs/design/sessions.md` §6; seed 003 §8.6.

mod answer;
mod ask;
mod client;
mod config;
mod error;
mod lost_attempts;
mod opaque;
mod price;
mod provider_client;
mod usage;
mod wire;

use std::sync::Arc;

use async_trait::async_trait;

pub use answer::{FinishReason, MalformedArguments, ModelReply, ToolRequest};
pub use ask::{JsonMode, ModelFiles, ModelImage, ModelMessage, ModelRecording, ModelRequest, ToolSpec};
pub use client::open;
pub use config::{DEFAULT_MODEL, LlmConfig, LlmFault, ModelProvider};
pub use error::AskModelError;
pub use lost_attempts::LostAttempts;
pub use price::{MicroDollars, ModelPrice, PriceTable, UnpricedModel, estimate, usage_cost};
pub use usage::TokenUsage;
pub use wire::{AnswerReader, HeardAnswer, MAX_EVENT_BYTES, MAX_MEMORY_BYTES, WireFault};

/// Receiver of an answer's text as it arrives. Pass `&mut |_| {}` if it is not wanted.
pub type Tokens<'a> = dyn FnMut(&str) + Send + 'a;

/// Receiver of the error of each failed attempt, also of the last one.
pub type Failures<'a> = dyn FnMut(&AskModelError) + Send + 'a;

/// A model that can be asked. Dropping the future of [`LanguageModel::answer`] ends the request.
#[async_trait]
pub trait LanguageModel: Send + Sync + std::fmt::Debug {
    /// Returns the model's answer to `ask`. If [`ModelRequest::stream`] is set, `tokens` receives the text as it arrives, in
    /// order; the received text is the beginning of [`ModelReply::content`], or void if this fails.
    ///
    /// # Errors
    /// Returns [`AskModelError`] if the model gave no answer; [`AskModelError::is_transient`] tells whether a later
    /// attempt may help.
    async fn answer(&self, ask: ModelRequest, tokens: &mut Tokens<'_>) -> Result<ModelReply, AskModelError>;

    /// Returns the highest expected cost of answering `ask`, or `None` if the model that it names has no price.
    fn estimate(&self, ask: &ModelRequest) -> Option<MicroDollars>;

    /// Returns the list price of `model` (`None`: of the configured one), or `None` if it has no price.
    fn price(&self, model: Option<&str>) -> Option<ModelPrice>;

    /// Returns the MIME types of the recordings that the provider takes; not each of its models does. Empty if it takes none.
    fn recording_types(&self) -> &'static [&'static str];

    /// As [`LanguageModel::answer`]; in addition, `failed` receives the error of each attempt before the next one is
    /// made, and that of the last one, if it fails or is ended by the time-out or the process.
    ///
    /// # Errors
    /// As [`LanguageModel::answer`].
    async fn answer_telling(
        &self,
        ask: ModelRequest,
        tokens: &mut Tokens<'_>,
        failed: &mut Failures<'_>,
    ) -> Result<ModelReply, AskModelError>;
}

/// A model that several owners share.
pub type SharedModel = Arc<dyn LanguageModel>;
