//! Orders to a session: what an operator or another part of Nexus wants of it, beside dispatches. *Pure.*
//!
//! An order travels on the session's dispatch subject and is followed by a claim, so that it is durable, has a place
//! among the session's messages, and reaches a turn that runs on any broker. Source: `sessions.md` "Sessions".

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::session::{QueueSettings, SessionRef};
use super::time::UnixMillis;

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Wanted {
    /// Cancel the running turn and drop what waits before this order.
    Abort,
    /// Cancel the running turn; what waits goes on.
    Interrupt,
    /// History begins anew, after the running turn.
    Reset,
    /// The session's own queue settings, in place of those that it had; empty = none.
    Queue {
        /// They.
        settings: QueueSettings,
    },
    /// Take one dispatch back: where it waits it is dropped, where it comes later too, and the running turn is cancelled
    /// where it is that of this dispatch alone.
    Withdraw {
        /// Which.
        dispatch: Ulid,
        /// Whether the running turn goes on all the same: it is what wants this.
        #[serde(default, skip_serializing_if = "is_false")]
        spares_turn: bool,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl Wanted {
    /// Whether it is about the moment in which it is given, so that carrying it out once more does harm.
    #[must_use]
    pub const fn is_for_now(&self) -> bool {
        match self {
            Self::Abort | Self::Interrupt | Self::Reset => true,
            Self::Queue { .. } | Self::Withdraw { .. } => false,
        }
    }

    /// A word for it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Interrupt => "interrupt",
            Self::Reset => "reset",
            Self::Queue { settings: _ } => "queue",
            Self::Withdraw { .. } => "withdraw",
        }
    }
}

/// One order to one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionOrder {
    /// Names it for ever; the same again is the same order.
    pub id: Ulid,
    /// Which session.
    pub target: SessionRef,
    /// What.
    pub wanted: Wanted,
    /// Who wants it.
    pub by: String,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When it was given.
    pub at: UnixMillis,
}
