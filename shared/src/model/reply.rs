//! Replies: the message of a turn on its way to a channel. *Pure.* Source: `docs/design/wire.md` §1.6; seed 001 §5.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

use super::dispatch::{DeliveryContext, DispatchCause};
use super::event::Attachment;
use super::session::SessionRef;
use crate::wire::unknown::{UnknownFields, keeps_unknown};

/// The message of a turn. Its id is the turn's id, so that a turn has one delivery even if steps are repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Reply {
    /// Id of the delivery, which is the turn's id.
    pub id: Ulid,
    /// Turn that made the reply.
    pub turn: Ulid,
    /// Session of the turn.
    pub session: SessionRef,
    /// Destination of the reply.
    pub delivery_context: DeliveryContext,
    /// Text of the reply.
    pub content: String,
    /// Files to send with the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Buttons and cards, for platforms that support them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interactive: Option<Value>,
    /// Event that led to the turn.
    pub causation: DispatchCause,
    /// Change of an earlier message of the destination, which the reply is instead of a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<ReplyAction>,
    /// What the session's own send policy says; absent = the rules of delivery-svc decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send: Option<SendDecision>,
    /// Whether the turn has failed and the text says so, which is no answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Fields that a later release has set.
    #[serde(skip)]
    pub unknown: UnknownFields,
}

/// Whether replies are sent: the decision of a rule, or of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendDecision {
    /// The reply is sent.
    #[default]
    Allow,
    /// The reply is not sent; a receipt records it.
    Deny,
}

keeps_unknown!(Reply);

/// A change of an earlier message of the destination. Each has no further effect if it is made again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ReplyAction {
    /// Replaces a sent message by the reply's text. The message has no buttons then.
    Edit {
        /// Id of the message's event, as in [`ReplyAction::target`].
        target: String,
    },
    /// Deletes a sent message.
    Delete {
        /// Id of the message's event.
        target: String,
    },
    /// Adds a reaction to a message, or removes it.
    React {
        /// Id of the message's event.
        target: String,
        /// Reaction: an emoji, or a name that the platform knows.
        emoji: String,
        /// Whether the reaction is removed.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        removed: bool,
    },
}

impl ReplyAction {
    /// Returns the id of the event of the message that is changed: `out:{delivery}/{part}` of a sent one,
    /// `out:{delivery}` for the last part of a delivery, or the id of a received one.
    #[must_use]
    pub fn target(&self) -> &str {
        match self {
            Self::Edit { target } | Self::Delete { target } | Self::React { target, .. } => target,
        }
    }
}
