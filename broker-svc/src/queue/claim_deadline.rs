//! Time for which a claim is held: a deadline of our own, by the monotonic clock.
//!
//! The server accepts an ack, a progress message or a delete of a former owner like any other
//! (`docs/contribute/nats-facts.md` "Owning"), so they prove nothing. A holder past its deadline sends none of them.
//! The deadline counts from before the sign of life was sent: the server cannot have counted from an earlier time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shared::clock::SharedClock;

/// Deadline of a claim; shared by the worker and the task that sends signs of life.
#[derive(Debug)]
pub struct ClaimDeadline {
    clock: SharedClock,
    base: Instant,
    ack_wait: Duration,
    /// Deadline in milliseconds after `base`.
    deadline_ms: AtomicU64,
    forfeited: AtomicBool,
}

impl ClaimDeadline {
    /// Creates the hold of a claim that was received at `received` and lasts for `ack_wait` from then.
    #[must_use]
    pub fn new(clock: SharedClock, received: Instant, ack_wait: Duration) -> Self {
        let deadline_ms = AtomicU64::new(duration_millis(ack_wait));
        Self {
            clock,
            base: received,
            ack_wait,
            deadline_ms,
            forfeited: AtomicBool::new(false),
        }
    }

    /// Returns whether the claim is still held.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.forfeited.load(Ordering::SeqCst) && self.held_ms() < self.deadline_ms.load(Ordering::SeqCst)
    }

    /// Returns the time since the claim was received, milliseconds of the boot-time clock.
    #[must_use]
    pub fn held_ms(&self) -> u64 {
        duration_millis(self.clock.monotonic().saturating_duration_since(self.base))
    }

    /// Returns the present time, to be read before a sign of life is sent.
    #[must_use]
    pub fn monotonic_now(&self) -> Instant {
        self.clock.monotonic()
    }

    /// Extends the hold after a sign of life that was sent after `before`, by the ack wait from then. A hold that has
    /// passed stays passed.
    pub fn extend_from(&self, before: Instant) {
        if self.is_live() {
            let deadline = duration_millis(before.saturating_duration_since(self.base) + self.ack_wait);
            self.deadline_ms.fetch_max(deadline, Ordering::SeqCst);
        }
    }

    /// Ends the hold at once, because the fence is lost.
    pub fn forfeit(&self) {
        self.forfeited.store(true, Ordering::SeqCst);
    }
}

fn duration_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::clock::Clock as _;
    use shared::model::time::UnixMillis;
    use shared::testing::ManualClock;

    use super::*;

    #[test]
    fn a_hold_ends_by_its_own_clock_and_does_not_come_back() {
        let clock = ManualClock::at(UnixMillis(0));
        let hold = ClaimDeadline::new(Arc::new(clock.clone()), clock.monotonic(), Duration::from_secs(3));
        clock.advance(2_000);
        let before = hold.monotonic_now();
        clock.advance(500);
        hold.extend_from(before);
        clock.advance(2_400);

        assert!(hold.is_live(), "4.9 s, extended at 2.0 s");

        clock.advance(200);
        assert!(!hold.is_live());

        hold.extend_from(hold.monotonic_now());
        assert!(!hold.is_live(), "a sign of life that comes too late is none");
    }

    #[test]
    fn a_lost_fence_ends_it_at_once() {
        let clock = ManualClock::at(UnixMillis(0));
        let hold = ClaimDeadline::new(Arc::new(clock.clone()), clock.monotonic(), Duration::from_secs(3));
        hold.forfeit();
        assert!(!hold.is_live());
    }
}
