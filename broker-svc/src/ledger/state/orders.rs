//! What orders change in the state of a session. *Pure.*

use shared::model::ledger::LedgerCursor;
use shared::model::order::{OrderKind, SessionOrder};

use super::SessionState;

impl SessionState {
    /// Applies the part of `order` that the state has; the rest is done by the session's owner. `cursor` is the position
    /// behind it.
    pub(super) fn obey(&mut self, order: &SessionOrder, cursor: &LedgerCursor) {
        self.note_consumed(order.id);
        self.advance(Some(cursor));
        match &order.wanted {
            OrderKind::Queue { settings } => self.queue = *settings,
            OrderKind::Send { decision } => self.send = *decision,
            // The dispatch may come after the order that withdraws it.
            OrderKind::Withdraw { dispatch, .. } => self.note_consumed(*dispatch),
            OrderKind::Edit {
                dispatch,
                from,
                content,
                edited_at,
            } => self.edit_dispatch(*dispatch, from, content, *edited_at),
            OrderKind::Abort | OrderKind::Interrupt | OrderKind::Reset => {}
        }
    }
}
