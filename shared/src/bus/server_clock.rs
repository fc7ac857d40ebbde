//! Difference between a NATS server's wall clock and this host's.
//!
//! Leases and other keys with a time to live expire by the server's wall clock: if it is set back, they live longer.

use serde::Deserialize;
use serde_json::json;

use super::connect::Bus;
use super::error::ReadStreamError;
use super::read::parse_time;
use crate::clock::Clock;
use crate::model::time::UnixMillis;
use crate::wire::topology::buckets;

/// Largest difference that is tolerated, in milliseconds, besides the uncertainty from the response time.
pub const TOLERATED_MS: i64 = 1_000;

/// A server's wall clock, compared with this host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockDifference {
    /// Server's clock minus host's clock, in milliseconds.
    pub ahead_ms: i64,
    /// Possible error of the difference in either direction, in milliseconds: half of the request's duration.
    pub uncertain_ms: i64,
}

impl ClockDifference {
    /// Computes the difference from the server's clock in the response to a request that was sent at `before` and
    /// answered at `after`.
    #[must_use]
    pub fn between(before: UnixMillis, server: UnixMillis, after: UnixMillis) -> Self {
        let half = after.since(before).max(0) / 2;
        Self {
            ahead_ms: server.since(before.plus(half)),
            uncertain_ms: half + 1,
        }
    }

    /// Returns whether the clocks differ by more than [`TOLERATED_MS`], even with the largest error.
    #[must_use]
    pub const fn is_too_large(self) -> bool {
        self.ahead_ms.abs() > TOLERATED_MS + self.uncertain_ms
    }
}

impl Bus {
    /// Compares `clock` with the clock of the server that leads the bucket of leases.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the server cannot be asked, or states no time.
    pub async fn server_clock(&self, clock: &dyn Clock) -> Result<ClockDifference, ReadStreamError> {
        #[derive(Deserialize)]
        struct Answer {
            ts: String,
        }

        let stream = format!("KV_{}", buckets::LEASES);
        let before = clock.now();
        let answer = self
            .call_api::<Answer>(&stream, &format!("STREAM.INFO.{stream}"), &json!({}))
            .await?;
        let after = clock.now();

        Ok(ClockDifference::between(
            before,
            UnixMillis(parse_time(&answer.ts) / 1_000_000),
            after,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{OffsetClock, SystemClock};
    use crate::testing::world;
    use std::sync::Arc;

    #[test]
    fn the_way_of_the_answer_is_no_difference() {
        let between =
            |before, server, after| ClockDifference::between(UnixMillis(before), UnixMillis(server), UnixMillis(after));
        assert_eq!(between(1_000, 1_010, 1_020).ahead_ms, 0);
        assert!(
            !between(1_000, 2_900, 3_000).is_too_large(),
            "the question took two seconds"
        );
        assert!(between(10_000, 8_900, 10_020).is_too_large());
        assert_eq!(between(10_000, 8_900, 10_020).ahead_ms, -1_110);
        assert!(
            !between(5_000, 5_000, 4_000).is_too_large(),
            "a clock that was set meanwhile"
        );
    }

    #[tokio::test]
    async fn a_server_is_as_far_ahead_as_the_host_s_clock_is_behind() {
        let (_server, bus) = world().await;
        let same = bus.server_clock(&SystemClock).await.expect("an answer");
        assert!(!same.is_too_large(), "{same:?}");

        let behind = OffsetClock::over(Arc::new(SystemClock), -60_000);
        let ahead = bus.server_clock(behind.as_ref()).await.expect("an answer");
        assert!(ahead.is_too_large());
        assert!(
            (ahead.ahead_ms - 60_000).abs() <= ahead.uncertain_ms + 1_000,
            "{ahead:?}"
        );
    }
}
