//! Turns whose messages were marked by a reaction, and the bounds of such calls.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as TurnLock, OwnedSemaphorePermit, Semaphore};
use ulid::Ulid;

/// Maximum number of tasks that make calls; what comes beyond it is not shown.
const MAX_AT_ONCE: usize = 64;
/// Maximum number of turns that are remembered.
const MAX_REMEMBERED: usize = 4_096;

/// The turns whose messages were marked, as the tasks of a process share them.
#[derive(Debug)]
pub struct MarkedTurns {
    turns: Mutex<RememberedTurns>,
    slots: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct RememberedTurns {
    /// Held during the calls of a turn, so that they are made in order.
    locks: HashMap<Ulid, Arc<TurnLock<()>>>,
    /// The turns, oldest first.
    order: VecDeque<Ulid>,
}

impl Default for MarkedTurns {
    fn default() -> Self {
        Self {
            turns: Mutex::default(),
            slots: Arc::new(Semaphore::new(MAX_AT_ONCE)),
        }
    }
}

impl MarkedTurns {
    /// Returns the right to make calls until it is dropped; `None` if too many are under way.
    #[must_use]
    pub fn take_slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Remembers `turn`, and returns the lock of its calls.
    #[must_use]
    pub fn remember(&self, turn: Ulid) -> Arc<TurnLock<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = turns.locks.get(&turn) {
            return Arc::clone(known);
        }

        if turns.order.len() >= MAX_REMEMBERED
            && let Some(oldest) = turns.order.pop_front()
        {
            turns.locks.remove(&oldest);
        }
        let lock = Arc::<TurnLock<()>>::default();
        turns.order.push_back(turn);
        turns.locks.insert(turn, Arc::clone(&lock));
        lock
    }

    /// Returns whether `turn` is remembered.
    #[must_use]
    pub fn knows(&self, turn: Ulid) -> bool {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.locks.contains_key(&turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_marked_once_and_memory_is_bounded() {
        let marks = MarkedTurns::default();
        let turn = |number: u64| Ulid::from_parts(number, 1);
        assert!(!marks.knows(turn(0)));
        let first = marks.remember(turn(0));
        assert!(Arc::ptr_eq(&first, &marks.remember(turn(0))) && marks.knows(turn(0)));

        let most = u64::try_from(MAX_REMEMBERED).expect("it fits");
        for number in 0..=most {
            let _ = marks.remember(turn(number));
        }
        assert!(!marks.knows(turn(0)) && marks.knows(turn(1)));
        let turns = marks.turns.lock().expect("not poisoned");
        assert_eq!((turns.order.len(), turns.locks.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
    }
}
