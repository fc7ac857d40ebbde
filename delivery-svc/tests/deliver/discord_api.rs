//! A stand-in for Discord's REST API as senders see it, which misbehaves as the vendor's servers do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, patch, post, put};
use axum::{Json, Router};
use futures_util::stream;
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::platform::accounts::read_platforms;
use shared::platform::discord::DiscordAccount;

use crate::form::{read_form, shown_file};

/// Time after which a late answer comes, in milliseconds.
const LATE_MS: u64 = 300;

/// Direct channel of the stand-in; all others are of a guild.
pub(crate) const DIRECT: u64 = 77;

/// What it does with a call instead of creating the message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Misdeed {
    /// 429 of the channel, with the wait in milliseconds.
    Limit(u64),
    /// 429 of all calls of the bot.
    GlobalLimit(u64),
    /// The message is created, and the channel takes no other for so many milliseconds since the answer, which is late.
    LastOfBucket(u64),
    /// 403: no access to the channel.
    Forbidden,
    /// The message is created, and the connection ends within the answer.
    Lost,
    /// The message is created, and no answer comes.
    Silent,
    /// The message is not created, and no answer comes.
    Swallowed,
    /// A page of a server between.
    Gateway,
}

/// A call that creates a message.
#[derive(Debug, Clone)]
pub(crate) struct CreateCall {
    pub(crate) at: Instant,
    pub(crate) token: String,
    pub(crate) body: Value,
}

#[derive(Debug, Default)]
struct Platform {
    /// What it does with the next calls.
    misdeeds: VecDeque<Misdeed>,
    calls: Vec<CreateCall>,
    /// Messages: channel, id, nonce, text.
    messages: Vec<(u64, usize, String, String)>,
    /// Tokens that it refuses.
    refused: Vec<String>,
    /// Whether it has forgotten the nonces.
    forgets: bool,
    /// Calls that change messages, or show that the bot writes: `{method} {path} {words}`.
    changes: Vec<String>,
    /// Whether the history is hidden from bots.
    hides: bool,
    /// Time until which a token and a channel were told to wait; 0 is every channel.
    told: BTreeMap<(String, u64), Instant>,
    /// Number of calls that came earlier than told.
    early: usize,
    looked_up: usize,
}

/// The stand-in; clones are the same server.
#[derive(Debug, Clone)]
pub(crate) struct DiscordApi {
    base: String,
    platform: Arc<Mutex<Platform>>,
}

impl DiscordApi {
    /// Starts a server that does `misdeeds` with its first calls.
    pub(crate) async fn start(misdeeds: &[Misdeed]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}/api", listener.local_addr().expect("an address"));
        let platform = Platform {
            misdeeds: misdeeds.iter().copied().collect(),
            ..Platform::default()
        };

