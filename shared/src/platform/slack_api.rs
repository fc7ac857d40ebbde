//! Slack's Web API as far as both directions use it: ids, times, the envelope of each answer and its errors. *Pure.*
//!
//! Source: <https://docs.slack.dev/apis/web-api/#responses>, <https://docs.slack.dev/reference/methods/auth.test#errors>.

use serde::Deserialize;

use crate::model::time::UnixMillis;

/// Number of digits after the point of a time stamp.
const FRACTION_DIGITS: usize = 6;

/// Errors that say that the app's token or its rights are not accepted: every call of the account would be refused.
const CREDENTIAL_ERRORS: [&str; 8] = [
    "account_inactive",
    "invalid_auth",
    "missing_scope",
    "not_allowed_token_type",
    "not_authed",
    "org_login_required",
    "token_expired",
    "token_revoked",
];

/// The part of every answer that says whether the call succeeded. `ok` decides, and not the HTTP status.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WebAnswer {
    /// Whether the call succeeded.
    pub ok: bool,
    /// Name of the error, as in `channel_not_found`.
    pub error: Option<String>,
    /// With `missing_scope`: the scope that the app needs.
    pub needed: Option<String>,
}

/// Returns whether `error` says that the account's token is not accepted.
#[must_use]
pub fn is_credential_error(error: &str) -> bool {
    CREDENTIAL_ERRORS.contains(&error)
}

/// Returns the name of a message within its account: `{channel}/{ts}`. Behind `slack:{account}/` it is the id of the
/// event of a received message.
#[must_use]
pub fn message_name(channel: &str, ts: &str) -> String {
    format!("{channel}/{ts}")
}

/// Returns the time of a message's time stamp, which is its id too: seconds with six digits behind the point. `None` for
/// any other text.
///
/// ```
/// use shared::model::time::UnixMillis;
/// use shared::platform::slack_api::parse_stamp;
///
/// assert_eq!(parse_stamp("1767326125.870439"), Some(UnixMillis(1_767_326_125_870)));
/// assert_eq!(parse_stamp("1767326125"), None);
/// ```
#[must_use]
pub fn parse_stamp(text: &str) -> Option<UnixMillis> {
    let (seconds, fraction) = text.split_once('.')?;
    let are_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(seconds) || !are_digits(fraction) || fraction.len() != FRACTION_DIGITS {
        return None;
    }

    let millis: i64 = fraction.get(..3)?.parse().ok()?;
    let seconds: i64 = seconds.parse().ok()?;
    // 12 digits are the year 33658; larger ones are no time.
    (seconds < 1_000_000_000_000).then(|| UnixMillis(seconds * 1_000 + millis))
}

/// Returns whether `text` has the form of a conversation's id: a channel, a group conversation, a direct one.
#[must_use]
pub fn is_conversation_id(text: &str) -> bool {
    is_id(text, &['C', 'D', 'G'])
}

/// Returns whether `text` has the form of a user's id.
#[must_use]
pub fn is_user_id(text: &str) -> bool {
    is_id(text, &['U', 'W'])
}

fn is_id(text: &str, first: &[char]) -> bool {
    let is_rest = |rest: &str| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    text.strip_prefix(first).is_some_and(is_rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_are_read_with_fields_that_are_not_used() {
        let answer: WebAnswer = serde_json::from_str(r#"{"ok": true, "ts": "1.000000", "new": {}}"#).expect("read");
        assert!(answer.ok);
        let answer: WebAnswer =
            serde_json::from_str(r#"{"ok": false, "error": "missing_scope", "needed": "chat:write"}"#).expect("read");
        assert_eq!(answer.needed.as_deref(), Some("chat:write"));
        assert!(is_credential_error(&answer.error.expect("an error")));
        assert!(!is_credential_error("channel_not_found"));
    }

    #[test]
    fn ids_have_a_letter_for_their_kind() {
        for id in ["C012AB3CD", "D0ACX51K95H", "G8PSS9T3V"] {
            assert!(is_conversation_id(id) && !is_user_id(id), "{id}");
        }
        for id in ["U00FAKEUSER1", "W1"] {
            assert!(is_user_id(id) && !is_conversation_id(id), "{id}");
        }
        for id in ["", "C", "#general", "c1", "C1/2", "C1 ", "X1", "<C1>"] {
            assert!(!is_conversation_id(id) && !is_user_id(id), "{id}");
        }
    }

    #[test]
    fn stamps_are_times_and_nothing_else_is() {
        assert_eq!(parse_stamp("0000000000.000000"), Some(UnixMillis(0)));
        assert_eq!(parse_stamp("1.999999"), Some(UnixMillis(1_999)));
        for text in [
            "",
            ".",
            "1.",
            ".000001",
            "1.00000",
            "1.0000000",
            "-1.000000",
            "1.+00000",
            "1000000000000.000000",
            "١.000000",
        ] {
            assert_eq!(parse_stamp(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[0-9.]{0,40}|\\PC{0,20}") {
            let _time = parse_stamp(&text);
        }
    }
}
