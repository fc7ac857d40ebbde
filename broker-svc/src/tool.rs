//! The port to tools, and the input of a call. Source: `docs/design/sessions.md` §6.4; seed 001 §5.
//!
//! A tool is called only after the ledger has `tool_started`, with arguments that fit its schema, if the turn's
//! permissions allow its name. The secrets that it may use are in [`credentials`], which the model never sees.

pub mod agents;
pub mod arguments;
mod call_reply;
pub mod catalogue;
pub mod credentials;
pub mod files;
pub mod mcp;
pub mod messages;
pub mod service;
pub mod toolbox;

use async_trait::async_trait;
use shared::model::ledger::ToolOutcome;
use shared::wire::agent::ToolDescription;

use crate::agent::port::ToolInvocation;
use credentials::TurnCredentials;

/// One call of a tool.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The call: session, turn, epoch, call id, arguments, permissions, deadline, cancellation.
    pub call: ToolInvocation,
    /// Secrets that this turn's tools may use.
    pub credentials: TurnCredentials,
}

/// A tool that a model may call.
#[async_trait]
pub trait Tool: Send + Sync + std::fmt::Debug {
    /// Returns the name (`[A-Za-z0-9_-]{1,64}`), the description and the JSON Schema of the arguments.
    fn description(&self) -> &ToolDescription;

    /// Returns whether running the tool again with the same arguments and the same call id has no further effect.
    fn is_idempotent(&self) -> bool;

    /// Runs the tool. It must end soon after [`ToolInvocation::cancel`] is canceled; a moment later the future is dropped.
    async fn call(&self, call: ToolCall) -> ToolOutcome;
}

/// Returns a refusal or a failure, with `error` for the model to read.
#[must_use]
pub fn failed_outcome(error: impl Into<String>) -> ToolOutcome {
    ToolOutcome::Error { error: error.into() }
}