        let this = Self {
            base,
            platform: Arc::new(Mutex::new(platform)),
        };
        let router = Router::new()
            .route("/api/channels/{channel}/messages", post(create).get(read))
            .route("/api/channels/{channel}", get(look_up))
            .route("/api/channels/{channel}/typing", post(change))
            .route(
                "/api/channels/{channel}/messages/{message}",
                patch(change).delete(change),
            )
            .route(
                "/api/channels/{channel}/messages/{message}/reactions/{emoji}/@me",
                put(change).delete(change),
            )
            .with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        this
    }

    /// Refuses the calls of `tokens`, and no others.
    pub(crate) fn refuse(&self, tokens: &[&str]) {
        self.lock().refused = tokens.iter().map(|&token| token.to_owned()).collect();
    }

    /// Forgets all nonces, as after some minutes.
    pub(crate) fn forget_nonces(&self) {
        self.lock().forgets = true;
    }

    /// Does `misdeed` with the next call.
    pub(crate) fn misdo(&self, misdeed: Misdeed) {
        self.lock().misdeeds.push_back(misdeed);
    }

    /// Returns the calls that change messages, or show that the bot writes.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.lock().changes.clone()
    }

    /// Answers every question for messages with none, as for a bot that may not read the history.
    pub(crate) fn hide_history(&self) {
        self.lock().hides = true;
    }

    /// Returns the calls that create messages.
    pub(crate) fn calls(&self) -> Vec<CreateCall> {
        self.lock().calls.clone()
    }

    /// Returns the texts of the messages in `channel`.
    pub(crate) fn texts(&self, channel: u64) -> Vec<String> {
        let platform = self.lock();
        let here = platform.messages.iter().filter(|message| message.0 == channel);
        here.map(|message| message.3.clone()).collect()
    }

    /// Returns the number of calls that came earlier than told.
    pub(crate) fn early(&self) -> usize {
        self.lock().early
    }

    /// Returns the number of times that a channel was looked up.
    pub(crate) fn looked_up(&self) -> usize {
        self.lock().looked_up
    }

    /// Returns the account with `token` and `keys` on this server.
    pub(crate) fn account(&self, token: &str, keys: &str) -> DiscordAccount {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), token).expect("written");
        let text = format!(
            "discord: {{accounts: {{bot: {{token: 'file:{}', base_url: '{}', {keys}}}}}}}",
            file.path().display(),
            self.base
        );
        let mut accounts = read_platforms(&text).expect("read").discord.accounts;
        accounts.remove("bot").expect("the account")
    }

    fn lock(&self) -> MutexGuard<'_, Platform> {
        self.platform.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Platform {
    /// Notes a call; returns what is done with it, and whether its token is refused.
    fn note(&mut self, token: &str, channel: u64, body: &Value) -> (Option<Misdeed>, bool) {
        let at = SystemClock.monotonic();
        let told = |channel: u64| {
            self.told
                .get(&(token.to_owned(), channel))
                .is_some_and(|until| at < *until)
        };
        if told(channel) || told(0) {
            self.early += 1;
        }

        let is_refused = self.refused.iter().any(|refused| refused == token);
        let misdeed = self.misdeeds.pop_front().filter(|_| !is_refused);
        let until = |millis| at + Duration::from_millis(millis);
        match misdeed {
            Some(Misdeed::Limit(millis)) => {
                self.told.insert((token.to_owned(), channel), until(millis));
            }
            Some(Misdeed::LastOfBucket(millis)) => {
                self.told.insert((token.to_owned(), channel), until(millis + LATE_MS));
            }
            Some(Misdeed::GlobalLimit(millis)) => {
                self.told.insert((token.to_owned(), 0), until(millis));
            }
            Some(Misdeed::Forbidden | Misdeed::Lost | Misdeed::Silent | Misdeed::Swallowed | Misdeed::Gateway)
            | None => {}
        }

        self.calls.push(CreateCall {
            at,
            token: token.to_owned(),
            body: body.clone(),
        });
        (misdeed, is_refused)
    }

    /// Creates a message, or finds that of the same nonce; returns its id.
    fn create(&mut self, channel: u64, body: &Value) -> usize {
        let text = |key: &str| body[key].as_str().expect("a text").to_owned();
        let nonce = text("nonce");
        assert!(body["enforce_nonce"] == true && nonce.len() <= 25, "{body}");
        let known = self
            .messages
            .iter()
            .find(|message| message.0 == channel && message.2 == nonce);
        if let Some(known) = known.filter(|_| !self.forgets) {
            return known.1;
        }

        let id = 1_000 + self.messages.len();
        self.messages.push((channel, id, nonce, text("content")));
        id
    }
}

fn token_of(headers: &HeaderMap) -> String {
    let value = headers.get("authorization").and_then(|value| value.to_str().ok());
    let agent = headers.get("user-agent").and_then(|value| value.to_str().ok());
    assert!(
        agent.is_some_and(|agent| agent.starts_with("DiscordBot (https://")),
        "{agent:?}"
    );
    value
        .and_then(|value| value.strip_prefix("Bot "))
        .expect("a bot")
        .to_owned()
}

fn error(status: StatusCode, code: u64, message: &str) -> Response {
    (status, Json(json!({"message": message, "code": code}))).into_response()
}

