//! A clock that stops until a test moves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::{Clock, SystemClock};
use crate::model::time::UnixMillis;

/// A clock under a test's control. Clones share the time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    started: Instant,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    wall_ms: AtomicI64,
    monotonic_ms: AtomicU64,
}

impl ManualClock {
    /// Builds a clock that shows `now`.
    #[must_use]
    pub fn at(now: UnixMillis) -> Self {
        let shared = Shared {
            wall_ms: AtomicI64::new(now.0),
            monotonic_ms: AtomicU64::new(0),
        };
        Self {
            started: SystemClock.monotonic(),
            shared: Arc::new(shared),
        }
    }

    /// Moves both the wall clock and the monotonic one forward by `millis`.
    pub fn advance(&self, millis: u64) {
        let step = i64::try_from(millis).unwrap_or(i64::MAX);
        self.shared.wall_ms.fetch_add(step, Ordering::SeqCst);
        self.shared.monotonic_ms.fetch_add(millis, Ordering::SeqCst);
    }

    /// Sets the wall clock to `now`, as a corrected system clock jumps; the monotonic clock keeps its time.
    pub fn set(&self, now: UnixMillis) {
        self.shared.wall_ms.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixMillis {
        UnixMillis(self.shared.wall_ms.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Instant {
        self.started + Duration::from_millis(self.shared.monotonic_ms.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_only_when_told_and_clones_move_along() {
        let clock = ManualClock::at(UnixMillis(1_000));
        let (other, before) = (clock.clone(), clock.monotonic());
        clock.advance(250);

        assert_eq!(other.now(), UnixMillis(1_250));
        assert_eq!(other.monotonic() - before, Duration::from_millis(250));

        clock.set(UnixMillis(5));
        assert_eq!(
            (other.now(), other.monotonic() - before),
            (UnixMillis(5), Duration::from_millis(250))
        );
    }
}
