//! Bounded retry schedules.
//!
//! [`RetrySchedule::delay`] is the pure form, for state machines that decide the time of the next attempt and for waits
//! that the server keeps (a negative ack with delay). [`retry`] is the acting form: it runs an operation until it
//! succeeds, is refused or exhausted, or the process is asked to stop. [`RetryWaits`] is for loops of their own. All use
//! the same delays.

use std::future::Future;
use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff;
use serde::{Deserialize, Serialize};

use crate::clock::pause;
use crate::process::lifecycle::ShutdownSignal;

/// The error of a failed operation: permanent, or transient with an optional minimum wait.
///
/// `Failure::permanent(e)`, `Failure::transient(e)` and `Failure::retry_after(e, duration)` create it.
pub use backoff::Error as Failure;

/// The waits between the attempts of one operation, and their number.
///
/// ```
/// use std::time::Duration;
///
/// use shared::retry::RetrySchedule;
///
/// let schedule = RetrySchedule { initial_ms: 100, factor: 2.0, max_attempts: 3, jitter: 0.0, ..RetrySchedule::default() };
/// assert_eq!(schedule.delay(1, 0.5), Some(Duration::from_millis(100)));
/// assert_eq!(schedule.delay(2, 0.5), Some(Duration::from_millis(200)));
/// assert_eq!(schedule.delay(3, 0.5), None, "no attempt is left");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetrySchedule {
    /// Wait after the first failed attempt, in milliseconds.
    pub initial_ms: u64,
    /// Maximum wait before jitter, in milliseconds.
    pub max_ms: u64,
    /// Factor by which each wait grows to the next; at least 1.
    pub factor: f64,
    /// Maximum number of attempts, including the first; 0 = until the process stops.
    pub max_attempts: u32,
    /// Maximum deviation of a wait, as a fraction of itself: 0 = exact, 0.5 = between half and one and a half times.
    pub jitter: f64,
}

impl Default for RetrySchedule {
    fn default() -> Self {
        Self {
            initial_ms: 100,
            max_ms: 30_000,
            factor: 2.0,
            max_attempts: 8,
            jitter: 0.5,
        }
    }
}

impl RetrySchedule {
    /// Returns this schedule without a limit on attempts: only shutdown ends it.
    #[must_use]
    pub const fn unbounded(self) -> Self {
        Self {
            max_attempts: 0,
            ..self
        }
    }

    /// Returns the wait after the failed attempt number `attempt` (the first is 1); `None` if no attempt is left.
    ///
    /// `jitter` is a random number in 0..1 from the caller; 0.5 gives the wait without deviation. Pure.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: f64) -> Option<Duration> {
        if self.max_attempts != 0 && attempt >= self.max_attempts {
            return None;
        }
        let steps = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let grown = self.initial_millis() * self.factor.max(1.0).powi(steps);
        let base = grown.min(self.max_millis());
        let deviation = self.deviation() * (2.0 * jitter.clamp(0.0, 1.0) - 1.0);
        Some(Duration::from_secs_f64(base * (1.0 + deviation) / 1_000.0))
    }

    #[expect(clippy::cast_precision_loss, reason = "a wait of 2^53 ms is far beyond any schedule")]
    fn initial_millis(&self) -> f64 {
        self.initial_ms as f64
    }

    #[expect(clippy::cast_precision_loss, reason = "a wait of 2^53 ms is far beyond any schedule")]
    fn max_millis(&self) -> f64 {
        self.max_ms as f64
    }

    fn deviation(&self) -> f64 {
        self.jitter.clamp(0.0, 1.0)
    }

    fn backoff_waits(&self) -> ExponentialBackoff {
        let initial = Duration::from_millis(self.initial_ms.min(self.max_ms));
        ExponentialBackoff {
            current_interval: initial,
            initial_interval: initial,
            randomization_factor: self.deviation(),
            multiplier: self.factor.max(1.0),
            max_interval: Duration::from_millis(self.max_ms),
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        }
    }
}

