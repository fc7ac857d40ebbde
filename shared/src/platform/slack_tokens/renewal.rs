//! The call that renews a token, and its answer.
//!
//! Source: <https://docs.slack.dev/reference/methods/oauth.v2.access>.

use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;

use crate::error_chain::describe_causes;
use crate::platform::http_answer::{ReadBodyError, read_bounded, read_retry_after};
use crate::platform::slack::{REFRESH_PREFIXES, ROTATED_PREFIXES, SlackAccount, TokenRotation, has_token_form};
use crate::platform::slack_api::WebAnswer;
use crate::process::SecretValue;

/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Maximum length of Slack's words in an error, in bytes.
const MAX_WORDS: usize = 200;
/// Wait without `Retry-After`.
const LIMITED_WAIT: Duration = Duration::from_secs(30);
/// Errors that pass: Slack, and not the token, is at fault.
const PASSING: [&str; 5] = [
    "fatal_error",
    "internal_error",
    "ratelimited",
    "request_timeout",
    "service_unavailable",
];

/// The tokens that Slack gave.
pub(super) struct GivenTokens {
    /// Bot token.
    pub(super) access: String,
    /// Token with which it is renewed.
    pub(super) refresh: String,
    /// Time for which the bot token lasts, in seconds.
    pub(super) expires_in: i64,
}

// By hand: the tokens are not printed.
impl std::fmt::Debug for GivenTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GivenTokens({} s)", self.expires_in)
    }
}

/// The reason why a token was not renewed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RenewTokenError {
    /// Slack does not accept the refresh token, or the app's id or secret.
    #[error("Slack refuses to renew the token ({0})")]
    Refused(String),
    /// Too many calls; the value is the wait that Slack asks for.
    #[error("too many calls; retry in {} s", .0.as_secs())]
    Limited(Duration),
    /// There was no answer that could be read. Slack may have used the refresh token up.
    #[error("no answer: {0}")]
    Unanswered(String),
}

/// The answer of a successful call.
#[derive(Deserialize)]
struct RenewedAnswer {
    access_token: String,
    refresh_token: String,
    expires_in: i64,
}

/// Asks Slack for the tokens that follow `refresh`, with the app of `rotation`.
///
/// # Errors
/// Returns [`RenewTokenError`] if Slack refuses, or gives no answer.
pub(super) async fn renew_token(
    http: &reqwest::Client,
    account: &SlackAccount,
    rotation: &TokenRotation,
    refresh: &SecretValue,
) -> Result<GivenTokens, RenewTokenError> {
    let url = account.method_url("oauth.v2.access");
    // In the body, and not in the address, which a proxy may note.
    let mut form = url.clone();
    form.query_pairs_mut()
        .append_pair("grant_type", "refresh_token")
        .append_pair("client_id", rotation.client_id.reveal())
        .append_pair("client_secret", rotation.client_secret.reveal())
        .append_pair("refresh_token", refresh.reveal());
    let body = form.query().unwrap_or_default().to_owned();

    let lost = |error: reqwest::Error| {
        let error = error.without_url();
        RenewTokenError::Unanswered(describe_causes("the call failed", &error))
    };
    let request = http.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let mut response = request.body(body).send().await.map_err(lost)?;
    let status = response.status().as_u16();
    let retry_after = read_retry_after(response.headers());
    let read = read_bounded(&mut response, MAX_ANSWER_BYTES).await;
    let body = read.map_err(|error| match error {
        ReadBodyError::Lost(error) => lost(error),
        ReadBodyError::TooLong { .. } => RenewTokenError::Unanswered(error.to_string()),
    })?;
    read_answer(status, retry_after, &body)
}

/// Reads an answer: its status, the wait in `Retry-After`, and its body. Errors never repeat the body.
fn read_answer(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Result<GivenTokens, RenewTokenError> {
    if status == 429 {
        return Err(RenewTokenError::Limited(retry_after.unwrap_or(LIMITED_WAIT)));
    }
    let unreadable = || RenewTokenError::Unanswered(format!("status {status} with an answer that cannot be read"));
    let answer: WebAnswer = serde_json::from_slice(body).map_err(|_| unreadable())?;
    if !answer.ok {
        let mut words = answer.error.unwrap_or_default();
        words.truncate(words.floor_char_boundary(MAX_WORDS));
        return Err(if PASSING.contains(&words.as_str()) {
            RenewTokenError::Unanswered(format!("error {words}"))
        } else {
            RenewTokenError::Refused(words)
        });
    }

    let given: RenewedAnswer = serde_json::from_slice(body).map_err(|_| unreadable())?;
    let is_sound = has_token_form(&given.access_token, &ROTATED_PREFIXES)
        && has_token_form(&given.refresh_token, &REFRESH_PREFIXES)
        && given.expires_in > 0;
    if !is_sound {
        return Err(RenewTokenError::Refused(
            "an answer without rotated tokens of a bot".to_owned(),
        ));
    }
    Ok(GivenTokens {
        access: given.access_token,
        refresh: given.refresh_token,
        expires_in: given.expires_in,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_both_tokens_and_its_errors_have_none() {
        let sound = br#"{"ok": true, "access_token": "xoxe.xoxb-1", "refresh_token": "xoxe-1-2", "expires_in": 43200,
                         "token_type": "bot", "scope": "chat:write"}"#;
        let given = read_answer(200, None, sound).expect("read");
        assert_eq!(
            (given.access.as_str(), given.refresh.as_str()),
            ("xoxe.xoxb-1", "xoxe-1-2")
        );
        assert!(given.expires_in == 43_200 && !format!("{given:?}").contains("xox"));

        let refused = |error: &str| Err::<(), _>(RenewTokenError::Refused(error.to_owned()));
        let read = |status: u16, body: &str| read_answer(status, None, body.as_bytes()).map(drop);
        assert_eq!(
            read(200, r#"{"ok": false, "error": "invalid_refresh_token"}"#),
            refused("invalid_refresh_token")
        );
        assert_eq!(read(429, ""), Err(RenewTokenError::Limited(LIMITED_WAIT)));
        let lasting = r#"{"ok": true, "access_token": "xoxb-hidden", "refresh_token": "xoxe-1", "expires_in": 1}"#;
        assert!(matches!(read(200, lasting), Err(RenewTokenError::Refused(_))));
        for body in [
            "<html>",
            r#"{"ok": true, "access_token": "xoxe.xoxb-hidden"}"#,
            r#"{"ok": false, "error": "fatal_error"}"#,
        ] {
            let error = read(502, body).expect_err("not renewed");
            assert!(matches!(error, RenewTokenError::Unanswered(_)), "{body}");
            assert!(!error.to_string().contains("hidden"), "{error}");
        }
    }
}
