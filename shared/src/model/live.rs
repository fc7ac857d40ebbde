//! Signs of life of a running turn. *Pure.* Nothing of them is stored. Source: `docs/design/wire.md` §2.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::dispatch::DeliveryContext;

/// Filter of the subjects of all beats.
pub const LIVE_SUBJECTS: &str = "nexus.live.*.*.*";

/// A beat of a turn that runs, and will answer in a conversation: its platform may show that the account writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritingBeat {
    /// Id of the turn, which is the id of its reply.
    pub turn: Ulid,
    /// Conversation of the reply.
    pub target: DeliveryContext,
}
