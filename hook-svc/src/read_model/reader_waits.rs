//! Counts evaluations that wait until a copy of the read model has their event.
//!
//! If none of them gets on for [`STANDSTILL`], or if there are [`MOST`], the copies count as far behind: the hooks that read are
//! deferred then, so that events do not fill the memory and the places of their conversations.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shared::clock::SharedClock;

/// Most evaluations that wait at once; the event of each is in memory.
const MOST: usize = 2_048;

/// Time without one that gets on after which the copies count as far behind; the time after which no copy counts as there is
/// the same.
const STANDSTILL: Duration = Duration::from_secs(3);

/// Counter of waiting evaluations; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ReaderWaits(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: SharedClock,
    state: Mutex<WaitState>,
}

/// An evaluation that waits until this is dropped.
#[derive(Debug)]
pub(crate) struct ReaderWait {
    waits: ReaderWaits,
    begun: Instant,
}

#[derive(Debug)]
struct WaitState {
    count: usize,
    /// Time when the last one got on, or when the first one began.
    moved_at: Instant,
    /// Time when the last wait ended that had lasted as long as a standstill.
    back_at: Option<Instant>,
}

impl WaitState {
    const fn new(now: Instant) -> Self {
        Self {
            count: 0,
            moved_at: now,
            back_at: None,
        }
    }

    fn begin(&mut self, now: Instant) {
        if self.count == 0 {
            self.moved_at = now;
        }
        self.count += 1;
    }

    fn end(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    fn note_waited(&mut self, begun: Instant, now: Instant) {
        if now.saturating_duration_since(begun) >= STANDSTILL {
            self.back_at = Some(now);
        }
    }

    fn were_away_since(&self, since: Instant) -> bool {
        self.back_at.is_some_and(|at| at > since)
    }

    fn stands_still(&self, now: Instant) -> bool {
        self.count > 0 && now.saturating_duration_since(self.moved_at) >= STANDSTILL
    }

    fn is_crowded(&self, now: Instant) -> bool {
        self.count >= MOST || self.stands_still(now)
    }
}

impl ReaderWaits {
    /// Returns a counter without evaluations.
    pub(crate) fn new(clock: SharedClock) -> Self {
        let state = WaitState::new(clock.monotonic());
        Self(Arc::new(Inner {
            clock,
            state: Mutex::new(state),
        }))
    }

    fn state(&self) -> MutexGuard<'_, WaitState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an evaluation until the return value is dropped.
    pub(crate) fn begin(&self) -> ReaderWait {
        let now = self.now();
        self.state().begin(now);
        ReaderWait {
            waits: self.clone(),
            begun: now,
        }
    }

    /// Returns the time now, as the beginning of a wait for [`Self::note_waited`].
    pub(crate) fn now(&self) -> Instant {
        self.0.clock.monotonic()
    }

    /// Records that a wait is over that began at `begun` and is not one of those counted: that of a deferred evaluation.
    pub(crate) fn note_waited(&self, begun: Instant) {
        let now = self.now();
        self.state().note_waited(begun, now);
    }

    /// Returns whether an evaluation has got on after `since` that had waited for as long as a standstill.
    pub(crate) fn were_away_since(&self, since: Instant) -> bool {
        self.state().were_away_since(since)
    }

    /// Returns whether no further evaluation should wait.
    pub(crate) fn is_crowded(&self) -> bool {
        let now = self.now();
        self.state().is_crowded(now)
    }
}

impl ReaderWait {
    /// Ends the wait because the event is there; one that is dropped only has been given up.
    pub(crate) fn get_on(self) {
        let now = self.waits.now();
        let mut state = self.waits.state();
        state.moved_at = now;
        state.note_waited(self.begun, now);
    }
}

impl Drop for ReaderWait {
    fn drop(&mut self) {
        self.waits.state().end();
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn evaluations_that_get_on_are_no_standstill_however_long_the_copies_lag() {
        let begun = SystemClock.monotonic();
        let mut state = WaitState::new(begun);
        let at = |halves: u32| begun + STANDSTILL / 2 * halves;
        assert!(!state.stands_still(at(10)), "nobody waits");

        state.begin(at(10));
        state.begin(at(11));
        assert!(!state.stands_still(at(11)) && state.stands_still(at(12)));

        state.moved_at = at(12);
        state.end();
        state.begin(at(13));
        assert!(!state.is_crowded(at(13)) && state.is_crowded(at(14)));

        state.end();
        assert!(state.is_crowded(at(14)), "one that was given up has not got on");
        state.end();
        assert!(!state.is_crowded(at(90)), "nobody waits");
    }

    #[test]
    fn copies_were_away_for_evaluations_owed_before_they_were_back_and_not_for_later_ones() {
        let begun = SystemClock.monotonic();
        let mut state = WaitState::new(begun);
        let at = |halves: u32| begun + STANDSTILL / 2 * halves;
        state.note_waited(at(0), at(1));
        assert!(!state.were_away_since(at(0)), "each event is waited for a moment");

        state.note_waited(at(0), at(10));
        state.note_waited(at(10), at(11));
        assert!(state.were_away_since(at(0)) && state.were_away_since(at(9)));
        assert!(!state.were_away_since(at(10)));
    }

    #[test]
    fn as_many_waits_as_the_memory_holds_are_a_crowd() {
        let now = SystemClock.monotonic();
        let mut state = WaitState::new(now);
        (1..MOST).for_each(|_| state.begin(now));
        assert!(!state.is_crowded(now));
        state.begin(now);
        assert!(state.is_crowded(now) && !state.stands_still(now));
    }
}
