//! The verdict on a call's outcome: done, retry after a wait, or give up. *Pure.*
//!
//! `Retry-After` is followed exactly: the wait is never shorter than the platform asks for, and has no jitter. A
//! platform that limits calls and names a wait works, so such a call is no failed attempt, up to a bound. Without the
//! header the caller's schedule decides. Permanent errors give up at once. Source: `docs/design/channels.md` §3.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shared::model::time::UnixMillis;

/// Maximum wait that a platform may ask for; the delivery is given up if it asks for more.
pub const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);

/// Number of calls of a delivery that do not count because the platform asked for a wait; from then on each counts.
/// Each writes two receipts.
pub const MAX_LIMITED: u32 = 1_000;

/// The outcome of a call to a platform. In JSON, replicas exchange the outcomes of their own calls with it
/// (`former`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stopped")]
pub enum CallOutcome {
    /// The platform accepted the part.
    Accepted {
        /// Platform's ids of the sent messages.
        platform_ids: Vec<String>,
        /// On channels with open pages: whether a page was connected.
        live: Option<bool>,
    },
    /// The platform responded with an HTTP status, of success or failure.
    Status {
        /// HTTP status of the response.
        code: u16,
        /// Value of the `Retry-After` header, as sent.
        retry_after: Option<String>,
        /// Beginning of the response's body.
        body: String,
    },
    /// The platform did not respond: connection refused, reset, or timed out.
    Unreachable {
        /// Description of the failure.
        reason: String,
    },
    /// The call was not made: the partition was lost before any byte was sent.
    Withheld,
    /// The part can never be sent: the account does not exist, or the address is invalid.
    Impossible {
        /// Description of the failure.
        reason: String,
    },
}

/// The next step after a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptVerdict {
    /// The platform has the part.
    Done {
        /// Platform's ids of the sent messages.
        platform_ids: Vec<String>,
        /// Whether an open page was connected.
        live: Option<bool>,
    },
    /// Make another attempt after a wait.
    Retry {
        /// Minimum wait before the next attempt.
        after: Duration,
        /// Reason for the retry, for people.
        reason: String,
    },
    /// Make another attempt after the wait that the platform asks for. This one does not count.
    Limited {
        /// Minimum wait before it.
        after: Duration,
        /// Reason for the wait, for people.
        reason: String,
    },
    /// Give the delivery up; it becomes a dead letter.
    GiveUp {
        /// Reason for giving up, for people.
        reason: String,
    },
}

/// The situation of a call.
#[derive(Debug, Clone, Copy)]
pub struct CallTimes {
    /// The schedule's wait for this attempt; `None` if it was the last one.
    pub scheduled: Option<Duration>,
    /// Number of earlier attempts that did not count.
    pub uncounted: u32,
    /// Current time, with which a `Retry-After` date is compared.
    pub now: UnixMillis,
}

/// Returns the verdict on `call`.
#[must_use]
pub fn judge_call(call: CallOutcome, times: CallTimes) -> AttemptVerdict {
    match call {
        CallOutcome::Accepted { platform_ids, live } => AttemptVerdict::Done { platform_ids, live },
        // Any success counts, because platforms differ in the code that they choose.
        CallOutcome::Status { code: 200..=299, .. } => AttemptVerdict::Done {
            platform_ids: Vec::new(),
            live: None,
        },
        CallOutcome::Status {
            code,
            retry_after,
            body,
        } => {
            let reason = if body.is_empty() {
                format!("status {code}")
            } else {
                format!("status {code}: {body}")
            };

            // Other codes say that the same call would fail again.
            if is_passing(code) {
                let asked = retry_after
                    .as_deref()
                    .and_then(|value| parse_retry_after(value, times.now));
                let asked = asked.filter(|asked| !asked.is_zero());
                match asked {
                    Some(asked) => asked_verdict(reason, is_limit(code), asked, times),
                    None => retry_verdict(reason, times.scheduled),
                }
            } else {
                AttemptVerdict::GiveUp { reason }
            }
        }
        CallOutcome::Unreachable { reason } => retry_verdict(reason, times.scheduled),
        // Nothing was sent, so the next owner of the partition repeats the attempt.
        CallOutcome::Withheld => retry_verdict("the partition was lost before the call".to_owned(), times.scheduled),
        CallOutcome::Impossible { reason } => AttemptVerdict::GiveUp { reason },
    }
}

/// Returns whether the status may be different at the next attempt.
const fn is_passing(code: u16) -> bool {
    matches!(code, 408 | 425 | 429 | 500..=599)
}

/// Returns whether the status says that calls are limited, and not that a call went wrong.
const fn is_limit(code: u16) -> bool {
    matches!(code, 429 | 503)
}

fn retry_verdict(reason: String, scheduled: Option<Duration>) -> AttemptVerdict {
    match scheduled {
        Some(after) => AttemptVerdict::Retry { after, reason },
        None => AttemptVerdict::GiveUp {
            reason: format!("{reason} (last attempt)"),
        },
    }
}

