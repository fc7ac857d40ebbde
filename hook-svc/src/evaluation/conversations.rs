//! Counts the events of each conversation of a partition that are evaluated, wait in memory, or are kept as sequence
//! numbers. *Pure.*
//!
//! A conversation whose hooks are slow must not delay another. So the events of a conversation wait only for each
//! other: some are evaluated, a bounded number waits in memory, and of all further ones only the sequence is kept; they
//! are read again, in order, when there is room. The partition's reader never stops for them.

use std::collections::{HashMap, VecDeque};

use crate::evaluation::order::ConversationHash;

/// Number of events of one conversation that may always be evaluated at once, independent of the replica's load.
pub(crate) const ALWAYS: usize = 8;

/// Numbers of a message that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageNumbers {
    /// Sequence of the message in the stream.
    pub sequence: u64,
    /// Count of messages of the partition handed out in this holding, including this one.
    pub handed: u64,
}

/// Placement of a message that has just arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessagePlacement {
    /// The message is kept in memory.
    Memory,
    /// Only its numbers are kept.
    Numbers,
}

/// Requirement for evaluating the next event of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextEvent {
    /// No event waits, so there is no requirement.
    Nothing,
    /// The event may start freely, because the conversation has few under way.
    Free,
    /// The event needs one of the places that all conversations share.
    Place,
}

#[derive(Debug)]
struct Lane<W> {
    running: usize,
    waiting: VecDeque<W>,
    /// Numbers of the messages not in memory, the oldest first.
    numbers: VecDeque<MessageNumbers>,
    /// Whether the oldest of them is being read.
    reading: bool,
}

impl<W> Lane<W> {
    fn in_memory(&self) -> usize {
        self.running + self.waiting.len() + usize::from(self.reading)
    }
}

/// The conversations of one partition that have events under way; `W` is an event in memory.
#[derive(Debug)]
pub(crate) struct ConversationQueues<W> {
    lanes: HashMap<ConversationHash, Lane<W>>,
    /// Most events of one conversation in memory.
    most: usize,
    numbers: usize,
}

