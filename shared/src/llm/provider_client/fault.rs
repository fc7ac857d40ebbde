//! Conversion of failures between a request and its answer to our errors. *Pure.*

use std::time::Duration;

use serde_json::Value;

use crate::error_chain::describe_error;
use crate::llm::error::AskModelError;
use crate::llm::wire::WireFault;
use crate::model::time::UnixMillis;
use crate::platform::http_answer::parse_retry_after;

/// Number of bytes kept of a provider's error text.
const MAX_DETAIL_BYTES: usize = 500;
/// Longest delay that a provider may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);
/// Phrases by which providers report that the request is too long.
const TOO_LONG: [&str; 6] = [
    "context_length_exceeded",
    "maximum context length",
    "prompt is too long",
    "exceeds the maximum number of tokens",
    "input token count",
    "request_too_large",
];

/// Converts a fault of the answer's bytes, after `received` bytes of text.
pub(super) fn of_wire(fault: WireFault, received: usize) -> AskModelError {
    match fault {
        WireFault::BrokeOff { .. } => broken_error(received, &fault.to_string()),
        WireFault::TooLarge { .. } | WireFault::Unreadable { .. } => AskModelError::BadAnswer {
            detail: shorten_text(&fault.to_string()),
        },
        WireFault::Said(error) => of_event(&error),
    }
}

