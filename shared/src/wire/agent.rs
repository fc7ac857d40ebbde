//! What a remote agent is asked and answers, over `nexus.agent.<persona>`. *Pure.*
//!
//! JSON, so that an agent in any language needs nothing but a NATS client. Source: `docs/design/sessions.md` §6.2.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::event::Attachment;
use crate::model::permission::PermissionSet;
use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;

use super::envelope::Wire;

/// Who said a message of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The person, or whatever happened.
    User,
    /// The agent.
    Assistant,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who said it.
    pub role: Role,
    /// What.
    pub content: String,
    /// What went along with it: where it is, not its bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

/// A tool that the turn may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDescription {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: serde_json::Value,
}

/// `AgentRequest/1`: one turn's question. The header `Nexus-Turn` carries the turn's id, the same when repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentRequest {
    /// The turn.
    pub turn: Ulid,
    /// The session.
    pub session: SessionRef,
    /// The persona.
    pub persona: String,
    /// Prompt, extracted context, time.
    pub system_prompt: String,
    /// History, the new message last.
    pub messages: Vec<ChatMessage>,
    /// What may be used.
    pub tools: Vec<ToolDescription>,
    /// What the turn may do.
    pub permissions: PermissionSet,
    /// When nobody waits for the answer any more.
    pub deadline: UnixMillis,
}

/// `AgentReply/1`: the turn's answer, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AgentReply {
    /// It cannot.
    Error {
        /// Why.
        error: String,
        /// Whether asking again may help.
        #[serde(default)]
        retryable: bool,
    },
    /// It waits for a human's word, and is to be asked again once that is there.
    Waiting {
        /// The approval, which the gate of the turn told it of.
        waiting: String,
    },
    /// It says.
    Answer {
        /// What.
        content: String,
        /// What goes along.
        #[serde(default)]
        attachments: Vec<Attachment>,
    },
}

impl Wire for AgentRequest {
    const SCHEMA: &'static str = "agent_request";
}

impl Wire for AgentReply {
    const SCHEMA: &'static str = "agent_reply";
}
