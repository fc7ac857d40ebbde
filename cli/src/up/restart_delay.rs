//! Delay before a process that died is started again. *Pure.*

use std::time::Duration;

/// Delay before the first restart.
const FIRST: Duration = Duration::from_millis(250);
/// Longest delay before a restart.
const LONGEST: Duration = Duration::from_secs(30);
/// Running time after which earlier deaths no longer count.
const SOUND_AFTER: Duration = Duration::from_secs(60);
/// Number of doublings after which the delay is certainly the longest.
const MOST_DOUBLINGS: u32 = 16;

/// Deaths of one process. Times count from any fixed instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RestartDelay {
    /// Deaths in a row, each less than [`SOUND_AFTER`] after the start before it.
    deaths: u32,
    started: Duration,
}

impl RestartDelay {
    /// Records that the process was started at `now`.
    pub(super) fn started(&mut self, now: Duration) {
        self.started = now;
    }

    /// Records that the process died at `now`, or did not start. Returns the delay before it is started again.
    pub(super) fn died(&mut self, now: Duration) -> Duration {
        if now.saturating_sub(self.started) >= SOUND_AFTER {
            self.deaths = 0;
        }
        let wait = FIRST.saturating_mul(1 << self.deaths.min(MOST_DOUBLINGS)).min(LONGEST);
        self.deaths = self.deaths.saturating_add(1);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_bound_and_ends_with_a_long_life() {
        let mut delay = RestartDelay::default();
        let mut now = Duration::ZERO;

        let mut waits = Vec::new();
        for _ in 0..10 {
            delay.started(now);
            let wait = delay.died(now + Duration::from_secs(1));
            now += Duration::from_secs(1) + wait;
            waits.push(wait.as_millis());
        }

        assert_eq!(
            waits,
            [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
        );

        delay.started(now);
        assert_eq!(delay.died(now + SOUND_AFTER), FIRST);
    }
}
