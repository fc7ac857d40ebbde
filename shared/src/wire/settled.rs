//! Settled ranges of a stream beyond a floor, and their encoding. *Pure.*
//!
//! A message that takes long must not hold up the others of its partition, nor make the next owner check them again.
//! The record of a floor therefore also has the ranges that are settled beyond it. Ranges may be missing: a message
//! outside all ranges is looked up in its own record.

use crate::model::position::StreamPosition;

/// Maximum number of ranges that are stored for one partition: 64 partitions with this many need about 100 KiB.
pub const MAX_RANGES: usize = 256;

/// Settled sequences as ranges: both ends inclusive, ascending, not adjacent.
///
/// ```
/// use shared::wire::settled::SettledSet;
///
/// let mut settled = SettledSet::default();
/// settled.push(12, 14);
/// settled.push(20, 20);
/// assert!(settled.contains(13) && !settled.contains(15));
/// let widths = settled.widths(10);
/// assert_eq!(SettledSet::of_widths(10, &widths), settled);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SettledSet(Vec<(u64, u64)>);

/// The settled part of one partition, and the part that was handed out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartitionFloor {
    /// Last message up to which everything is settled.
    pub at: StreamPosition,
    /// Last message that was handed out; of the same incarnation as `at`, and not before it.
    pub read: StreamPosition,
    /// Ranges that are settled between `at` and `read`.
    pub settled: SettledSet,
}

impl SettledSet {
    /// Adds the range from `first` to `last`, which must not begin before any other range.
    pub fn push(&mut self, first: u64, last: u64) {
        match self.0.last_mut() {
            Some((_, end)) if *end + 1 >= first => *end = last.max(*end),
            Some(_) | None => self.0.push((first, last)),
        }
    }

    /// Returns whether `sequence` is settled.
    #[must_use]
    pub fn contains(&self, sequence: u64) -> bool {
        let behind = self.0.partition_point(|(_, last)| *last < sequence);
        self.0.get(behind).is_some_and(|(first, _)| *first <= sequence)
    }

    /// Returns whether there are no ranges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ranges that are settled in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut all: Vec<(u64, u64)> = self.0.iter().chain(&other.0).copied().collect();
        all.sort_unstable();
        let mut union = Self::default();
        for (first, last) in all {
            union.push(first, last);
        }
        union
    }

    /// Returns the ranges beyond `floor`.
    #[must_use]
    pub fn behind(&self, floor: u64) -> Self {
        let behind = self.0.iter().filter(|(_, last)| *last > floor);
        Self(behind.map(|(first, last)| ((*first).max(floor + 1), *last)).collect())
    }

    /// Returns the `most` widest ranges.
    #[must_use]
    pub fn widest(mut self, most: usize) -> Self {
        if self.0.len() > most {
            self.0.sort_by_key(|(first, last)| std::cmp::Reverse(last - first));
            self.0.truncate(most);
            self.0.sort_unstable();
        }
        self
    }

    /// Encodes the ranges as widths from `floor` on: a number of unsettled sequences, a number of settled ones, and
    /// so on.
    #[must_use]
    pub fn widths(&self, floor: u64) -> Vec<u64> {
        let mut end = floor;
        let mut widths = Vec::with_capacity(self.0.len() * 2);
        for (first, last) in &self.0 {
            widths.extend([first - end - 1, last - first + 1]);
            end = *last;
        }
        widths
    }

    /// Decodes the result of [`Self::widths`]. Impossible values are ignored, because any client may have written the
    /// record.
    #[must_use]
    pub fn of_widths(floor: u64, widths: &[u64]) -> Self {
        let mut settled = Self::default();
        let mut end = floor;
        for pair in widths.chunks_exact(2) {
            let first = end.checked_add(pair[0]).and_then(|end| end.checked_add(1));
            let last = first.and_then(|first| first.checked_add(pair[1]));
            let (Some(first), Some(behind)) = (first, last) else {
                break;
            };

            if behind > first {
                settled.push(first, behind - 1);
            }
            end = behind - 1;
        }

        settled
    }
}

impl PartitionFloor {
    /// Combines this floor with `other` of the same incarnation. Both were true, so their union is.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let later = |one: &StreamPosition, two: &StreamPosition| {
            if one.sequence >= two.sequence {
                one.clone()
            } else {
                two.clone()
            }
        };

        let at = later(&self.at, &other.at);
        // `read` is never before `at`.
        let read = later(&later(&self.read, &other.read), &at);
        let settled = self
            .settled
            .union(&other.settled)
            .behind(at.sequence)
            .widest(MAX_RANGES);

        Self { at, read, settled }
    }

    /// Returns the floor without the messages handed out beyond it.
    #[must_use]
    pub fn without_settled(&self) -> Self {
        Self {
            at: self.at.clone(),
            read: self.at.clone(),
            settled: SettledSet::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settled(ranges: &[(u64, u64)]) -> SettledSet {
        let mut settled = SettledSet::default();
        ranges.iter().for_each(|(first, last)| settled.push(*first, *last));
        settled
    }

    fn floor(at: u64, read: u64, ranges: &[(u64, u64)]) -> PartitionFloor {
        let position = |sequence: u64| StreamPosition {
            incarnation: "a".to_owned(),
            sequence,
            stored_at_ns: i64::try_from(sequence).expect("small"),
        };

        PartitionFloor {
            at: position(at),
            read: position(read),
            settled: settled(ranges),
        }
    }

    #[test]
    fn two_owners_together_say_what_each_says() {
        let one = floor(10, 50, &[(20, 30), (40, 50)]);
        let other = floor(25, 45, &[(31, 35), (45, 45)]);
        assert_eq!(one.with(&other), floor(25, 50, &[(26, 35), (40, 50)]));
        assert_eq!(one.with(&other), other.with(&one));
    }

    #[test]
    fn of_too_many_ranges_the_widest_are_kept() {
        let all = settled(&[(1, 1), (10, 19), (30, 31), (40, 49)]);
        assert_eq!(all.clone().widest(2), settled(&[(10, 19), (40, 49)]));
        assert_eq!(all.clone().widest(4), all);
    }

    #[test]
    fn widths_that_cannot_be_are_left_out() {
        assert_eq!(SettledSet::of_widths(5, &[0, 0, u64::MAX, 3]), SettledSet::default());
        assert_eq!(SettledSet::of_widths(5, &[1, 2, 3]), settled(&[(7, 8)]));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            floor in 0_u64..1_000,
            parts in prop::collection::vec((1_u64..50, 1_u64..50), 0..20),
        ) {
            let mut all = SettledSet::default();
            let mut end = floor;
            for (gap, width) in parts {
                all.push(end + gap + 1, end + gap + width);
                end += gap + width;
            }
            prop_assert_eq!(&SettledSet::of_widths(floor, &all.widths(floor)), &all);
            prop_assert_eq!(&all.union(&all.behind(floor + 30)), &all);
            for sequence in floor..=end + 1 {
                let listed = all.0.iter().any(|(first, last)| (*first..=*last).contains(&sequence));
                prop_assert_eq!(all.contains(sequence), listed);
            }
        }
    }
}
