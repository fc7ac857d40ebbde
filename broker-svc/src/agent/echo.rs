//! The echo: an agent that answers with the message. It needs no network, so that the system runs out of the box.

use std::time::Duration;

use async_trait::async_trait;
use shared::wire::agent::AgentRequest;

use super::port::{Agent, TurnOrigin};
use crate::agent::port::{AgentAnswer, AskAgentError};

/// Prefix of the echoed message.
pub const PREFIX: &str = "echo: ";

/// Agent that answers with the message.
#[derive(Debug, Clone, Copy, Default)]
pub struct EchoAgent;

#[async_trait]
impl Agent for EchoAgent {
    fn is_pure(&self) -> bool {
        true
    }

    async fn answer_request(
        &self,
        request: &AgentRequest,
        _origin: &TurnOrigin,
        _timeout: Duration,
    ) -> Result<AgentAnswer, AskAgentError> {
        let message = request
            .messages
            .last()
            .map(|message| message.content.as_str())
            .unwrap_or_default();
        Ok(AgentAnswer {
            content: format!("{PREFIX}{message}"),
            ..AgentAnswer::default()
        })
    }
}