/// The waits of one operation that is repeated until it succeeds: each twice as long as the one before, up to a maximum.
///
/// ```
/// use std::time::Duration;
///
/// use shared::retry::RetryWaits;
///
/// let mut waits = RetryWaits::new(Duration::from_millis(100), Duration::from_millis(300));
/// let next: Vec<u128> = (0..4).map(|_| waits.next_wait().as_millis()).collect();
/// assert_eq!(next, [100, 200, 300, 300]);
///
/// waits.reset();
/// assert_eq!(waits.next_wait(), Duration::from_millis(100));
/// ```
#[derive(Debug, Clone)]
pub struct RetryWaits {
    schedule: RetrySchedule,
    failed: u32,
}

impl RetryWaits {
    /// Creates the waits of an operation that has not failed: from `first` up to `longest`, without jitter and without
    /// end.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let schedule = RetrySchedule {
            initial_ms: millis(first),
            max_ms: millis(longest),
            factor: 2.0,
            max_attempts: 0,
            jitter: 0.0,
        };
        Self { schedule, failed: 0 }
    }

    /// Returns the wait after one more failure.
    pub fn next_wait(&mut self) -> Duration {
        self.failed = self.failed.saturating_add(1);
        let longest = Duration::from_millis(self.schedule.max_ms);
        self.schedule.delay(self.failed, 0.5).unwrap_or(longest)
    }

    /// Begins again with the first wait, because the operation has succeeded.
    pub const fn reset(&mut self) {
        self.failed = 0;
    }
}

/// The reason why [`retry`] gave up.
#[derive(Debug, thiserror::Error)]
pub enum RetryError<E: std::error::Error + 'static> {
    /// The operation failed permanently.
    #[error("rejected at attempt {attempt}")]
    Refused {
        /// Number of the attempt; the first is 1.
        attempt: u32,
        /// Error of the operation.
        #[source]
        source: E,
    },
    /// The schedule allows no further attempt.
    #[error("gave up after {attempts} attempts")]
    Exhausted {
        /// Number of attempts that were made.
        attempts: u32,
        /// Error of the last attempt.
        #[source]
        source: E,
    },
    /// The process was asked to stop before the operation succeeded.
    #[error("stopped before the operation succeeded")]
    Stopped,
}

