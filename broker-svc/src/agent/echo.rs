//! The echo: an agent that answers with the message. It needs no network, so that the system runs out of the box.

use std::time::Duration;

use async_trait::async_trait;
use shared::wire::agent::AgentRequest;

use super::port::{Agent, Origin};
use crate::agent::port::{Answer, AskAgentError};

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

    async fn ask(&self, request: &AgentRequest, _origin: &Origin, _timeout: Duration) -> Result<Answer, AskAgentError> {
        let message = request
            .messages
            .last()
            .map(|message| message.content.as_str())
            .unwrap_or_default();
        Ok(Answer {
            content: format!("{PREFIX}{message}"),
            ..Answer::default()
        })
    }
}
