//! How often something may happen in an hour. *Pure.*

use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_hours(1);

/// Count of the current hour, which begins with the first occurrence.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HourlyAllowance {
    begun: Option<Instant>,
    count: u32,
}

impl HourlyAllowance {
    /// Returns whether it happened `max` times in the hour of `now`.
    pub(crate) fn is_spent(&self, max: u32, now: Instant) -> bool {
        let is_over = self
            .begun
            .is_none_or(|begun| now.saturating_duration_since(begun) >= HOUR);
        !is_over && self.count >= max
    }

    /// Notes that it happened at `now`.
    pub(crate) fn spend(&mut self, now: Instant) {
        let is_over = self
            .begun
            .is_none_or(|begun| now.saturating_duration_since(begun) >= HOUR);
        if is_over {
            *self = Self {
                begun: Some(now),
                count: 0,
            };
        }
        self.count = self.count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn an_hour_has_its_number_and_the_next_one_begins_anew() {
        let (mut allowance, start) = (HourlyAllowance::default(), SystemClock.monotonic());
        for second in 0..3 {
            let now = start + Duration::from_secs(second);
            assert!(!allowance.is_spent(3, now), "{second}");
            allowance.spend(now);
        }
        assert!(allowance.is_spent(3, start + HOUR - Duration::from_millis(1)));
        assert!(!allowance.is_spent(3, start + HOUR));
        allowance.spend(start + HOUR);
        assert!(!allowance.is_spent(2, start + HOUR));
    }
}
