//! HTTP as channels use it: the outcome of a status, of a wait that a header names, and of a missing response.

use std::time::Duration;

use shared::error_chain::describe_causes;
use shared::model::time::UnixMillis;
use shared::platform::http_answer::parse_retry_after;

use crate::attempt::{CallOutcome, LimitScope, Refusal, RequestSent};

/// Timeouts of a call.
#[derive(Debug, Clone, Copy)]
pub struct CallTimeouts {
    /// Maximum time until the connection is established.
    pub connect: Duration,
    /// Maximum time until the status of the response arrives.
    pub whole: Duration,
}

/// Returns the outcome of a call that a platform answered with the status `code` alone, without an error of its own.
/// `retry_after` is the value of that header and `body` the beginning of the response.
#[must_use]
pub fn status_outcome(code: u16, retry_after: Option<&str>, body: &str, now: UnixMillis) -> CallOutcome {
    let reason = if body.is_empty() {
        format!("status {code}")
    } else {
        format!("status {code}: {body}")
    };

    let asked = retry_after.and_then(|value| parse_retry_after(value, now));
    let asked = asked.filter(|asked| !asked.is_zero());
    match (code, asked) {
        // Any success counts, because platforms differ in the code that they choose.
        (200..=299, _) => CallOutcome::Accepted {
            platform_ids: Vec::new(),
            live: None,
        },
        // Calls are limited, and this one did not go wrong.
        (429 | 503, Some(after)) => CallOutcome::Limited {
            after,
            scope: LimitScope::Destination,
            reason,
        },
        (413, _) => CallOutcome::TooLarge { reason },
        // The status may be different at the next attempt.
        (408 | 425 | 429 | 500..=599, after) => CallOutcome::Refused {
            refusal: Refusal::Passing { after },
            reason,
        },
        (_, _) => CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason,
        },
    }
}

/// Returns the outcome of a call that failed with `error`. Its description has no URL, which may contain a secret.
#[must_use]
pub fn failed_outcome(error: reqwest::Error) -> CallOutcome {
    let error = error.without_url();
    // Without a connection, no byte of the request has left.
    let sent = if error.is_connect() {
        RequestSent::No
    } else {
        RequestSent::Maybe
    };

    let kind = if error.is_timeout() {
        "timed out"
    } else if error.is_connect() {
        "no connection"
    } else {
        "no answer"
    };
    CallOutcome::Unreachable {
        sent,
        reason: describe_causes(kind, &error),
    }
}

/// Returns the outcome of a call that had no response in time.
#[must_use]
pub fn late_outcome() -> CallOutcome {
    CallOutcome::Unreachable {
        sent: RequestSent::Maybe,
        reason: "timed out".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(784_111_770_000);

    #[track_caller]
    fn check(code: u16, retry_after: Option<&str>, expected: &str) {
        let outcome = status_outcome(code, retry_after, "", NOW);
        let told = format!("{outcome:?}").replace(&format!("reason: \"status {code}\""), "reason");
        assert_eq!(told, expected);
    }

    #[test]
    fn statuses() {
        let permanent = "Refused { refusal: Permanent, reason }";
        let passing = "Refused { refusal: Passing { after: None }, reason }";
        check(204, None, "Accepted { platform_ids: [], live: None }");
        check(429, None, passing);
        check(429, Some("0"), passing);
        check(429, Some("7"), "Limited { after: 7s, scope: Destination, reason }");
        check(503, Some("1"), "Limited { after: 1s, scope: Destination, reason }");
        check(500, None, passing);
        check(
            500,
            Some("7"),
            "Refused { refusal: Passing { after: Some(7s) }, reason }",
        );
        check(400, Some("1"), permanent);
        check(403, None, permanent);
        check(301, None, permanent);
        check(413, None, "TooLarge { reason }");
    }

    #[test]
    fn a_date_says_how_long() {
        check(
            503,
            Some("Sun, 06 Nov 1994 08:49:37 GMT"),
            "Limited { after: 7s, scope: Destination, reason }",
        );
        let passing = "Refused { refusal: Passing { after: None }, reason }";
        check(503, Some("Sat, 05 Nov 1994 08:49:37 GMT"), passing);
        check(503, Some("soon"), passing);
    }

    #[test]
    fn the_beginning_of_the_response_is_the_reason() {
        let outcome = status_outcome(400, None, "no such hook", NOW);
        let reason = "status 400: no such hook".to_owned();
        let refusal = Refusal::Permanent;
        assert_eq!(outcome, CallOutcome::Refused { refusal, reason });
    }
}
