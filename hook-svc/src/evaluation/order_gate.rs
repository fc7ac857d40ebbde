//! Waits for an event's turn, with one [`ConversationOrder`] shared by the events of one partition.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shared::model::event::Event;
use tokio::sync::Notify;

use crate::evaluation::order::{ConversationHash, ConversationOrder, ItemHash, OrderTicket};

/// Gate that keeps the order of one partition.
#[derive(Debug, Clone, Default)]
pub struct OrderGate {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    order: Mutex<ConversationOrder>,
    changed: Notify,
}

impl Inner {
    fn lock_order(&self) -> MutexGuard<'_, ConversationOrder> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OrderGate {
    /// Returns the place of the partition's next event. Must be called in the order of the stream.
    #[must_use]
    pub fn enter_event(&self, event: &Event) -> ConversationPlace {
        let (conversation, item) = (ConversationHash::of_event(event), ItemHash::of_event(event));
        let ticket = self.inner.lock_order().enter_event(conversation, item);
        ConversationPlace {
            inner: Arc::clone(&self.inner),
            ticket,
        }
    }
}

/// An event's place in its conversation; dropping it lets the later events proceed.
#[derive(Debug)]
pub struct ConversationPlace {
    inner: Arc<Inner>,
    ticket: OrderTicket,
}

impl ConversationPlace {
    /// Waits until no earlier event of the conversation is open for `hook`.
    pub async fn clear(&self, hook: &str) {
        self.wait_until(|order| order.is_clear(self.ticket, hook)).await;
    }

    /// Returns whether no earlier event of the conversation is open for `hook`.
    #[must_use]
    pub fn is_clear(&self, hook: &str) -> bool {
        self.inner.lock_order().is_clear(self.ticket, hook)
    }

    /// Waits until every earlier event of the conversation has decided which hooks are called later.
    pub async fn wait_turn(&self) {
        self.wait_until(|order| order.is_turn(self.ticket)).await;
    }

    /// Waits until every earlier event of the same item is settled: its record is stored, or it is a change whose orders
    /// are.
    pub async fn wait_item(&self) {
        self.wait_until(|order| order.is_item_free(self.ticket)).await;
    }

    /// Returns whether every earlier event of the same item is settled.
    #[must_use]
    pub fn is_item_free(&self) -> bool {
        self.inner.lock_order().is_item_free(self.ticket)
    }

    /// Settles the event for its item before it is done: later changes of the item need not wait for it.
    pub fn settle_item(&self) {
        self.inner.lock_order().settle_item(self.ticket);
        self.inner.changed.notify_waiters();
    }

    /// Returns the hooks that are called later for earlier events of the conversation.
    #[must_use]
    pub fn owed_hooks(&self) -> Vec<String> {
        self.inner.lock_order().owed_hooks(self.ticket)
    }

    /// Returns the number of earlier events of the conversation that are under way and have no hooks that are called later, at
    /// most `most`.
    #[must_use]
    pub fn earlier_under_way(&self, most: usize) -> usize {
        self.inner.lock_order().earlier_under_way(self.ticket, most)
    }

    /// Decides that the hooks `owed` are called later, and all others now.
    pub fn decide_owed(&self, owed: Vec<String>) {
        self.inner.lock_order().decide_owed(self.ticket, owed);
        self.inner.changed.notify_waiters();
    }

    async fn wait_until(&self, holds: impl Fn(&ConversationOrder) -> bool) {
        loop {
            let changed = self.inner.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if holds(&self.inner.lock_order()) {
                return;
            }
            changed.await;
        }
    }

    /// Records that the event is done with `hook`.
    pub fn mark_done(&self, hook: &str) {
        self.inner.lock_order().mark_done(self.ticket, hook);
        self.inner.changed.notify_waiters();
    }

    /// Keeps the event open only for `hooks` from now on.
    pub fn narrow_to(&self, hooks: impl IntoIterator<Item = String>) {
        self.inner.lock_order().narrow_to(self.ticket, hooks);
        self.inner.changed.notify_waiters();
    }
}

impl Drop for ConversationPlace {
    fn drop(&mut self) {
        self.inner.lock_order().leave_order(self.ticket);
        self.inner.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;

    fn event(number: u32) -> Event {
        Event::new(
            EventId::parse(format!("webchat:{number}")).expect("valid"),
            "webchat",
            "v",
            UnixMillis(0),
        )
    }

    #[tokio::test]
    async fn a_waiting_dispatch_wakes_when_the_earlier_event_is_done_with_the_hook() {
        let gate = OrderGate::default();
        let (first, second) = (gate.enter_event(&event(1)), gate.enter_event(&event(2)));
        first.clear("h").await;
        let mut waiting = Box::pin(second.clear("h"));
        assert!(waiting.as_mut().now_or_never().is_none());
        first.mark_done("h");
        waiting.await;
    }

    #[tokio::test]
    async fn a_dropped_place_lets_the_later_go() {
        let gate = OrderGate::default();
        let (first, second) = (gate.enter_event(&event(1)), gate.enter_event(&event(2)));
        drop(first);
        second.clear("h").await;
    }

    #[tokio::test]
    async fn a_change_waits_until_the_events_of_its_item_are_gone_and_not_only_done_with_their_hooks() {
        let gate = OrderGate::default();
        let places = [1, 2, 1, 1].map(|number| gate.enter_event(&event(number)));
        let [first, other, change, later] = places;
        first.wait_item().await;

        let mut waiting = Box::pin(change.wait_item());
        first.narrow_to([]);
        assert!(
            waiting.as_mut().now_or_never().is_none(),
            "its record is not stored yet"
        );
        drop(first);
        waiting.await;

        let mut waiting = Box::pin(later.wait_item());
        assert!(waiting.as_mut().now_or_never().is_none(), "the first change's orders");
        change.settle_item();
        waiting.await;
        drop(other);
    }
}
