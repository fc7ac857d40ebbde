//! The deferred evaluations of a partition, as its owner makes them: one author after the other, or given up.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use shared::bus::partition::RedeliverySource;
use shared::wire::seal::record_key;
use tokio::sync::OnceCell;

use super::deferred_events::{DeferredEvent, DeferredResult};
use super::session::{PartitionSession, read};
use super::{MAX_IN_MEMORY, PartitionConsumer};
use crate::evaluation::conversations::ALWAYS;
use crate::evaluation::order::ConversationHash;
use crate::evaluation::retry_budget::UnreadTries;
use crate::evaluation::task::{DeferredHooks, EvaluationRound, EventTask, SharedPermits};
use crate::runner::HeldSlots;

impl PartitionConsumer {
    /// Returns the number of events that `conversation` may have in memory: fewer while many events wait for others or
    /// owe evaluations.
    pub(super) fn allowed_events(&self, shift: &mut PartitionSession, conversation: ConversationHash) -> usize {
        let free = self.held_back.available_permits();
        let allowed = if free * 2 > MAX_IN_MEMORY {
            self.per_conversation
        } else if free * 8 > MAX_IN_MEMORY {
            ALWAYS
        } else {
            1
        };
        allowed.min(shift.owed.room_for(conversation))
    }

    /// Makes the evaluations that `owed` owes, of the first author for whom there is a place, or gives up those that have
    /// waited too long for one.
    pub(super) async fn make_owed(
        &self,
        owed: DeferredEvent,
        partition: u16,
        through: Arc<AtomicU64>,
        again: RedeliverySource,
    ) -> DeferredResult {
        let (conversation, sequence, since) = (owed.conversation, owed.numbers.sequence, owed.since);
        // Each author has a time of its own to get a place, counted without the evaluations of others.
        let left = self.evaluator.time_left(&owed.hooks, since);
        let found = self.evaluator.place_for(&owed.hooks, left, sequence).await;

        let begun = self.evaluator.clock.monotonic();
        let rest = match self.task_of(owed, found, (partition, &through), &again).await {
            Some(task) => self.finish_event(task, None).await,
            None => None,
        };

        // The evaluation time of one author is not part of another's wait.
        let rest = rest.map(|rest| {
            let waited = rest.since.saturating_duration_since(begun);
            rest.waiting_since(since + waited)
        });

        DeferredResult {
            conversation,
            sequence,
            rest,
        }
    }

    /// Reads the event of `owed` again. The hooks that were `found` are called if there is a place, else given up. Returns
    /// `None` if the event is gone.
    async fn task_of(
        &self,
        owed: DeferredEvent,
        (seats, called): (Option<HeldSlots>, Vec<String>),
        (partition, through): (u16, &Arc<AtomicU64>),
        again: &RedeliverySource,
    ) -> Option<EventTask> {
        let incoming = self.read_again(owed.numbers, again).await?;
        // The event is read again and not kept: waiting events must not fill the memory.
        let event = match read(&incoming, self.evaluator.performer.bus.trust()) {
            Ok(event) => event,
            Err(verdict) => {
                self.give_up(&incoming, &verdict).await;
                return None;
            }
        };

        Some(EventTask {
            key: record_key(&event),
            event,
            sequence: owed.numbers.sequence,
            partition,
            inherited: None,
            marker_read: true,
            through: Arc::clone(through),
            place: owed.place,
            incoming,
            pass: EvaluationRound::Deferred(DeferredHooks {
                hooks: owed.hooks,
                called,
                is_too_late: seats.is_none(),
                seats: Mutex::new(seats.unwrap_or_default()),
            }),
            lent: SharedPermits::new(None, &self.held_back),
            deferred: Mutex::default(),
            is_in_loop: OnceCell::new(),
            unread: UnreadTries::default(),
        })
    }
}