/// Converts a failed connection to `address` before the answer's body began; `sent`: the provider may have received
/// the request. Of the error's causes only the innermost is kept: the others name layers of the client.
pub(super) fn of_connection(error: &(dyn std::error::Error + 'static), address: &str, sent: bool) -> AskModelError {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }

    AskModelError::Unreachable {
        sent,
        address: address.to_owned(),
        detail: shorten_text(&cause.to_string()),
    }
}

/// Converts a connection that failed within the answer's body, after `received` bytes of text.
pub(super) fn of_body(error: &(dyn std::error::Error + 'static), received: usize) -> AskModelError {
    broken_error(received, &describe_error(error))
}

fn broken_error(received: usize, detail: &str) -> AskModelError {
    AskModelError::Truncated {
        received,
        detail: shorten_text(detail),
    }
}

/// Converts a status that is no success, with the delays that its headers ask for.
pub(super) fn of_answer(
    status: u16,
    body: &str,
    millis: Option<&str>,
    seconds: Option<&str>,
    now: UnixMillis,
) -> AskModelError {
    of_status(status, body, retry_after(millis, seconds, now))
}

fn of_status(status: u16, body: &str, after: Option<Duration>) -> AskModelError {
    let detail = shorten_text(&provider_message(body));
    let lower = body.to_lowercase();
    match status {
        401 | 403 => AskModelError::Unauthorised { detail },
        // A retry does not help if the account has no credit.
        429 if lower.contains("insufficient_quota") => AskModelError::Refused { status, detail },
        429 => AskModelError::RateLimited { status, after, detail },
        400 | 413 if status == 413 || TOO_LONG.iter().any(|mark| lower.contains(mark)) => {
            AskModelError::TooLong { status, detail }
        }
        408 | 500.. => AskModelError::Overloaded { status, after, detail },
        _ => AskModelError::Refused { status, detail },
    }
}

/// Converts an error that came as an event of the stream, after a status of success.
fn of_event(body: &Value) -> AskModelError {
    let text = body.to_string();
    let lower = text.to_lowercase();
    let detail = shorten_text(&provider_message(&text));
    let inner = body.get("error").unwrap_or(body);
    let code = inner.get("code").and_then(Value::as_u64).unwrap_or(0);

    // The status was a success, so the text has to decide.
    if TOO_LONG.iter().any(|mark| lower.contains(mark)) {
        AskModelError::TooLong { status: 0, detail }
    } else if code == 429 || lower.contains("rate_limit") || lower.contains("resource_exhausted") {
        AskModelError::RateLimited {
            status: 0,
            after: None,
            detail,
        }
    } else if code >= 500
        || ["overloaded", "api_error", "server_error", "internal", "unavailable"]
            .iter()
            .any(|mark| lower.contains(mark))
    {
        AskModelError::Overloaded {
            status: 0,
            after: None,
            detail,
        }
    } else {
        AskModelError::Refused { status: 0, detail }
    }
}

/// Returns the provider's message within its error body, or else the body.
fn provider_message(body: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(body).ok();
    // Gemini wraps the errors of its streams in a list.
    let first = parsed.as_ref().map(|value| value.get(0).unwrap_or(value));
    let message = first.and_then(|value| {
        let inner = value.get("error").unwrap_or(value);
        inner.get("message").and_then(Value::as_str).map(str::to_owned)
    });
    message.unwrap_or_else(|| body.trim().to_owned())
}

/// Returns the delay in the headers `retry-after-ms` and `retry-after` (seconds or an HTTP date).
fn retry_after(millis: Option<&str>, seconds: Option<&str>, now: UnixMillis) -> Option<Duration> {
    let exact = millis
        .and_then(|text| text.trim().parse().ok())
        .map(Duration::from_millis);
    let asked = exact.or_else(|| parse_retry_after(seconds?, now));
    asked.map(|asked| asked.min(MAX_RETRY_AFTER))
}

fn shorten_text(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_DETAIL_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_may_be_in_milliseconds_seconds_or_a_date() {
        let now = UnixMillis(784_111_777_000);
        let check = |millis, seconds, expected: Option<u64>| {
            assert_eq!(
                retry_after(millis, seconds, now),
                expected.map(Duration::from_millis),
                "{millis:?} {seconds:?}"
            );
        };

        check(Some("20"), Some("7"), Some(20));
        check(None, Some("7"), Some(7_000));
        check(None, Some("0.5"), Some(500));
        check(None, Some("Sun, 06 Nov 1994 08:49:39 GMT"), Some(2_000));
        check(None, Some("Sun, 06 Nov 1994 08:49:30 GMT"), Some(0));
        check(None, Some("86400"), Some(3_600_000));
        check(None, Some("-1"), None);
        check(None, None, None);
    }

    #[test]
    fn a_status_says_whether_asking_again_helps() {
        let transient = |status, body| of_status(status, body, None).is_transient();
        assert!(transient(429, "{}") && transient(500, "") && transient(529, "") && transient(503, ""));
        assert!(!transient(429, "{\"error\":{\"code\":\"insufficient_quota\"}}"));
        assert!(!transient(401, "") && !transient(404, ""));
        let long = of_status(400, "{\"error\":{\"message\":\"prompt is too long: 9 > 8\"}}", None);
        assert!(matches!(long, AskModelError::TooLong { detail, .. } if detail == "prompt is too long: 9 > 8"));
    }

    #[test]
    fn only_a_rejection_by_status_is_surely_free() {
        for status in 300..600 {
            for body in ["", "{}", "rate_limit", "prompt is too long", "insufficient_quota"] {
                let is_free = (400..500).contains(&status);
                let error = of_status(status, body, None);
                assert_eq!(error.may_cost(), !is_free, "{status} {body}: {error:?}");
            }
        }

        // The provider had begun to answer.
        for message in ["rate_limit", "overloaded", "prompt is too long", "bad"] {
            let error = of_event(&serde_json::json!({"error": {"message": message}}));
            assert!(error.may_cost(), "{message}: {error:?}");
        }

        let broken = std::io::Error::other("reset");
        assert!(!of_connection(&broken, "http://here", false).may_cost());
        assert!(of_connection(&broken, "http://here", true).may_cost() && of_body(&broken, 0).may_cost());
        let fault = WireFault::Said(serde_json::json!({"code": 401}));
        assert!(of_wire(fault, 0).may_cost());
    }

    #[test]
    fn errors_within_a_stream_are_told_apart() {
        let anthropic = serde_json::json!({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}});
        assert!(matches!(of_event(&anthropic), AskModelError::Overloaded { detail, .. } if detail == "busy"));
        let gemini =
            serde_json::json!({"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}});
        assert!(matches!(of_event(&gemini), AskModelError::RateLimited { .. }));
        let openai = serde_json::json!({"message": "bad", "type": "invalid_request_error"});
        assert!(matches!(of_event(&openai), AskModelError::Refused { .. }));
    }
}
