//! The events of a partition whose deferred evaluations are to be made: in order within a conversation, a few of each at
//! once. Of an event in here its numbers and its place in its conversation are kept; it is read again when there is a
//! place for its hooks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use shared::bus::partition::Again;
use shared::clock::pause;

use super::Owner;
use super::shift::read;
use crate::conversations::{ALWAYS, Numbers};
use crate::gate::Place;
use crate::meters::Waiting;
use crate::order::Conversation;
use crate::runner::Seats;
use crate::task::{Deferred, Lent, Pass, Task, key_of};

/// An event that owes evaluations.
#[derive(Debug)]
pub(super) struct OwedEvent {
    conversation: Conversation,
    numbers: Numbers,
    place: Place,
    hooks: Vec<String>,
    /// When it was found to owe them, in this holding: the time without an owner does not count.
    since: Instant,
    _waiting: Waiting,
}

impl OwedEvent {
    /// Returns what `task` leaves, of whose event `hooks` are called later.
    pub(super) fn of(task: Task, hooks: Vec<String>, now: Instant) -> Self {
        Self {
            conversation: Conversation::of(&task.event),
            numbers: Numbers {
                sequence: task.sequence,
                handed: task.incoming.consumer_sequence,
            },
            place: task.place,
            hooks,
            since: now,
            _waiting: Waiting::begin(),
        }
    }
}

#[derive(Debug, Default)]
struct Lane {
    /// Sequences of those that are under way.
    running: BTreeSet<u64>,
    /// By sequence.
    waiting: BTreeMap<u64, OwedEvent>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct OwedEvents {
    lanes: HashMap<Conversation, Lane>,
}

impl OwedEvents {
    /// Adds an event.
    pub(super) fn add(&mut self, event: OwedEvent) {
        let lane = self.lanes.entry(event.conversation).or_default();
        lane.waiting.insert(event.numbers.sequence, event);
    }

    /// Takes the next event of `conversation`, if one may begin: a few at once, and always one that came before all of
    /// them, because they wait for it.
    pub(super) fn next(&mut self, conversation: Conversation) -> Option<OwedEvent> {
        let lane = self.lanes.get_mut(&conversation)?;
        let next = lane.waiting.keys().next()?;
        let is_awaited = lane.running.first().is_some_and(|first| next < first);
        if lane.running.len() >= ALWAYS && !is_awaited {
            return None;
        }

        let (sequence, event) = lane.waiting.pop_first()?;
        lane.running.insert(sequence);
        Some(event)
    }

    /// Notes that the event of `conversation` at `sequence` has ended.
    pub(super) fn ended(&mut self, conversation: Conversation, sequence: u64) {
        if let Some(lane) = self.lanes.get_mut(&conversation) {
            lane.running.remove(&sequence);
            if lane.running.is_empty() && lane.waiting.is_empty() {
                self.lanes.remove(&conversation);
            }
        }
    }
}

impl Owner {
    /// Makes the evaluations that `owed` owes, of one author after the other as there are places, or gives them up.
    /// Returns its conversation and its sequence.
    pub(super) async fn make_owed(
        &self,
        mut owed: OwedEvent,
        partition: u16,
        through: Arc<AtomicU64>,
        again: Again,
    ) -> (Conversation, u64) {
        let (conversation, sequence) = (owed.conversation, owed.numbers.sequence);
        loop {
            let since = owed.since;
            let patience = self.evaluator.patience_of(&owed.hooks);
            let left = (since + patience).saturating_duration_since(self.evaluator.clock.monotonic());
            let found = tokio::select! {
                biased;
                found = self.evaluator.place_for(&owed.hooks) => Some(found),
                () = pause(left) => None,
            };
            let begun = self.evaluator.clock.monotonic();
            let task = self.task_of(owed, found, (partition, &through), &again).await;
            let Some(task) = task else {
                return (conversation, sequence);
            };

            let Some(rest) = self.event(task, None).await else {
                return (conversation, sequence);
            };
            // One author's time is none that another has waited.
            owed = OwedEvent {
                since: since + rest.since.saturating_duration_since(begun),
                ..rest
            };
        }
    }

