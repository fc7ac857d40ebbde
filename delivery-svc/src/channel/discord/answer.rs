//! The meaning of an answer of Discord's REST API. *Pure.*
//!
//! The status decides. Errors have a code and a text for people; a limit has a wait, in whole seconds in `Retry-After`
//! and exactly in the body, and a scope. Answers without the vendor's form are from a server before it, which bars
//! addresses that go on after refusals. Source: <https://discord.com/developers/docs/topics/rate-limits>,
//! <https://discord.com/developers/docs/topics/opcodes-and-status-codes>.

use std::time::Duration;

use serde::Deserialize;
use shared::model::time::UnixMillis;
use shared::platform::discord::message_name;
use shared::platform::http_answer::parse_retry_after;

use crate::attempt::{CallOutcome, LimitScope, Refusal, RequestSent};
use crate::channel::raw_answer::RawAnswer;

/// Maximum length of an error's text that is kept, in characters.
const MAX_REASON_CHARACTERS: usize = 512;

/// Wait after a limit that names none, in seconds: it is that of the server before the API.
const BARRED: Duration = Duration::from_mins(1);

/// Maximum time for which a bucket of a channel is taken to be empty, whatever a header says.
const MAX_RESET: f64 = 60.0;

/// "Cannot send messages to this user": no common guild, or the user does not want any.
const CANNOT_SEND: u64 = 50_007;

/// "Unknown message".
const UNKNOWN_MESSAGE: u64 = 10_008;

/// "Invalid Form Body".
const INVALID_FORM: u64 = 50_035;

/// An answer with its limits.
#[derive(Debug, Default)]
pub(super) struct ApiAnswer {
    pub(super) status: u16,
    pub(super) headers: LimitHeaders,
    pub(super) body: Vec<u8>,
}

impl From<RawAnswer> for ApiAnswer {
    fn from(RawAnswer { status, headers, body }: RawAnswer) -> Self {
        let headers = LimitHeaders::read(|name| headers.get(name)?.to_str().ok());
        Self { status, headers, body }
    }
}

/// The headers of limits.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct LimitHeaders {
    /// Value of `Retry-After`.
    pub(super) retry_after: Option<String>,
    /// Value of `X-RateLimit-Scope`: `user`, `global` or `shared`.
    pub(super) scope: Option<String>,
    /// Whether the route's bucket is empty, and the seconds until it is full again.
    pub(super) empty_for: Option<f64>,
}

impl LimitHeaders {
    /// Reads the headers that `header` returns by their names.
    pub(super) fn read<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Self {
        let text = |name: &str| header(name).map(|value| value.trim().to_owned());
        let is_global = text("x-ratelimit-global").is_some_and(|value| value == "true");
        let reset: Option<f64> = text("x-ratelimit-reset-after").and_then(|value| value.parse().ok());
        let is_empty = text("x-ratelimit-remaining").is_some_and(|value| value == "0");
        Self {
            retry_after: text("retry-after"),
            scope: text("x-ratelimit-scope").or_else(|| is_global.then(|| "global".to_owned())),
            empty_for: reset.filter(|reset| is_empty && reset.is_finite() && *reset > 0.0),
        }
    }

    /// Returns the time for which the route's bucket is empty.
    pub(super) fn reset_after(&self) -> Option<Duration> {
        let seconds = self.empty_for?.min(MAX_RESET);
        Some(Duration::from_secs_f64(seconds))
    }
}

/// The part of a created message that is used.
#[derive(Debug, Deserialize)]
struct CreatedMessage {
    id: String,
    channel_id: String,
}

/// The body of an error, or of a limit.
#[derive(Debug, Deserialize)]
struct ApiError {
    message: String,
    #[serde(default)]
    code: u64,
    #[serde(default)]
    retry_after: Option<f64>,
    #[serde(default)]
    global: bool,
    #[serde(default)]
    errors: Option<serde_json::Value>,
}

/// Returns the outcome of a call for a message that `answer` is the answer to, at `now`.
pub(super) fn read_answer(answer: &ApiAnswer, now: UnixMillis) -> CallOutcome {
    let status = answer.status;
    if (200..=299).contains(&status) {
        return match serde_json::from_slice::<CreatedMessage>(&answer.body) {
            Ok(created) => CallOutcome::Accepted {
                platform_ids: vec![message_name(&created.channel_id, &created.id)],
                live: None,
            },
            // The status alone says nothing about the message.
            Err(_) => doubtful(format!("status {status} with an answer that cannot be read")),
        };
    }

    error_outcome(answer, now).unwrap_or_else(|| foreign_outcome(answer, now))
}

