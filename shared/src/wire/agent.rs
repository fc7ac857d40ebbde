//! Requests to and replies of a remote agent over `nexus.agent.<persona>`. *Pure.*
//!
//! The messages are JSON, so that an agent in any language needs only a NATS client. Source:
//! `docs/design/sessions.md` §6.2.

use serde::{Deserialize, Serialize, Serializer};
use ulid::Ulid;

use crate::model::event::Attachment;
use crate::model::permission::PermissionSet;
use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;

use super::envelope::WireMessage;
use super::unknown::lenient;

/// The author of a message in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineRole {
    /// The person, or any other cause of the turn.
    User,
    /// The agent of the session.
    Assistant,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Author of the message.
    pub role: LineRole,
    /// Text of the message.
    pub content: String,
    /// Attachments of the message: their addresses, not their bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
}

/// A tool that the turn may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDescription {
    /// Name of the tool.
    pub name: String,
    /// Purpose of the tool, for the model.
    pub description: String,
    /// JSON Schema of its arguments.
    pub parameters: serde_json::Value,
}

/// `AgentRequest/1`: the request of one turn. The header `Nexus-Turn` has the turn's id, which is the same in a
/// repeated request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentRequest {
    /// Id of the turn.
    pub turn: Ulid,
    /// Session of the turn.
    pub session: SessionRef,
    /// Name of the persona.
    pub persona: String,
    /// System prompt with the extracted context and the time.
    pub system_prompt: String,
    /// History of the conversation, the new message last.
    pub messages: Vec<ChatMessage>,
    /// Tools that the turn may use.
    pub tools: Vec<ToolDescription>,
    /// Permissions of the turn.
    pub permissions: PermissionSet,
    /// Deadline after which no broker waits for the reply.
    pub deadline: UnixMillis,
}

/// `AgentReply/1`: the reply of the turn, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AgentReply {
    /// The agent failed to make a reply.
    Error {
        /// Reason for the failure, for people.
        error: String,
        /// Whether another request may succeed.
        #[serde(default)]
        retryable: bool,
    },
    /// The agent waits for an approval and must be asked again once it is decided.
    Waiting {
        /// Id of the approval, which the gate of the turn reported.
        waiting: String,
    },
    /// The agent replied to the turn.
    Answer {
        /// Text of the reply.
        content: String,
        /// Files to send with the text.
        #[serde(default, deserialize_with = "lenient")]
        attachments: Vec<AgentFile>,
    },
}

/// A file of an agent's answer.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct AgentFile {
    /// What the agent says about the file.
    #[serde(flatten)]
    pub file: Attachment,
    /// Bytes of the file, in base64; absent if they are where `file` says.
    #[serde(default)]
    pub data: Option<String>,
}

impl Serialize for AgentFile {
    /// Without bytes the file is written as a map of known length, as every other attachment.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct WithData<'a> {
            #[serde(flatten)]
            file: &'a Attachment,
            data: &'a str,
        }

        match &self.data {
            None => self.file.serialize(serializer),
            Some(data) => WithData { file: &self.file, data }.serialize(serializer),
        }
    }
}

impl WireMessage for AgentRequest {
    const SCHEMA: &'static str = "agent_request";
}

impl WireMessage for AgentReply {
    const SCHEMA: &'static str = "agent_reply";
}
