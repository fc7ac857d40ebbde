//! Calls of Discord's REST API. The token is in a header alone, and no error has it.
//!
//! Source: <https://discord.com/developers/docs/reference>, <https://discord.com/developers/docs/topics/rate-limits>.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::RequestBuilder;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shared::clock::SharedClock;
use shared::model::time::{UnixMillis, millis_of};
use shared::platform::discord::{ChannelPlace, DiscordAccount, USER_AGENT};
use shared::platform::http_answer::{ReadBodyError, read_bounded, read_http_date, read_retry_after};

use super::account_context::AccountContext;
use super::address_gate::AddressGate;
use super::api_error::{ApiCallError, LimitScope};
use super::listed_place::{ListedPlace, ThreadPage};

/// Maximum time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time of a call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Time within which the vendor wants to hear that a press has arrived.
const PRESS_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of connections that are kept for further calls.
const MAX_IDLE_CONNECTIONS: usize = 8;

/// Maximum size of an answer, in bytes: 100 messages, each far larger than those of the vendor.
const MAX_ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// Maximum length of the vendor's words in an error, in bytes.
const MAX_WORDS: usize = 300;

/// Maximum number of messages of a page, the vendor's own.
pub const PAGE: usize = 100;

/// Maximum number of guilds of a page, the vendor's own.
pub const GUILD_PAGE: usize = 200;

/// Wait after a limit that names none: it is that of a server before the API.
const BARRED: Duration = Duration::from_mins(1);

/// Maximum wait that the vendor may ask for.
const MAX_ASKED: Duration = Duration::from_hours(24);

/// The bot, as `GET /users/@me` says.
#[derive(Debug, Clone, Deserialize)]
pub struct OwnUser {
    /// Id of the bot.
    pub id: String,
    /// User name.
    #[serde(default)]
    pub username: String,
}

/// How the gateway may be used, as `GET /gateway/bot` says.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct GatewayUse {
    /// URL of the gateway.
    pub url: String,
    /// Sessions that may be begun.
    pub session_start_limit: SessionStarts,
}

/// The sessions that a bot may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct SessionStarts {
    /// Number of sessions that may still be begun.
    pub remaining: u64,
    /// Milliseconds after which the number is full again.
    pub reset_after: u64,
}

#[derive(Debug, Deserialize)]
struct OwnMember {
    #[serde(default)]
    roles: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct RefreshedAddresses {
    refreshed_urls: Vec<RefreshedAddress>,
}

#[derive(Debug, Deserialize)]
struct RefreshedAddress {
    refreshed: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct ErrorBody {
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: u64,
    #[serde(default)]
    retry_after: Option<f64>,
    #[serde(default)]
    global: bool,
}

/// A client of one account. Its `Debug` output has no token. Clones share what they know of the vendor's time.
#[derive(Clone)]
pub struct DiscordClient {
    http: reqwest::Client,
    account: DiscordAccount,
    gate: AddressGate,
    /// Clock of waits, and that of the process.
    timer: SharedClock,
    clock: SharedClock,
    /// Time of the vendor's last answer, and when it came.
    told: Arc<Mutex<Option<(UnixMillis, Instant)>>>,
}

// By hand: the account's token must not be printed.
impl std::fmt::Debug for DiscordClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DiscordClient(…)")
    }
}

impl DiscordClient {
    /// Returns the client of the account of `context`.
    #[must_use]
    pub(super) fn new(context: &AccountContext) -> Self {
        Self {
            http: context.http.clone(),
            account: context.account.clone(),
            gate: context.gate.clone(),
            timer: context.timer.clone(),
            clock: context.clock.clone(),
            told: Arc::default(),
        }
    }

    /// Returns the vendor's time, as its last answer told it; `None` before the first one.
    #[must_use]
    pub fn vendor_time(&self) -> Option<UnixMillis> {
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (time, at) = told?;
        let since = self.clock.monotonic().saturating_duration_since(at);
        Some(time.plus(millis_of(since)))
    }

    /// Returns who the bot is.
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails.
    pub async fn identify(&self) -> Result<OwnUser, ApiCallError> {
        self.get("users/@me").await
    }

    /// Returns how the gateway may be used.
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails.
    pub async fn gateway(&self) -> Result<GatewayUse, ApiCallError> {
        self.get("gateway/bot").await
    }

    /// Returns what `channel` is.
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails.
    pub async fn channel(&self, channel: &str) -> Result<ChannelPlace, ApiCallError> {
        self.get(&format!("channels/{channel}")).await
    }

    /// Returns the ids of the roles of the bot `own` in `guild`.
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails.
    pub async fn own_roles(&self, guild: &str, own: &str) -> Result<Vec<String>, ApiCallError> {
        let member: OwnMember = self.get(&format!("guilds/{guild}/members/{own}")).await?;
        Ok(member.roles)
    }

