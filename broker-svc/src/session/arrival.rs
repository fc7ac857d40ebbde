//! What arrives at a session, and what orders and joins it. *Pure.*

use std::sync::Arc;

use shared::model::approval::ApprovalDecision;
use shared::model::dispatch::{DeliveryContext, Dispatch};
use shared::model::event::EventId;
use shared::model::ledger::DispatchRef;
use shared::model::order::SessionOrder;
use shared::model::permission::Level;
use shared::model::time::UnixMillis;
use shared::wire::headers::Carrier;
use ulid::Ulid;

/// A dispatch that waits, and where it stands in `DISPATCHES`.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// Its sequence in `DISPATCHES`.
    pub sequence: u64,
    /// When the stream took it.
    pub arrived: UnixMillis,
    /// What is to be done.
    pub dispatch: Arc<Dispatch>,
    /// The trace that it belongs to.
    pub carrier: Carrier,
    /// Its message says that it may have been published before, under another message id.
    pub is_repeated: bool,
}

impl Pending {
    /// How the ledger names it, without its content.
    #[must_use]
    pub fn reference(&self) -> DispatchRef {
        DispatchRef {
            id: self.dispatch.id,
            sequence: self.sequence,
            event_id: self.dispatch.event_id.clone(),
            content: String::new(),
            stranger: None,
        }
    }

    /// Returns the sender of the message; none if that is the owner.
    #[must_use]
    pub fn stranger(&self) -> Option<&str> {
        let is_owner = self.dispatch.permissions.level == Level::Full;
        (!is_owner).then_some(self.dispatch.message.from.as_str())
    }
}

/// An order, and where it stands in `DISPATCHES`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Its sequence in `DISPATCHES`.
    pub sequence: u64,
    /// When the server stored it.
    pub arrived: UnixMillis,
    /// What is wanted.
    pub order: SessionOrder,
}

/// A message that one of the session's approvals was asked or decided, and where it stands in `DISPATCHES`.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// Its sequence in `DISPATCHES`.
    pub sequence: u64,
    /// The approval's id.
    pub approval: String,
    /// What KV says became of it, once the owner has read that; none = nothing has.
    pub decision: Option<ApprovalDecision>,
}

/// What a look finds.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrival {
    /// A dispatch.
    Dispatch(Pending),
    /// An order.
    Order(Placed),
    /// The end of waiting for a human's word.
    Decision(Told),
}

impl Arrival {
    /// The id of the dispatch or order; none = it has none of its own.
    #[must_use]
    pub fn id(&self) -> Option<Ulid> {
        match self {
            Self::Dispatch(pending) => Some(pending.dispatch.id),
            Self::Order(placed) => Some(placed.order.id),
            Self::Decision(_) => None,
        }
    }

    /// How the ledger names it, without its content.
    #[must_use]
    pub fn reference(&self) -> DispatchRef {
        let named = |kind: &str, id: Ulid, sequence| DispatchRef {
            id,
            sequence,
            event_id: EventId::parse(format!("{kind}:{id}")).expect("a word, a colon and a ULID"),
            content: String::new(),
            stranger: None,
        };

        match self {
            Self::Dispatch(pending) => pending.reference(),
            Self::Order(placed) => named("order", placed.order.id, placed.sequence),
            Self::Decision(told) => named("decision", Ulid::nil(), told.sequence),
        }
    }

    /// Its sequence in `DISPATCHES`.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        match self {
            Self::Dispatch(pending) => pending.sequence,
            Self::Order(placed) => placed.sequence,
            Self::Decision(told) => told.sequence,
        }
    }
}

pub(super) fn target_of(pending: &Pending) -> &DeliveryContext {
    &pending.dispatch.delivery_context
}

/// Whether an answer to both can be one message; which of them it refers to does not count.
pub(super) fn same_target(one: &DeliveryContext, other: &DeliveryContext) -> bool {
    let place = |at: &DeliveryContext| DeliveryContext {
        reply_to_id: None,
        ..at.clone()
    };
    place(one) == place(other)
}

/// What orders the dispatches that one look found: event, then higher priority, then hook, then place.
pub(super) fn order(pending: &Pending) -> (u64, std::cmp::Reverse<i32>, &str, u64) {
    let dispatch = &pending.dispatch;
    (
        dispatch.event_seq,
        std::cmp::Reverse(dispatch.priority),
        &dispatch.hook_id,
        pending.sequence,
    )
}
