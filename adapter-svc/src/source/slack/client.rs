//! Calls of Slack's Web API. `ok` of the answer decides, not the status.
//!
//! Source: <https://docs.slack.dev/apis/web-api/#responses>, <https://docs.slack.dev/reference/methods/auth.test>,
//! <https://docs.slack.dev/reference/methods/apps.connections.open>.

use std::time::Duration;

use reqwest::Url;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use shared::error_chain::describe_causes;
use shared::platform::http_answer::{ReadBodyError, read_bounded, read_retry_after};
use shared::platform::slack::SlackAccount;
use shared::platform::slack_api::{WebAnswer, is_credential_error};
use shared::process::SecretValue;

use super::SlackBot;
use super::payload::NamedById;
use crate::source::port::CALL_RETRY;

/// Maximum time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of a call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of connections that are kept for further calls.
const MAX_IDLE_CONNECTIONS: usize = 8;
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// Maximum size of a page of a history, in bytes: 200 messages, each with its text thrice.
const MAX_PAGE_BYTES: usize = 32 * 1024 * 1024;
/// Number of items of a page: the most that Slack recommends.
const PAGE: &str = "200";
/// Maximum length of Slack's words in an error, in bytes.
const MAX_WORDS: usize = 200;
/// Time after which an account whose token was refused is tried again.
const TOKEN_AGAIN: Duration = Duration::from_mins(5);
/// Error for a rotated token that has ended.
const EXPIRED: &str = "token_expired";
/// Time after which an account whose rotated token has ended is tried again: another may be there soon.
const EXPIRED_AGAIN: Duration = Duration::from_secs(15);
/// Maximum wait that Slack may ask for.
const MAX_ASKED: Duration = Duration::from_hours(1);

/// The reason why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WebCallError {
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

impl WebCallError {
    /// Returns the wait before the call is made again, after `failures` calls that failed one after the other. `drawn`
    /// is a random number from 0 to 1.
    #[must_use]
    pub fn wait(&self, failures: u32, drawn: f64) -> Duration {
        match self {
            Self::Unauthorized(words) if words == EXPIRED => EXPIRED_AGAIN,
            Self::Unauthorized(_) => TOKEN_AGAIN,
            // Never sooner than Slack says.
            Self::Limited(asked) => (*asked).min(MAX_ASKED),
            Self::Refused(_) | Self::Unreachable(_) => CALL_RETRY.delay(failures, drawn).unwrap_or(TOKEN_AGAIN),
        }
    }
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

/// The answer to `apps.connections.open`.
#[derive(Debug, Deserialize)]
struct OpenedConnection {
    url: String,
}

/// The answer to `files.info`.
#[derive(Debug, Deserialize)]
struct FileInfo {
    file: FoundFile,
}

/// A file, as `files.info` says.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct FoundFile {
    /// Address of the file, for a download.
    pub url_private_download: Option<String>,
    /// Address of the file.
    pub url_private: Option<String>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// MIME type, as Slack found it.
    pub mimetype: Option<String>,
}

/// An account, and its name at Slack for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownAccount {
    /// Bot of the account.
    pub bot: SlackBot,
    /// Name of the bot and its workspace.
    pub shown: String,
}

/// Opens an HTTP client for the calls and the sockets of all accounts, which share one, because each has certificates in
/// memory.
///
/// # Errors
/// Returns the client's error if the system's certificates cannot be loaded.
pub fn open_http() -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        // Until an answer is read; a socket goes on.
        .timeout(ANSWER_TIMEOUT)
        // A connection of HTTP/2 cannot become a socket.
        .http1_only()
        // A thousand accounts that start at once would leave as many connections.
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        // A redirect would show the token to another host.
        .redirect(reqwest::redirect::Policy::none())
        .build()
}

/// Asks Slack who the account `name` is.
///
/// # Errors
/// Returns [`WebCallError`] if the token is refused, or the call fails.
pub async fn identify_account(
    http: &reqwest::Client,
    name: &str,
    account: &SlackAccount,
) -> Result<KnownAccount, WebCallError> {
    let tested: TestedToken = call(http, account.method_url("auth.test"), &account.token.current()).await?;
    Ok(known_account(name, tested))
}

/// Asks Slack for the address of a new socket, with the token of the app.
///
/// # Errors
/// Returns [`WebCallError`] if the token is refused, or the call fails.
pub async fn open_connection(
    http: &reqwest::Client,
    account: &SlackAccount,
    token: &SecretValue,
) -> Result<String, WebCallError> {
    let opened: OpenedConnection = call(http, account.method_url("apps.connections.open"), token).await?;
    Ok(opened.url)
}

/// Asks Slack where the file `id` is.
///
/// # Errors
/// Returns [`WebCallError`] if the token is refused, or the call fails.
pub async fn find_file(http: &reqwest::Client, account: &SlackAccount, id: &str) -> Result<FoundFile, WebCallError> {
    let mut url = account.method_url("files.info");
    url.query_pairs_mut().append_pair("file", id);
    let info: FileInfo = call(http, url, &account.token.current()).await?;
    Ok(info.file)
}

