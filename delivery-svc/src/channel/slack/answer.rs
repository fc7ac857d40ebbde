//! The meaning of an answer of Slack's Web API for a part. *Pure.*
//!
//! `ok` decides, and not the status; errors have names. Source:
//! <https://docs.slack.dev/reference/methods/chat.postMessage#errors>, <https://docs.slack.dev/apis/web-api/rate-limits>.

use std::time::Duration;

use serde::Deserialize;
use shared::model::time::UnixMillis;
use shared::platform::http_answer::parse_retry_after;
use shared::platform::slack_api::{WebAnswer, is_credential_error, message_name};

use crate::attempt::{CallOutcome, LimitScope, Refusal, RequestSent};
use crate::channel::http::status_outcome;
use crate::channel::raw_answer::RawAnswer;

/// Maximum length of an error's name that is kept, in characters.
const MAX_REASON_CHARACTERS: usize = 200;

/// The part of a sent message that is used.
#[derive(Debug, Deserialize)]
struct PostedMessage {
    channel: String,
    ts: String,
}

/// Returns the outcome of a call with `answer`, made at `now`.
pub(super) fn read_answer(answer: &RawAnswer, now: UnixMillis) -> CallOutcome {
    let asked = answer.retry_after().and_then(|value| parse_retry_after(value, now));
    let asked = asked.filter(|asked| !asked.is_zero());
    let Ok(read) = serde_json::from_slice::<WebAnswer>(&answer.body) else {
        return foreign_outcome(answer, asked, now);
    };

    if read.ok {
        return match serde_json::from_slice::<PostedMessage>(&answer.body) {
            Ok(sent) => CallOutcome::Accepted {
                platform_ids: vec![message_name(&sent.channel, &sent.ts)],
                live: None,
            },
            Err(_) => doubtful("an answer without a message"),
        };
    }

    let error: String = read
        .error
        .unwrap_or_default()
        .chars()
        .take(MAX_REASON_CHARACTERS)
        .collect();
    let reason = match read.needed {
        Some(scope) => format!("{error}: the app needs {scope}"),
        None => error.clone(),
    };
    refused_outcome(&error, asked, reason)
}

/// Returns the outcome of the change `method` of the message `id`, with `answer`, made at `now`. A change that was made before is
/// made.
pub(super) fn read_change(answer: &RawAnswer, id: &str, method: &str, now: UnixMillis) -> CallOutcome {
    let read = serde_json::from_slice::<WebAnswer>(&answer.body).ok();
    let is_made = |read: WebAnswer| {
        let error = read.error.unwrap_or_default();
        let made = [
            ("reactions.add", "already_reacted"),
            ("reactions.remove", "no_reaction"),
            ("chat.delete", "message_not_found"),
        ];
        read.ok || made.contains(&(method, error.as_str()))
    };
    if read.is_some_and(is_made) {
        return CallOutcome::Accepted {
            platform_ids: vec![id.to_owned()],
            live: None,
        };
    }

    read_answer(answer, now)
}

/// Returns the outcome of a call that sets the status of a thread, with `answer`, made at `now`. A token that is refused for
/// it may be good for messages: a right may be missing for this call alone.
pub(super) fn read_status(answer: &RawAnswer, now: UnixMillis) -> CallOutcome {
    if serde_json::from_slice::<WebAnswer>(&answer.body).is_ok_and(|read| read.ok) {
        return CallOutcome::Accepted {
            platform_ids: Vec::new(),
            live: None,
        };
    }
    match read_answer(answer, now) {
        CallOutcome::Reauth { reason } => CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason,
        },
        outcome @ (CallOutcome::Accepted { .. }
        | CallOutcome::Limited { .. }
        | CallOutcome::Refused { .. }
        | CallOutcome::WindowClosed { .. }
        | CallOutcome::TooLarge { .. }
        | CallOutcome::Unformattable { .. }
        | CallOutcome::Unreachable { .. }
        | CallOutcome::Withheld) => outcome,
    }
}

/// Returns the outcome of a call that was refused with the name `error`; `asked` is the wait that a header names.
fn refused_outcome(error: &str, asked: Option<Duration>, reason: String) -> CallOutcome {
    if is_credential_error(error) {
        return CallOutcome::Reauth { reason };
    }

    match error {
        // The limit may be the channel's or the workspace's, and Slack does not say which.
        "ratelimited" | "rate_limited" => limited(asked, reason),
        "msg_too_long" | "msg_blocks_too_long" => CallOutcome::TooLarge { reason },
        "invalid_blocks" | "invalid_blocks_format" | "invalid_attachments" => CallOutcome::Unformattable { reason },
        // Some of it may have been done.
        "fatal_error" | "internal_error" => doubtful(&reason),
        "service_unavailable" | "request_timeout" | "team_added_to_org" | "message_limit_exceeded" => {
            let refusal = Refusal::Passing { after: asked };
            CallOutcome::Refused { refusal, reason }
        }
        // An unknown channel, one in which the app is not, an archived one, a thread that is gone.
        _ => {
            let refusal = Refusal::Permanent;
            CallOutcome::Refused { refusal, reason }
        }
    }
}