/// Runs `operation` until it succeeds, with the waits of `schedule` between attempts.
///
/// `operation` receives the number of the attempt, starting with 1. A wait ends at once when `shutdown` is requested,
/// and a running attempt is then dropped, so it must be safe to cancel.
pub async fn retry<T, E, F, A>(
    schedule: &RetrySchedule,
    shutdown: &ShutdownSignal,
    mut operation: F,
) -> Result<T, RetryError<E>>
where
    E: std::error::Error + 'static,
    F: FnMut(u32) -> A,
    A: Future<Output = Result<T, Failure<E>>>,
{
    let mut waits = schedule.backoff_waits();
    let mut attempt = 1_u32;
    loop {
        // `biased`: a requested stop wins over a result that comes at the same moment.
        let outcome = tokio::select! {
            biased;
            () = shutdown.requested() => return Err(RetryError::Stopped),
            outcome = operation(attempt) => outcome,
        };
        let (source, asked) = match outcome {
            Ok(value) => return Ok(value),
            Err(Failure::Permanent(source)) => return Err(RetryError::Refused { attempt, source }),
            Err(Failure::Transient { err, retry_after }) => (err, retry_after),
        };

        // 0 = no limit: the caller bounds the attempts by the shutdown.
        if schedule.max_attempts != 0 && attempt >= schedule.max_attempts {
            return Err(RetryError::Exhausted {
                attempts: attempt,
                source,
            });
        }

        // The failure's own minimum wait can lengthen the scheduled one, but not shorten it.
        let scheduled = waits.next_backoff().unwrap_or(Duration::from_millis(schedule.max_ms));
        let wait = asked.map_or(scheduled, |asked| asked.max(scheduled));
        tokio::select! {
            () = shutdown.requested() => return Err(RetryError::Stopped),
            () = pause(wait) => attempt = attempt.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    const EXACT: RetrySchedule = RetrySchedule {
        initial_ms: 100,
        max_ms: 1_000,
        factor: 2.0,
        max_attempts: 6,
        jitter: 0.0,
    };

    fn check(schedule: &RetrySchedule, jitter: f64, expected_ms: &[u64]) {
        let mut attempts = 1_u32..;
        let delays: Vec<u64> = std::iter::from_fn(|| schedule.delay(attempts.next()?, jitter))
            .map(|delay| u64::try_from(delay.as_millis()).expect("a short delay"))
            .take(20)
            .collect();
        assert_eq!(delays, expected_ms);
    }

    #[test]
    fn delays_grow_to_the_bound_and_end() {
        check(&EXACT, 0.5, &[100, 200, 400, 800, 1_000]);
    }

    #[test]
    fn jitter_moves_a_delay_both_ways() {
        let schedule = RetrySchedule {
            jitter: 0.5,
            max_attempts: 3,
            ..EXACT
        };
        check(&schedule, 0.0, &[50, 100]);
        check(&schedule, 0.5, &[100, 200]);
        check(&schedule, 1.0, &[150, 300]);
    }

    #[test]
    fn without_a_bound_it_never_ends_and_never_overflows() {
        let forever = EXACT.unbounded();
        assert_eq!(forever.delay(u32::MAX, 0.5), Some(Duration::from_secs(1)));
    }

    #[test]
    fn the_acting_form_waits_as_long_as_the_pure_one() {
        let mut waits = EXACT.backoff_waits();
        for attempt in 1..6 {
            let acting = waits.next_backoff().map(|wait| wait.as_millis());
            assert_eq!(
                acting,
                EXACT.delay(attempt, 0.5).map(|wait| wait.as_millis()),
                "attempt {attempt}"
            );
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("not yet")]
    struct NotYet;

    async fn attempts_until(schedule: RetrySchedule, outcome: impl Fn(u32) -> Result<u32, Failure<NotYet>>) -> String {
        let answer = retry(&schedule, &ShutdownSignal::default(), |attempt| {
            std::future::ready(outcome(attempt))
        })
        .await;
        answer.map_or_else(|error| error.to_string(), |attempt| format!("succeeded at {attempt}"))
    }

    const QUICK: RetrySchedule = RetrySchedule {
        initial_ms: 1,
        max_ms: 4,
        ..EXACT
    };

    #[tokio::test]
    async fn an_operation_is_tried_until_it_succeeds_is_refused_or_exhausted() {
        let third = |n| if n == 3 { Ok(n) } else { Err(Failure::transient(NotYet)) };
        assert_eq!(attempts_until(QUICK, third).await, "succeeded at 3");
        assert_eq!(
            attempts_until(QUICK, |_| Err(Failure::transient(NotYet))).await,
            "gave up after 6 attempts"
        );
        assert_eq!(
            attempts_until(QUICK, |_| Err(Failure::permanent(NotYet))).await,
            "rejected at attempt 1"
        );
    }

    #[tokio::test]
    async fn the_far_side_may_ask_for_a_longer_wait() {
        let begun = SystemClock.monotonic();
        let asked = Duration::from_millis(30);
        let outcome = |n| {
            if n == 2 {
                Ok(n)
            } else {
                Err(Failure::retry_after(NotYet, asked))
            }
        };

        assert_eq!(attempts_until(QUICK, outcome).await, "succeeded at 2");
        assert!(SystemClock.monotonic().duration_since(begun) >= asked);
    }

    #[tokio::test]
    async fn shutdown_ends_a_wait_at_once() {
        let shutdown = ShutdownSignal::default();
        let slow = RetrySchedule {
            initial_ms: 3_600_000,
            max_ms: 3_600_000,
            ..EXACT
        };

        let stop = shutdown.clone();
        let answer = retry(&slow, &shutdown, move |_| {
            stop.trigger();
            std::future::ready(Err::<(), _>(Failure::transient(NotYet)))
        });

        assert!(matches!(answer.await, Err(RetryError::Stopped)));
    }
}