impl<W> ConversationQueues<W> {
    /// Returns a set without conversations, of which each may have `most` events in memory.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            lanes: HashMap::new(),
            most,
            numbers: 0,
        }
    }

    /// Returns how many events are kept as numbers.
    pub(crate) fn numbered_count(&self) -> usize {
        self.numbers
    }

    fn lane_mut(&mut self, conversation: ConversationHash) -> &mut Lane<W> {
        self.lanes.entry(conversation).or_insert_with(|| Lane {
            running: 0,
            waiting: VecDeque::new(),
            numbers: VecDeque::new(),
            reading: false,
        })
    }

    /// Decides the placement of the next message of `conversation`, which may have `allowed` in memory at this time.
    /// Must be called in the order of the stream. If it returns [`MessagePlacement::Memory`], the message must be given to
    /// [`Self::hold_event`] or dropped.
    pub(crate) fn place_message(
        &mut self,
        conversation: ConversationHash,
        numbers: MessageNumbers,
        allowed: usize,
    ) -> MessagePlacement {
        let most = self.most.min(allowed);
        let lane = self.lane_mut(conversation);
        let in_memory = lane.in_memory();
        if in_memory < most && lane.numbers.is_empty() && !lane.reading {
            if in_memory == 0 {
                self.lanes.remove(&conversation);
            }
            return MessagePlacement::Memory;
        }

        lane.numbers.push_back(numbers);
        self.numbers += 1;

        MessagePlacement::Numbers
    }

    /// Adds an event to those that wait in memory.
    pub(crate) fn hold_event(&mut self, conversation: ConversationHash, work: W) {
        self.lane_mut(conversation).waiting.push_back(work);
    }

    /// Returns the requirement of the next event of `conversation`.
    pub(crate) fn next(&self, conversation: ConversationHash) -> NextEvent {
        match self.lanes.get(&conversation) {
            Some(lane) if lane.waiting.is_empty() => NextEvent::Nothing,
            Some(lane) if lane.running < ALWAYS => NextEvent::Free,
            Some(_) => NextEvent::Place,
            None => NextEvent::Nothing,
        }
    }

    /// Takes the next event of `conversation`, which is evaluated from now on.
    pub(crate) fn start(&mut self, conversation: ConversationHash) -> Option<W> {
        let lane = self.lanes.get_mut(&conversation)?;
        let work = lane.waiting.pop_front()?;
        lane.running += 1;
        Some(work)
    }

    /// Records that an event of `conversation` has ended.
    pub(crate) fn note_ended(&mut self, conversation: ConversationHash) {
        if let Some(lane) = self.lanes.get_mut(&conversation) {
            lane.running -= 1;
        }
        self.forget_idle(conversation);
    }

    /// Returns the message of `conversation` to read again now, if there is one and it fits into memory with at most
    /// `allowed` events.
    pub(crate) fn read_next(&mut self, conversation: ConversationHash, allowed: usize) -> Option<MessageNumbers> {
        let lane = self.lanes.get_mut(&conversation)?;
        if lane.reading || lane.in_memory() >= self.most.min(allowed) {
            return None;
        }
        let numbers = lane.numbers.pop_front()?;
        lane.reading = true;
        self.numbers -= 1;
        Some(numbers)
    }

    /// Records that the message to read again was read, or is gone. If it exists, it must be given to [`Self::hold_event`]
    /// next.
    pub(crate) fn was_read(&mut self, conversation: ConversationHash) {
        if let Some(lane) = self.lanes.get_mut(&conversation) {
            lane.reading = false;
        }
    }

    /// Forgets `conversation` if none of its events is under way.
    pub(crate) fn forget_idle(&mut self, conversation: ConversationHash) {
        let idle = |lane: &Lane<W>| lane.in_memory() == 0 && lane.numbers.is_empty();
        if self.lanes.get(&conversation).is_some_and(idle) {
            self.lanes.remove(&conversation);
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::{Event, EventId};
    use shared::model::time::UnixMillis;

    use super::*;

    fn conversation(peer: &str) -> ConversationHash {
        let id = EventId::parse("webchat:1").expect("valid");
        ConversationHash::of_event(&Event::new(id, "webchat", peer, UnixMillis(0)))
    }

    fn numbers(sequence: u64) -> MessageNumbers {
        MessageNumbers {
            sequence,
            handed: sequence,
        }
    }

    /// Places the message `sequence` of `of`. Returns whether it is in memory.
    fn come(all: &mut ConversationQueues<u64>, of: ConversationHash, sequence: u64) -> bool {
        match all.place_message(of, numbers(sequence), usize::MAX) {
            MessagePlacement::Memory => {
                all.hold_event(of, sequence);
                true
            }
            MessagePlacement::Numbers => false,
        }
    }

    #[test]
    fn a_slow_conversation_keeps_numbers_and_another_one_goes_on() {
        let (slow, quick) = (conversation("slow"), conversation("quick"));
        let mut all = ConversationQueues::new(64);
        let in_memory = (1..=200).filter(|sequence| come(&mut all, slow, *sequence)).count();

        assert_eq!((in_memory, all.numbered_count()), (64, 136));

        let mut running = 0;
        while all.next(slow) == NextEvent::Free {
            running += 1;
            assert_eq!(all.start(slow), Some(running));
        }

        assert_eq!((running, all.next(slow)), (ALWAYS as u64, NextEvent::Place));

        assert!(come(&mut all, quick, 201));
        assert_eq!((all.next(quick), all.start(quick)), (NextEvent::Free, Some(201)));

        all.note_ended(quick);
        assert_eq!((all.lanes.len(), all.next(quick)), (1, NextEvent::Nothing));
    }

    #[test]
    fn a_conversation_that_is_allowed_fewer_keeps_the_others_as_numbers() {
        let slow = conversation("slow");
        let mut all = ConversationQueues::new(64);
        for sequence in 1..=10 {
            if all.place_message(slow, numbers(sequence), 8) == MessagePlacement::Memory {
                all.hold_event(slow, sequence);
            }
        }

        assert_eq!(all.numbered_count(), 2);
        assert_eq!(all.read_next(slow, 8), None);
        assert_eq!(
            all.read_next(slow, usize::MAX),
            Some(numbers(9)),
            "when it is allowed more"
        );
    }

    #[test]
    fn numbers_are_read_again_in_order_one_at_a_time() {
        let slow = conversation("slow");
        let mut all = ConversationQueues::new(2);
        let came: Vec<bool> = (1..=5).map(|sequence| come(&mut all, slow, sequence)).collect();

        assert_eq!(came, [true, true, false, false, false]);
        assert_eq!(all.read_next(slow, usize::MAX), None, "memory is full");

        let mut order = Vec::new();
        let mut sequence = 6;
        while let Some(work) = all.start(slow) {
            order.push(work);
            all.note_ended(slow);

            if let Some(read) = all.read_next(slow, usize::MAX) {
                assert_eq!(all.read_next(slow, usize::MAX), None, "one is being read");

                if sequence < 8 {
                    assert!(!come(&mut all, slow, sequence), "who comes later stands behind them");
                    sequence += 1;
                }

                all.was_read(slow);
                all.hold_event(slow, read.sequence);
            }
        }

        assert_eq!(order, [1, 2, 3, 4, 5, 6, 7]);
        assert!(all.lanes.is_empty() && all.numbered_count() == 0);
    }

    #[test]
    fn a_message_that_is_gone_gives_way_to_the_next() {
        let slow = conversation("slow");
        let mut all = ConversationQueues::new(1);
        assert!(come(&mut all, slow, 1) && !come(&mut all, slow, 2) && !come(&mut all, slow, 3));

        all.start(slow);
        all.note_ended(slow);
        assert_eq!(all.read_next(slow, usize::MAX), Some(numbers(2)));

        all.was_read(slow);
        all.forget_idle(slow);
        assert_eq!(all.read_next(slow, usize::MAX), Some(numbers(3)));

        all.was_read(slow);
        all.forget_idle(slow);
        assert!(all.lanes.is_empty());
    }
}