    /// Returns the next messages of `channel` with ids above `after`, at most [`PAGE`], in the vendor's order.
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails.
    pub async fn messages_after(&self, channel: &str, after: u64) -> Result<Vec<Value>, ApiCallError> {
        let mut url = self.account.base_url.join(&format!("channels/{channel}/messages"));
        url.set_query(Some(&format!("after={after}&limit={PAGE}")));
        let body = self.call(self.http.get(url), ANSWER_TIMEOUT).await?;
        read_body(&body)
    }

    /// Returns the ids of the bot's guilds behind `after`, at most [`GUILD_PAGE`].
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails.
    pub(super) async fn guilds_after(&self, after: &str) -> Result<Vec<String>, ApiCallError> {
        let mut url = self.account.base_url.join("users/@me/guilds");
        url.set_query(Some(&format!("after={after}&limit={GUILD_PAGE}")));
        let body = self.call(self.http.get(url), ANSWER_TIMEOUT).await?;
        let guilds: Vec<ListedPlace> = read_body(&body)?;
        Ok(guilds.into_iter().map(|guild| guild.id).collect())
    }

    /// Returns the channels of `guild`, without threads.
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails.
    pub(super) async fn guild_channels(&self, guild: &str) -> Result<Vec<ListedPlace>, ApiCallError> {
        self.get(&format!("guilds/{guild}/channels")).await
    }

    /// Returns the threads of `guild` that are not archived.
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails.
    pub(super) async fn active_threads(&self, guild: &str) -> Result<ThreadPage, ApiCallError> {
        self.get(&format!("guilds/{guild}/threads/active")).await
    }

    /// Returns the public threads of `channel` that were archived before `before`, those first that were archived last.
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails.
    pub(super) async fn archived_threads(
        &self,
        channel: &str,
        before: Option<&str>,
    ) -> Result<ThreadPage, ApiCallError> {
        let mut url = self
            .account
            .base_url
            .join(&format!("channels/{channel}/threads/archived/public"));
        url.query_pairs_mut()
            .append_pair("limit", &PAGE.to_string())
            .extend_pairs(before.map(|before| ("before", before)));
        let body = self.call(self.http.get(url), ANSWER_TIMEOUT).await?;
        read_body(&body)
    }

    /// Tells the vendor that the press `id` with `token` has arrived; the message stays as it is.
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails. It has no token.
    pub async fn answer_press(&self, id: &str, token: &str) -> Result<(), ApiCallError> {
        let is_word = |text: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        if !is_word(id) || !is_word(token) {
            return Err(ApiCallError::Malformed("a press without id and token".to_owned()));
        }

        // Type 6: the message is not changed now.
        let url = self
            .account
            .base_url
            .join(&format!("interactions/{id}/{token}/callback"));
        let answer = self.http.post(url).json(&json!({"type": 6}));
        self.call(answer, PRESS_TIMEOUT).await.map(|_| ())
    }

