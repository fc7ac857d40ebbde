//! Merges the messages of several streams by time. *Pure.*
//!
//! Messages stored before the command began are shown in exactly that order. Later ones arrive from the server in
//! their order but for the delay between two streams, so each is held for a moment in case an older one follows.

use std::collections::VecDeque;
use std::time::Duration;

use shared::model::time::UnixMillis;

/// Time for which a message is held, in case an older one of another stream follows.
const HOLD: Duration = Duration::from_millis(200);
/// Longest time for which a message waits for a stream that has announced older ones: they may have been deleted.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Largest number of messages of one stream that are held at once.
const MAX_HELD: usize = 256;

/// A message on hold.
#[derive(Debug)]
struct Waiting<T> {
    at: UnixMillis,
    arrived: Duration,
    /// Whether it was stored before the command began.
    is_old: bool,
    message: T,
}

/// Messages of one stream.
#[derive(Debug)]
struct Lane<T> {
    waiting: VecDeque<Waiting<T>>,
    /// Whether messages that were stored before the command began are still to come.
    is_behind: bool,
    /// Sequence of the last message that was stored before the command began.
    last: u64,
}

/// Messages of several streams, on their way to one order. Times of arrival count from any fixed instant.
#[derive(Debug)]
pub(super) struct Merge<T> {
    lanes: Vec<Lane<T>>,
}

impl<T> Merge<T> {
    /// Returns a merge of streams, each read from sequence `first` when its last one was `last`.
    pub(super) fn new(streams: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let lanes = streams.into_iter().map(|(first, last)| Lane {
            waiting: VecDeque::new(),
            is_behind: first <= last,
            last,
        });
        Self { lanes: lanes.collect() }
    }

    /// Returns whether there is room for another message of stream `lane`.
    pub(super) fn has_room(&self, lane: usize) -> bool {
        self.lanes[lane].waiting.len() < MAX_HELD
    }

    /// Adds a message of stream `lane`: stored at `at` as `sequence`, arrived at `arrived`, with `pending` ones behind
    /// it on the server.
    pub(super) fn push(
        &mut self,
        lane: usize,
        (sequence, pending): (u64, u64),
        at: UnixMillis,
        arrived: Duration,
        message: T,
    ) {
        let lane = &mut self.lanes[lane];
        if sequence >= lane.last || pending == 0 {
            lane.is_behind = false;
        }
        lane.waiting.push_back(Waiting {
            at,
            arrived,
            is_old: sequence <= lane.last,
            message,
        });
    }

    /// Returns the oldest message, if none that is older can follow.
    pub(super) fn pop(&mut self, now: Duration) -> Option<T> {
        let (lane, due) = self.next()?;
        if due > now {
            return None;
        }
        self.lanes[lane].waiting.pop_front().map(|waiting| waiting.message)
    }

    /// Returns the time at which [`Merge::pop`] returns a message, if no other arrives.
    pub(super) fn due(&self) -> Option<Duration> {
        self.next().map(|(_, due)| due)
    }

    /// Returns the stream of the oldest message, and the time at which it is due.
    fn next(&self) -> Option<(usize, Duration)> {
        let heads = self.lanes.iter().enumerate();
        let heads = heads.filter_map(|(lane, messages)| Some((lane, messages.waiting.front()?)));
        let (lane, oldest) = heads.min_by_key(|(lane, waiting)| (waiting.at, *lane))?;

        let is_awaited = self.lanes.iter().any(|lane| lane.is_behind && lane.waiting.is_empty());
        let hold = match (is_awaited, oldest.is_old) {
            (true, _) => CATCH_UP,
            (false, true) => Duration::ZERO,
            (false, false) => HOLD,
        };
        Some((lane, oldest.arrived + hold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Duration = Duration::from_secs(10);

    fn drain(merge: &mut Merge<&'static str>, now: Duration) -> Vec<&'static str> {
        std::iter::from_fn(|| merge.pop(now)).collect()
    }

    #[test]
    fn what_was_there_comes_in_the_order_of_time() {
        let mut merge = Merge::new([(1, 3), (5, 6), (1, 0)]);
        merge.push(0, (1, 2), UnixMillis(10), BEGIN, "a1");
        merge.push(0, (2, 1), UnixMillis(30), BEGIN, "a2");
        assert_eq!(
            drain(&mut merge, BEGIN),
            [""; 0],
            "the second stream may have older ones"
        );

        merge.push(1, (5, 1), UnixMillis(20), BEGIN, "b5");
        assert_eq!(drain(&mut merge, BEGIN), ["a1", "b5"]);

        merge.push(1, (6, 0), UnixMillis(25), BEGIN, "b6");
        merge.push(0, (3, 0), UnixMillis(40), BEGIN, "a3");
        assert_eq!(drain(&mut merge, BEGIN), ["b6", "a2", "a3"]);
    }

    #[test]
    fn what_comes_later_waits_a_moment_for_older_ones() {
        let mut merge = Merge::new([(2, 1), (2, 1)]);
        merge.push(0, (2, 0), UnixMillis(20), BEGIN, "late");
        assert_eq!(merge.due(), Some(BEGIN + HOLD));
        assert_eq!(drain(&mut merge, BEGIN), [""; 0]);

        merge.push(1, (2, 0), UnixMillis(10), BEGIN + HOLD / 2, "early");
        assert_eq!(drain(&mut merge, BEGIN + HOLD * 2), ["early", "late"]);
    }

    #[test]
    fn a_stream_whose_messages_are_gone_holds_the_others_only_for_a_while() {
        let mut merge = Merge::new([(1, 1), (1, 9)]);
        merge.push(0, (1, 0), UnixMillis(1), BEGIN, "a");
        assert_eq!(drain(&mut merge, BEGIN + HOLD), [""; 0]);
        assert_eq!(drain(&mut merge, BEGIN + CATCH_UP), ["a"]);
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut merge = Merge::new([(1, 10_000)]);
        let mut sequence = 0;
        while merge.has_room(0) {
            sequence += 1;
            merge.push(0, (sequence, 1), UnixMillis(0), BEGIN, "x");
        }
        assert_eq!(sequence as usize, MAX_HELD);
    }
}
