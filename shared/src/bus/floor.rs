//! Progress of one partition, as its owner counts it.
//!
//! The floor is the last message before the first one that is not settled. Later messages are handed out nevertheless,
//! however long that one takes; the owner remembers only the messages that are handed out and not settled. No owner
//! hands out more than [`MAX_PAST_FLOOR`] messages beyond the position that is *stored* as handed out, so a successor
//! knows which messages may have been in progress, as long as that position is valid.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::model::position::StreamPosition;
use crate::wire::settled::{PartitionFloor, SettledSet};
use crate::wire::topology::MAX_PAST_FLOOR;

/// Maximum number of messages handed out beyond the stored position.
const MAX_PAST: usize = MAX_PAST_FLOOR.unsigned_abs() as usize;
/// Number of messages beyond the stored position at which it is stored at once.
const SOON: usize = MAX_PAST / 2;

/// Position in the stream: the sequence, and the time at which the server stored the message, nanoseconds since 1970.
type Mark = (u64, i64);

/// Progress of one partition.
#[derive(Debug, Default)]
pub(super) struct Floor {
    state: Mutex<FloorState>,
    room: Notify,
    soon: Arc<Notify>,
}

#[derive(Debug, Default)]
struct FloorState {
    /// Sequences that are handed out and not settled, each with the partition's message before it.
    unsettled: BTreeMap<u64, Mark>,
    /// Last message that was handed out or skipped.
    read: Mark,
    /// Messages that former owners have settled.
    inherited: SettledSet,
    /// Messages handed out beyond the stored position.
    past: VecDeque<u64>,
    /// Incarnation of the stream that is counted.
    incarnation: String,
    /// Stored floor that is void and must be replaced, although it is ahead of ours.
    void: Option<PartitionFloor>,
}

impl FloorState {
    fn position_of(&self, (sequence, stored_at_ns): Mark) -> StreamPosition {
        StreamPosition {
            incarnation: self.incarnation.clone(),
            sequence,
            stored_at_ns,
        }
    }

    /// Returns the progress to store: the floor, the last message handed out, and the ranges settled between the two.
    fn progress_to_store(&self) -> PartitionFloor {
        let mut settled = SettledSet::default();
        let mut at = self.read;

        // The floor is the message before the first unsettled one. The ranges between unsettled messages are settled.
        let mut unsettled = self.unsettled.iter();
        if let Some((first, before)) = unsettled.next() {
            at = *before;
            let mut last = *first;
            for (sequence, before) in unsettled {
                if before.0 > last {
                    settled.push(last + 1, before.0);
                }
                last = *sequence;
            }

            if self.read.0 > last {
                settled.push(last + 1, self.read.0);
            }
        }

        PartitionFloor {
            at: self.position_of(at),
            read: self.position_of(self.read),
            settled,
        }
    }
}

impl Floor {
    pub(super) fn new(soon: Arc<Notify>) -> Self {
        Self {
            state: Mutex::default(),
            room: Notify::new(),
            soon,
        }
    }

    fn state(&self) -> MutexGuard<'_, FloorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how far the partition is settled, and how far it is handed out.
    pub(super) fn progress_to_store(&self) -> PartitionFloor {
        self.state().progress_to_store()
    }

    /// Returns the stored floor that is void, until it is replaced.
    pub(super) fn void_floor(&self) -> Option<PartitionFloor> {
        self.state().void.clone()
    }

    /// Records that the void floor was replaced.
    pub(super) fn is_sound(&self) {
        self.state().void = None;
    }

    /// Starts counting after `from`, whose settled messages are skipped; a stored floor `void` is to be replaced.
    pub(super) fn begin_behind(&self, from: &PartitionFloor, void: Option<&PartitionFloor>) {
        *self.state() = FloorState {
            read: (from.at.sequence, from.at.stored_at_ns),
            inherited: from.settled.clone(),
            incarnation: from.at.incarnation.clone(),
            void: void.cloned(),
            ..FloorState::default()
        };
    }

    /// Records that the message at `mark` comes next. Returns whether it must be handed out; it must not if a former
    /// owner has settled it.
    pub(super) fn hand_out(&self, mark: Mark) -> bool {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.read, mark);

        if state.inherited.contains(mark.0) {
            return false;
        }

        state.unsettled.insert(mark.0, before);
        state.past.push_back(mark.0);

