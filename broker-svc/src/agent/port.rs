//! The port between a turn and the agent that answers it. Source: `docs/design/sessions.md` §6.
//!
//! An [`Agent`] answers a whole turn at once; a [`Stepper`] asks its model and runs its tools one at a time.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::Value;
use shared::model::dispatch::{Causation, DeliveryContext};
use shared::model::event::Attachment;
use shared::model::ledger::{ToolCall, ToolOutcome, Usage};
use shared::model::permission::PermissionSet;
use shared::model::session::SessionRef;
use shared::wire::agent::{AgentRequest, ToolDescription};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use crate::absence::Absence;

/// Longest answer that is kept and delivered, bytes; the rest is cut and the cut is marked.
pub const MAX_ANSWER_BYTES: usize = 256 * 1_024;

/// What an agent says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The text.
    pub content: String,
    /// What goes along.
    pub attachments: Vec<Attachment>,
    /// What it cost.
    pub usage: Usage,
}

/// Why an agent says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskAgentError {
    /// Nobody serves the persona.
    #[error("no agent serves this persona")]
    NoAgent,
    /// No answer came in time; the agent may still be at work.
    #[error("no answer within {0} ms")]
    Silent(u64),
    /// The way to the agent is broken.
    #[error("failed to call the agent: {0}")]
    Unreachable(String),
    /// The agent answered, and what it said cannot be read.
    #[error("malformed answer from the agent: {0}")]
    Malformed(String),
    /// The agent says that it cannot.
    #[error("the agent refused: {error}")]
    Refused {
        /// What it said.
        error: String,
        /// Whether asking again may help.
        retryable: bool,
    },
    /// The agent waits for a human's word.
    #[error("the agent is waiting for approval {0}")]
    Waits(String),
}

/// One message of the running turn's own conversation, behind the history and the message that it answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// The person, while the turn ran.
    User {
        /// What they said.
        content: String,
    },
    /// The model.
    Assistant {
        /// What it said.
        content: String,
        /// What it wants done; every call is answered by a [`Line::Tool`] behind.
        tool_calls: Vec<ToolCall>,
        /// What its provider must see again.
        opaque: Option<Value>,
    },
    /// A tool.
    Tool {
        /// The call that it answers.
        call: String,
        /// The tool's name.
        name: String,
        /// How it ended.
        outcome: ToolOutcome,
    },
}

/// Somebody who answers.
#[async_trait]
pub trait Agent: Send + Sync + std::fmt::Debug {
    /// Whether to ask it changes nothing outside: then its whole turn is one append, and it may be asked before the
    /// session is owned.
    fn is_pure(&self) -> bool;

    /// Asks, and waits at most `timeout`. The request names its turn, the same whenever the question is repeated;
    /// `origin` says who may see the answer while it is made.
    /// To drop the future is to interrupt the agent. Not asked where it offers [`Agent::steps`].
    ///
    /// # Errors
    /// [`AskAgentError`] says whether asking again may help.
    async fn ask(&self, request: &AgentRequest, origin: &Origin, timeout: Duration) -> Result<Answer, AskAgentError>;

    /// It as one that thinks in steps, where it does.
    fn steps(&self) -> Option<&dyn Stepper> {
        None
    }
}

/// A tool that a stepper has.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// What the model is told of it.
    pub description: ToolDescription,
    /// Whether to run it again with the same arguments changes nothing more: only then is a call begun by a broker
    /// that is gone run again.
    pub idempotent: bool,
}

/// Where a turn comes from and where its answer goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Where the answer goes.
    pub delivery: DeliveryContext,
    /// The event that it answers, and how many led to it.
    pub causation: Causation,
    /// Sessions that it works for, the nearest first: their hooks bind it as well.
    pub works_for: Vec<SessionRef>,
}

/// One model call.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// Prompt, history, the message that is answered, the tools that the turn may use, and the turn's deadline.
    pub request: AgentRequest,
    /// What was said and done in this turn, behind `request.messages`.
    pub so_far: Vec<Line>,
    /// Which model call of the turn it is; the first is 1.
    pub step: u32,
    /// The time that the turn has left; the answer must come within it.
    pub left: Duration,
    /// Where the turn comes from.
    pub origin: Origin,
    /// Whether nobody is to hear the answer before it is whole: hooks may make another of it.
    pub quiet: bool,
    /// Who shows that the model cannot be reached.
    pub absence: Option<Absence>,
}

/// A tool call that a model asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedCall {
    /// The tool.
    pub name: String,
    /// Its arguments; [`Value::Null`] where they cannot be read.
    pub arguments: Value,
    /// Why it must not be run (its arguments are no JSON): the model is told so, and nothing is started.
    pub fault: Option<String>,
}

/// What a model call led to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Said {
    /// The text.
    pub content: String,
    /// Tools to run before the model is asked again, in order; none = the turn is done.
    pub calls: Vec<AskedCall>,
    /// What goes along with the text, where the turn is done.
    pub attachments: Vec<Attachment>,
    /// What it cost.
    pub usage: Usage,
    /// What the model's provider must see again when the turn goes on.
    pub opaque: Option<Value>,
    /// Which model it was.
    pub model: Option<String>,
}

/// One tool call.
#[derive(Debug, Clone)]
pub struct Call {
    /// The session.
    pub session: SessionRef,
    /// The turn.
    pub turn: Ulid,
    /// The ownership under which it is made: a tool that is asked twice may refuse the older one.
    pub epoch: u64,
    /// Which call, with its arguments. Its id is unique within the turn, and the same when it is run again.
    pub call: ToolCall,
    /// What the turn may do, `credentials` among it.
    pub permissions: PermissionSet,
    /// Where the turn comes from.
    pub origin: Origin,
    /// Whether the owner alone wrote what the turn answers, with all of their rights.
    pub is_owners: bool,
    /// When nobody waits for the outcome any more.
    pub deadline: Instant,
    /// Cancelled where the turn is interrupted; a moment later the future is dropped.
    pub cancel: CancellationToken,
}

/// A tool whose server is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away {
    /// Whether running it again changes nothing more.
    pub idempotent: bool,
}

/// Somebody who thinks in steps: a model and its tools. It keeps nothing between two calls.
#[async_trait]
pub trait Stepper: Send + Sync + std::fmt::Debug {
    /// Every tool that `persona` has; the turn's permissions are applied to it by the caller.
    async fn tools(&self, persona: &str) -> Vec<Offer>;

    /// What is known of the tool `name` of `persona` whose server cannot be had at the moment; none where there is no such
    /// tool, or it is there.
    fn away(&self, _persona: &str, _name: &str) -> Option<Away> {
        None
    }

    /// Asks the model once. Every piece of text goes to `said` as it comes. To drop the future is to interrupt it.
    ///
    /// # Errors
    /// [`AskAgentError`] says whether asking again may help.
    async fn answer(
        &self,
        question: &Question,
        said: &mut (dyn for<'a> FnMut(&'a str) + Send),
    ) -> Result<Said, AskAgentError>;

    /// Runs a tool. It was offered, the turn may use it, and the ledger says that it is about to run.
    async fn call(&self, call: Call) -> ToolOutcome;
}
