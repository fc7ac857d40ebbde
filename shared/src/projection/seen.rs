//! Known event ids, looked up for every event before it is evaluated.
//!
//! Nearly every event is new, so the common case must not cost a query of SQLite. A bit filter over all ids shows
//! "certainly not known" with one word of memory, and a table of the last ids decides if the projection is ahead of
//! the caller. The only error that both may make is an unnecessary query.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::apply::FirstRecord;

/// Size of the filter in words: 16 MiB, which is 13 bits per id at ten million events.
const FILTER_WORDS: usize = 2 * 1024 * 1024;

/// Number of bits set per id, all in one word.
const BITS_PER_ID: u32 = 5;

/// Number of fingerprint bits that choose one bit of a word.
const BIT_CHOICE: u32 = 6;

/// Number of slots in the table of recent ids, 1 MiB; a newer id replaces an older one.
const RECENT: usize = 64 * 1024;

/// Returns a 64-bit hash of an id, the same within one process.
pub(super) fn fingerprint(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// Result of a lookup in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeenVerdict {
    /// Sequence at which an id with this fingerprint first occurred.
    Recent(u64),
    /// The id is not in the read model.
    Absent,
    /// Only a query of the read model can decide.
    Unknown,
}

/// Ids of the applied events.
#[derive(Debug)]
pub(super) struct SeenMessages {
    filter: Box<[AtomicU64]>,
    /// Whether the filter contains the ids that were in the file when it was opened.
    complete: AtomicBool,
    recent: Mutex<Box<[FirstRecord]>>,
}

impl SeenMessages {
    /// Builds an empty filter; `complete` if the file is empty.
    pub(super) fn new(complete: bool) -> Self {
        Self {
            filter: (0..FILTER_WORDS).map(|_| AtomicU64::new(0)).collect(),
            complete: AtomicBool::new(complete),
            recent: Mutex::new(
                vec![
                    FirstRecord {
                        fingerprint: 0,
                        sequence: 0
                    };
                    RECENT
                ]
                .into_boxed_slice(),
            ),
        }
    }

    /// Adds ids that have just been committed.
    pub(super) fn note_committed(&self, firsts: &[FirstRecord]) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        for first in firsts {
            self.note_stored(first.fingerprint);
            recent[place_of(first.fingerprint, RECENT)] = *first;
        }
    }

    /// Adds an id that is in the file.
    pub(super) fn note_stored(&self, fingerprint: u64) {
        let bits = word_bits(fingerprint);
        let word = &self.filter[place_of(fingerprint, FILTER_WORDS)];
        if word.load(Ordering::Relaxed) & bits != bits {
            word.fetch_or(bits, Ordering::Release);
        }
    }

    /// Declares that the filter contains every id of the file.
    pub(super) fn mark_complete(&self) {
        self.complete.store(true, Ordering::Release);
    }

    /// Looks up the id with `fingerprint`.
    pub(super) fn recall(&self, fingerprint: u64) -> SeenVerdict {
        // Asked before the filter is read: it may be completed in between, with an id that was not in it yet.
        let is_complete = self.complete.load(Ordering::Acquire);
        let bits = word_bits(fingerprint);
        let admitted = self.filter[place_of(fingerprint, FILTER_WORDS)].load(Ordering::Acquire) & bits == bits;
        if !admitted {
            return if is_complete {
                SeenVerdict::Absent
            } else {
                SeenVerdict::Unknown
            };
        }

        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let first = recent[place_of(fingerprint, RECENT)];
        if first.fingerprint == fingerprint && first.sequence > 0 {
            SeenVerdict::Recent(first.sequence)
        } else {
            SeenVerdict::Unknown
        }
    }
}

/// Returns the slot of `fingerprint` among `places` (a power of two), from bits that [`word_bits`] does not use.
const fn place_of(fingerprint: u64, places: usize) -> usize {
    (fingerprint >> (BITS_PER_ID * BIT_CHOICE)) as usize & (places - 1)
}

/// Returns the bits of `fingerprint` within its word.
fn word_bits(fingerprint: u64) -> u64 {
    (0..BITS_PER_ID).fold(0, |bits, choice| {
        bits | 1 << (fingerprint >> (choice * BIT_CHOICE) & 63)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_what_it_was_told_and_only_that() {
        let seen = SeenMessages::new(true);
        let first = |n: u64| FirstRecord {
            fingerprint: fingerprint(&format!("webhook:{n}")),
            sequence: n,
        };

        seen.note_committed(&(1..=1_000).map(first).collect::<Vec<_>>());
        let recalled = (1..=1_000)
            .filter(|&n| seen.recall(first(n).fingerprint) == SeenVerdict::Recent(n))
            .count();

        assert!(recalled > 950, "only {recalled} of 1000 recent ids are recalled");

        let absent = (2_000..3_000)
            .filter(|&n| seen.recall(first(n).fingerprint) == SeenVerdict::Absent)
            .count();
        assert!(absent > 990, "only {absent} of 1000 new ids are certainly absent");
    }

    #[test]
    fn is_never_certain_before_the_file_was_read() {
        let seen = SeenMessages::new(false);
        assert_eq!(seen.recall(fingerprint("a:1")), SeenVerdict::Unknown);
        seen.mark_complete();
        assert_eq!(seen.recall(fingerprint("a:1")), SeenVerdict::Absent);
    }
}
