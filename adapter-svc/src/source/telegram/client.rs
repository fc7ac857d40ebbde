//! Calls of the Bot API. The token is part of each URL, so no URL is in an error or a log line.
//!
//! Source: <https://core.telegram.org/bots/api#making-requests>. `ok` of the answer decides, not the status.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use reqwest::Url;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shared::model::time::UnixMillis;
use shared::platform::bot_api::{BotAnswer, BotFile, BotUser, WebhookInfo};
use shared::platform::http_answer::{ReadBodyError, read_bounded, read_http_date, read_retry_after};
use shared::platform::telegram::TelegramAccount;
use shared::process::SecretValue;

/// Maximum time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of a call beyond the time for which the server was asked to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Number of posts that the server makes at once: each waits until its event is durable.
const MAX_CONNECTIONS: u32 = 20;
/// Maximum size of an answer, in bytes: 100 updates, each far larger than those of the vendor.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;
/// Maximum length of the vendor's words in an error, in bytes.
const MAX_WORDS: usize = 300;

/// The reason why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BotCallError {
    /// The token is not valid.
    #[error("the token is not accepted ({0})")]
    Unauthorized(String),
    /// Another program reads the bot's updates, or a webhook is set.
    #[error("conflict: {0}")]
    Conflict(String),
    /// Too many calls; the value is the wait that the vendor asks for.
    #[error("too many calls; retry in {} s", .0.as_secs())]
    Limited(Duration),
    /// The vendor refused the call.
    #[error("error {code}: {words}")]
    Refused {
        /// Code of the error.
        code: i64,
        /// The vendor's words.
        words: String,
    },
    /// There was no answer.
    #[error("no answer: {0}")]
    Unreachable(String),
    /// The answer does not have the form that the vendor documents.
    #[error("unreadable answer: {0}")]
    Malformed(String),
}

/// A client of one account. Its `Debug` output has no token.
pub struct BotClient {
    http: reqwest::Client,
    account: TelegramAccount,
    /// Time of the last answer by the server's clock, in milliseconds; 0 = no answer said one.
    platform_time: AtomicI64,
}

// By hand: the account's token must not be printed.
impl std::fmt::Debug for BotClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BotClient(…)")
    }
}

impl BotClient {
    /// Returns the client of `account`, which calls by `http`.
    #[must_use]
    pub const fn new(http: reqwest::Client, account: TelegramAccount) -> Self {
        Self {
            http,
            account,
            platform_time: AtomicI64::new(0),
        }
    }

    /// Returns the time of the last answer by the server's clock, which decides how long updates are kept. `None` if no
    /// answer said one.
    #[must_use]
    pub fn platform_time(&self) -> Option<UnixMillis> {
        let time = self.platform_time.load(Ordering::Relaxed);
        (time > 0).then_some(UnixMillis(time))
    }

    /// Returns who the bot is.
    ///
    /// # Errors
    /// Returns [`BotCallError`] if the call fails.
    pub async fn identify(&self) -> Result<BotUser, BotCallError> {
        self.call("getMe", &json!({}), Duration::ZERO).await
    }

    /// Returns the webhook of the bot, which excludes polling if it has a URL.
    ///
    /// # Errors
    /// Returns [`BotCallError`] if the call fails.
    pub async fn webhook(&self) -> Result<WebhookInfo, BotCallError> {
        self.call("getWebhookInfo", &json!({}), Duration::ZERO).await
    }

    /// Has the server post updates to `url` from now on, with `secret` in a header.
    ///
    /// # Errors
    /// Returns [`BotCallError`] if the call fails.
    pub async fn set_webhook(&self, url: &Url, secret: &SecretValue) -> Result<(), BotCallError> {
        let body = json!({
            "url": url.as_str(), "secret_token": secret.reveal(), "allowed_updates": ALLOWED_UPDATES,
            "max_connections": MAX_CONNECTIONS,
        });
        let _: Value = self.call("setWebhook", &body, Duration::ZERO).await?;
        Ok(())
    }

    /// Removes the webhook. Updates that wait are kept.
    ///
    /// # Errors
    /// Returns [`BotCallError`] if the call fails.
    pub async fn delete_webhook(&self) -> Result<(), BotCallError> {
        let body = json!({"drop_pending_updates": false});
        let _: Value = self.call("deleteWebhook", &body, Duration::ZERO).await?;
        Ok(())
    }

    /// Returns the next updates. `offset` confirms all updates below it; the server waits up to `wait` for the first.
    ///
    /// # Errors
    /// Returns [`BotCallError`] if the call fails.
    pub async fn updates(&self, offset: Option<i64>, wait: Duration) -> Result<Vec<Value>, BotCallError> {
        let mut body = json!({"timeout": wait.as_secs(), "limit": BATCH, "allowed_updates": ALLOWED_UPDATES});
        if let Some(offset) = offset {
            body["offset"] = json!(offset);
        }
        self.call("getUpdates", &body, wait).await
    }

    /// Tells the user's client that the press `id` has arrived; until then it shows that it waits.
    ///
    /// # Errors
    /// Returns [`BotCallError`] if the call fails.
    pub async fn answer_press(&self, id: &str) -> Result<(), BotCallError> {
        let body = json!({"callback_query_id": id});
        let _: Value = self.call("answerCallbackQuery", &body, Duration::ZERO).await?;
        Ok(())
    }

    /// Returns where the file with the id `file_id` is.
    ///
    /// # Errors
    /// Returns [`BotCallError`] if the call fails.
    pub async fn find_file(&self, file_id: &str) -> Result<BotFile, BotCallError> {
        self.call("getFile", &json!({"file_id": file_id}), Duration::ZERO).await
    }