/// Returns the outcome of a change of the message `id`, or of a call without a message, that `answer` is the answer to, at
/// `now`. With `gone_is_made`, a message that is gone is changed as wished.
pub(super) fn read_change(answer: &ApiAnswer, id: &str, gone_is_made: bool, now: UnixMillis) -> CallOutcome {
    let code = || {
        serde_json::from_slice::<ApiError>(&answer.body)
            .ok()
            .map(|error| error.code)
    };
    let is_gone = answer.status == 404 && code() == Some(UNKNOWN_MESSAGE);
    if (200..=299).contains(&answer.status) || (gone_is_made && is_gone) {
        return CallOutcome::Accepted {
            platform_ids: vec![id.to_owned()],
            live: None,
        };
    }

    error_outcome(answer, now).unwrap_or_else(|| foreign_outcome(answer, now))
}

/// Returns the outcome that an error of the API means; `None` if `answer` is not one.
pub(super) fn error_outcome(answer: &ApiAnswer, now: UnixMillis) -> Option<CallOutcome> {
    let error: ApiError = serde_json::from_slice(&answer.body).ok()?;
    let status = answer.status;
    let code = if error.code == 0 {
        String::new()
    } else {
        format!(" ({})", error.code)
    };
    let reason = format!("{status}: {}{code}", shorten(&error.message));

    Some(match status {
        429 => {
            // The body is exact, and the header whole seconds; the longer one is the safe one.
            let exact = error.retry_after.filter(|after| after.is_finite() && *after > 0.0);
            let exact = exact.and_then(|after| Duration::try_from_secs_f64(after).ok());
            limited(answer, exact, error.global, reason, now)
        }
        401 => CallOutcome::Reauth { reason },
        403 if error.code == CANNOT_SEND => CallOutcome::WindowClosed { reason },
        408 | 425 => CallOutcome::Refused {
            refusal: Refusal::Passing { after: None },
            reason,
        },
        413 => CallOutcome::TooLarge { reason },
        400 if error.code == INVALID_FORM && is_content_fault(error.errors.as_ref()) => {
            CallOutcome::TooLarge { reason }
        }
        500..=599 => doubtful(reason),
        // An unknown channel, no access to it, a locked thread.
        _ => CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason,
        },
    })
}

/// Returns whether `errors` say that the text is too long.
fn is_content_fault(errors: Option<&serde_json::Value>) -> bool {
    let faults = errors.and_then(|errors| errors.pointer("/content/_errors")?.as_array());
    let is_length =
        |fault: &serde_json::Value| fault["code"] == "BASE_TYPE_MAX_LENGTH" || fault["code"] == "BASE_TYPE_BAD_LENGTH";
    faults.is_some_and(|faults| faults.iter().any(is_length))
}

fn limited(
    answer: &ApiAnswer,
    exact: Option<Duration>,
    is_global: bool,
    reason: String,
    now: UnixMillis,
) -> CallOutcome {
    let header = answer.headers.retry_after.as_deref();
    let header = header.and_then(|value| parse_retry_after(value, now));
    let after = exact.max(header).filter(|after| !after.is_zero()).unwrap_or(BARRED);

    // `user` is the bucket of this route, and `shared` that of a channel for all bots.
    let is_global = is_global || answer.headers.scope.as_deref() == Some("global");
    CallOutcome::Limited {
        after,
        scope: if is_global {
            LimitScope::Account
        } else {
            LimitScope::Destination
        },
        reason,
    }
}

/// Returns the outcome of a call whose answer is none of the API's: a server before it, or its own trouble.
fn foreign_outcome(answer: &ApiAnswer, now: UnixMillis) -> CallOutcome {
    let status = answer.status;
    let reason = format!("status {status}, not from the API");
    match status {
        // The address is barred, for all that the account does.
        429 => limited(answer, None, true, reason, now),
        500..=599 => doubtful(format!("status {status}")),
        // A proxy or a filter between: it says nothing about the message.
        _ => CallOutcome::Refused {
            refusal: Refusal::Passing { after: None },
            reason,
        },
    }
}

/// Returns the outcome of a call that may have sent the message.
fn doubtful(reason: String) -> CallOutcome {
    CallOutcome::Unreachable {
        sent: RequestSent::Maybe,
        reason,
    }
}

