//! Signs of life of a running turn. *Pure.* Nothing of them is stored. Source: `docs/design/wire.md` §2.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::dispatch::{DeliveryContext, DispatchCause};
use super::session::SessionRef;

/// Filter of the subjects of all beats.
pub const LIVE_SUBJECTS: &str = "nexus.live.*.*.*";

/// A beat of a turn that runs, and will answer in a conversation: its platform may show that the account writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritingBeat {
    /// Id of the turn, which is the id of its reply.
    pub turn: Ulid,
    /// Conversation of the reply.
    pub target: DeliveryContext,
    /// The answer so far, if it is being made: accounts with previews show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<Box<AnswerPreview>>,
    /// Whether the turn is over without a reply, and this is its last beat.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_over: bool,
}

/// The answer of a turn as far as it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerPreview {
    /// Session of the turn.
    pub session: SessionRef,
    /// Event that led to the turn.
    pub causation: DispatchCause,
    /// Beginning of the text.
    pub text: String,
}
