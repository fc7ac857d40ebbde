//! Events of a partition with deferred evaluations: in order within a conversation, a few at once of each hook, so that
//! waiting for one author delays no other author. Only the numbers of such an event and its place in its conversation
//! are kept; it is read again when there is a place for its hooks.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use crate::evaluation::conversations::{ALWAYS, MessageNumbers};
use crate::evaluation::order::{ByHook, ConversationHash};
use crate::evaluation::order_gate::ConversationPlace;
use crate::evaluation::task::EventTask;
use crate::health::metrics::WaitingEvent;

/// An event that owes evaluations.
#[derive(Debug)]
pub(super) struct DeferredEvent {
    pub(super) conversation: ConversationHash,
    pub(super) numbers: MessageNumbers,
    pub(super) place: ConversationPlace,
    pub(super) hooks: Vec<String>,
    /// Time when it was found to owe them, in this holding: time without an owner does not count.
    pub(super) since: Instant,
    _waiting: WaitingEvent,
}

impl DeferredEvent {
    /// Creates the entry for `task`'s event, of which `hooks` are called later.
    pub(super) fn from_task(task: EventTask, hooks: Vec<String>, now: Instant) -> Self {
        Self {
            conversation: ConversationHash::of_event(&task.event),
            numbers: MessageNumbers {
                sequence: task.sequence,
                handed: task.incoming.consumer_sequence,
            },
            place: task.place,
            hooks,
            since: now,
            _waiting: WaitingEvent::start_waiting(),
        }
    }

    /// Returns the same entry, with `since` as the time from which its wait counts.
    pub(super) fn waiting_since(self, since: Instant) -> Self {
        Self { since, ..self }
    }
}

/// Most events of one conversation that owe evaluations, including those in memory that may come to owe some. Further
/// ones of the conversation are kept as numbers until there is room.
const MAX_OWED_PER_CONVERSATION: usize = 1_024;

/// Most events of a partition that owe evaluations, except for those in memory. From half of them on a conversation has
/// room for [`ALWAYS`]; beyond, further events are kept as numbers.
const MAX_OWED: usize = 8_192;

#[derive(Debug, Default)]
struct Lane {
    /// Hooks of the events under way, by sequence.
    running: HashMap<u64, Vec<String>>,
    running_of: ByHook,
    /// Events that wait, by sequence.
    waiting: HashMap<u64, DeferredEvent>,
    waiting_of: ByHook,
}

impl Lane {
    fn len(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    fn add(&mut self, event: DeferredEvent) {
        let sequence = event.numbers.sequence;
        event.hooks.iter().for_each(|hook| self.waiting_of.add(hook, sequence));
        self.waiting.insert(sequence, event);
    }

    /// Takes the first event that may begin for one of its hooks.
    fn next(&mut self) -> Option<DeferredEvent> {
        let firsts = self.waiting_of.lowest_by_hook();
        let may_begin = firsts
            .filter(|(hook, first)| self.running_of.count(hook) < ALWAYS || !self.running_of.has_before(hook, *first));
        let sequence = may_begin.map(|(_, first)| first).min()?;

        let event = self.waiting.remove(&sequence)?;
        for hook in &event.hooks {
            self.waiting_of.remove(hook, sequence);
            self.running_of.add(hook, sequence);
        }

        self.running.insert(sequence, event.hooks.clone());
        Some(event)
    }

    /// Returns whether the event was under way.
    fn note_ended(&mut self, sequence: u64) -> bool {
        let Some(hooks) = self.running.remove(&sequence) else {
            return false;
        };
        hooks.iter().for_each(|hook| self.running_of.remove(hook, sequence));
        true
    }
}

/// Result of an event's evaluations for one author whose hooks it owed.
#[derive(Debug)]
pub(super) struct DeferredResult {
    pub(super) conversation: ConversationHash,
    pub(super) sequence: u64,
    /// Entry with the evaluations that it still owes, if any.
    pub(super) rest: Option<DeferredEvent>,
}

/// Events with deferred evaluations, by conversation; see the module.
#[derive(Debug, Default)]
pub(super) struct DeferredEvents {
    lanes: HashMap<ConversationHash, Lane>,
    total: usize,
    /// Conversations that owe nothing and found no room, in the order in which they continue, and the same as a set.
    stopped: VecDeque<ConversationHash>,
    is_stopped: HashSet<ConversationHash>,
}

impl DeferredEvents {
    /// Returns the number of events of `conversation` that may be in memory, since each may come to owe evaluations. If
    /// there is no room, the conversation must be checked again when one of its events has ended, or when
    /// [`Self::wake_waiting`] returns it.
    pub(super) fn room_for(&mut self, conversation: ConversationHash) -> usize {
        let lane = self.lanes.get(&conversation);
        let owing = lane.map_or(0, Lane::len);
        let most = if self.total * 2 < MAX_OWED {
            MAX_OWED_PER_CONVERSATION
        } else if self.total < MAX_OWED {
            ALWAYS
        } else {
            0
        };

        let room = most.saturating_sub(owing);
        if room == 0 && owing == 0 && self.is_stopped.insert(conversation) {
            self.stopped.push_back(conversation);
        }

        room
    }

    /// Takes a conversation that found no room, once there is some. Returns one at a time, since its next event may use
    /// the room.
    pub(super) fn wake_waiting(&mut self) -> Option<ConversationHash> {
        if self.total >= MAX_OWED {
            return None;
        }
        let woken = self.stopped.pop_front()?;
        self.is_stopped.remove(&woken);
        Some(woken)
    }

    /// Adds an event, which owes the evaluation of at least one hook.
    pub(super) fn add(&mut self, event: DeferredEvent) {
        self.lanes.entry(event.conversation).or_default().add(event);
        self.total += 1;
    }

    /// Takes the next event of `conversation`, if one may begin: a few at once of each owed hook, and always one that
    /// came before all of them, because they wait for it.
    pub(super) fn next(&mut self, conversation: ConversationHash) -> Option<DeferredEvent> {
        self.lanes.get_mut(&conversation)?.next()
    }

    /// Records the result `made`, and keeps the evaluations that the event still owes. Returns its conversation.
    pub(super) fn note_made(&mut self, made: DeferredResult) -> ConversationHash {
        let conversation = made.conversation;
        if let Some(lane) = self.lanes.get_mut(&conversation) {
            self.total -= usize::from(lane.note_ended(made.sequence));
            if lane.len() == 0 {
                self.lanes.remove(&conversation);
            }
        }

        if let Some(rest) = made.rest {
            self.add(rest);
        }

        conversation
    }
}

#[cfg(test)]
mod tests;
