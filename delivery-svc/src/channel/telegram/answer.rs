//! The meaning of an answer of the Bot API for a part. *Pure.*
//!
//! `ok` decides, and not the status. Errors have a code, a text for people that names the error, and sometimes
//! parameters. Source: <https://core.telegram.org/bots/api#making-requests>,
//! <https://core.telegram.org/bots/api#responseparameters>; texts of errors: `tdlib/telegram-bot-api`, `Client.cpp`.

use std::time::Duration;

use serde::Deserialize;
use shared::model::time::UnixMillis;
use shared::platform::bot_api::{BotAnswer, message_name};
use shared::platform::http_answer::parse_retry_after;

use super::change::MessageNumber;
use crate::attempt::{CallOutcome, LimitScope, Refusal, RequestSent};
use crate::channel::http::status_outcome;
use crate::channel::raw_answer::RawAnswer;

/// Maximum length of an error's text that is kept, in characters.
const MAX_REASON_CHARACTERS: usize = 512;

/// The meaning of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerMeaning {
    /// The call has ended.
    Outcome(CallOutcome),
    /// The group has become the supergroup `chat`, to which the message must be sent.
    Moved { chat: i64 },
}

/// The part of a sent message that is used.
#[derive(Debug, Deserialize)]
struct SentMessage {
    message_id: i64,
    chat: SentChat,
}

#[derive(Debug, Deserialize)]
struct SentChat {
    id: i64,
}

/// Returns the meaning of `answer` to a call for `chat`, made at `now`.
pub(super) fn read_answer(answer: &RawAnswer, chat: i64, now: UnixMillis) -> AnswerMeaning {
    let Ok(read) = serde_json::from_slice::<BotAnswer<SentMessage>>(&answer.body) else {
        return AnswerMeaning::Outcome(foreign_outcome(answer, now));
    };

    if read.ok {
        return AnswerMeaning::Outcome(match read.result {
            Some(sent) => CallOutcome::Accepted {
                platform_ids: vec![message_name(sent.chat.id, sent.message_id)],
                live: None,
            },
            None => doubtful("an answer without a message"),
        });
    }

    error_meaning(read, answer, chat, now)
}

/// Returns the outcome of a change of the message `changed`, which `answer` is the answer to. A change that was made
/// before is made.
pub(super) fn read_change(answer: &RawAnswer, changed: MessageNumber, now: UnixMillis) -> CallOutcome {
    let MessageNumber { chat, message } = changed;
    read_done(answer, chat, vec![message_name(chat, message)], now)
}

/// Returns the outcome of a call that shows in `chat` that the bot writes, which `answer` is the answer to.
pub(super) fn read_typing(answer: &RawAnswer, chat: i64, now: UnixMillis) -> CallOutcome {
    read_done(answer, chat, Vec::new(), now)
}

/// Returns the outcome of a call for `chat` that `answer` is the answer to, with `platform_ids` if it is done.
fn read_done(answer: &RawAnswer, chat: i64, platform_ids: Vec<String>, now: UnixMillis) -> CallOutcome {
    let Ok(read) = serde_json::from_slice::<BotAnswer<serde_json::Value>>(&answer.body) else {
        return foreign_outcome(answer, now);
    };

    let description = read.description.as_deref().unwrap_or_default().to_ascii_lowercase();
    let is_made =
        description.contains("message is not modified") || description.contains("message to delete not found");
    if read.ok || is_made {
        return CallOutcome::Accepted {
            platform_ids,
            live: None,
        };
    }

    match error_meaning(read, answer, chat, now) {
        AnswerMeaning::Outcome(outcome) => outcome,
        // Messages of the former group have no numbers there.
        AnswerMeaning::Moved { chat } => CallOutcome::Refused {
            refusal: Refusal::Permanent,
            reason: format!("the group has become {chat}, and its former messages cannot be changed"),
        },
    }
}

