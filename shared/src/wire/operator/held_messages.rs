//! Requests about held messages (`nexus.svc.held.*`), and the record of a decision. *Pure.*

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::time::UnixMillis;
use crate::wire::envelope::WireMessage;
use crate::wire::held::{HeldKind, HeldMessage, HeldUntil};

/// Maximum number of held messages in one list.
pub const MAX_LISTED_HELD: usize = 1_000;

/// Request of `nexus.svc.held.list`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListHeld {
    /// Whether messages that were decided are listed too.
    pub all: bool,
}

/// A held message without its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedHeld {
    /// Id of the dispatch or of the delivery.
    pub id: Ulid,
    /// Kind of the message.
    pub kind: HeldKind,
    /// Stream of the message.
    pub stream: String,
    /// Sequence of the message in its stream.
    pub sequence: u64,
    /// Subject to publish it to again.
    pub subject: String,
    /// Reason why the outcome is unknown, for people.
    pub why: String,
    /// Time since which it is held.
    pub at: UnixMillis,
    /// Decision of an operator.
    pub wanted: HeldUntil,
}

impl From<HeldMessage> for ListedHeld {
    fn from(held: HeldMessage) -> Self {
        Self {
            id: held.id,
            kind: held.kind,
            stream: held.stream,
            sequence: held.sequence,
            subject: held.subject,
            why: held.why,
            at: held.at,
            wanted: held.wanted,
        }
    }
}

/// Answer of `nexus.svc.held.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldList {
    /// Held messages, oldest first.
    pub held: Vec<ListedHeld>,
    /// Number of all of them.
    pub total: usize,
    /// Values that cannot be read: key and error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<(String, String)>,
}

/// What an operator wants with a held message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldDecision {
    /// The work is done again, even if it may have been done before.
    Redo,
    /// The work counts as done.
    Skip,
}

impl HeldDecision {
    /// Returns the wire name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redo => "redo",
            Self::Skip => "skip",
        }
    }

    /// Returns the decision as the held message has it.
    #[must_use]
    pub const fn wanted(self) -> HeldUntil {
        match self {
            Self::Redo => HeldUntil::Redo,
            Self::Skip => HeldUntil::Skip,
        }
    }
}

/// Request of `nexus.svc.held.decide`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecideHeld {
    /// Id of the held message.
    pub id: Ulid,
    /// What is wanted with it.
    pub decision: HeldDecision,
    /// User that asks, for the record.
    pub by: String,
}

/// Answer of `nexus.svc.held.decide`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldDecided {
    /// Id of the held message.
    pub id: Ulid,
    /// Kind of the message.
    pub kind: HeldKind,
    /// What was decided.
    pub decision: HeldDecision,
}

/// A record in `AUDIT` of a decision about a held message. The first one about a message that is held decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRecord {
    /// Kind of the message.
    pub kind: HeldKind,
    /// Id of the dispatch or of the delivery.
    pub id: Ulid,
    /// Time since which it is held.
    pub held_since: UnixMillis,
    /// What was decided.
    pub wanted: HeldDecision,
    /// User that asked, as the request says.
    pub by: String,
    /// Time of the decision.
    pub at: UnixMillis,
}

impl WireMessage for HeldRecord {
    const SCHEMA: &'static str = "held_record";
}
