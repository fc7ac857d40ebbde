//! The port behind which tools sit, and what a call is given. Source: `docs/design/sessions.md` §6.4; seed 001 §5.
//!
//! A tool is called only after the ledger says `tool_started`, with arguments that fit its schema, where the turn's
//! permissions allow its name. What it may know of secrets is in [`credentials`], which the model never sees.

pub mod agents;
pub mod catalogue;
pub mod credentials;
pub mod mcp;
pub mod schema;
pub mod service;
pub mod toolbox;

use async_trait::async_trait;
use shared::model::ledger::ToolOutcome;
use shared::wire::agent::ToolDescription;

use crate::agent::port::Call;
use credentials::Credentials;

/// One call of a tool.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// Session, turn, epoch, call id, arguments, permissions, deadline, cancellation.
    pub call: Call,
    /// The secrets that this turn's tools may have.
    pub credentials: Credentials,
}

/// Something that a model may have done.
#[async_trait]
pub trait Tool: Send + Sync + std::fmt::Debug {
    /// Name (`[A-Za-z0-9_-]{1,64}`), what it does, JSON Schema of its arguments.
    fn description(&self) -> &ToolDescription;

    /// Whether running it again with the same arguments and the same call id changes nothing more.
    fn is_idempotent(&self) -> bool;

    /// Runs it. It ends soon after [`Call::cancel`] is cancelled; a moment later the future is dropped.
    async fn call(&self, call: ToolCall) -> ToolOutcome;
}

/// A refusal or a failure, as the model reads it.
#[must_use]
pub fn failed(error: impl Into<String>) -> ToolOutcome {
    ToolOutcome::Error { error: error.into() }
}
