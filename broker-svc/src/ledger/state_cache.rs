//! Folds of the sessions that ran last, so that the next turn reads no ledger.
//!
//! A fold may be stale: another broker may have run the session since. This need not be checked beforehand, because
//! every append names the last sequence that it builds on, and a stale one is refused. A cursor only ever grows, so
//! everything that a stale cursor covers is covered.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use shared::model::session::SessionRef;
use ulid::Ulid;

use crate::ledger::state::SessionState;

/// Maximum memory of the cached folds, bytes (an estimate).
const MAX_CACHE_BYTES: usize = 64 * 1_024 * 1_024;

/// A session as its last owner on this broker left it.
#[derive(Debug, Clone, Default)]
pub struct CachedSession {
    /// Fold of the session.
    pub fold: SessionState,
    /// Turns whose replies are published, but not noted in the ledger yet.
    pub published: Vec<Ulid>,
    /// Number of the era in which its cursor was found to hold; 0 = in none.
    pub era: u64,
}

#[derive(Debug, Default)]
struct Inner {
    /// Boxed, because a table has room for more entries than it holds.
    entries: HashMap<SessionRef, (u64, usize, Box<CachedSession>)>,
    by_age: BTreeMap<u64, SessionRef>,
    bytes: usize,
    tick: u64,
}

impl Inner {
    fn remove(&mut self, session: &SessionRef) -> Option<CachedSession> {
        let (tick, weight, remembered) = self.entries.remove(session)?;
        self.by_age.remove(&tick);
        self.bytes -= weight;
        Some(*remembered)
    }
}

/// The folds, bounded in number and memory; the one unused longest is removed first.
#[derive(Debug)]
pub struct FoldCache {
    capacity: usize,
    inner: Mutex<Inner>,
}

impl FoldCache {
    /// Creates a cache of at most `capacity` folds.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            inner: Mutex::default(),
        }
    }

    /// Takes a session's fold out: while a worker uses it, it is nowhere else.
    #[must_use]
    pub fn take(&self, session: &SessionRef) -> Option<CachedSession> {
        self.lock().remove(session)
    }

    /// Removes all folds.
    pub fn clear(&self) {
        *self.lock() = Inner::default();
    }

    /// Stores a session's fold.
    pub fn insert(&self, session: SessionRef, remembered: CachedSession) {
        let weight = remembered.fold.memory_bytes();
        let mut inner = self.lock();
        drop(inner.remove(&session));
        inner.tick += 1;
        inner.bytes += weight;
        let tick = inner.tick;
        inner.by_age.insert(tick, session.clone());
        inner.entries.insert(session, (tick, weight, Box::new(remembered)));

        while inner.entries.len() > self.capacity || inner.bytes > MAX_CACHE_BYTES {
            let Some((_, oldest)) = inner.by_age.pop_first() else {
                break;
            };
            drop(inner.remove(&oldest));
        }
    }

    /// Returns whether the session is known to have consumed everything through `sequence`, and to have no unanswered
    /// intents.
    #[must_use]
    pub fn is_settled_through(&self, session: &SessionRef, sequence: u64) -> bool {
        self.lock()
            .entries
            .get(session)
            .is_some_and(|(_, _, known)| known.fold.cursor.floor >= sequence && known.fold.intents.owed.is_empty())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(name: &str) -> SessionRef {
        SessionRef {
            persona: "default".to_owned(),
            session: name.to_owned(),
        }
    }

    #[test]
    fn the_one_unused_longest_goes_first() {
        let cache = FoldCache::new(2);
        for name in ["a", "b", "a", "c"] {
            cache.insert(session(name), CachedSession::default());
        }
        assert!(cache.take(&session("b")).is_none());
        assert!(cache.take(&session("a")).is_some() && cache.take(&session("a")).is_none());
        assert!(cache.take(&session("c")).is_some());
        assert_eq!(cache.lock().bytes, 0);
    }

    #[test]
    fn what_a_cursor_covers_is_known() {
        let cache = FoldCache::new(2);
        let mut remembered = CachedSession::default();
        remembered.fold.cursor.floor = 7;
        remembered.fold.cursor.above = vec![9];
        cache.insert(session("a"), remembered);

        assert!(cache.is_settled_through(&session("a"), 7) && !cache.is_settled_through(&session("a"), 8));
        assert!(
            !cache.is_settled_through(&session("a"), 9),
            "it is consumed, and one below it is not"
        );
        assert!(!cache.is_settled_through(&session("b"), 1));
    }
}