    /// Reads the event of `owed` again, whose hooks are called where a place was `found`, or given up; none if it is gone.
    async fn task_of(
        &self,
        owed: OwedEvent,
        found: Option<(Seats, Vec<String>)>,
        (partition, through): (u16, &Arc<AtomicU64>),
        again: &Again,
    ) -> Option<Task> {
        let incoming = self.read_again(owed.numbers, again).await?;
        let event = match read(&incoming, self.evaluator.performer.bus.trust()) {
            Ok(event) => event,
            Err(verdict) => {
                self.give_up(&incoming, &verdict).await;
                return None;
            }
        };
        let is_too_late = found.is_none();
        let (seats, called) = found.unwrap_or_else(|| (Seats::default(), owed.hooks.clone()));
        Some(Task {
            key: key_of(&event),
            event,
            sequence: owed.numbers.sequence,
            partition,
            inherited: None,
            marker_read: true,
            through: Arc::clone(through),
            place: owed.place,
            incoming,
            pass: Pass::Deferred(Deferred {
                hooks: owed.hooks,
                called,
                is_too_late,
                seats: Mutex::new(seats),
            }),
            lent: Lent::new(None, &self.held_back),
            deferred: Mutex::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};
    use shared::model::event::{Event, EventId};
    use shared::model::time::UnixMillis;

    use super::*;
    use crate::gate::Gate;

    fn owed(gate: &Gate, peer: &str, sequence: u64) -> OwedEvent {
        let id = EventId::parse(format!("webchat:{peer}/{sequence}")).expect("valid");
        let event = Event::new(id, "webchat", peer, UnixMillis(0));
        OwedEvent {
            conversation: Conversation::of(&event),
            numbers: Numbers {
                sequence,
                handed: sequence,
            },
            place: gate.enter(&event),
            hooks: vec!["slow".to_owned()],
            since: SystemClock.monotonic(),
            _waiting: Waiting::begin(),
        }
    }

    #[test]
    fn events_of_a_conversation_begin_in_order_and_a_few_at_once() {
        let gate = Gate::default();
        let mut all = OwedEvents::default();
        let first = owed(&gate, "a", 1);
        let (conversation, most) = (first.conversation, ALWAYS as u64);
        let events = (2..=most + 2).rev().map(|sequence| owed(&gate, "a", sequence));
        events.chain([first]).for_each(|event| all.add(event));
        let other = owed(&gate, "b", 100);
        let beside = other.conversation;
        all.add(other);

        let begun: Vec<u64> =
            std::iter::from_fn(|| all.next(conversation).map(|event| event.numbers.sequence)).collect();
        assert_eq!(begun, (1..=most).collect::<Vec<_>>());
        assert!(all.next(beside).is_some(), "conversations do not wait for each other");
        all.ended(conversation, 1);
        assert_eq!(
            all.next(conversation).map(|event| event.numbers.sequence),
            Some(most + 1)
        );
        all.ended(beside, 100);
        assert_eq!(all.lanes.len(), 1);
    }

    #[test]
    fn an_event_that_comes_late_begins_before_those_that_wait_for_it() {
        let gate = Gate::default();
        let mut all = OwedEvents::default();
        let late = owed(&gate, "a", 1);
        let (conversation, most) = (late.conversation, ALWAYS as u64);
        (2..=most + 3).for_each(|sequence| all.add(owed(&gate, "a", sequence)));
        while all.next(conversation).is_some() {}

        all.add(late);
        assert_eq!(all.next(conversation).map(|event| event.numbers.sequence), Some(1));
        assert!(all.next(conversation).is_none(), "no more than that one");
        all.ended(conversation, 1);
        assert!(all.next(conversation).is_none());
        all.ended(conversation, 2);
        assert_eq!(
            all.next(conversation).map(|event| event.numbers.sequence),
            Some(most + 2)
        );
    }
}