    async fn call<T: DeserializeOwned>(&self, method: &str, body: &Value, wait: Duration) -> Result<T, BotCallError> {
        let request = self
            .http
            .post(self.account.method_url(method))
            .timeout(wait + ANSWER_TIMEOUT)
            .json(body);
        let mut response = request.send().await.map_err(|error| describe(&error))?;
        if let Some(time) = read_http_date(response.headers()) {
            self.platform_time.store(time.0, Ordering::Relaxed);
        }
        let status = i64::from(response.status().as_u16());
        let retry_after = read_retry_after(response.headers());

        let read = read_bounded(&mut response, MAX_ANSWER_BYTES).await;
        let bytes = read.map_err(|error| match error {
            ReadBodyError::Lost(error) => describe(&error),
            ReadBodyError::TooLong { .. } => BotCallError::Malformed(error.to_string()),
        })?;
        read_answer(status, retry_after, &bytes)
    }
}

/// Returns an HTTP client with connections of its own. Accounts share one, because each has certificates in memory.
///
/// # Errors
/// Returns [`BotCallError::Unreachable`] if the system's certificates cannot be loaded.
pub fn open_http() -> Result<reqwest::Client, BotCallError> {
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        // Calls that wait for a minute would fill the streams of a connection that they share.
        .http1_only()
        // A redirect would show the token to another host.
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| describe(&error))
}

/// Maximum number of updates of a call, the vendor's own.
pub const BATCH: usize = 100;

/// Kinds of updates that are asked for. Reactions and members come only if they are named.
pub const ALLOWED_UPDATES: [&str; 10] = [
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "message_reaction",
    "message_reaction_count",
    "callback_query",
    "my_chat_member",
    "chat_member",
    "chat_join_request",
];

/// Reads the answer to a call: its status, the wait in `Retry-After`, and its body.
fn read_answer<T: DeserializeOwned>(
    status: i64,
    retry_after: Option<Duration>,
    body: &[u8],
) -> Result<T, BotCallError> {
    let answer: BotAnswer<T> = match serde_json::from_slice(body) {
        Ok(answer) => answer,
        // A proxy in front of the server answers in its own form.
        Err(_) if status >= 500 || status == 429 => BotAnswer {
            ok: false,
            result: None,
            error_code: Some(status),
            description: None,
            parameters: None,
        },
        Err(error) => return Err(BotCallError::Malformed(format!("status {status}: {error}"))),
    };

    if answer.ok {
        return answer
            .result
            .ok_or_else(|| BotCallError::Malformed("no `result`".to_owned()));
    }

    let code = answer.error_code.unwrap_or(status);
    let mut words = answer.description.unwrap_or_default();
    words.truncate(words.floor_char_boundary(MAX_WORDS));

    Err(match code {
        // A token of a wrong form is a path that does not exist.
        401 | 404 => BotCallError::Unauthorized(format!("{code} {words}")),
        409 => BotCallError::Conflict(words),
        429 => {
            let asked = answer.parameters.and_then(|parameters| parameters.retry_after);
            let asked = asked.map(Duration::from_secs);
            BotCallError::Limited(asked.max(retry_after).unwrap_or(Duration::from_secs(1)))
        }
        code => BotCallError::Refused { code, words },
    })
}

/// Describes an error of the HTTP client with its causes, without the URL.
fn describe(error: &reqwest::Error) -> BotCallError {
    // The innermost cause names the fault; the outer ones repeat the URL.
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }

    let kind = if error.is_timeout() { "timed out" } else { "failed" };
    let is_outermost = std::error::Error::source(error).is_none();
    BotCallError::Unreachable(if is_outermost {
        kind.to_owned()
    } else {
        format!("{kind}: {cause}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: i64, retry_after: Option<u64>, body: &str) -> Result<i64, BotCallError> {
        read_answer(status, retry_after.map(Duration::from_secs), body.as_bytes())
    }

    #[test]
    fn the_answer_decides_and_not_its_status() {
        assert_eq!(read(500, None, r#"{"ok": true, "result": 5}"#), Ok(5));
        for (status, header, body, expected) in [
            (
                200,
                None,
                r#"{"ok": false, "error_code": 401, "description": "Unauthorized"}"#,
                BotCallError::Unauthorized("401 Unauthorized".to_owned()),
            ),
            (
                404,
                None,
                r#"{"ok": false}"#,
                BotCallError::Unauthorized("404 ".to_owned()),
            ),
            (
                409,
                None,
                r#"{"ok": false, "error_code": 409, "description": "Conflict: x"}"#,
                BotCallError::Conflict("Conflict: x".to_owned()),
            ),
            (
                429,
                Some(9),
                r#"{"ok": false, "error_code": 429, "parameters": {"retry_after": 7}}"#,
                BotCallError::Limited(Duration::from_secs(9)),
            ),
            (429, Some(9), "<html>", BotCallError::Limited(Duration::from_secs(9))),
            (
                502,
                None,
                "<html>",
                BotCallError::Refused {
                    code: 502,
                    words: String::new(),
                },
            ),
        ] {
            assert_eq!(read(status, header, body), Err(expected), "{body}");
        }

        assert!(matches!(read(200, None, "<html>"), Err(BotCallError::Malformed(_))));
        assert!(matches!(
            read(200, None, r#"{"ok": true}"#),
            Err(BotCallError::Malformed(_))
        ));
    }
}