/// Returns the meaning of the error `read` of `answer` to a call for `chat`.
fn error_meaning<T>(read: BotAnswer<T>, answer: &RawAnswer, chat: i64, now: UnixMillis) -> AnswerMeaning {
    let parameters = read.parameters.unwrap_or_default();
    if let Some(chat) = parameters.migrate_to_chat_id {
        return AnswerMeaning::Moved { chat };
    }

    let code = read.error_code.unwrap_or_else(|| i64::from(answer.status));
    let description = read.description.unwrap_or_default();
    let reason = format!("{code}: {}", shorten(&description));

    // Header and body should agree; the longer wait is the safe one.
    let named = parameters.retry_after.map(Duration::from_secs);
    let header = answer.retry_after().and_then(|value| parse_retry_after(value, now));
    let asked = named.max(header).filter(|asked| !asked.is_zero());

    AnswerMeaning::Outcome(match (code, asked) {
        (429 | 503, Some(after)) => CallOutcome::Limited {
            after,
            scope: limit_scope(chat),
            reason,
        },
        (408 | 409 | 425 | 429, after) => CallOutcome::Refused {
            refusal: Refusal::Passing { after },
            reason,
        },
        // The method exists: what is not found is the bot of this token.
        (401 | 404, _) => CallOutcome::Reauth { reason },
        (413, _) => CallOutcome::TooLarge { reason },
        (500..=599, _) => doubtful(&reason),
        (_, _) => refused_outcome(&description, reason),
    })
}

/// Returns the scope of a limit that was met in `chat`. Telegram does not name it: groups have a limit of their own, which
/// a bot meets first, and a direct chat is slower than its limit by our own pace.
const fn limit_scope(chat: i64) -> LimitScope {
    if chat < 0 {
        LimitScope::Destination
    } else {
        LimitScope::Account
    }
}

/// Returns the outcome of a call that was refused with the text `description`.
fn refused_outcome(description: &str, reason: String) -> CallOutcome {
    let text = description.to_ascii_lowercase();
    if text.contains("can't parse entities") || text.contains("can't parse message text") {
        CallOutcome::Unformattable { reason }
    } else if text.contains("message is too long") {
        CallOutcome::TooLarge { reason }
    } else if text.contains("can't initiate conversation") {
        CallOutcome::WindowClosed { reason }
    } else {
        // An unknown chat, a blocked bot, a topic that is gone.
        let refusal = Refusal::Permanent;
        CallOutcome::Refused { refusal, reason }
    }
}

/// Returns the outcome of a call whose answer is none of the Bot API's: a server between, or its own trouble.
fn foreign_outcome(answer: &RawAnswer, now: UnixMillis) -> CallOutcome {
    let status = answer.status;
    // A foreign server may repeat the URL, which has the token: its words go nowhere.
    let outcome = status_outcome(status, answer.retry_after(), "", now);
    let is_limit = matches!(outcome, CallOutcome::Limited { .. });
    match status {
        // The status alone says nothing about the message.
        200..=299 => doubtful(&format!("status {status} with an answer that cannot be read")),
        500..=599 if !is_limit => doubtful(&format!("status {status}")),
        // A proxy or a filter between: it says nothing about the message.
        300..=499 if !is_limit => CallOutcome::Refused {
            refusal: Refusal::Passing { after: None },
            reason: format!("status {status}, not from the Bot API"),
        },
        _ => outcome,
    }
}

