//! Vectors of one byte per dimension, in memory: by channel, and by time within it. *Pure.*
//!
//! A search scans all of them: a million vectors of 256 dimensions take some tens of milliseconds, a filter by channel
//! or time takes only its share of that, and the rounding is the only approximation
//! (`docs/adr/0007-read-model-in-sqlite.md`).

use std::collections::BTreeMap;

/// Maximum number of vectors out of the order of time before a channel is sorted again.
const MAX_UNSORTED: usize = 4_096;

/// Largest value of a rounded component.
const LARGEST: f32 = 127.0;

/// Cosine below which two texts count as unrelated.
const MIN_COSINE: f32 = 0.1;

/// A vector of one byte per dimension; `value = byte * scale`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QuantizedVector {
    pub(crate) bytes: Vec<i8>,
    pub(crate) scale: f32,
}

impl QuantizedVector {
    /// Rounds `vector`; returns `None` if it has no direction.
    pub(crate) fn from_vector(vector: &[f32]) -> Option<Self> {
        let largest = vector.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        if !largest.is_normal() {
            return None;
        }
        let scale = largest / LARGEST;
        Some(Self {
            bytes: vector.iter().map(|value| (value / scale).round() as i8).collect(),
            scale,
        })
    }
}

/// Filter of a search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VectorFilter<'a> {
    /// Channels that are searched; `None` for all.
    pub(crate) channels: Option<&'a [String]>,
    /// Earliest time in Unix milliseconds, included.
    pub(crate) since: i64,
    /// Latest time in Unix milliseconds, excluded.
    pub(crate) until: i64,
}

/// All vectors of one model.
#[derive(Debug, Default)]
pub(crate) struct VectorIndex {
    channels: BTreeMap<String, VectorPartition>,
    dimensions: usize,
}

#[derive(Debug, Default)]
struct VectorPartition {
    times: Vec<i64>,
    sequences: Vec<u64>,
    /// Scale of each vector; 0 if it was removed.
    scales: Vec<f32>,
    bytes: Vec<i8>,
    /// Number of leading vectors that are in the order of time.
    sorted: usize,
}

impl VectorIndex {
    /// Adds a vector. One of another length than the others is not from this model, and is ignored.
    pub(crate) fn insert(&mut self, channel: &str, time: i64, sequence: u64, vector: &QuantizedVector) {
        if self.dimensions == 0 {
            self.dimensions = vector.bytes.len();
        }

        if vector.bytes.len() != self.dimensions {
            return;
        }

        if !self.channels.contains_key(channel) {
            self.channels.insert(channel.to_owned(), VectorPartition::default());
        }

        if let Some(partition) = self.channels.get_mut(channel) {
            partition.push(time, sequence, vector);
            if partition.times.len() - partition.sorted > MAX_UNSORTED {
                partition.sort(self.dimensions);
            }
        }
    }

    /// Removes the vector of the event `sequence` on `channel`.
    pub(crate) fn remove(&mut self, channel: &str, sequence: u64) {
        if let Some(partition) = self.channels.get_mut(channel) {
            for (at, _) in partition
                .sequences
                .iter()
                .enumerate()
                .filter(|(_, known)| **known == sequence)
            {
                partition.scales[at] = 0.0;
            }
        }
    }

    /// Removes all vectors of the index.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the number of vectors, including removed ones until their channel is sorted.
    pub(crate) fn len(&self) -> usize {
        self.channels.values().map(|partition| partition.times.len()).sum()
    }

    /// Returns the sequences of the `count` vectors nearest to `query` that pass `filter`, the nearest first.
    pub(crate) fn nearest(&self, query: &QuantizedVector, filter: &VectorFilter<'_>, count: usize) -> Vec<u64> {
        if query.bytes.len() != self.dimensions {
            return Vec::new();
        }
        let mut best = BestCandidates::new(count);
        let wanted = |channel: &String| filter.channels.is_none_or(|channels| channels.contains(channel));
        for (_, partition) in self.channels.iter().filter(|(channel, _)| wanted(channel)) {
            partition.scan_partition(query, filter, &mut best);
        }
        best.into_sequences()
    }
}

impl VectorPartition {
    fn push(&mut self, time: i64, sequence: u64, vector: &QuantizedVector) {
        if self.sorted == self.times.len() && self.times.last().is_none_or(|last| *last <= time) {
            self.sorted += 1;
        }
        self.times.push(time);
        self.sequences.push(sequence);
        self.scales.push(vector.scale);
        self.bytes.extend_from_slice(&vector.bytes);
    }

    fn sort(&mut self, dimensions: usize) {
        let mut order: Vec<usize> = (0..self.times.len()).filter(|&at| self.scales[at] > 0.0).collect();
        order.sort_by_key(|&at| (self.times[at], self.sequences[at]));
        let bytes = order
            .iter()
            .flat_map(|&at| &self.bytes[at * dimensions..(at + 1) * dimensions]);

        *self = Self {
            bytes: bytes.copied().collect(),
            times: order.iter().map(|&at| self.times[at]).collect(),
            sequences: order.iter().map(|&at| self.sequences[at]).collect(),
            scales: order.iter().map(|&at| self.scales[at]).collect(),
            sorted: order.len(),
        };
    }