/// A page of messages or of conversations.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ListPage {
    /// Messages.
    pub messages: Vec<Value>,
    /// Conversations.
    pub channels: Vec<NamedById>,
    response_metadata: Option<PageMetadata>,
}

/// What a page says about the next one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PageMetadata {
    next_cursor: Option<String>,
}

impl ListPage {
    /// Returns where the next page begins; `None` = there is none.
    #[must_use]
    pub fn next_cursor(&self) -> Option<String> {
        let metadata = self.response_metadata.as_ref()?;
        metadata.next_cursor.clone().filter(|cursor| !cursor.is_empty())
    }
}

/// Returns the page of the list `method` at `cursor`, with the fields `fields`.
///
/// # Errors
/// Returns [`WebCallError`] if the token is refused, or the call fails.
pub async fn read_list(
    http: &reqwest::Client,
    account: &SlackAccount,
    method: &str,
    fields: &[(&str, &str)],
    cursor: Option<&str>,
) -> Result<ListPage, WebCallError> {
    let mut url = account.method_url(method);
    url.query_pairs_mut()
        .extend_pairs(fields)
        .append_pair("limit", PAGE)
        .extend_pairs(cursor.map(|cursor| ("cursor", cursor)));
    call_within(http, url, &account.token.current(), MAX_PAGE_BYTES).await
}

async fn call<T: DeserializeOwned>(http: &reqwest::Client, url: Url, token: &SecretValue) -> Result<T, WebCallError> {
    call_within(http, url, token, MAX_ANSWER_BYTES).await
}

/// Calls `url` with `token`, and reads an answer of at most `max` bytes.
async fn call_within<T: DeserializeOwned>(
    http: &reqwest::Client,
    url: Url,
    token: &SecretValue,
    max: usize,
) -> Result<T, WebCallError> {
    let lost = |error: reqwest::Error| {
        let error = error.without_url();
        WebCallError::Unreachable(describe_causes("the call failed", &error))
    };
    let request = http.post(url).bearer_auth(token.reveal());
    let mut response = request.send().await.map_err(lost)?;
    let status = response.status().as_u16();
    let retry_after = read_retry_after(response.headers());

    let read = read_bounded(&mut response, max).await;
    let body = read.map_err(|error| match error {
        ReadBodyError::Lost(error) => lost(error),
        ReadBodyError::TooLong { .. } => WebCallError::Unreachable(error.to_string()),
    })?;
    read_answer(status, retry_after, &body)
}

/// Reads an answer: its status, the wait in `Retry-After`, and its body.
fn read_answer<T: DeserializeOwned>(
    status: u16,
    retry_after: Option<Duration>,
    body: &[u8],
) -> Result<T, WebCallError> {
    if status == 429 {
        return Err(WebCallError::Limited(retry_after.unwrap_or(Duration::from_secs(1))));
    }
    let unreadable = |_| WebCallError::Unreachable(format!("status {status} with an answer that cannot be read"));
    let answer: WebAnswer = serde_json::from_slice(body).map_err(unreadable)?;
    if answer.ok {
        return serde_json::from_slice(body).map_err(unreadable);
    }

    let mut words = answer.error.unwrap_or_default();
    words.truncate(words.floor_char_boundary(MAX_WORDS));
    Err(if is_credential_error(&words) {
        WebCallError::Unauthorized(words)
    } else {
        WebCallError::Refused(words)
    })
}

fn known_account(name: &str, tested: TestedToken) -> KnownAccount {
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
    KnownAccount { bot, shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_decides_and_not_the_status() {
        let read = |status: u16, retry_after: Option<u64>, body: &str| {
            read_answer(status, retry_after.map(Duration::from_secs), body.as_bytes())
                .map(|tested| known_account("app", tested))
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
                WebCallError::Unauthorized("invalid_auth".to_owned()),
            ),
            (
                200,
                r#"{"ok": false, "error": "fatal_error"}"#,
                WebCallError::Refused("fatal_error".to_owned()),
            ),
            (429, "", WebCallError::Limited(Duration::from_secs(7))),
        ] {
            assert_eq!(read(status, Some(7), body), Err(expected), "{body}");
        }
        for body in ["<html>", r#"{"ok": true}"#] {
            assert!(
                matches!(read(502, None, body), Err(WebCallError::Unreachable(_))),
                "{body}"
            );
        }
    }

    #[test]
    fn a_limit_is_kept_and_a_refused_token_is_not_asked_often() {
        let asked = Duration::from_secs(90);
        assert_eq!(WebCallError::Limited(asked).wait(1, 0.5), asked);
        assert_eq!(WebCallError::Unauthorized(String::new()).wait(1, 0.5), TOKEN_AGAIN);
        let ended = WebCallError::Unauthorized("token_expired".to_owned());
        assert_eq!(ended.wait(9, 0.5), EXPIRED_AGAIN);
        let lost = WebCallError::Unreachable(String::new());
        assert!(lost.wait(1, 0.5) < lost.wait(4, 0.5) && lost.wait(1_000, 1.0) <= Duration::from_secs(45));
    }
}