fn limited(asked: Option<Duration>, reason: String) -> CallOutcome {
    match asked {
        Some(after) => CallOutcome::Limited {
            after,
            scope: LimitScope::Account,
            reason,
        },
        None => CallOutcome::Refused {
            refusal: Refusal::Passing { after: None },
            reason,
        },
    }
}

/// Returns the outcome of a call whose answer is none of the Web API's: a server between, or its own trouble.
fn foreign_outcome(answer: &RawAnswer, asked: Option<Duration>, now: UnixMillis) -> CallOutcome {
    let status = answer.status;
    match status {
        429 => limited(asked, format!("status {status}")),
        401 => CallOutcome::Reauth {
            reason: format!("status {status}"),
        },
        // The status alone says nothing about the message.
        200..=299 => doubtful(&format!("status {status} with an answer that cannot be read")),
        503 if asked.is_some() => limited(asked, format!("status {status}")),
        500..=599 => doubtful(&format!("status {status}")),
        // A proxy or a filter between: it says nothing about the message.
        300..=499 => CallOutcome::Refused {
            refusal: Refusal::Passing { after: None },
            reason: format!("status {status}, not from the Web API"),
        },
        _ => status_outcome(status, None, "", now),
    }
}

/// Returns the outcome of a call that may have sent the message.
fn doubtful(reason: &str) -> CallOutcome {
    CallOutcome::Unreachable {
        sent: RequestSent::Maybe,
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: UnixMillis = UnixMillis(0);

    fn read(status: u16, retry_after: Option<&str>, body: &str) -> CallOutcome {
        let answer = RawAnswer::with_retry_after(status, retry_after, body);
        read_answer(&answer, NOW)
    }

    #[track_caller]
    fn check(status: u16, retry_after: Option<&str>, body: &str, expected: &str) {
        let told = match read(status, retry_after, body) {
            CallOutcome::Accepted { platform_ids, .. } => format!("accepted {}", platform_ids.join(" ")),
            CallOutcome::Limited { after, scope, .. } => format!("limited {} {scope:?}", after.as_secs()),
            CallOutcome::Refused { refusal, reason } => match refusal {
                Refusal::Permanent => format!("permanent {reason}"),
                Refusal::Passing { after } => format!("passing {after:?}"),
            },
            CallOutcome::Reauth { reason } => format!("reauth {reason}"),
            CallOutcome::WindowClosed { reason } => format!("closed {reason}"),
            CallOutcome::TooLarge { .. } => "too large".to_owned(),
            CallOutcome::Unformattable { .. } => "unformattable".to_owned(),
            CallOutcome::Unreachable { sent, .. } => format!("unreachable {sent:?}"),
            CallOutcome::Withheld => "withheld".to_owned(),
        };
        assert_eq!(told, expected, "{status} {body}");
    }

    #[test]
    fn the_body_decides_and_not_the_status() {
        let sent = r#"{"ok": true, "channel": "D1", "ts": "1.000001", "message": {"text": "x"}}"#;
        check(200, None, sent, "accepted D1/1.000001");
        check(500, None, sent, "accepted D1/1.000001");
        check(200, None, r#"{"ok": true}"#, "unreachable Maybe");

        for (error, expected) in [
            ("channel_not_found", "permanent channel_not_found"),
            ("not_in_channel", "permanent not_in_channel"),
            ("is_archived", "permanent is_archived"),
            ("a_new_error", "permanent a_new_error"),
            ("invalid_auth", "reauth invalid_auth"),
            ("token_revoked", "reauth token_revoked"),
            ("account_inactive", "reauth account_inactive"),
            ("msg_too_long", "too large"),
            ("invalid_blocks", "unformattable"),
            ("ratelimited", "passing None"),
            ("service_unavailable", "passing None"),
            ("fatal_error", "unreachable Maybe"),
            ("internal_error", "unreachable Maybe"),
        ] {
            check(200, None, &format!(r#"{{"ok": false, "error": "{error}"}}"#), expected);
        }
        check(
            200,
            None,
            r#"{"ok": false, "error": "missing_scope", "needed": "chat:write"}"#,
            "reauth missing_scope: the app needs chat:write",
        );
        check(200, None, r#"{"ok": false}"#, "permanent ");
    }

    #[test]
    fn a_limit_is_the_account_s_and_as_long_as_told() {
        let told = r#"{"ok": false, "error": "ratelimited"}"#;
        check(429, Some("30"), told, "limited 30 Account");
        check(200, Some("30"), told, "limited 30 Account");
        check(429, Some("30"), "", "limited 30 Account");
        check(429, None, "", "passing None");
        check(503, Some("5"), "<html>", "limited 5 Account");
    }

    #[test]
    fn what_is_not_from_slack_says_nothing_about_the_message() {
        check(200, None, "<html>", "unreachable Maybe");
        check(502, None, "<html>", "unreachable Maybe");
        check(302, None, "", "passing None");
        check(404, None, "<html>", "passing None");
        check(401, None, "", "reauth status 401");
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_panic(status in 100_u16..700, header in "\\PC{0,8}", body in "\\PC{0,80}") {
            let _outcome = read(status, Some(&header), &body);
        }
    }
}
