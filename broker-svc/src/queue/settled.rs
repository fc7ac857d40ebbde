//! Sequences of a stream that need no second look, as ranges that grow together. *Pure.*
//!
//! A broker adds the sequences that it has consumed; the sweeper skips them without reading them. To forget a range
//! costs a read and nothing else, so the set is bounded by forgetting.

use std::collections::BTreeMap;

/// Maximum number of ranges; the lowest is forgotten first.
pub const MAX_RANGES: usize = 16_384;

/// A set of sequences, as ranges.
#[derive(Debug, Clone, Default)]
pub struct SequenceSet {
    /// First → last of each range; ranges neither touch nor overlap.
    ranges: BTreeMap<u64, u64>,
}

impl SequenceSet {
    /// Adds `sequence` to the set.
    pub fn add(&mut self, sequence: u64) {
        let mut range = (sequence, sequence);
        // A sequence that touches a range extends it, so that the set stays small.
        if let Some((&first, &last)) = self.ranges.range(..=sequence).next_back() {
            if last >= sequence {
                return;
            }

            if last + 1 == sequence {
                self.ranges.remove(&first);
                range.0 = first;
            }
        }

        if let Some(last) = self.ranges.remove(&(sequence + 1)) {
            range.1 = last;
        }

        self.ranges.insert(range.0, range.1);

        // Forgetting a range only costs another read.
        if self.ranges.len() > MAX_RANGES {
            self.ranges.pop_first();
        }
    }

    /// Returns the first sequence from `from` on that is not in the set.
    #[must_use]
    pub fn first_gap(&self, from: u64) -> u64 {
        match self.ranges.range(..=from).next_back() {
            Some((_, &last)) if last >= from => last + 1,
            Some(_) | None => from,
        }
    }

    /// Returns whether `sequence` is in the set.
    #[must_use]
    pub fn contains(&self, sequence: u64) -> bool {
        self.first_gap(sequence) > sequence
    }

    /// Forgets everything through `sequence`, except a range that reaches beyond, which stays whole.
    pub fn forget_through(&mut self, sequence: u64) {
        while let Some((&first, &last)) = self.ranges.first_key_value()
            && last <= sequence
        {
            self.ranges.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_together_in_any_order() {
        let mut settled = SequenceSet::default();
        for sequence in [5, 3, 9, 4, 1, 4] {
            settled.add(sequence);
        }

        assert_eq!(settled.ranges, BTreeMap::from([(1, 1), (3, 5), (9, 9)]));
        assert_eq!([1, 2, 3, 6, 9].map(|from| settled.first_gap(from)), [2, 2, 6, 6, 10]);

        settled.add(2);
        assert_eq!(settled.first_gap(1), 6);

        settled.forget_through(5);
        assert!(!settled.contains(3) && settled.contains(9));
    }

    #[test]
    fn it_forgets_the_lowest_when_full() {
        let mut settled = SequenceSet::default();
        for sequence in 0..=MAX_RANGES as u64 {
            settled.add(2 * sequence);
        }
        assert!(!settled.contains(0) && settled.contains(2));
    }
}
