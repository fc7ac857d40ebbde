//! The one place that reads time, waits, or mints random ids.
//!
//! Everything that decides takes an instant or an id as an argument; the shells around it hold a
//! [`SharedClock`] and a [`SharedIds`]. Tests put `testing::ManualClock` and `testing::SeededIds` there.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ulid::Ulid;

use crate::model::time::UnixMillis;

/// Where a service learns what time it is.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock: what is written into messages and compared with instants from outside. It may jump.
    fn now(&self) -> UnixMillis;

    /// A clock that never jumps: what deadlines and leases are measured with.
    fn monotonic(&self) -> Instant;
}

/// A clock as services hand it around.
pub type SharedClock = Arc<dyn Clock>;

/// The operating system's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn now(&self) -> UnixMillis {
        // A system clock before 1970 reads as the epoch; one after the year 292 million saturates.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMillis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// A wall clock ahead of another by a fixed time, to rehearse what a time to come brings.
pub struct OffsetClock {
    inner: SharedClock,
    ahead_ms: i64,
}

impl OffsetClock {
    /// `inner`, `ahead_ms` ahead; `inner` itself where that is nothing.
    #[must_use]
    pub fn over(inner: SharedClock, ahead_ms: i64) -> SharedClock {
        if ahead_ms == 0 {
            return inner;
        }
        tracing::warn!(ahead_ms, "the clock is set ahead of the host's");
        Arc::new(Self { inner, ahead_ms })
    }
}

impl Clock for OffsetClock {
    fn now(&self) -> UnixMillis {
        self.inner.now().plus(self.ahead_ms)
    }

    fn monotonic(&self) -> Instant {
        self.inner.monotonic()
    }
}

/// Where a service takes ids from that name something new (deterministic ids are computed, not minted).
pub trait IdSource: Send + Sync + 'static {
    /// A fresh ULID.
    fn ulid(&self) -> Ulid;
}

/// An id source as services hand it around.
pub type SharedIds = Arc<dyn IdSource>;

/// Random ULIDs stamped with the system clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemIds;

impl IdSource for SystemIds {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn ulid(&self) -> Ulid {
        Ulid::generate()
    }
}

/// Waits for `duration`: the one wrapper over the runtime's timer for a service's own waits.
///
/// A wait that should end at shutdown is raced against `Shutdown::requested`.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_is_past_the_year_2024() {
        assert!(SystemClock.now() > UnixMillis::from_seconds(1_704_067_200));
    }

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let first = SystemClock.monotonic();
        assert!(SystemClock.monotonic() >= first);
    }

    #[test]
    fn minted_ids_differ_and_carry_the_time() {
        let (first, second) = (SystemIds.ulid(), SystemIds.ulid());
        assert_ne!(first, second);
        let minted = UnixMillis(i64::try_from(first.timestamp_ms()).expect("48 bits fit"));
        assert!(SystemClock.now().since(minted).abs() < 60_000);
    }
}