        if state.past.len() >= SOON {
            self.soon.notify_one();
        }

        true
    }

    /// Records that the message `sequence` is settled: its effects are durable.
    pub(super) fn settle_message(&self, sequence: u64) {
        self.state().unsettled.remove(&sequence);
    }

    /// Records that the position `read` is stored: messages up to it are handed out.
    pub(super) fn mark_stored(&self, read: u64) {
        let mut state = self.state();
        while state.past.front().is_some_and(|sequence| *sequence <= read) {
            state.past.pop_front();
        }
        drop(state);
        self.room.notify_waiters();
    }

    /// Waits until a message may be handed out.
    pub(super) async fn wait_room(&self) {
        loop {
            let changed = self.room.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.state().past.len() < MAX_PAST {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn floor(given: impl IntoIterator<Item = u64>) -> Floor {
        let floor = Floor::new(Arc::default());
        for sequence in given {
            assert!(floor.hand_out((sequence, 0)));
        }
        floor
    }

    fn settled(ranges: &[(u64, u64)]) -> SettledSet {
        let mut settled = SettledSet::default();
        ranges.iter().for_each(|(first, last)| settled.push(*first, *last));
        settled
    }

    fn at(incarnation: &str, sequence: u64) -> PartitionFloor {
        let at = StreamPosition {
            incarnation: incarnation.to_owned(),
            sequence,
            stored_at_ns: 5,
        };

        PartitionFloor {
            read: at.clone(),
            at,
            settled: SettledSet::default(),
        }
    }

    #[test]
    fn moves_over_what_is_settled_without_a_gap_and_names_what_is_settled_behind_one() {
        let floor = floor([3, 7, 20, 21, 30]);
        floor.settle_message(7);
        floor.settle_message(20);
        let reached = floor.progress_to_store();

        assert_eq!((reached.at.sequence, reached.read.sequence), (0, 30));
        assert_eq!(reached.settled, settled(&[(4, 20)]));

        floor.settle_message(30);
        assert_eq!(floor.progress_to_store().settled, settled(&[(4, 20), (22, 30)]));

        floor.settle_message(3);
        assert_eq!(floor.progress_to_store().at.sequence, 20);

        floor.settle_message(21);
        let reached = floor.progress_to_store();
        assert_eq!((reached.at.sequence, reached.settled), (30, SettledSet::default()));
    }

    #[test]
    fn one_that_is_not_settled_stops_nobody_and_nothing_is_handed_out_too_far_past_what_is_stored() {
        let last = MAX_PAST as u64;
        let floor = floor(1..=last);
        (2..=last).for_each(|sequence| floor.settle_message(sequence));
        assert!(floor.wait_room().now_or_never().is_none(), "nothing is stored");
        let reached = floor.progress_to_store();
        assert_eq!((reached.at.sequence, reached.read.sequence), (0, last));
        floor.mark_stored(reached.read.sequence);
        assert!(
            floor.wait_room().now_or_never().is_some(),
            "though the first is not settled"
        );
        assert!(floor.hand_out((last + 1, 0)));
    }

    #[test]
    fn begins_where_it_is_told_and_forgets_what_was_handed_out_before() {
        let floor = floor([3, 4]);
        floor.settle_message(3);
        floor.begin_behind(&at("a", 3), None);
        floor.settle_message(4);
        assert_eq!(
            floor.progress_to_store(),
            at("a", 3),
            "what came before is handed out again"
        );
        floor.begin_behind(&at("b", 0), None);
        assert_eq!(floor.progress_to_store().at.sequence, 0);
    }

    #[test]
    fn what_a_former_owner_has_settled_is_passed_over() {
        let floor = Floor::new(Arc::default());
        let former = PartitionFloor {
            settled: settled(&[(5, 9), (12, 12)]),
            ..at("a", 3)
        };

        floor.begin_behind(&former, None);
        let given: Vec<u64> = (4..=14).filter(|sequence| floor.hand_out((*sequence, 5))).collect();
        assert_eq!(given, [4, 10, 11, 13, 14]);

        floor.settle_message(4);
        assert_eq!(floor.progress_to_store().at.sequence, 9);

        [10, 11].into_iter().for_each(|sequence| floor.settle_message(sequence));
        assert_eq!(floor.progress_to_store().at.sequence, 12);
    }
}
