//! The model client: one port, [`Model`], for agents and for hooks.
//!
//! [`open`] gives the configured provider behind it: Gemini, anything that speaks OpenAI's chat completions (with any
//! base URL), Anthropic. What stands between the port and the provider is ours: repeating (429, 5xx, broken streams,
//! with the wait that the provider asks for), time-outs, and the refusal to take a stream that ended early for an
//! answer. What the providers' bytes say is read in `wire`, which is pure; only `room.rs` names the HTTP client.
//!
//! Source: `docs/adr/0016-model-wires-are-ours.md`; `docs/design/sessions.md` §6; seed 003 §8.6.

mod answer;
mod ask;
mod client;
mod config;
mod error;
mod opaque;
mod price;
mod room;
mod wire;

use std::sync::Arc;

use async_trait::async_trait;

pub use answer::{Answer, Finish, MalformedArguments, ToolRequest, Usage};
pub use ask::{Ask, Json, Message, ToolSpec};
pub use client::open;
pub use config::{DEFAULT_MODEL, LlmConfig, LlmFault, Provider};
pub use error::AskModelError;
pub use price::{MicroDollars, Price, Prices, UnpricedModel, cost};
pub use wire::{Heard, MAX_EVENT_BYTES, MAX_MEMORY_BYTES, Reading, WireFault};

/// Who is given the text of an answer as it comes. `&mut |_| {}` where nobody wants it.
pub type Tokens<'a> = dyn FnMut(&str) + Send + 'a;

/// Who is told of attempts that gave no answer, while they are repeated.
pub type Failures<'a> = dyn FnMut(&AskModelError) + Send + 'a;

/// Somebody who can be asked. Dropping the future of an answer ends the request.
#[async_trait]
pub trait Model: Send + Sync + std::fmt::Debug {
    /// Answers `ask`. Where [`Ask::stream`] is set, `tokens` is given the text as it comes, in order; what it was given
    /// is the beginning of [`Answer::content`], or of nothing where this fails.
    ///
    /// # Errors
    /// [`AskModelError`] says what happened, and [`AskModelError::is_transient`] whether asking again later may help.
    async fn answer(&self, ask: Ask, tokens: &mut Tokens<'_>) -> Result<Answer, AskModelError>;

    /// The same; `failed` is told why an attempt gave no answer, before the next one is made.
    ///
    /// # Errors
    /// As [`Model::answer`] does.
    async fn answer_telling(
        &self,
        ask: Ask,
        tokens: &mut Tokens<'_>,
        failed: &mut Failures<'_>,
    ) -> Result<Answer, AskModelError>;
}

/// A model that many share.
pub type SharedModel = Arc<dyn Model>;