/// Returns the outcome of a call that may have sent the message.
fn doubtful(reason: &str) -> CallOutcome {
    CallOutcome::Unreachable {
        sent: RequestSent::Maybe,
        reason: reason.to_owned(),
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

    fn read(status: u16, retry_after: Option<&str>, body: &str) -> AnswerMeaning {
        let answer = RawAnswer::with_retry_after(status, retry_after, body);
        read_answer(&answer, 77, NOW)
    }

    #[track_caller]
    fn check(status: u16, retry_after: Option<&str>, body: &str, expected: &str) {
        let told = match read(status, retry_after, body) {
            AnswerMeaning::Moved { chat } => format!("moved to {chat}"),
            AnswerMeaning::Outcome(outcome) => match outcome {
                CallOutcome::Accepted { platform_ids, .. } => format!("accepted {}", platform_ids.join(" ")),
                CallOutcome::Limited { after, .. } => format!("limited {}", after.as_secs()),
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
            },
        };
        assert_eq!(told, expected, "{status}: {body}");
    }

    /// The body of an error.
    fn error(code: u16, description: &str, parameters: &str) -> String {
        format!(r#"{{"ok":false,"error_code":{code},"description":"{description}","parameters":{{{parameters}}}}}"#)
    }

    #[test]
    fn a_sent_message_is_named_by_its_chat() {
        let body =
            r#"{"ok":true,"result":{"message_id":7,"date":1,"chat":{"id":-1001,"type":"supergroup"},"text":"x"}}"#;
        check(200, None, body, "accepted -1001/7");
    }

    #[test]
    fn a_success_without_a_message_is_a_doubt() {
        for body in [r#"{"ok":true}"#, r#"{"ok":true,"result":true}"#, "", "<html>", "{"] {
            check(200, None, body, "unreachable, sent: Maybe");
        }
    }

    #[test]
    fn errors_are_told_by_the_body_and_not_by_the_status() {
        for (code, description, expected) in [
            (
                400,
                "Bad Request: can't parse entities: Unsupported start tag",
                "unformattable",
            ),
            (400, "Bad Request: message is too long", "too large"),
            (400, "Bad Request: chat not found", "refused"),
            (400, "Bad Request: message thread not found", "refused"),
            (401, "Unauthorized", "reauth"),
            (403, "Forbidden: bot was blocked by the user", "refused"),
            (403, "Forbidden: bot was kicked from the supergroup chat", "refused"),
            (
                403,
                "Forbidden: bot can't initiate conversation with a user",
                "window closed",
            ),
            (404, "Not Found", "reauth"),
            (409, "Conflict", "refused, may pass"),
            (413, "Request Entity Too Large", "too large"),
            (429, "Too Many Requests", "refused, may pass"),
            (500, "Internal Server Error", "unreachable, sent: Maybe"),
        ] {
            check(code, None, &error(code, description, ""), expected);
            check(200, None, &error(code, description, ""), expected);
        }
    }

    #[test]
    fn the_longer_of_two_waits_counts() {
        let body = error(429, "Too Many Requests: retry after 5", r#""retry_after":5"#);
        check(429, None, &body, "limited 5");
        check(429, Some("9"), &body, "limited 9");
        check(429, Some("3"), &body, "limited 5");
        check(200, None, &body, "limited 5");
        check(429, Some("3"), "<html>too many</html>", "limited 3");
    }

    #[test]
    fn a_limit_in_a_group_is_the_groups_and_another_the_accounts() {
        let body = error(429, "Too Many Requests: retry after 5", r#""retry_after":5"#);
        let scope = |chat| {
            let answer = RawAnswer::with_retry_after(429, None, &body);
            match read_answer(&answer, chat, NOW) {
                AnswerMeaning::Outcome(CallOutcome::Limited { scope, .. }) => Some(scope),
                AnswerMeaning::Outcome(_) | AnswerMeaning::Moved { .. } => None,
            }
        };
        assert_eq!(scope(-1_001), Some(LimitScope::Destination));
        assert_eq!(scope(77), Some(LimitScope::Account));
    }

    #[test]
    fn a_group_that_moved_is_named() {
        let body = error(
            400,
            "Bad Request: group chat was upgraded to a supergroup chat",
            r#""migrate_to_chat_id":-1001"#,
        );
        check(400, None, &body, "moved to -1001");
    }

    #[test]
    fn a_server_between_is_no_answer_of_the_bot_api() {
        check(502, None, "<html>Bad Gateway</html>", "unreachable, sent: Maybe");
        check(503, Some("2"), "", "limited 2");
        check(403, None, "<html>blocked</html>", "refused, may pass");
        check(302, None, "", "refused, may pass");

        let AnswerMeaning::Outcome(outcome) = read(404, None, "Cannot POST /bot1:secret/sendMessage") else {
            panic!("an outcome");
        };
        assert!(!format!("{outcome:?}").contains("secret"), "{outcome:?}");
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_panic(status in 100_u16..1_000, header in "\\PC*", body in "\\PC*") {
            let _ = read(status, Some(&header), &body);
            let _ = read(status, None, &error(status, &body.replace(['"', '\\'], ""), ""));
        }
    }
}
