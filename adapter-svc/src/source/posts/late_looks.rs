//! When to look again for posts to an account that is received in another way now. *Pure.*
//!
//! A post may be in the spool of a replica that is away, and come to the bucket once that is back. It is not known whether there
//! is such a replica, so the bucket is looked at as long as the account is read, and ever more seldom.

use std::time::Instant;

use shared::retry::RetrySchedule;

/// Times between two looks.
const LOOKS: RetrySchedule = RetrySchedule {
    initial_ms: 10_000,
    max_ms: 600_000,
    factor: 2.0,
    max_attempts: 0,
    jitter: 0.0,
};

/// The looks of one account since its source began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LateLooks {
    last: Instant,
    /// Number of the next look.
    next: u32,
}

impl LateLooks {
    /// Returns the looks of an account of which everything was read at `now`.
    #[must_use]
    pub const fn start(now: Instant) -> Self {
        Self { last: now, next: 1 }
    }

    /// Returns whether it is to be looked at `now`, and counts that as a look.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let wait = LOOKS.delay(self.next, 0.5);
        if wait.is_none_or(|wait| now.saturating_duration_since(self.last) < wait) {
            return false;
        }
        self.last = now;
        self.next = self.next.saturating_add(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn looks_are_soon_at_first_and_seldom_later_and_never_end() {
        let mut now = SystemClock.monotonic();
        let mut looks = LateLooks::start(now);
        let mut next = || {
            let begun = now;
            while !looks.is_due(now) {
                now += Duration::from_secs(1);
            }
            now.duration_since(begun).as_secs()
        };
        let waits: Vec<u64> = (0..9).map(|_| next()).collect();
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    }
}
