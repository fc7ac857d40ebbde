//! Lag of the projection behind its streams.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::applied::{FeedSource, StreamPositions};
use crate::model::time::UnixMillis;

/// Last known end of each stream.
#[derive(Debug, Default)]
pub(super) struct FeedLag(Mutex<[Option<SourceHead>; FeedSource::ALL.len()]>);

#[derive(Debug, Clone, Copy)]
struct SourceHead {
    /// Last sequence known to be stored.
    sequence: u64,
    /// Time since which the message after the last applied one is missing.
    taken_in: Option<UnixMillis>,
}

impl FeedLag {
    /// Records that `source` reaches up to `sequence`.
    pub(super) fn note_end(&self, source: FeedSource, sequence: u64) {
        let mut heads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let head = heads[source as usize].get_or_insert(SourceHead {
            sequence,
            taken_in: None,
        });
        head.sequence = sequence;
    }

    /// Records that messages of `source` up to `end` are there, the first of them since `arrived`, while `positions` are applied.
    /// After a quiet time the read model lacks them since then, and not since the last message before.
    pub(super) fn note_arrived(&self, source: FeedSource, end: u64, arrived: UnixMillis, positions: StreamPositions) {
        let mut heads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let head = heads[source as usize].get_or_insert(SourceHead {
            sequence: end,
            taken_in: None,
        });
        if positions.covers(source, head.sequence) {
            head.taken_in = Some(arrived);
        }
        head.sequence = end;
    }

    /// Records that a message of `source` was applied; the one after it is missing since `at`.
    pub(super) fn took_in(&self, source: FeedSource, at: UnixMillis) {
        let mut heads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(head) = &mut heads[source as usize] {
            head.taken_in = Some(at);
        }
    }

    /// Returns whether the end of `source` is known.
    pub(super) fn is_known(&self, source: FeedSource) -> bool {
        let heads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heads[source as usize].is_some()
    }

    /// Returns the number of messages still to be applied, of all streams together, or `None` if it is unknown.
    pub(super) fn remaining_messages(&self, positions: StreamPositions) -> Option<u64> {
        let heads = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        FeedSource::ALL.into_iter().try_fold(0_u64, |behind, source| {
            let head = heads[source as usize]?;
            Some(behind.saturating_add(head.sequence.saturating_sub(positions.position_of(source))))
        })
    }

    /// Returns the largest lag of all streams, or `None` while the end of one of them is unknown, or none of its
    /// messages was applied.
    pub(super) fn at(&self, positions: StreamPositions, now: UnixMillis) -> Option<Duration> {
        let heads = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut largest = Duration::ZERO;
        for source in FeedSource::ALL {
            let head = heads[source as usize]?;
            if !positions.covers(source, head.sequence) {
                let millis = now.since(head.taken_in?);
                largest = largest.max(Duration::from_millis(u64::try_from(millis).unwrap_or(0)));
            }
        }

        Some(largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_unknown_until_every_stream_was_heard_of() {
        let lag = FeedLag::default();
        let mut positions = StreamPositions::default();
        for source in FeedSource::ALL {
            assert_eq!(lag.at(positions, UnixMillis(0)), None, "{source:?} was not heard of");
            lag.note_end(source, 0);
        }

        assert_eq!(
            lag.at(positions, UnixMillis(0)),
            Some(Duration::ZERO),
            "empty streams are reached at once"
        );

        lag.note_end(FeedSource::Events, 10);
        assert_eq!(lag.at(positions, UnixMillis(0)), None, "not begun");

        lag.took_in(FeedSource::Events, UnixMillis(500));
        positions.advance(FeedSource::Events, 9);
        assert_eq!(lag.at(positions, UnixMillis(2_000)), Some(Duration::from_millis(1_500)));

        positions.advance(FeedSource::Events, 10);
        assert_eq!(lag.at(positions, UnixMillis(9_000)), Some(Duration::ZERO));
    }

    #[test]
    fn begins_with_the_first_message_after_a_quiet_time() {
        let lag = FeedLag::default();
        let mut positions = StreamPositions::default();
        for source in FeedSource::ALL {
            lag.note_end(source, 0);
        }

        lag.note_arrived(FeedSource::Events, 1, UnixMillis(5_000), positions);
        assert_eq!(
            lag.at(positions, UnixMillis(5_040)),
            Some(Duration::from_millis(40)),
            "the first one of all"
        );
        positions.advance(FeedSource::Events, 1);
        lag.took_in(FeedSource::Events, UnixMillis(5_000));

        lag.note_arrived(FeedSource::Events, 3, UnixMillis(900_000), positions);
        assert_eq!(lag.at(positions, UnixMillis(900_070)), Some(Duration::from_millis(70)));

        // One that comes behind a backlog does not hide it.
        lag.note_arrived(FeedSource::Events, 4, UnixMillis(910_000), positions);
        assert_eq!(lag.at(positions, UnixMillis(910_000)), Some(Duration::from_secs(10)));
    }
}