    fn scan_partition(&self, query: &QuantizedVector, filter: &VectorFilter<'_>, best: &mut BestCandidates) {
        let sorted = &self.times[..self.sorted];
        let from = sorted.partition_point(|time| *time < filter.since);
        let to = sorted.partition_point(|time| *time < filter.until).max(from);
        self.compare_range(query, from..to, best, |_| true);
        let in_time = |time: i64| filter.since <= time && time < filter.until;
        self.compare_range(query, self.sorted..self.times.len(), best, in_time);
    }

    fn compare_range(
        &self,
        query: &QuantizedVector,
        range: std::ops::Range<usize>,
        best: &mut BestCandidates,
        counts: impl Fn(i64) -> bool,
    ) {
        let dimensions = query.bytes.len();
        let rows = self.bytes[range.start * dimensions..range.end * dimensions].chunks_exact(dimensions);
        for (at, row) in range.zip(rows) {
            if counts(self.times[at]) {
                best.offer_candidate(
                    dot_product(&query.bytes, row) as f32 * query.scale * self.scales[at],
                    self.sequences[at],
                );
            }
        }
    }
}

/// Returns the sum of products. The product of two bytes fits 16 bits, so that the compiler can vectorise the loop.
fn dot_product(left: &[i8], right: &[i8]) -> i32 {
    left.iter()
        .zip(right)
        .map(|(l, r)| i32::from(i16::from(*l) * i16::from(*r)))
        .sum()
}

/// Best results so far: up to four times `count` are kept before the rest is dropped.
struct BestCandidates {
    count: usize,
    floor: f32,
    kept: Vec<(f32, u64)>,
}

impl BestCandidates {
    fn new(count: usize) -> Self {
        Self {
            count,
            floor: MIN_COSINE,
            kept: Vec::with_capacity(4 * count),
        }
    }

    fn offer_candidate(&mut self, score: f32, sequence: u64) {
        if score > self.floor {
            self.kept.push((score, sequence));
            if self.kept.len() >= 4 * self.count.max(1) {
                self.cut_to_best();
            }
        }
    }

    fn cut_to_best(&mut self) {
        self.kept
            .sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
        self.kept.truncate(self.count);
        if self.kept.len() == self.count
            && let Some((score, _)) = self.kept.last()
        {
            self.floor = *score;
        }
    }

    fn into_sequences(mut self) -> Vec<u64> {
        self.cut_to_best();
        self.kept.into_iter().map(|(_, sequence)| sequence).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vector(values: &[f32]) -> QuantizedVector {
        QuantizedVector::from_vector(values).expect("points somewhere")
    }

    const ALL: VectorFilter<'_> = VectorFilter {
        channels: None,
        since: i64::MIN,
        until: i64::MAX,
    };

    #[test]
    fn the_nearest_come_first_and_filters_hold() {
        let mut index = VectorIndex::default();
        for (sequence, channel, time, values) in [
            (1, "sms", 10, [1.0, 0.0]),
            (2, "sms", 20, [0.9, 0.3]),
            (3, "email", 15, [0.8, 0.6]),
            (4, "email", 5, [-1.0, 0.0]),
            (5, "sms", 12, [0.95, 0.1]),
        ] {
            index.insert(channel, time, sequence, &vector(&values));
        }

        let query = vector(&[1.0, 0.0]);
        assert_eq!(
            index.nearest(&query, &ALL, 10),
            [1, 5, 2, 3],
            "what points away is not near"
        );
        assert_eq!(index.nearest(&query, &ALL, 2), [1, 5]);

        let email = ["email".to_owned()];
        let only = VectorFilter {
            channels: Some(&email),
            ..ALL
        };

        assert_eq!(index.nearest(&query, &only, 10), [3]);

        let between = VectorFilter {
            since: 12,
            until: 20,
            ..ALL
        };
        assert_eq!(
            index.nearest(&query, &between, 10),
            [5, 3],
            "also what came out of order"
        );

        index.remove("sms", 1);
        assert_eq!(index.nearest(&query, &ALL, 1), [5]);
        assert_eq!(
            index.nearest(&vector(&[1.0]), &ALL, 1),
            [0_u64; 0],
            "a vector of another model"
        );
        assert_eq!(QuantizedVector::from_vector(&[0.0, 0.0]), None);
    }

    proptest! {
        #[test]
        fn order_of_arrival_cannot_show(times in prop::collection::vec(0_i64..50, 1..60), since in 0_i64..50, length in 0_i64..50) {
            let mut index = VectorIndex::default();
            for (at, time) in times.iter().enumerate() {
                index.insert("c", *time, at as u64, &vector(&[1.0, at as f32 / 100.0]));
            }
            let mut sorted = VectorIndex::default();
            for (at, time) in times.iter().enumerate() {
                sorted.insert("c", *time, at as u64, &vector(&[1.0, at as f32 / 100.0]));
            }
            sorted.channels.get_mut("c").expect("there").sort(2);
            let filter = VectorFilter { channels: None, since, until: since + length };
            let query = vector(&[1.0, 0.1]);
            let found = index.nearest(&query, &filter, 100);
            prop_assert_eq!(&found, &sorted.nearest(&query, &filter, 100));
            let expected = times.iter().filter(|time| (since..since + length).contains(time)).count();
            prop_assert_eq!(found.len(), expected);
        }
    }
}
