//! Which event ids are known already, asked for every event before it is evaluated.
//!
//! Nearly every event is new, so the common answer must not cost a look into SQLite: a bit filter over
//! all ids says "certainly not known" from one word of memory, and a table of the last ids answers where
//! the projection runs ahead of its asker. Both may only ever say "look it up" too often.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::apply::First;

/// Words of the filter: 16 MiB, which is 13 bits an id at ten million events.
const FILTER_WORDS: usize = 2 * 1024 * 1024;

/// Bits set per id, all in one word.
const BITS_PER_ID: u32 = 5;

/// Bits that choose one bit of a word.
const BIT_CHOICE: u32 = 6;

/// Places in the table of recent ids; a newer id takes the place of an older one: 1 MiB.
const RECENT: usize = 64 * 1024;

/// A 64-bit stand-in for an id, the same within one process.
pub(super) fn fingerprint(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// What memory knows of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recall {
    /// An id of this fingerprint first occurred there.
    Recent(u64),
    /// It is not in the read model.
    Absent,
    /// Only the read model can tell.
    Unknown,
}

/// The ids taken in.
#[derive(Debug)]
pub(super) struct Seen {
    filter: Box<[AtomicU64]>,
    /// Whether the ids that were in the file when it was opened are in the filter.
    complete: AtomicBool,
    recent: Mutex<Box<[First]>>,
}

impl Seen {
    /// Knows nothing; `complete` where the file is empty.
    pub(super) fn new(complete: bool) -> Self {
        Self {
            filter: (0..FILTER_WORDS).map(|_| AtomicU64::new(0)).collect(),
            complete: AtomicBool::new(complete),
            recent: Mutex::new(
                vec![
                    First {
                        fingerprint: 0,
                        sequence: 0
                    };
                    RECENT
                ]
                .into_boxed_slice(),
            ),
        }
    }

    /// Notes ids that have just been committed.
    pub(super) fn remember(&self, firsts: &[First]) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        for first in firsts {
            self.admit(first.fingerprint);
            recent[place(first.fingerprint, RECENT)] = *first;
        }
    }

    /// Notes an id that is in the file.
    pub(super) fn admit(&self, fingerprint: u64) {
        let bits = bits(fingerprint);
        let word = &self.filter[place(fingerprint, FILTER_WORDS)];
        if word.load(Ordering::Relaxed) & bits != bits {
            word.fetch_or(bits, Ordering::Release);
        }
    }

    /// From now on the filter holds every id of the file.
    pub(super) fn complete(&self) {
        self.complete.store(true, Ordering::Release);
    }

    /// What is known of the id with `fingerprint`.
    pub(super) fn recall(&self, fingerprint: u64) -> Recall {
        let bits = bits(fingerprint);
        let admitted = self.filter[place(fingerprint, FILTER_WORDS)].load(Ordering::Acquire) & bits == bits;
        if !admitted {
            return if self.complete.load(Ordering::Acquire) {
                Recall::Absent
            } else {
                Recall::Unknown
            };
        }

        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let first = recent[place(fingerprint, RECENT)];
        if first.fingerprint == fingerprint && first.sequence > 0 {
            Recall::Recent(first.sequence)
        } else {
            Recall::Unknown
        }
    }
}

/// The place of `fingerprint` among `places` (a power of two), from bits that [`bits`] does not use.
const fn place(fingerprint: u64, places: usize) -> usize {
    (fingerprint >> (BITS_PER_ID * BIT_CHOICE)) as usize & (places - 1)
}

/// The bits of `fingerprint` within its word.
fn bits(fingerprint: u64) -> u64 {
    (0..BITS_PER_ID).fold(0, |bits, choice| {
        bits | 1 << (fingerprint >> (choice * BIT_CHOICE) & 63)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_it_was_told_and_only_that() {
        let seen = Seen::new(true);
        let first = |n: u64| First {
            fingerprint: fingerprint(&format!("webhook:{n}")),
            sequence: n,
        };

        seen.remember(&(1..=1_000).map(first).collect::<Vec<_>>());
        let recalled = (1..=1_000)
            .filter(|&n| seen.recall(first(n).fingerprint) == Recall::Recent(n))
            .count();

        assert!(recalled > 950, "only {recalled} of 1000 recent ids are recalled");

        let absent = (2_000..3_000)
            .filter(|&n| seen.recall(first(n).fingerprint) == Recall::Absent)
            .count();
        assert!(absent > 990, "only {absent} of 1000 new ids are certainly absent");
    }

    #[test]
    fn is_never_certain_before_the_file_was_read() {
        let seen = Seen::new(false);
        assert_eq!(seen.recall(fingerprint("a:1")), Recall::Unknown);
        seen.complete();
        assert_eq!(seen.recall(fingerprint("a:1")), Recall::Absent);
    }
}
