//! Turns whose messages were marked by a reaction, and the bounds of such calls.
//!
//! Each account has bounds of its own: calls that one of them waits for, or that its platform limits, hold no other
//! account back. An account's calls are made one after another, so that a limit is known before the next one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as TurnLock, OwnedSemaphorePermit, Semaphore};
use ulid::Ulid;

use crate::attempt::MAX_RETRY_AFTER;

/// Maximum number of an account's tasks that make calls; what comes beyond it is not shown.
const MAX_AT_ONCE: usize = 16;
/// Maximum number of turns that are remembered.
const MAX_REMEMBERED: usize = 4_096;

/// What is known of a turn whose message is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MarkStage {
    /// It runs.
    #[default]
    Running,
    /// It is over: its message is not marked as taken any more.
    Over,
}

/// The bounds of one account.
#[derive(Debug)]
pub struct AccountMarks {
    slots: Arc<Semaphore>,
    /// Held during a call.
    pub calls: TurnLock<()>,
    /// Time until which the platform limits these calls.
    limited_until: Mutex<Option<Instant>>,
}

impl Default for AccountMarks {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(MAX_AT_ONCE)),
            calls: TurnLock::default(),
            limited_until: Mutex::default(),
        }
    }
}

impl AccountMarks {
    /// Returns the right to make calls until it is dropped; `None` if too many are under way.
    #[must_use]
    pub fn take_slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Notes at `now` that the platform limits the calls for `wait`, at most a day.
    pub fn note_limit(&self, wait: Duration, now: Instant) {
        let until = now + wait.min(MAX_RETRY_AFTER);
        let mut limited = self.lock_limit();
        *limited = Some(limited.map_or(until, |before| before.max(until)));
    }

    /// Returns whether the platform limits the calls at `now`.
    #[must_use]
    pub fn is_limited(&self, now: Instant) -> bool {
        self.lock_limit().is_some_and(|until| now < until)
    }

    fn lock_limit(&self) -> MutexGuard<'_, Option<Instant>> {
        self.limited_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turns whose messages were marked, as the tasks of a process share them.
#[derive(Debug, Default)]
pub struct MarkedTurns {
    turns: Mutex<RememberedTurns>,
    /// The accounts that mark messages, by name with their channel. Their number is that of the configuration.
    accounts: Mutex<HashMap<String, Arc<AccountMarks>>>,
}

/// The stage of a turn, held during its calls, so that they are made in order.
pub type TurnMark = Arc<TurnLock<MarkStage>>;

#[derive(Debug, Default)]
struct RememberedTurns {
    marks: HashMap<Ulid, TurnMark>,
    /// The turns, oldest first.
    order: VecDeque<Ulid>,
}

impl MarkedTurns {
    /// Returns the bounds of the account `name`, which must be a configured one.
    #[must_use]
    pub fn account(&self, name: &str) -> Arc<AccountMarks> {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = accounts.get(name) {
            return Arc::clone(known);
        }
        Arc::clone(accounts.entry(name.to_owned()).or_default())
    }

    /// Remembers `turn`, and returns its mark.
    #[must_use]
    pub fn remember(&self, turn: Ulid) -> TurnMark {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = turns.marks.get(&turn) {
            return Arc::clone(known);
        }

        if turns.order.len() >= MAX_REMEMBERED
            && let Some(oldest) = turns.order.pop_front()
        {
            turns.marks.remove(&oldest);
        }
        let mark = TurnMark::default();
        turns.order.push_back(turn);
        turns.marks.insert(turn, Arc::clone(&mark));
        mark
    }

    /// Returns whether `turn` is remembered.
    #[must_use]
    pub fn knows(&self, turn: Ulid) -> bool {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.marks.contains_key(&turn)
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

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
        assert_eq!((turns.order.len(), turns.marks.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
    }

    #[test]
    fn neither_the_tasks_nor_the_limit_of_an_account_hold_another_one_back() {
        let (marks, now) = (MarkedTurns::default(), SystemClock.monotonic());
        let [one, other] = ["slack:one", "slack:other"].map(|name| marks.account(name));
        let taken: Vec<_> = (0..MAX_AT_ONCE).filter_map(|_| one.take_slot()).collect();
        assert_eq!(taken.len(), MAX_AT_ONCE);
        assert!(marks.account("slack:one").take_slot().is_none() && other.take_slot().is_some());
        drop(taken);
        assert!(one.take_slot().is_some());

        let seconds = Duration::from_secs;
        one.note_limit(seconds(5), now);
        one.note_limit(seconds(2), now);
        assert!(one.is_limited(now + seconds(4)) && !one.is_limited(now + seconds(5)));
        assert!(!other.is_limited(now));
    }
}
