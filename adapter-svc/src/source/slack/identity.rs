//! Who an account is: asked of Slack at start, and again when a payload says that the app's rights have changed.
//!
//! Source: <https://docs.slack.dev/reference/methods/auth.test>.

use std::time::Duration;

use serde::Deserialize;
use shared::clock::{SharedIds, pause};
use shared::error_chain::describe_causes;
use shared::platform::slack::{SLACK, SlackAccount};
use shared::platform::slack_api::{WebAnswer, is_credential_error};
use shared::process::{Health, ShutdownSignal};
use shared::retry::RetrySchedule;
use tokio::sync::{Notify, watch};

use super::SlackBot;
use crate::source::port::sink::report_account;

/// Maximum time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of a call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// Maximum length of Slack's words in an error, in bytes.
const MAX_WORDS: usize = 200;
/// Time after which an account whose token was refused is asked for again.
const TOKEN_AGAIN: Duration = Duration::from_mins(5);
/// Maximum wait that Slack may ask for.
const MAX_ASKED: Duration = Duration::from_hours(1);

/// Waits after calls that failed, without end.
const RETRY: RetrySchedule = RetrySchedule {
    initial_ms: 500,
    max_ms: 30_000,
    factor: 2.0,
    max_attempts: 0,
    jitter: 0.5,
};

/// The reason why an account's identity is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentifyAccountError {
    /// The token is not valid, or lacks rights.
    #[error("the token is not accepted ({0})")]
    Unauthorized(String),
    /// Too many calls; the value is the wait that Slack asks for.
    #[error("too many calls; retry in {} s", .0.as_secs())]
    Limited(Duration),
    /// Slack refused the call for another reason.
    #[error("error {0}")]
    Refused(String),
    /// There was no answer, or one that cannot be read.
    #[error("no answer: {0}")]
    Unreachable(String),
}

/// The answer to `auth.test`.
#[derive(Debug, Deserialize)]
struct TestedToken {
    team_id: String,
    user_id: String,
    bot_id: Option<String>,
    /// User name of the bot.
    user: Option<String>,
    /// Name of the workspace.
    team: Option<String>,
}

/// An account, and its name at Slack for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownAccount {
    /// Bot of the account.
    pub bot: SlackBot,
    /// Name of the bot and its workspace.
    pub shown: String,
}

/// Opens an HTTP client for the calls of all accounts.
///
/// # Errors
/// Returns the client's error if the system's certificates cannot be loaded.
pub fn open_http() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIMEOUT)
        // A redirect would show the token to another host.
        .redirect(reqwest::redirect::Policy::none())
        .build()
}

/// Asks Slack who the account `name` is.
///
/// # Errors
/// Returns [`IdentifyAccountError`] if the token is refused, or the call fails.
pub async fn identify_account(
    http: &reqwest::Client,
    name: &str,
    account: &SlackAccount,
) -> Result<KnownAccount, IdentifyAccountError> {
    let lost = |error: reqwest::Error| {
        let error = error.without_url();
        IdentifyAccountError::Unreachable(describe_causes("the call failed", &error))
    };
    let request = http
        .post(account.method_url("auth.test"))
        .bearer_auth(account.token.reveal());
    let mut response = request.send().await.map_err(lost)?;
    let status = response.status().as_u16();
    let retry_after = response.headers().get("retry-after");
    let retry_after = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());

    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(IdentifyAccountError::Unreachable(format!(
                "more than {MAX_ANSWER_BYTES} bytes"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    read_identity(name, status, retry_after, &body)
}

/// Reads the answer to `auth.test`: its status, the seconds of `Retry-After`, and its body.
fn read_identity(
    name: &str,
    status: u16,
    retry_after: Option<u64>,
    body: &[u8],
) -> Result<KnownAccount, IdentifyAccountError> {
    if status == 429 {
        return Err(IdentifyAccountError::Limited(Duration::from_secs(
            retry_after.unwrap_or(1),
        )));
    }
    let unreadable =
        || IdentifyAccountError::Unreachable(format!("status {status} with an answer that cannot be read"));
    let answer: WebAnswer = serde_json::from_slice(body).map_err(|_| unreadable())?;
    if !answer.ok {
        let mut words = answer.error.unwrap_or_default();
        words.truncate(words.floor_char_boundary(MAX_WORDS));
        return Err(if is_credential_error(&words) {
            IdentifyAccountError::Unauthorized(words)
        } else {
            IdentifyAccountError::Refused(words)
        });
    }

    let tested: TestedToken = serde_json::from_slice(body).map_err(|_| unreadable())?;
    let shown = format!(
        "@{} in {}",
        tested.user.as_deref().unwrap_or(&tested.user_id),
        tested.team.as_deref().unwrap_or(&tested.team_id)
    );
    let bot = SlackBot {
        name: name.to_owned(),
        team_id: tested.team_id,
        user_id: tested.user_id,
        bot_id: tested.bot_id,
    };
    Ok(KnownAccount { bot, shown })
}

/// What keeps an account's identity known.
pub struct IdentityKeeper {
    /// Name of the account.
    pub name: String,
    /// Account.
    pub account: SlackAccount,
    /// Client of the calls.
    pub http: reqwest::Client,
    /// Where the identity is told.
    pub known: watch::Sender<Option<SlackBot>>,
    /// Woken if the app's rights may have changed.
    pub recheck: std::sync::Arc<Notify>,
    /// State reported by `/readyz`.
    pub health: Health,
    /// Source of randomness for waits.
    pub ids: SharedIds,
}

// By hand: the account's secrets must not be printed.
impl std::fmt::Debug for IdentityKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IdentityKeeper({})", self.name)
    }
}

