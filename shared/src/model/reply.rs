//! The Reply: what a turn says, on its way to a channel. *Pure.* Source: `docs/design/wire.md` §1.6; seed 001 §5.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

use super::dispatch::{Causation, DeliveryContext};
use super::event::Attachment;
use super::session::SessionRef;

/// What a turn says. Its id is the turn's id, so that a turn has one delivery whatever is repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// The delivery's id (= the turn's).
    pub id: Ulid,
    /// The turn that said it.
    pub turn: Ulid,
    /// The turn's session.
    pub session: SessionRef,
    /// Where it goes.
    pub delivery_context: DeliveryContext,
    /// The text.
    pub content: String,
    /// What goes along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Buttons and cards, where the platform has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interactive: Option<Value>,
    /// The event that led to it.
    pub causation: Causation,
}
