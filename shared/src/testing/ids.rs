//! Ids that are the same in every run.

use std::sync::atomic::{AtomicU64, Ordering};

use ulid::Ulid;

use crate::clock::IdSource;

/// ULIDs computed from a seed and a counter: the same sequence for the same seed, in ascending order.
#[derive(Debug)]
pub struct SeededIds {
    seed: u64,
    minted: AtomicU64,
}

impl SeededIds {
    /// Builds a source whose whole sequence follows from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            minted: AtomicU64::new(0),
        }
    }
}

impl IdSource for SeededIds {
    fn ulid(&self) -> Ulid {
        let count = self.minted.fetch_add(1, Ordering::SeqCst);
        let high = u128::from(mix(self.seed ^ mix(count)));
        let low = u128::from(mix(self.seed.wrapping_add(mix(!count))));
        Ulid::from_parts(count, high << 64 | low)
    }
}

/// The finaliser of splitmix64: every input bit affects every output bit.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(seed: u64, count: usize) -> Vec<Ulid> {
        let ids = SeededIds::new(seed);
        std::iter::repeat_with(|| ids.ulid()).take(count).collect()
    }

    #[test]
    fn one_seed_is_one_sequence() {
        let minted = first(7, 1_000);
        assert_eq!(minted, first(7, 1_000));
        assert_ne!(minted, first(8, 1_000));
        assert!(minted.is_sorted_by(|earlier, later| earlier < later));
    }

    #[test]
    fn jitters_are_spread_over_0_to_1() {
        let ids = SeededIds::new(7);
        let drawn: Vec<f64> = std::iter::repeat_with(|| ids.draw_jitter()).take(1_000).collect();
        assert!(drawn.iter().all(|one| (0.0..1.0).contains(one)));
        let mean = drawn.iter().sum::<f64>() / 1_000.0;
        assert!((0.4..0.6).contains(&mean), "{mean}");
    }
}