impl IdentityKeeper {
    /// Keeps the identity known until `shutdown`.
    pub async fn keep(self, shutdown: ShutdownSignal) {
        let mut failures = 0;
        while !shutdown.is_requested() {
            let wait = match identify_account(&self.http, &self.name, &self.account).await {
                Ok(known) => {
                    failures = 0;
                    self.report(Ok(&format!("receiving as {}", known.shown)));
                    self.known.send_replace(Some(known.bot));
                    None
                }
                Err(error) => {
                    failures += 1;
                    let account = &self.name;
                    tracing::warn!(account, failures, %error, "failed to identify an account of Slack");
                    metrics::counter!("nexus_source_failures_total", "source" => SLACK).increment(1);
                    self.report(Err(&self.describe(&error)));
                    Some(self.wait_after(&error, failures))
                }
            };

            tokio::select! {
                () = shutdown.requested() => {}
                () = self.recheck.notified() => {}
                () = async { match wait { Some(wait) => pause(wait).await, None => std::future::pending().await } } => {}
            }
        }
    }

    fn describe(&self, error: &IdentifyAccountError) -> String {
        match error {
            IdentifyAccountError::Unauthorized(_) => format!("stopped: {error}"),
            IdentifyAccountError::Limited(_)
            | IdentifyAccountError::Refused(_)
            | IdentifyAccountError::Unreachable(_) => match *self.known.borrow() {
                Some(_) => format!("receiving; failed to ask for its state: {error}"),
                None => format!("failing: {error}"),
            },
        }
    }

    fn wait_after(&self, error: &IdentifyAccountError, failures: u32) -> Duration {
        let random = self.ids.ulid().random() & 0xFFFF;
        #[expect(clippy::cast_precision_loss, reason = "16 bits fit")]
        let drawn = random as f64 / 65_536.0;
        match error {
            IdentifyAccountError::Unauthorized(_) => TOKEN_AGAIN,
            // Never sooner than Slack says.
            IdentifyAccountError::Limited(asked) => (*asked).min(MAX_ASKED),
            IdentifyAccountError::Refused(_) | IdentifyAccountError::Unreachable(_) => {
                RETRY.delay(failures, drawn).unwrap_or(TOKEN_AGAIN)
            }
        }
    }

    fn report(&self, state: Result<&str, &str>) {
        report_account(&self.health, SLACK, &self.name, state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_decides_and_not_the_status() {
        let read = |status: u16, retry_after: Option<u64>, body: &str| {
            read_identity("app", status, retry_after, body.as_bytes())
        };
        let sound =
            r#"{"ok": true, "team": "Acme", "user": "nexus", "team_id": "T1", "user_id": "U7", "bot_id": "B7"}"#;
        let known = read(200, None, sound).expect("known");
        assert_eq!(known.shown, "@nexus in Acme");
        assert_eq!(
            (known.bot.team_id.as_str(), known.bot.bot_id.as_deref()),
            ("T1", Some("B7"))
        );

        for (status, body, expected) in [
            (
                200,
                r#"{"ok": false, "error": "invalid_auth"}"#,
                IdentifyAccountError::Unauthorized("invalid_auth".to_owned()),
            ),
            (
                200,
                r#"{"ok": false, "error": "fatal_error"}"#,
                IdentifyAccountError::Refused("fatal_error".to_owned()),
            ),
            (429, "", IdentifyAccountError::Limited(Duration::from_secs(7))),
        ] {
            assert_eq!(read(status, Some(7), body), Err(expected), "{body}");
        }
        for body in ["<html>", r#"{"ok": true}"#] {
            assert!(
                matches!(read(502, None, body), Err(IdentifyAccountError::Unreachable(_))),
                "{body}"
            );
        }
    }
}
