//! Backlog: the events that were read and that no owner of their partition has settled. *Pure.*
//!
//! A copy of the read model reads all of `EVENTS`, and the floors of all partitions are one record. So a copy can tell
//! the backlog of the whole cluster, also of partitions without an owner, and every copy tells the same one.

use std::collections::VecDeque;

use crate::model::time::UnixMillis;
use crate::wire::session_mark::PartitionFloors;
use crate::wire::topology::PARTITIONS;

/// Maximum number of runs in memory: each is one event until there are more events than this.
pub(super) const MAX_RUNS: usize = 131_072;

/// Number of messages before the stream's end from which on a reading is close to it.
const NEAR: u64 = 100;

/// Neighbours in one partition that count together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SeenRun {
    /// Sequence of the last of them: all are settled with it.
    last: u64,
    events: u32,
    /// Time at which the server stored the first of them.
    at: UnixMillis,
}

/// Events that were read and may not be settled, by partition.
#[derive(Debug)]
pub(super) struct SeenEvents {
    partitions: Vec<VecDeque<SeenRun>>,
    runs: usize,
    /// Sequence up to which the stream was read.
    through: u64,
    /// Sequence up to which events were read by an earlier process, and are not in memory yet.
    owed_through: Option<u64>,
    /// Whether the reading has been close to the stream's end since it began.
    has_caught_up: bool,
}

/// The backlog of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Number of events that no owner has settled.
    pub events: u64,
    /// Time at which the server stored the oldest of those that were read; none if all of them are settled.
    pub oldest: Option<UnixMillis>,
    /// Whether the reading has been close to the stream's end since it began. Until then most of what is not read may
    /// be history, and the number is too high.
    pub has_caught_up: bool,
}

impl Default for SeenEvents {
    fn default() -> Self {
        Self {
            partitions: (0..PARTITIONS).map(|_| VecDeque::new()).collect(),
            runs: 0,
            through: 0,
            owed_through: None,
            has_caught_up: false,
        }
    }
}

impl SeenEvents {
    /// Starts again with a reading of the stream after `position`.
    pub(super) fn begin_behind(&mut self, position: u64) {
        *self = Self {
            through: position,
            owed_through: (position > 0).then_some(position),
            ..Self::default()
        };
    }

    /// Returns the sequence up to which events are owed by [`SeenEvents::add_earlier`].
    pub(super) const fn owed_through(&self) -> Option<u64> {
        self.owed_through
    }

    /// Adds events that were read before this process began: partition, sequence and time of each, the newest first.
    /// `owed` is what [`SeenEvents::owed_through`] returned; if the reading has begun again since, nothing is added.
    pub(super) fn add_earlier(&mut self, owed: u64, events: impl Iterator<Item = (u16, u64, UnixMillis)>) {
        if self.owed_through != Some(owed) {
            return;
        }
        self.owed_through = None;

        for (partition, last, at) in events {
            let Some(seen) = self.partitions.get_mut(usize::from(partition)) else {
                continue;
            };
            seen.push_front(SeenRun { last, events: 1, at });
            self.runs += 1;
        }
        self.compress();
    }

    /// Notes the event at `sequence` in `partition`, stored at `at`.
    pub(super) fn note(&mut self, partition: u16, sequence: u64, at: UnixMillis) {
        self.through = self.through.max(sequence);
        let Some(seen) = self.partitions.get_mut(usize::from(partition)) else {
            return;
        };
        seen.push_back(SeenRun {
            last: sequence,
            events: 1,
            at,
        });
        self.runs += 1;
        self.compress();
    }

    /// Joins neighbours until there are few enough runs: a backlog of this size is counted a little late.
    fn compress(&mut self) {
        while self.runs > MAX_RUNS {
            let Some(longest) = self.partitions.iter_mut().max_by_key(|seen| seen.len()) else {
                return;
            };
            let before = longest.len();
            let mut joined = VecDeque::with_capacity(before / 2 + 1);
            while let Some(first) = longest.pop_front() {
                joined.push_back(longest.pop_front().map_or(first, |second| SeenRun {
                    last: second.last,
                    events: first.events.saturating_add(second.events),
                    at: first.at,
                }));
            }
            self.runs -= before - joined.len();
            *longest = joined;
        }
    }

    /// Forgets what `floors` say to be settled, and returns the rest. `end` is the last sequence of the stream.
    ///
    /// Nothing is known of the messages behind the last one that was read. Of those, a partition has its share beyond
    /// its floor: owners elsewhere may have come further than this reader.
    pub(super) fn settle(&mut self, floors: &PartitionFloors, end: u64) -> Backlog {
        let unread = end.saturating_sub(self.through);
        self.has_caught_up |= unread <= NEAR;
        let mut backlog = Backlog {
            has_caught_up: self.has_caught_up,
            ..Backlog::default()
        };
        let mut unread_shares = 0;
        for (partition, seen) in (0..PARTITIONS).zip(&mut self.partitions) {
            let floor = floors.floor_of(partition).unwrap_or_default();
            let settled = floor.at.sequence;
            while seen.front().is_some_and(|run| run.last <= settled) {
                seen.pop_front();
                self.runs -= 1;
            }

            for run in seen.iter().filter(|run| !floor.settled.contains(run.last)) {
                backlog.events += u64::from(run.events);
                backlog.oldest = Some(backlog.oldest.map_or(run.at, |oldest| oldest.min(run.at)));
            }
            unread_shares += end.saturating_sub(settled.max(self.through));
        }

        if unread > 0 {
            backlog.events += unread_shares.div_ceil(u64::from(PARTITIONS));
        }
        backlog
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::position::StreamPosition;
    use crate::wire::settled::{PartitionFloor, SettledSet};

    /// Partition, its floor, and the ranges that are settled above it.
    type Reached<'a> = (u16, u64, &'a [(u64, u64)]);