fn shorten(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_REASON_CHARACTERS);
    end.map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: UnixMillis = UnixMillis(0);

    fn limits(headers: &[(&str, &str)]) -> LimitHeaders {
        let find = |name: &str| {
            headers
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| *value)
        };
        LimitHeaders::read(find)
    }

    fn read(status: u16, headers: &[(&str, &str)], body: &str) -> CallOutcome {
        let (headers, body) = (limits(headers), body.as_bytes().to_vec());
        read_answer(&ApiAnswer { status, headers, body }, NOW)
    }

    #[track_caller]
    fn check(status: u16, headers: &[(&str, &str)], body: &str, expected: &str) {
        let told = match read(status, headers, body) {
            CallOutcome::Accepted { platform_ids, .. } => format!("accepted {}", platform_ids.join(" ")),
            CallOutcome::Limited { after, scope, .. } => format!("limited {} {scope:?}", after.as_millis()),
            CallOutcome::Refused { refusal, .. } => match refusal {
                Refusal::Permanent => "refused".to_owned(),
                Refusal::Passing { .. } => "refused, may pass".to_owned(),
            },
            CallOutcome::Reauth { .. } => "reauth".to_owned(),
            CallOutcome::WindowClosed { .. } => "window closed".to_owned(),
            CallOutcome::TooLarge { .. } => "too large".to_owned(),
            CallOutcome::Unformattable { .. } => "unformattable".to_owned(),
            CallOutcome::Unreachable { sent, .. } => format!("unreachable, sent: {sent:?}"),
            CallOutcome::Withheld => "withheld".to_owned(),
        };
        assert_eq!(told, expected, "{status} {body}");
    }

    #[test]
    fn each_answer_has_its_outcome() {
        check(
            200,
            &[],
            r#"{"id": "5", "channel_id": "7", "content": "x"}"#,
            "accepted 7/5",
        );
        check(200, &[], "<html>", "unreachable, sent: Maybe");
        check(401, &[], r#"{"message": "401: Unauthorized", "code": 0}"#, "reauth");
        check(403, &[], r#"{"message": "Missing Access", "code": 50001}"#, "refused");
        check(
            403,
            &[],
            r#"{"message": "Cannot send messages to this user", "code": 50007}"#,
            "window closed",
        );
        check(404, &[], r#"{"message": "Unknown Channel", "code": 10003}"#, "refused");
        check(403, &[], "<html>blocked", "refused, may pass");
        check(502, &[], "<html>", "unreachable, sent: Maybe");
        check(
            500,
            &[],
            r#"{"message": "500: Internal Server Error", "code": 0}"#,
            "unreachable, sent: Maybe",
        );
        check(
            413,
            &[],
            r#"{"message": "Request entity too large", "code": 40005}"#,
            "too large",
        );
        let too_long = r#"{"message": "Invalid Form Body", "code": 50035, "errors": {"content": {"_errors": [
            {"code": "BASE_TYPE_MAX_LENGTH", "message": "Must be 2000 or fewer in length."}]}}}"#;
        check(400, &[], too_long, "too large");
        check(
            400,
            &[],
            r#"{"message": "Cannot send an empty message", "code": 50006}"#,
            "refused",
        );
    }

    #[test]
    fn a_limit_has_the_longer_wait_and_its_scope() {
        let body = r#"{"message": "You are being rate limited.", "retry_after": 1.336, "global": false}"#;
        let scope = |value| [("retry-after", "1"), ("x-ratelimit-scope", value)];
        check(429, &scope("user"), body, "limited 1336 Destination");
        check(429, &scope("shared"), body, "limited 1336 Destination");
        check(429, &scope("global"), body, "limited 1336 Account");
        check(429, &[("retry-after", "65")], body, "limited 65000 Destination");
        let global = r#"{"message": "x", "retry_after": 64.57, "global": true}"#;
        check(429, &[("x-ratelimit-global", "true")], global, "limited 64570 Account");

        // A server before the API bars the address.
        check(429, &[], "<html>error 1015", "limited 60000 Account");
        check(429, &[("retry-after", "3000")], "error 1015", "limited 3000000 Account");
        for strange in ["-1", "1e400", "0", "null"] {
            let body = format!(r#"{{"message": "x", "retry_after": {strange}}}"#);
            let outcome = read(429, &[("retry-after", "2")], &body);
            assert!(matches!(outcome, CallOutcome::Limited { after, .. } if after >= Duration::from_secs(2)));
        }
    }

    #[test]
    fn an_empty_bucket_is_known_before_it_refuses() {
        let read = |remaining: &str, reset: &str| {
            limits(&[("x-ratelimit-remaining", remaining), ("x-ratelimit-reset-after", reset)]).reset_after()
        };
        assert_eq!(read("0", "0.5"), Some(Duration::from_millis(500)));
        assert_eq!(read("1", "0.5"), None);
        assert_eq!(read("0", "1000000"), Some(Duration::from_mins(1)));
        for strange in ["soon", "-1", "NaN", "inf"] {
            assert_eq!(read("0", strange), None, "{strange}");
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_panic(status in 100_u16..600, body in "\\PC*", header in "[ -~]*") {
            let headers = LimitHeaders::read(|_| Some(header.as_str()));
            let _ = headers.reset_after();
            let _ = read_answer(&ApiAnswer { status, headers, body: body.into_bytes() }, NOW);
        }
    }
}
