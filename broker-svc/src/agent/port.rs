//! The port between a turn and the agent that answers it. Source: `docs/design/sessions.md` §6.
//!
//! An [`Agent`] answers a whole turn at once; a [`StepAgent`] asks its model and runs its tools one at a time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::Value;
use shared::model::dispatch::{DeliveryContext, DispatchCause};
use shared::model::event::Attachment;
use shared::model::ledger::{ToolCall, ToolOutcome, TurnUsage};
use shared::model::permission::PermissionSet;
use shared::model::reply::SendDecision;
use shared::model::session::SessionRef;
use shared::wire::agent::{AgentRequest, ToolDescription};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use crate::agent::absence::AgentAbsence;

/// Maximum length of an answer that is kept and delivered, bytes; the rest is cut and the cut is marked.
pub const MAX_ANSWER_BYTES: usize = 256 * 1_024;

/// Answer of an agent to a whole turn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentAnswer {
    /// Text of the answer.
    pub content: String,
    /// Attachments of the answer.
    pub attachments: Vec<Attachment>,
    /// Tokens and cost of the answer.
    pub usage: TurnUsage,
}

/// Reason for which an agent gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskAgentError {
    /// No agent serves the persona.
    #[error("no agent serves this persona")]
    NoAgent,
    /// No answer came within this many milliseconds; the agent may still be working.
    #[error("no answer within {0} ms")]
    Silent(u64),
    /// The connection to the agent is broken.
    #[error("failed to call the agent: {0}")]
    Unreachable(String),
    /// The answer ended before it was whole.
    #[error("the agent's answer broke off: {0}")]
    BrokeOff(String),
    /// The agent's answer cannot be read.
    #[error("malformed answer from the agent: {0}")]
    Malformed(String),
    /// The agent answered with an error.
    #[error("the agent refused: {error}")]
    Refused {
        /// Error text of the agent.
        error: String,
        /// Whether asking again may help.
        retryable: bool,
    },
    /// The agent waits for the approval with this id.
    #[error("the agent is waiting for approval {0}")]
    Waits(String),
}

impl AskAgentError {
    /// Returns whether the call may have been paid for although it has no answer.
    #[must_use]
    pub const fn may_cost(&self) -> bool {
        match self {
            Self::Silent(_) | Self::BrokeOff(_) | Self::Malformed(_) => true,
            Self::NoAgent | Self::Unreachable(_) | Self::Refused { .. } | Self::Waits(_) => false,
        }
    }
}

/// The end of a model call, and the cost of its attempts without an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCall {
    /// The answer, or the reason why there is none.
    pub outcome: Result<ModelAnswer, AskAgentError>,
    /// Cost of attempts without an answer that may have been paid for, US dollars; `None` if it is not known.
    pub lost_usd: Option<f64>,
}

impl From<Result<ModelAnswer, AskAgentError>> for ModelCall {
    /// Returns a call of one attempt.
    fn from(outcome: Result<ModelAnswer, AskAgentError>) -> Self {
        let may_cost = outcome.as_ref().is_err_and(AskAgentError::may_cost);
        Self {
            outcome,
            lost_usd: (!may_cost).then_some(0.0),
        }
    }
}

/// One message of the running turn's own conversation, after the history and the message that it answers.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnMessage {
    /// A message of the person while the turn ran.
    User {
        /// Text of the message.
        content: String,
    },
    /// An answer of the model.
    Assistant {
        /// Text of the answer.
        content: String,
        /// Tool calls that the model asks for; each is answered by a [`TurnMessage::Tool`] after this.
        tool_calls: Vec<ToolCall>,
        /// Opaque part that the provider must get back.
        opaque: Option<Value>,
    },
    /// The outcome of a tool call.
    Tool {
        /// Id of the call.
        call: String,
        /// Name of the tool.
        name: String,
        /// Outcome of the call.
        outcome: ToolOutcome,
    },
}

/// An agent that answers turns.
#[async_trait]
pub trait Agent: Send + Sync + std::fmt::Debug {
    /// Returns whether asking the agent has no effect outside: then its whole turn is one append, and it may be asked
    /// before the session is owned.
    fn is_pure(&self) -> bool;

    /// Asks the agent and waits at most `timeout`. The request names its turn, the same whenever the question is
    /// repeated; `origin` determines who may see the answer while it is made. Dropping the future interrupts the
    /// agent. The method is not called if the agent offers [`Agent::as_step_agent`].
    ///
    /// # Errors
    /// Returns [`AskAgentError`], which says whether asking again may help.
    async fn answer_request(
        &self,
        request: &AgentRequest,
        origin: &TurnOrigin,
        timeout: Duration,
    ) -> Result<AgentAnswer, AskAgentError>;

    /// Returns the agent's stepper if it thinks in steps.
    fn as_step_agent(&self) -> Option<&dyn StepAgent> {
        None
    }
}

/// A tool that a stepper offers.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferedTool {
    /// Description of the tool for the model.
    pub description: ToolDescription,
    /// Whether running the tool again with the same arguments has no further effect: only then is a call that a
    /// former owner began run again.
    pub idempotent: bool,
}

