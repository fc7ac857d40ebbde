//! The port behind which whoever answers sits. Source: `sessions.md` "Agents".

pub mod echo;
pub mod nats;

use std::time::Duration;

use async_trait::async_trait;
use shared::wire::agent::AgentRequest;

use crate::turn::{Answer, AskAgentError};

/// Somebody who answers.
#[async_trait]
pub trait Agent: Send + Sync + std::fmt::Debug {
    /// Whether to ask it changes nothing outside: then its whole turn is one append, and it may be asked before the
    /// session is owned.
    fn is_pure(&self) -> bool;

    /// Asks, and waits at most `timeout`. The request names its turn, the same whenever the question is repeated.
    ///
    /// # Errors
    /// [`AskAgentError`] says whether asking again may help.
    async fn ask(&self, request: &AgentRequest, timeout: Duration) -> Result<Answer, AskAgentError>;
}
