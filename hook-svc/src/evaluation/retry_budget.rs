//! Limits how long an event is tried again in place before it is given up. *Pure.*
//!
//! Meanwhile the later events of its conversation wait for it, at most as long as the slowest hook that sees it may
//! take (if none sees it, only tries count). Time when the bus is unavailable does not count, and some tries in which the
//! copies of the read model went while a hook read them do not count either.
//!
//! Source: `docs/design/hooks.md` §3.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Tries in place after which an event is given up.
const MAX_TRIES: u32 = 5;

/// Retries of one event; see the module.
#[derive(Debug, Default)]
pub(crate) struct RetryBudget {
    tries: u32,
    failing_since: Option<Instant>,
}

impl RetryBudget {
    /// Records a try that failed at `now` although the bus and the read model were available. Returns whether it was the last.
    /// `longest`: the longest time-out of the hooks that see the event; zero if none does.
    pub(crate) fn is_over(&mut self, now: Instant, longest: Duration) -> bool {
        let since = *self.failing_since.get_or_insert(now);
        self.tries += 1;
        let is_spent = !longest.is_zero() && now.saturating_duration_since(since) >= longest;
        self.tries >= MAX_TRIES || (self.tries > 1 && is_spent)
    }

    /// Resets the time, because the bus or the read model was unavailable.
    pub(crate) const fn note_absence(&mut self) {
        self.failing_since = None;
    }

    /// Returns the number of failed tries.
    pub(crate) const fn failed_tries(&self) -> u32 {
        self.tries
    }
}

/// Tries in which a hook may fail because no copy of the read model answers it.
const MAX_UNREAD: u32 = 5;

/// Tries of one event in which a hook failed because no copy of the read model answered it.
#[derive(Debug, Default)]
pub(crate) struct UnreadTries(AtomicU32);

impl UnreadTries {
    /// Counts such a try. Returns whether the event is tried again. Beyond some tries the hook has failed: a query that ends the
    /// copies that answer it must not be put to all that come after them.
    pub(crate) fn count_try(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) < MAX_UNREAD
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    const LONGEST: Duration = Duration::from_secs(30);

    #[test]
    fn a_quick_failure_is_tried_five_times_and_a_slow_one_as_long_as_its_hooks_may_take() {
        let begun = SystemClock.monotonic();
        let mut quick = RetryBudget::default();
        assert!((0..4).all(|second| !quick.is_over(begun + Duration::from_secs(second), LONGEST)));
        assert!(quick.is_over(begun + Duration::from_secs(4), LONGEST));

        let mut slow = RetryBudget::default();
        assert!(!slow.is_over(begun, LONGEST), "once more in any case");
        assert!(slow.is_over(begun + LONGEST, LONGEST));
        assert_eq!(slow.failed_tries(), 2);

        let mut unseen = RetryBudget::default();
        assert!((0..4).all(|second| !unseen.is_over(begun + Duration::from_secs(second), Duration::ZERO)));
        assert!(unseen.is_over(begun + Duration::from_secs(4), Duration::ZERO));
    }

    #[test]
    fn a_hook_whose_copies_go_each_time_that_it_reads_them_has_failed_in_the_end() {
        let tries = UnreadTries::default();
        assert!((0..MAX_UNREAD).all(|_| tries.count_try()));
        assert!(!tries.count_try() && !tries.count_try());
    }

    #[test]
    fn that_the_bus_is_away_costs_nothing() {
        let begun = SystemClock.monotonic();
        let mut patience = RetryBudget::default();
        assert!(!patience.is_over(begun, LONGEST));
        patience.note_absence();
        assert!(!patience.is_over(begun + 2 * LONGEST, LONGEST), "time began anew");
        assert!(patience.is_over(begun + 3 * LONGEST, LONGEST));
    }
}