/// Changes a message, or shows that the bot writes.
async fn change(State(api): State<DiscordApi>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let _token = token_of(&headers);
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if method == Method::PATCH {
        assert_eq!(body["components"], json!([]), "{body}");
    }
    let path = uri.path().trim_start_matches("/api/channels/").to_owned();
    let words = body["content"].as_str().unwrap_or_default();
    let (misdeed, is_repeated) = {
        let mut platform = api.lock();
        let change = format!("{method} {path} {words}");
        let is_repeated = platform.changes.contains(&change);
        platform.changes.push(change);
        (platform.misdeeds.pop_front(), is_repeated)
    };
    match misdeed {
        Some(Misdeed::Silent) => std::future::pending().await,
        _ if method == Method::DELETE && is_repeated => error(StatusCode::NOT_FOUND, 10_008, "Unknown Message"),
        _ if method == Method::PATCH => Json(json!({"id": "1", "channel_id": "2"})).into_response(),
        _ => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn look_up(State(api): State<DiscordApi>, Path(channel): Path<u64>, headers: HeaderMap) -> Response {
    let mut platform = api.lock();
    platform.looked_up += 1;
    if platform.refused.contains(&token_of(&headers)) {
        return error(StatusCode::UNAUTHORIZED, 0, "401: Unauthorized");
    }
    let id = channel.to_string();
    if channel == DIRECT {
        return Json(json!({"id": id, "type": 1, "recipients": [{"id": "5"}]})).into_response();
    }
    Json(json!({"id": id, "type": 0, "guild_id": "20", "name": "general", "parent_id": null})).into_response()
}

/// Returns the newest messages of a channel, newest first.
async fn read(State(api): State<DiscordApi>, Path(channel): Path<u64>, headers: HeaderMap) -> Response {
    let platform = api.lock();
    if platform.refused.contains(&token_of(&headers)) {
        return error(StatusCode::UNAUTHORIZED, 0, "401: Unauthorized");
    }
    // Somebody wrote long ago.
    let first = json!({"id": "1", "content": "hello", "author": {"id": "5"}});
    let here = platform.messages.iter().filter(|message| message.0 == channel);
    let sent = here.map(|(_, id, nonce, text)| {
        json!({"id": id.to_string(), "nonce": nonce, "content": text, "author": {"id": "19862", "bot": true}})
    });
    let mut all: Vec<Value> = std::iter::once(first).chain(sent).collect();
    all.reverse();
    if platform.hides {
        all.clear();
    }
    Json(all).into_response()
}

/// The message in `body`; a file in a form is its text.
fn read_body(headers: &HeaderMap, body: &[u8]) -> Value {
    let Some(fields) = read_form(headers, body) else {
        return serde_json::from_slice(body).expect("a JSON body");
    };
    let named = |name: &str| fields.iter().find(|field| field.name == name).expect("a field");
    let mut message: Value = serde_json::from_str(&named("payload_json").text()).expect("a JSON payload");
    let file = named("files[0]");
    let name = file.filename.as_deref().expect("a name");
    assert_eq!(message["attachments"], json!([{"id": 0, "filename": name}]));
    message["content"] = json!(shown_file(name, &file.bytes));
    message
}

async fn create(State(api): State<DiscordApi>, Path(channel): Path<u64>, headers: HeaderMap, body: Bytes) -> Response {
    let body = read_body(&headers, &body);
    let (misdeed, is_refused) = api.lock().note(&token_of(&headers), channel, &body);
    if is_refused {
        return error(StatusCode::UNAUTHORIZED, 0, "401: Unauthorized");
    }

    let created = || {
        let id = api.lock().create(channel, &body);
        Json(json!({"id": id.to_string(), "channel_id": channel.to_string(), "content": body["content"]}))
    };
    match misdeed {
        None => created().into_response(),
        Some(Misdeed::LastOfBucket(millis)) => {
            pause(Duration::from_millis(LATE_MS)).await;
            let mut last = created().into_response();
            let seconds = f64::from(u32::try_from(millis).expect("small")) / 1_000.0;
            let headers = last.headers_mut();
            headers.insert("x-ratelimit-remaining", 0.into());
            headers.insert("x-ratelimit-reset-after", seconds.to_string().parse().expect("a value"));
            last
        }
        Some(Misdeed::Limit(millis)) => limited(millis, "user"),
        Some(Misdeed::GlobalLimit(millis)) => limited(millis, "global"),
        Some(Misdeed::Forbidden) => error(StatusCode::FORBIDDEN, 50_001, "Missing Access"),
        Some(Misdeed::Lost) => {
            let _created = created();
            let torn = stream::iter([Ok(Bytes::from_static(b"{\"id\":")), Err(std::io::Error::other("torn"))]);
            Response::new(Body::from_stream(torn))
        }
        Some(Misdeed::Silent) => {
            let _created = created();
            std::future::pending().await
        }
        Some(Misdeed::Swallowed) => std::future::pending().await,
        Some(Misdeed::Gateway) => (StatusCode::BAD_GATEWAY, "<html>Bad Gateway</html>").into_response(),
    }
}

/// 429 with an exact wait in the body, and the whole seconds below it in the header.
fn limited(millis: u64, scope: &str) -> Response {
    let seconds = f64::from(u32::try_from(millis).expect("small")) / 1_000.0;
    let body = json!({"message": "You are being rate limited.", "retry_after": seconds, "global": scope == "global"});
    let mut limited = (StatusCode::TOO_MANY_REQUESTS, Json(body)).into_response();
    limited.headers_mut().insert("retry-after", (millis / 1_000).into());
    limited
        .headers_mut()
        .insert("x-ratelimit-scope", scope.parse().expect("a value"));
    limited
}
