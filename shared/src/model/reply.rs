//! Replies: the message of a turn on its way to a channel. *Pure.* Source: `docs/design/wire.md` §1.6; seed 001 §5.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

use super::dispatch::{DeliveryContext, DispatchCause};
use super::event::Attachment;
use super::session::SessionRef;

/// The message of a turn. Its id is the turn's id, so that a turn has one delivery even if steps are repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
}