    /// Returns another address of the file at `address`, whose own may be void; `None` if there is none.
    ///
    /// # Errors
    /// Returns [`ApiCallError`] if the call fails.
    pub async fn refresh_address(&self, address: &str) -> Result<Option<String>, ApiCallError> {
        let url = self.account.base_url.join("attachments/refresh-urls");
        let request = self.http.post(url).json(&json!({"attachment_urls": [address]}));
        let answer: RefreshedAddresses = read_body(&self.call(request, ANSWER_TIMEOUT).await?)?;
        Ok(answer.refreshed_urls.into_iter().find_map(|found| found.refreshed))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiCallError> {
        let url = self.account.base_url.join(path);
        let body = self.call(self.http.get(url), ANSWER_TIMEOUT).await?;
        read_body(&body)
    }

    async fn call(&self, request: RequestBuilder, within: Duration) -> Result<Vec<u8>, ApiCallError> {
        self.gate.check(self.timer.monotonic())?;
        let answer = self.send(request, within).await;
        if let Err(error) = &answer {
            self.gate.note_error(error, self.timer.monotonic());
        }
        answer
    }

    async fn send(&self, request: RequestBuilder, within: Duration) -> Result<Vec<u8>, ApiCallError> {
        let request = request
            .header(AUTHORIZATION, self.account.authorization())
            .timeout(within);
        let mut response = request.send().await.map_err(describe)?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        if let Some(time) = read_http_date(&headers) {
            *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some((time, self.clock.monotonic()));
        }

        let read = read_bounded(&mut response, MAX_ANSWER_BYTES).await;
        let bytes = read.map_err(|error| match error {
            ReadBodyError::Lost(error) => describe(error),
            ReadBodyError::TooLong { .. } => ApiCallError::Malformed(error.to_string()),
        })?;
        if (200..=299).contains(&status) {
            return Ok(bytes);
        }
        Err(read_error(status, &headers, &bytes))
    }
}

/// Returns an HTTP client with connections of its own. Accounts share one, because each has certificates in memory.
///
/// # Errors
/// Returns [`ApiCallError::Unreachable`] if the system's certificates cannot be loaded.
pub fn open_http() -> Result<reqwest::Client, ApiCallError> {
    reqwest::Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(CONNECT_TIMEOUT)
        // A connection of HTTP/2 cannot become a socket.
        .http1_only()
        // A thousand accounts that start at once would leave as many connections.
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        // A redirect would show the token to another host.
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(describe)
}

fn read_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiCallError> {
    serde_json::from_slice(body).map_err(|error| ApiCallError::Malformed(error.to_string()))
}

/// Reads an answer that is no success.
fn read_error(status: u16, headers: &HeaderMap, body: &[u8]) -> ApiCallError {
    let read: Option<ErrorBody> = serde_json::from_slice(body).ok();
    let (is_api, error) = (read.is_some(), read.unwrap_or_default());
    let scope = limit_scope(headers, &error);
    let mut words = error.message;
    words.truncate(words.floor_char_boundary(MAX_WORDS));
    if error.code != 0 {
        words = format!("{words} ({})", error.code);
    }

    match status {
        401 => ApiCallError::Unauthorized(format!("401 {words}")),
        429 => {
            let header = read_retry_after(headers);
            let exact = error
                .retry_after
                .and_then(|after| Duration::try_from_secs_f64(after).ok());
            let asked = exact.max(header).filter(|asked| !asked.is_zero()).unwrap_or(BARRED);
            ApiCallError::Limited {
                after: asked.min(MAX_ASKED),
                scope,
            }
        }
        // A filter between answers in its own form, and says nothing about what was asked for.
        400..=499 if !is_api => ApiCallError::Unreachable(format!("status {status}, not from the API")),
        _ => ApiCallError::Refused { status, words },
    }
}

/// Returns the calls that a limit is about. The API says its limits in its own form; what does not have it is the answer of
/// a server before the API, which limits addresses.
fn limit_scope(headers: &HeaderMap, error: &ErrorBody) -> LimitScope {
    let is_vendors =
        error.retry_after.is_some() || headers.keys().any(|name| name.as_str().starts_with("x-ratelimit-"));
    let is_global = error.global || headers.contains_key("x-ratelimit-global");
    match (is_vendors, is_global) {
        (false, _) => LimitScope::Address,
        (true, true) => LimitScope::Account,
        (true, false) => LimitScope::Route,
    }
}

/// Describes an error of the HTTP client with its innermost cause, without the URL.
pub(super) fn describe(error: reqwest::Error) -> ApiCallError {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }

    let kind = if error.is_timeout() { "timed out" } else { "failed" };
    let is_outermost = std::error::Error::source(&error).is_none();
    ApiCallError::Unreachable(if is_outermost {
        kind.to_owned()
    } else {
        format!("{kind}: {cause}")
    })
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderValue, RETRY_AFTER};

    use super::*;

    fn read(status: u16, retry_after: Option<&'static str>, body: &str) -> ApiCallError {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(value));
        }
        read_error(status, &headers, body.as_bytes())
    }

    #[test]
    fn errors_are_told_apart() {
        let limited_by = |millis, scope| ApiCallError::Limited {
            after: Duration::from_millis(millis),
            scope,
        };
        let limited = |millis| limited_by(millis, LimitScope::Route);
        assert_eq!(
            read(401, None, r#"{"message": "401: Unauthorized", "code": 0}"#),
            ApiCallError::Unauthorized("401 401: Unauthorized".to_owned())
        );
        assert_eq!(
            read(429, Some("1"), r#"{"message": "x", "retry_after": 1.25}"#),
            limited(1_250)
        );
        assert_eq!(
            read(429, Some("9"), r#"{"message": "x", "retry_after": 1.25}"#),
            limited(9_000)
        );
        assert_eq!(
            read(
                429,
                Some("1"),
                r#"{"message": "x", "retry_after": 1.25, "global": true}"#
            ),
            limited_by(1_250, LimitScope::Account)
        );
        // Not in the API's form: a server before it, which knows addresses only.
        for body in ["<html>", "error code: 1015", "{}", r#"{"error": "slow down"}"#] {
            assert_eq!(read(429, None, body), limited_by(60_000, LimitScope::Address), "{body}");
        }
        assert_eq!(
            read(429, Some("300"), "<html>"),
            limited_by(300_000, LimitScope::Address)
        );
        assert_eq!(
            read(429, Some("0"), r#"{"message": "x", "retry_after": -1}"#),
            limited(60_000)
        );

        let missing = read(403, None, r#"{"message": "Missing Access", "code": 50001}"#);
        assert_eq!(missing.to_string(), "error 403: Missing Access (50001)");
        assert!(missing.is_final());
        assert!(!read(403, None, "<html>").is_final(), "a filter between");
        assert!(!read(502, None, "<html>").is_final());
    }
}
