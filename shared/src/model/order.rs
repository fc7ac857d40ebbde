//! Session orders: requests of an operator or of another part of Nexus to a session, beside dispatches. *Pure.*
//!
//! An order travels on the session's dispatch subject and is followed by a claim. It is therefore durable, has a
//! place among the session's messages, and reaches a turn on any broker. Source: `docs/design/sessions.md` §4.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::reply::SendDecision;
use super::session::{QueueSettings, SessionRef};
use super::time::UnixMillis;
use crate::wire::unknown::lenient;

/// Maximum length of the text in [`OrderKind::Edit`], in bytes: the ledger keeps it until the dispatch's turn is over.
pub const MAX_EDIT_BYTES: usize = 16 * 1_024;

/// The change that an order requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum OrderKind {
    /// Cancel the running turn and drop every dispatch that waits before this order.
    Abort,
    /// Cancel the running turn; waiting dispatches stay in the queue.
    Interrupt,
    /// Start a new history after the running turn.
    Reset,
    /// Replace the session's own queue settings; empty settings remove them.
    Queue {
        /// The new settings of the queue.
        #[serde(deserialize_with = "lenient")]
        settings: QueueSettings,
    },
    /// Replace the session's own send policy; without a decision, remove it.
    Send {
        /// Whether the session's replies are sent, before any rule.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decision: Option<SendDecision>,
    },
    /// Withdraw one dispatch. It is dropped if it waits or arrives later, and the running turn is canceled if it runs
    /// for this dispatch alone.
    Withdraw {
        /// Id of the withdrawn dispatch.
        dispatch: Ulid,
        /// Whether the running turn continues anyway, because that turn itself requests the withdrawal.
        #[serde(default, skip_serializing_if = "is_false")]
        spares_turn: bool,
    },
    /// Replace the text of one dispatch, because its sender has edited the message. If its turn has begun or is over, the
    /// next turn is told of the new text instead.
    Edit {
        /// Id of the dispatch.
        dispatch: Ulid,
        /// Id of the message's sender at its source.
        from: String,
        /// New text of the message, at most [`MAX_EDIT_BYTES`].
        content: String,
        /// Time of the edit at its source. An older edit that comes later has no effect.
        edited_at: UnixMillis,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl OrderKind {
    /// Returns whether the order is about the moment in which it is given, so that applying it twice does harm.
    #[must_use]
    pub const fn is_for_now(&self) -> bool {
        match self {
            Self::Abort | Self::Interrupt | Self::Reset => true,
            Self::Queue { .. } | Self::Send { .. } | Self::Withdraw { .. } | Self::Edit { .. } => false,
        }
    }

    /// Returns the order's name for logs and records.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Interrupt => "interrupt",
            Self::Reset => "reset",
            Self::Queue { settings: _ } => "queue",
            Self::Send { decision: _ } => "send",
            Self::Withdraw { .. } => "withdraw",
            Self::Edit { .. } => "edit",
        }
    }
}

/// One order to one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionOrder {
    /// Permanent id of the order. A repeated order with the same id has no further effect.
    pub id: Ulid,
    /// Session that the order is for.
    pub target: SessionRef,
    /// Change that the order requests.
    pub wanted: OrderKind,
    /// Name of the requester.
    pub by: String,
    /// Reason in the requester's words; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Time at which the order was given.
    pub at: UnixMillis,
}
