//! Rate limits: a sliding window as a value that all brokers share in KV `hook_limits`. *Pure.*
//!
//! Each counted call has a name, so that a repeated request for the same call is not counted twice, and so that equal
//! bytes in the bucket mean the same writer. Source: seed 002 §4.

use serde::{Deserialize, Serialize};

use super::time::UnixMillis;

/// Maximum number of calls that a window may allow, so that its value stays far below the maximum message size.
pub const MAX_CALLS: usize = 10_000;

/// A call that was allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateCount {
    /// Time of the call.
    pub at: UnixMillis,
    /// Name of the call; the same name is counted once.
    pub id: String,
}

/// The calls that were allowed within the window.
///
/// ```
/// use shared::model::rate::{RateVerdict, RateWindow};
/// use shared::model::time::UnixMillis;
///
/// let empty = RateWindow::default();
/// let RateVerdict::As(full) = empty.admit_call("call-1", UnixMillis(0), 1, 60_000) else { panic!("the first call passes") };
/// assert_eq!(full.admit_call("call-1", UnixMillis(1), 1, 60_000), RateVerdict::Already);
/// assert_eq!(full.admit_call("call-2", UnixMillis(1), 1, 60_000), RateVerdict::Refused { retry_ms: 59_999 });
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RateWindow {
    /// The counted calls, oldest first.
    pub counted: Vec<RateCount>,
}

/// The result of a request to a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RateVerdict {
    /// The call was counted before: nothing has to be written.
    Already,
    /// The call is allowed once this window has been stored.
    As(RateWindow),
    /// The call is refused until calls have left the window.
    Refused {
        /// Time to wait, in milliseconds.
        retry_ms: u64,
    },
}

impl RateWindow {
    /// Decides whether `id` may pass at `now`, if at most `calls` may within any `window_ms` milliseconds.
    #[must_use]
    pub fn admit_call(&self, id: &str, now: UnixMillis, calls: usize, window_ms: u64) -> RateVerdict {
        let width = i64::try_from(window_ms).unwrap_or(i64::MAX);
        let fresh = |counted: &&RateCount| now.since(counted.at) < width;
        let mut counted: Vec<RateCount> = self.counted.iter().filter(fresh).cloned().collect();
        if counted.iter().any(|counted| counted.id == id) {
            return RateVerdict::Already;
        }

        let calls = calls.min(MAX_CALLS);
        if counted.len() >= calls {
            // This call must leave the window before another fits into it.
            let place = counted.len().checked_sub(calls.max(1));
            let leaving = place
                .and_then(|place| counted.get(place))
                .map_or(now, |counted| counted.at);
            let retry_ms = width.saturating_sub(now.since(leaving));

            return RateVerdict::Refused {
                retry_ms: u64::try_from(retry_ms).unwrap_or(0),
            };
        }

        counted.push(RateCount {
            at: now,
            id: id.to_owned(),
        });

        RateVerdict::As(Self { counted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_pass_within_any_minute_and_the_eleventh_waits_for_the_first_to_leave() {
        let mut window = RateWindow::default();
        let at = |seconds: i64| UnixMillis(1_000_000 + seconds * 1_000);
        for call in 0..10 {
            let RateVerdict::As(next) = window.admit_call(&format!("c{call}"), at(call), 10, 60_000) else {
                panic!("call {call} passes")
            };
            window = next;
        }

        let eleventh = |seconds| window.admit_call("c10", at(seconds), 10, 60_000);
        assert_eq!(eleventh(10), RateVerdict::Refused { retry_ms: 50_000 });
        assert_eq!(eleventh(59), RateVerdict::Refused { retry_ms: 1_000 });
        assert!(matches!(eleventh(60), RateVerdict::As(next) if next.counted.len() == 10));
    }

    #[test]
    fn whoever_asks_again_is_not_counted_twice() {
        let RateVerdict::As(window) = RateWindow::default().admit_call("c", UnixMillis(1), 1, 1_000) else {
            panic!("it passes")
        };
        assert_eq!(window.admit_call("c", UnixMillis(2), 1, 1_000), RateVerdict::Already);
        assert_eq!(
            window.admit_call("d", UnixMillis(2), 1, 1_000),
            RateVerdict::Refused { retry_ms: 999 }
        );

        let none = RateWindow::default().admit_call("c", UnixMillis(1), 0, 1_000);
        assert_eq!(none, RateVerdict::Refused { retry_ms: 1_000 });
    }
}