/// Source of a turn and destination of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnOrigin {
    /// Destination of the answer.
    pub delivery: DeliveryContext,
    /// The event that the turn answers, and the number of events that led to it.
    pub causation: DispatchCause,
    /// Sessions that the turn works for, the nearest first: their hooks bind it as well.
    pub works_for: Vec<SessionRef>,
    /// Files of the messages that the turn answers, as far as they are stored. An agent may send these back, and no others.
    pub files: TurnFiles,
    /// The session's own send policy, for what the turn sends before its answer.
    pub send: Option<SendDecision>,
}

/// The stored files of a turn's messages, by the hash of their bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnFiles(BTreeMap<String, Attachment>);

impl TurnFiles {
    /// Returns those of `files` that are stored.
    pub fn of_attachments<'a>(files: impl Iterator<Item = &'a Attachment>) -> Self {
        let stored = files.filter_map(|file| Some((file.stored_hash()?.to_owned(), file.clone())));
        Self(stored.collect())
    }

    /// Returns whether there is a file with the SHA-256 `hash`, in hex.
    #[must_use]
    pub fn contains(&self, hash: &str) -> bool {
        self.0.contains_key(hash)
    }

    /// Returns the file that is stored at `uri`.
    #[must_use]
    pub fn get_uri(&self, uri: &str) -> Option<&Attachment> {
        self.0.values().find(|file| file.storage_uri.as_deref() == Some(uri))
    }
}

/// Input of one model call.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelQuestion {
    /// Prompt, history, the message that is answered, the tools that the turn may use, and the turn's deadline.
    pub request: AgentRequest,
    /// Conversation of this turn, after `request.messages`.
    pub so_far: Vec<TurnMessage>,
    /// Number of the model call in the turn; the first is 1.
    pub step: u32,
    /// Time that the turn has left; the answer must come within it.
    pub left: Duration,
    /// Source of the turn and destination of its answer.
    pub origin: TurnOrigin,
    /// Whether the answer must not be shown before it is whole, because hooks may change it.
    pub quiet: bool,
    /// Indicator that shows that the model cannot be reached.
    pub absence: Option<AgentAbsence>,
}

/// A tool call that a model asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedCall {
    /// Name of the tool.
    pub name: String,
    /// Arguments of the call; [`Value::Null`] if they cannot be read.
    pub arguments: Value,
    /// Reason why the call must not run (its arguments are no JSON): the model gets it, and nothing is started.
    pub fault: Option<String>,
}

/// Result of a model call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelAnswer {
    /// Text of the answer.
    pub content: String,
    /// Tools to run before the model is asked again, in order; none = the turn is done.
    pub calls: Vec<AskedCall>,
    /// Attachments of the text, if the turn is done.
    pub attachments: Vec<Attachment>,
    /// Tokens and cost of the call.
    pub usage: TurnUsage,
    /// Opaque part that the model's provider must get back when the turn goes on.
    pub opaque: Option<Value>,
    /// Name of the model that answered.
    pub model: Option<String>,
}

/// One tool call with its context.
#[derive(Debug, Clone)]
pub struct ToolInvocation {
    /// Session of the turn.
    pub session: SessionRef,
    /// Id of the turn.
    pub turn: Ulid,
    /// Epoch of the ownership under which the call is made: a tool that is called twice may refuse the older one.
    pub epoch: u64,
    /// The call with its arguments. Its id is unique within the turn, and the same when it is run again.
    pub call: ToolCall,
    /// Permissions of the turn, `credentials` included.
    pub permissions: PermissionSet,
    /// Source of the turn and destination of its answer.
    pub origin: TurnOrigin,
    /// Whether the owner alone wrote the messages that the turn answers, with all of their permissions.
    pub is_owners: bool,
    /// Time after which the outcome is not waited for any more.
    pub deadline: Instant,
    /// Token that is canceled if the turn is interrupted; a moment later the future is dropped.
    pub cancel: CancellationToken,
}

/// A tool whose server is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreachableTool {
    /// Whether running the tool again has no further effect.
    pub idempotent: bool,
}

/// An agent that thinks in steps: a model and its tools. It keeps nothing between two calls.
#[async_trait]
pub trait StepAgent: Send + Sync + std::fmt::Debug {
    /// Returns every tool of `persona`; the caller applies the turn's permissions.
    async fn offered_tools(&self, persona: &str) -> Vec<OfferedTool>;

    /// Returns the known facts about the tool `name` of `persona` if its server is away; `None` if there is no such
    /// tool, or it is there.
    fn unreachable_tool(&self, _persona: &str, _name: &str) -> Option<UnreachableTool> {
        None
    }

    /// Returns the highest expected cost of answering `question`, US dollars: the list price of the prompt and of the
    /// longest usual answer. Returns `None` if the model has no price.
    fn price_usd(&self, _question: &ModelQuestion) -> Option<f64> {
        None
    }

    /// Asks the model once. Every piece of text goes to `said` as it comes. Dropping the future interrupts the call.
    /// An error says whether asking again may help.
    async fn ask_model(&self, question: &ModelQuestion, said: &mut (dyn for<'a> FnMut(&'a str) + Send)) -> ModelCall;

    /// Runs a tool that was offered, that the turn may use, and whose start is in the ledger.
    async fn call(&self, call: ToolInvocation) -> ToolOutcome;
}
