//! The calls with which a history is read: at a pace that leaves the account's allowance to what happens now, and again as
//! often as it takes.
//!
//! A limit never counts as a failure: the call is made again when the platform says, however often that is.

use std::future::Future;
use std::time::{Duration, Instant};

use shared::clock::{Clock as _, SharedIds, SystemClock, pause};
use tokio::sync::{Mutex, watch};

use super::CALL_RETRY;

/// Time after which a call is made again whose token was not accepted.
const TOKEN_AGAIN: Duration = Duration::from_mins(5);

/// The reason why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryCallError {
    /// Too many calls. It is never made again sooner than the platform says.
    #[error("{words}")]
    Limited {
        /// Wait that the platform asks for.
        after: Duration,
        /// The platform's words.
        words: String,
    },
    /// The token is not accepted. An operator must do something, and then it goes on.
    #[error("{0}")]
    Unauthorized(String),
    /// There was no answer, or one that cannot be read.
    #[error("{0}")]
    Unreachable(String),
    /// The platform refuses this, and would again.
    #[error("{words}")]
    Refused {
        /// The platform's words.
        words: String,
        /// Time before which no other call is made, because the platform counts those that it refuses.
        pause: Duration,
    },
}

/// The platform does not let this account read something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct HistoryRefused(pub String);

/// The calls of one account's job. It is dropped when the job is no longer this replica's, at any await.
#[derive(Debug)]
pub struct HistoryCalls {
    channel: &'static str,
    account: String,
    ids: SharedIds,
    /// Minimum time between the beginnings of two calls.
    interval: Duration,
    next: Mutex<Option<Instant>>,
    waiting: watch::Sender<Option<String>>,
}

impl HistoryCalls {
    /// Returns the calls for `account` on `channel`, at most one in `interval`.
    #[must_use]
    pub fn new(channel: &'static str, account: &str, interval: Duration, ids: SharedIds) -> Self {
        Self {
            channel,
            account: account.to_owned(),
            ids,
            interval,
            next: Mutex::default(),
            waiting: watch::channel(None).0,
        }
    }

    /// Returns what the last call waits for before it is made again; `None` if it succeeded or is under way for the first
    /// time.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        self.waiting.borrow().clone()
    }

    /// Makes `call` until it has an answer.
    ///
    /// # Errors
    /// Returns [`HistoryRefused`] if the platform refuses it for good.
    pub async fn make<T, F>(&self, call: impl Fn() -> F) -> Result<T, HistoryRefused>
    where
        F: Future<Output = Result<T, HistoryCallError>>,
    {
        let mut failures = 0;
        loop {
            self.wait_turn().await;
            let error = match call().await {
                Ok(answer) => {
                    self.waiting.send_replace(None);
                    return Ok(answer);
                }
                Err(HistoryCallError::Refused { words, pause }) => {
                    self.waiting.send_replace(None);
                    self.put_off(pause).await;
                    return Err(HistoryRefused(words));
                }
                Err(
                    error @ (HistoryCallError::Limited { .. }
                    | HistoryCallError::Unauthorized(_)
                    | HistoryCallError::Unreachable(_)),
                ) => error,
            };

            failures += 1;
            let (channel, account) = (self.channel, &self.account);
            tracing::warn!(channel, account, failures, %error, "failed to read a history; retrying");
            metrics::counter!("nexus_source_failures_total", "source" => channel).increment(1);
            self.waiting.send_replace(Some(error.to_string()));
            pause(self.wait_after(&error, failures)).await;
        }
    }

    /// Waits until another call may be made.
    async fn wait_turn(&self) {
        let mut next = self.next.lock().await;
        let now = SystemClock.monotonic();
        let turn = next.unwrap_or(now).max(now);
        *next = Some(turn + self.interval);
        pause(turn.saturating_duration_since(now)).await;
    }

    /// Puts the next call off for `pause`.
    async fn put_off(&self, pause: Duration) {
        let mut next = self.next.lock().await;
        let until = SystemClock.monotonic() + pause;
        *next = Some(next.unwrap_or(until).max(until));
    }

    fn wait_after(&self, error: &HistoryCallError, failures: u32) -> Duration {
        match error {
            HistoryCallError::Limited { after, .. } => *after,
            HistoryCallError::Unauthorized(_) => TOKEN_AGAIN,
            HistoryCallError::Unreachable(_) | HistoryCallError::Refused { .. } => CALL_RETRY
                .delay(failures, self.ids.draw_jitter())
                .unwrap_or(TOKEN_AGAIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use shared::testing::SeededIds;

    use super::*;

    fn calls(interval: Duration) -> HistoryCalls {
        HistoryCalls::new("slack", "app", interval, Arc::new(SeededIds::new(7)))
    }

    #[tokio::test]
    async fn a_limited_call_is_made_again_no_sooner_than_asked_however_often() {
        let (calls, made) = (calls(Duration::ZERO), AtomicUsize::new(0));
        let after = Duration::from_millis(20);
        let begun = SystemClock.monotonic();
        let answer = calls.make(|| async {
            if made.fetch_add(1, Ordering::Relaxed) < 12 {
                let words = "slow down".to_owned();
                return Err(HistoryCallError::Limited { after, words });
            }
            Ok(7)
        });
        assert_eq!(answer.await, Ok(7));
        assert_eq!(made.load(Ordering::Relaxed), 13);
        assert!(SystemClock.monotonic().saturating_duration_since(begun) >= 12 * after);
        assert_eq!(calls.waits_for(), None);
    }

    #[tokio::test]
    async fn a_call_that_is_refused_is_made_once_and_others_keep_their_pace() {
        let interval = Duration::from_millis(10);
        let (calls, made) = (calls(interval), AtomicUsize::new(0));
        let begun = SystemClock.monotonic();
        for _ in 0..4 {
            let refused = calls.make(|| async {
                made.fetch_add(1, Ordering::Relaxed);
                let words = "not_in_channel".to_owned();
                let pause = 3 * interval;
                Err::<(), _>(HistoryCallError::Refused { words, pause })
            });
            assert_eq!(refused.await, Err(HistoryRefused("not_in_channel".to_owned())));
        }
        assert_eq!(made.load(Ordering::Relaxed), 4);
        assert!(SystemClock.monotonic().saturating_duration_since(begun) >= 9 * interval);
    }

    #[test]
    fn a_refused_token_is_asked_seldom_and_a_lost_call_soon() {
        let calls = calls(Duration::ZERO);
        let lost = HistoryCallError::Unreachable(String::new());
        assert!(calls.wait_after(&lost, 1) < Duration::from_secs(1));
        assert!(calls.wait_after(&lost, 100) <= Duration::from_secs(45));
        assert_eq!(
            calls.wait_after(&HistoryCallError::Unauthorized(String::new()), 1),
            TOKEN_AGAIN
        );
    }
}