/// Returns the verdict on a call to a platform that asks for the wait `asked`; `is_limit` says that it limits calls.
fn asked_verdict(reason: String, is_limit: bool, asked: Duration, times: CallTimes) -> AttemptVerdict {
    if asked > MAX_RETRY_AFTER {
        let (asked, most) = (asked.as_secs(), MAX_RETRY_AFTER.as_secs());
        return AttemptVerdict::GiveUp {
            reason: format!("{reason} (asks to wait {asked} s, at most {most} s)"),
        };
    }

    if is_limit && times.uncounted < MAX_LIMITED {
        return AttemptVerdict::Limited { after: asked, reason };
    }

    // The schedule says whether another attempt follows, and the platform after how long.
    retry_verdict(reason, times.scheduled.map(|_| asked))
}

/// Parses a `Retry-After` header: seconds, or an HTTP date (in the past = no wait). Returns `None` for other values.
/// Source: RFC 9110 §10.2.3.
#[must_use]
pub fn parse_retry_after(value: &str, now: UnixMillis) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }

    let date = httpdate::parse_http_date(value)
        .ok()?
        .duration_since(std::time::UNIX_EPOCH)
        .ok()?;
    let now = Duration::from_millis(u64::try_from(now.0).unwrap_or(0));

    Some(date.saturating_sub(now))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SCHEDULED: Duration = Duration::from_secs(5);
    const NOW: UnixMillis = UnixMillis(784_111_770_000);

    fn status(code: u16, retry_after: Option<&str>) -> CallOutcome {
        CallOutcome::Status {
            code,
            retry_after: retry_after.map(str::to_owned),
            body: String::new(),
        }
    }

    const TIMES: CallTimes = CallTimes {
        scheduled: Some(SCHEDULED),
        uncounted: 0,
        now: NOW,
    };

    #[track_caller]
    fn check(call: CallOutcome, expected: &str) {
        let told = match judge_call(call, TIMES) {
            AttemptVerdict::Done { .. } => "done".to_owned(),
            AttemptVerdict::Retry { after, reason } => format!("retry {}: {reason}", after.as_millis()),
            AttemptVerdict::Limited { after, reason } => format!("limited {}: {reason}", after.as_millis()),
            AttemptVerdict::GiveUp { reason } => format!("give up: {reason}"),
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn statuses() {
        check(status(204, None), "done");
        check(status(429, None), "retry 5000: status 429");
        check(status(429, Some("7")), "limited 7000: status 429");
        check(status(503, Some("1")), "limited 1000: status 503");
        check(status(500, None), "retry 5000: status 500");
        check(status(400, Some("1")), "give up: status 400");
        check(status(403, None), "give up: status 403");
        check(status(301, None), "give up: status 301");
    }

    #[test]
    fn a_date_says_how_long() {
        check(
            status(503, Some("Sun, 06 Nov 1994 08:49:37 GMT")),
            "limited 7000: status 503",
        );
        check(
            status(503, Some("Sat, 05 Nov 1994 08:49:37 GMT")),
            "retry 5000: status 503",
        );
        check(status(503, Some("soon")), "retry 5000: status 503");
    }

    #[test]
    fn a_wait_beyond_the_bound_gives_up() {
        check(
            status(429, Some("86401")),
            "give up: status 429 (asks to wait 86401 s, at most 86400 s)",
        );
    }

    #[test]
    fn no_answer_retries_and_the_impossible_does_not() {
        check(
            CallOutcome::Unreachable {
                reason: "reset".to_owned(),
            },
            "retry 5000: reset",
        );
        check(
            CallOutcome::Impossible {
                reason: "no such account".to_owned(),
            },
            "give up: no such account",
        );
    }

    #[test]
    fn the_last_attempt_gives_up_unless_the_platform_asks_for_a_wait() {
        let last = CallTimes {
            scheduled: None,
            ..TIMES
        };
        assert_eq!(
            judge_call(status(429, None), last),
            AttemptVerdict::GiveUp {
                reason: "status 429 (last attempt)".to_owned()
            }
        );
        assert_eq!(
            judge_call(status(429, Some("1")), last),
            AttemptVerdict::Limited {
                after: Duration::from_secs(1),
                reason: "status 429".to_owned()
            }
        );
    }

    #[test]
    fn only_a_limit_is_free_and_not_for_ever() {
        check(status(500, Some("7")), "retry 7000: status 500");
        check(status(429, Some("0")), "retry 5000: status 429");

        let often = CallTimes {
            uncounted: MAX_LIMITED,
            ..TIMES
        };
        assert_eq!(
            judge_call(status(429, Some("7")), often),
            AttemptVerdict::Retry {
                after: Duration::from_secs(7),
                reason: "status 429".to_owned()
            }
        );
    }

    proptest! {
        #[test]
        fn what_is_asked_is_what_is_waited(seconds in 1_u64..=86_400, scheduled in 0_u64..10_000_000) {
            let call = status(429, Some(&seconds.to_string()));
            let times = CallTimes { scheduled: Some(Duration::from_millis(scheduled)), ..TIMES };
            let verdict = judge_call(call, times);
            prop_assert_eq!(
                verdict,
                AttemptVerdict::Limited { after: Duration::from_secs(seconds), reason: "status 429".to_owned() }
            );
        }

        #[test]
        fn any_header_is_read_without_panic(value in "\\PC*", now in any::<i64>()) {
            let _ = parse_retry_after(&value, UnixMillis(now));
        }
    }
}