    fn floors(reached: &[Reached<'_>]) -> PartitionFloors {
        let mut floors = PartitionFloors::default();
        for (partition, sequence, ranges) in reached {
            let at = |sequence| StreamPosition {
                sequence,
                ..StreamPosition::default()
            };
            let mut settled = SettledSet::default();
            ranges.iter().for_each(|(first, last)| settled.push(*first, *last));
            let read = ranges.last().map_or(*sequence, |(_, last)| *last);
            let floor = PartitionFloor {
                at: at(*sequence),
                read: at(read),
                settled,
            };
            floors.set_floor(*partition, &floor);
        }
        floors
    }

    fn seen(events: u64) -> SeenEvents {
        let mut seen = SeenEvents::default();
        // Two partitions in turn.
        for sequence in 1..=events {
            seen.note(u16::from(sequence % 2 == 0), sequence, at(sequence));
        }
        seen
    }

    fn at(sequence: u64) -> UnixMillis {
        UnixMillis(i64::try_from(sequence).expect("small") * 1_000)
    }

    fn backlog(events: u64, oldest: u64) -> Backlog {
        Backlog {
            events,
            oldest: (oldest > 0).then(|| at(oldest)),
            has_caught_up: true,
        }
    }

    #[test]
    fn what_is_past_the_floors_and_not_settled_is_the_backlog() {
        let mut seen = seen(10);
        assert_eq!(
            seen.settle(&PartitionFloors::default(), 10),
            backlog(10, 1),
            "nobody has begun"
        );
        assert_eq!(
            seen.settle(&floors(&[(0, 3, &[])]), 10),
            backlog(8, 2),
            "1 and 3 are settled"
        );

        let apart = floors(&[(0, 3, &[(7, 7)]), (1, 2, &[(6, 8)])]);
        assert_eq!(seen.settle(&apart, 10), backlog(4, 4), "4, 5, 9 and 10 are left");
        assert_eq!(seen.settle(&floors(&[(0, 9, &[]), (1, 10, &[])]), 10), backlog(0, 0));
        assert_eq!(seen.runs, 0, "what is settled is forgotten");
    }

    #[test]
    fn what_is_not_read_yet_counts_unless_others_have_settled_it() {
        let mut seen = seen(10);
        let here = floors(&[(0, 9, &[]), (1, 10, &[])]);
        assert_eq!(seen.settle(&here, 74).events, 64, "nobody has come further");

        let everywhere: Vec<Reached<'_>> = (0..PARTITIONS).map(|partition| (partition, 74, &[][..])).collect();
        assert_eq!(seen.settle(&floors(&everywhere), 74).events, 0, "all others have");
        assert_eq!(
            seen.settle(&floors(&everywhere[..32]), 74).events,
            32,
            "half of them have"
        );
    }

    #[test]
    fn a_reading_of_history_has_not_caught_up_before_it_was_near_the_end() {
        let mut seen = SeenEvents::default();
        seen.note(0, 1, at(1));
        assert!(!seen.settle(&PartitionFloors::default(), 1_000).has_caught_up);
        seen.note(0, 950, at(950));
        assert!(seen.settle(&PartitionFloors::default(), 1_000).has_caught_up);
        assert!(
            seen.settle(&PartitionFloors::default(), 9_000).has_caught_up,
            "it was near, and is behind"
        );
    }

    #[test]
    fn a_new_process_adds_what_an_earlier_one_has_read() {
        let mut seen = SeenEvents::default();
        seen.begin_behind(4);
        seen.note(0, 5, at(5));
        assert_eq!(seen.owed_through(), Some(4));
        seen.add_earlier(3, std::iter::once((0, 3, at(3))));
        assert_eq!(
            seen.settle(&PartitionFloors::default(), 5),
            backlog(1, 5),
            "of another reading"
        );

        seen.add_earlier(4, [(1, 4, at(4)), (0, 3, at(3))].into_iter());
        assert_eq!(seen.settle(&floors(&[(0, 3, &[])]), 5), backlog(2, 4));
        assert_eq!(seen.owed_through(), None);
    }

    #[test]
    fn memory_is_bounded_and_the_count_stays_right() {
        let events = MAX_RUNS as u64 * 3;
        let mut seen = seen(events);
        assert!(seen.runs <= MAX_RUNS);
        assert_eq!(seen.settle(&PartitionFloors::default(), events), backlog(events, 1));

        let left = seen.settle(&floors(&[(0, events, &[]), (1, events - 1_000, &[])]), events);
        assert!((500..520).contains(&left.events), "{left:?}");
        assert_eq!(
            seen.settle(&floors(&[(0, events, &[]), (1, events, &[])]), events),
            backlog(0, 0)
        );
    }
}
