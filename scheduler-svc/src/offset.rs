//! A clock that runs ahead of another, to rehearse what a time to come brings.

use std::sync::Arc;
use std::time::Instant;

use shared::clock::{Clock, SharedClock};
use shared::model::time::UnixMillis;

/// A wall clock ahead of another by a fixed time.
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
