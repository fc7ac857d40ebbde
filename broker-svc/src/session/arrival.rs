//! Messages that arrive at a session, their order, and the rules that join them. *Pure.*

use std::sync::Arc;

use shared::model::approval::ApprovalDecision;
use shared::model::dispatch::{DeliveryContext, Dispatch};
use shared::model::event::EventId;
use shared::model::ledger::DispatchRef;
use shared::model::order::SessionOrder;
use shared::model::permission::PermissionLevel;
use shared::model::time::UnixMillis;
use shared::wire::headers::TraceCarrier;
use ulid::Ulid;

/// A waiting dispatch, with its position in `DISPATCHES`.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingDispatch {
    /// Sequence of the dispatch in `DISPATCHES`.
    pub sequence: u64,
    /// Time at which the stream stored it.
    pub arrived: UnixMillis,
    /// The dispatch itself.
    pub dispatch: Arc<Dispatch>,
    /// Trace context of the dispatch.
    pub carrier: TraceCarrier,
    /// Whether the message's header says that it may have been published before, under another message id.
    pub is_repeated: bool,
    /// Whether the message's id says that an operator has republished the event of the dispatch from the dead letters.
    pub is_redriven: bool,
}

impl PendingDispatch {
    /// Returns the reference by which the ledger names the dispatch, without its content.
    #[must_use]
    pub fn dispatch_ref(&self) -> DispatchRef {
        DispatchRef {
            id: self.dispatch.id,
            sequence: self.sequence,
            event_id: self.dispatch.event_id.clone(),
            content: String::new(),
            stranger: None,
        }
    }

    /// Replaces the text of the message, which its sender has edited.
    pub fn replace_text(&mut self, content: &str) {
        content.clone_into(&mut Arc::make_mut(&mut self.dispatch).message.content);
    }

    /// Returns the sender of the message; `None` if the sender is the owner.
    #[must_use]
    pub fn stranger(&self) -> Option<&str> {
        let is_owner = self.dispatch.permissions.level == PermissionLevel::Full;
        (!is_owner).then_some(self.dispatch.message.from.as_str())
    }
}

/// An order, with its position in `DISPATCHES`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedOrder {
    /// Sequence of the order in `DISPATCHES`.
    pub sequence: u64,
    /// Time at which the server stored it.
    pub arrived: UnixMillis,
    /// The order itself.
    pub order: SessionOrder,
}

/// A notice that one of the session's approvals was asked for or decided, with its position in `DISPATCHES`.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalNotification {
    /// Sequence of the notice in `DISPATCHES`.
    pub sequence: u64,
    /// Id of the approval.
    pub approval: String,
    /// Decision that KV has, once the owner has read it; none = the approval is undecided or unread.
    pub decision: Option<ApprovalDecision>,
}

/// A message that a look finds.
#[derive(Debug, Clone, PartialEq)]
pub enum InboxItem {
    /// A dispatch to run.
    Dispatch(PendingDispatch),
    /// An order for the session.
    Order(PlacedOrder),
    /// A notice about an approval.
    Decision(ApprovalNotification),
}

impl InboxItem {
    /// Returns the id of the dispatch or order; `None` if the message has none.
    #[must_use]
    pub fn id(&self) -> Option<Ulid> {
        match self {
            Self::Dispatch(pending) => Some(pending.dispatch.id),
            Self::Order(placed) => Some(placed.order.id),
            Self::Decision(_) => None,
        }
    }

    /// Returns the reference by which the ledger names the message, without its content.
    #[must_use]
    pub fn dispatch_ref(&self) -> DispatchRef {
        let named = |kind: &str, id: Ulid, sequence| DispatchRef {
            id,
            sequence,
            event_id: EventId::parse(format!("{kind}:{id}")).expect("a word, a colon and a ULID"),
            content: String::new(),
            stranger: None,
        };

        match self {
            Self::Dispatch(pending) => pending.dispatch_ref(),
            Self::Order(placed) => named("order", placed.order.id, placed.sequence),
            Self::Decision(told) => named("decision", Ulid::nil(), told.sequence),
        }
    }

    /// Returns the message's sequence in `DISPATCHES`.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        match self {
            Self::Dispatch(pending) => pending.sequence,
            Self::Order(placed) => placed.sequence,
            Self::Decision(told) => told.sequence,
        }
    }
}

pub(super) fn target_of(pending: &PendingDispatch) -> &DeliveryContext {
    &pending.dispatch.delivery_context
}

/// Returns whether one message can answer both; the message that an answer refers to does not count.
pub(super) fn same_target(one: &DeliveryContext, other: &DeliveryContext) -> bool {
    let place = |at: &DeliveryContext| DeliveryContext {
        reply_to_id: None,
        ..at.clone()
    };
    place(one) == place(other)
}

/// Returns the sort key of the dispatches of one look: event, then higher priority, then hook, then sequence.
pub(super) fn sort_key(pending: &PendingDispatch) -> (u64, std::cmp::Reverse<i32>, &str, u64) {
    let dispatch = &pending.dispatch;
    (
        dispatch.event_seq,
        std::cmp::Reverse(dispatch.priority),
        &dispatch.hook_id,
        pending.sequence,
    )
}
