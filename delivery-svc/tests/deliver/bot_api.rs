//! A stand-in for Telegram's Bot API that misbehaves as the vendor's servers do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::stream;
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock};
use shared::platform::accounts::read_platforms;
use shared::platform::telegram::TelegramAccount;

use crate::form::{Field, read_form, shown_file};

/// What it does with a call instead of sending the message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lie {
    /// 429, with the wait in seconds.
    Limit(u64),
    /// The same, with status 200 and without the header.
    QuietLimit(u64),
    /// 400: the markup cannot be read.
    Unreadable,
    /// 400: the picture cannot be shown.
    Unshowable,
    /// 403: the user has blocked the bot.
    Blocked,
    /// 400: the group is now this one.
    Moved(i64),
    /// The message is sent, and the connection ends within the answer.
    Lost,
    /// The message is sent, and no answer comes.
    Silent,
    /// A page of a server between.
    Gateway,
}

/// A call of `sendMessage`.
#[derive(Debug, Clone)]
pub(crate) struct BotCall {
    pub(crate) at: Instant,
    pub(crate) token: String,
    pub(crate) chat: i64,
    pub(crate) body: Value,
    /// Whether the message was sent.
    pub(crate) is_sent: bool,
}

#[derive(Debug, Default)]
struct Platform {
    /// What it does with the next calls.
    lies: VecDeque<Lie>,
    /// What it does with the next calls that change messages.
    lies_to_changes: VecDeque<Lie>,
    /// Calls that change messages, or show that the bot writes: `{method} {chat}/{message} {words}`.
    changes: Vec<String>,
    /// Messages by chat and number, as they are shown.
    shown: BTreeMap<(i64, i64), String>,
    calls: Vec<BotCall>,
    /// Tokens that it refuses.
    refused: Vec<String>,
    /// Maximum number of messages to a chat in a period.
    limit: Option<(usize, Duration)>,
    /// Time until which each chat of a token is limited, as its calls were told.
    told: BTreeMap<(String, i64), Instant>,
    /// Number of calls that came earlier than told.
    early: usize,
    /// Time until which calls that change messages are limited, as they were told.
    changes_told: Option<Instant>,
    /// Number of those that came earlier than told.
    early_changes: usize,
}

/// The stand-in; clones are the same server.
#[derive(Debug, Clone)]
pub(crate) struct BotApi {
    base: String,
    platform: Arc<Mutex<Platform>>,
}

impl BotApi {
    /// Starts a server that does `lies` with its first calls.
    pub(crate) async fn start(lies: &[Lie]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let platform = Platform {
            lies: lies.iter().copied().collect(),
            ..Platform::default()
        };

        let this = Self {
            base,
            platform: Arc::new(Mutex::new(platform)),
        };
        let router = Router::new()
            .route("/{bot}/{method}", post(answer))
            .with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        this
    }

    /// Does `lie` with the next call that changes a message.
    pub(crate) fn lie_to_change(&self, lie: Lie) {
        self.lock().lies_to_changes.push_back(lie);
    }

    /// Does `lie` with the next call.
    pub(crate) fn lie(&self, lie: Lie) {
        self.lock().lies.push_back(lie);
    }

    /// Returns the calls that change messages, or show that the bot writes.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.lock().changes.clone()
    }

    /// Returns the texts that are shown, in order.
    pub(crate) fn shown(&self) -> Vec<String> {
        self.lock().shown.values().cloned().collect()
    }

    /// Allows `messages` to each chat in `period`.
    pub(crate) fn limit(&self, messages: usize, period: Duration) {
        self.lock().limit = Some((messages, period));
    }

    /// Refuses the calls of `tokens`, and no others.
    pub(crate) fn refuse(&self, tokens: &[&str]) {
        self.lock().refused = tokens.iter().map(|&token| token.to_owned()).collect();
    }

    /// Returns the calls of `sendMessage`.
    pub(crate) fn calls(&self) -> Vec<BotCall> {
        self.lock().calls.clone()
    }

    /// Returns the texts of the messages in `chat`.
    pub(crate) fn texts(&self, chat: i64) -> Vec<String> {
        let platform = self.lock();
        let sent = platform.calls.iter().filter(|call| call.chat == chat && call.is_sent);
        sent.map(|call| call.body["text"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Returns the number of calls that came earlier than their chat was told.
    pub(crate) fn early(&self) -> usize {
        self.lock().early
    }

    /// Returns the number of calls that change messages and came earlier than they were told.
    pub(crate) fn early_changes(&self) -> usize {
        self.lock().early_changes
    }

    /// Returns the account with `token` and `keys` on this server.
    pub(crate) fn account(&self, token: &str, keys: &str) -> TelegramAccount {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), token).expect("written");
        let text = format!(
            "telegram: {{accounts: {{bot: {{token: 'file:{}', base_url: '{}', {keys}}}}}}}",
            file.path().display(),
            self.base
        );
        let mut accounts = read_platforms(&text).expect("read").telegram.accounts;
        accounts.remove("bot").expect("the account")
    }

    fn lock(&self) -> MutexGuard<'_, Platform> {
        self.platform.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call; returns what is done with it, and its message's number.
    fn note(&self, token: &str, body: &Value) -> (Option<Lie>, usize) {
        let chat = body["chat_id"].as_i64().unwrap_or_default();
        let at = SystemClock.monotonic();
        let mut platform = self.lock();
        let key = (token.to_owned(), chat);
        if platform.told.get(&key).is_some_and(|until| at < *until) {
            platform.early += 1;
        }

        let lie = platform.lies.pop_front().or_else(|| platform.excess(token, chat, at));
        if let Some(Lie::Limit(seconds) | Lie::QuietLimit(seconds)) = lie {
            platform.told.insert(key, at + Duration::from_secs(seconds));
        }

        let is_refused = platform.refused.iter().any(|refused| refused == token);
        let is_sent = !is_refused && matches!(lie, None | Some(Lie::Lost | Lie::Silent));
        if is_sent {
            let number = i64::try_from(platform.calls.len() + 1).unwrap_or_default();
            let text = body["text"].as_str().unwrap_or_default().to_owned();
            platform.shown.insert((chat, number), text);
        }
        platform.calls.push(BotCall {
            at,
            token: token.to_owned(),
            chat,
            body: body.clone(),
            is_sent,
        });
        (lie, platform.calls.len())
    }
}

impl Platform {
    /// Returns the limit that a message to `chat` exceeds at `at`.
    fn excess(&self, token: &str, chat: i64, at: Instant) -> Option<Lie> {
        let (messages, period) = self.limit?;
        let sent = self
            .calls
            .iter()
            .filter(|call| call.is_sent && call.token == token && call.chat == chat);
        let recent = sent.filter(|call| at.duration_since(call.at) < period).count();
        (recent >= messages).then_some(Lie::Limit(1))
    }
}

fn error(status: StatusCode, description: &str, parameters: &Value) -> Response {
    let body = json!({
        "ok": false, "error_code": status.as_u16(), "description": description, "parameters": parameters,
    });
    (status, Json(body)).into_response()
}

/// Changes a message, or shows that the bot writes.
async fn change(api: &BotApi, method: &str, body: &Value) -> Response {
    let chat = body["chat_id"].as_i64().expect("a chat");
    let number = body["message_id"].as_i64().unwrap_or_default();
    let words = match method {
        "editMessageText" => {
            assert_eq!(body.get("reply_markup"), None, "{body}");
            body["text"].as_str().expect("a text").to_owned()
        }
        "deleteMessage" => String::new(),
        "setMessageReaction" => {
            let given = body["reaction"].as_array().expect("a list");
            assert!(given.iter().all(|one| one["type"] == "emoji"), "{body}");
            given.iter().filter_map(|one| one["emoji"].as_str()).collect()
        }
        "sendChatAction" => body["action"].as_str().expect("an action").to_owned(),
        other => panic!("{other}"),
    };

    let (lie, before) = {
        let (mut platform, at) = (api.lock(), SystemClock.monotonic());
        platform.changes.push(format!("{method} {chat}/{number} {words}"));
        platform.early_changes += usize::from(platform.changes_told.is_some_and(|until| at < until));
        let lie = platform
            .lies_to_changes
            .pop_front()
            .or_else(|| platform.lies.pop_front());
        if let Some(Lie::Limit(seconds)) = lie {
            platform.changes_told = Some(at + Duration::from_secs(seconds));
        }
        let before = match method {
            _ if matches!(lie, Some(Lie::Unreadable | Lie::Blocked)) => None,
            "editMessageText" => platform.shown.insert((chat, number), words.clone()),
            "deleteMessage" => platform.shown.remove(&(chat, number)),
            _ => None,
        };
        (lie, before)
    };
    let bad = |text: &str| error(StatusCode::BAD_REQUEST, text, &json!({}));
    match (lie, method, before) {
        (Some(Lie::Silent), _, _) => std::future::pending().await,
        (Some(Lie::Limit(seconds)), _, _) => error(
            StatusCode::TOO_MANY_REQUESTS,
            "Too Many Requests",
            &json!({"retry_after": seconds}),
        ),
        (Some(Lie::Unreadable), _, _) => bad("Bad Request: can't parse entities: x"),
        (Some(Lie::Blocked), _, _) => error(
            StatusCode::FORBIDDEN,
            "Forbidden: bot was blocked by the user",
            &json!({}),
        ),
        (_, "editMessageText", Some(before)) if before == words => {
            bad("Bad Request: message is not modified: specified new message content is exactly the same")
        }
        (_, "editMessageText", None) => bad("Bad Request: message to edit not found"),
        (_, "deleteMessage", None) => bad("Bad Request: message to delete not found"),
        (_, _, _) => Json(json!({"ok": true, "result": true})).into_response(),
    }
}

/// The body of a call that sends a file, as that of a message: the file is its text.
fn file_body(method: &str, headers: &HeaderMap, body: &[u8]) -> Value {
    let fields = read_form(headers, body).expect("a form");
    let text = |name: &str| {
        let field = fields.iter().find(|field| field.name == name);
        field.map(Field::text)
    };
    let file = fields.iter().find(|field| field.filename.is_some()).expect("a file");
    assert_eq!(
        method.to_lowercase(),
        format!("send{}", file.name),
        "the file has the name of the method"
    );
    let name = file.filename.as_deref().unwrap_or_default();
    json!({
        "method": method, "text": shown_file(name, &file.bytes),
        "chat_id": text("chat_id").and_then(|chat| chat.parse::<i64>().ok()),
        "message_thread_id": text("message_thread_id"), "reply_parameters": text("reply_parameters"),
    })
}

async fn answer(
    State(api): State<BotApi>,
    Path((bot, method)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let token = bot.trim_start_matches("bot").to_owned();
    if api.lock().refused.contains(&token) {
        if method == "sendMessage" {
            api.note(&token, &serde_json::from_slice(&body).unwrap_or_default());
        }
        return error(StatusCode::UNAUTHORIZED, "Unauthorized", &json!({}));
    }

    if method == "getMe" {
        return Json(json!({"ok": true, "result": {"id": 1, "is_bot": true, "first_name": "Bot"}})).into_response();
    }

    let is_file = ["sendPhoto", "sendVoice", "sendAudio", "sendVideo", "sendDocument"].contains(&method.as_str());
    let body: Value = if is_file {
        file_body(&method, &headers, &body)
    } else {
        serde_json::from_slice(&body).expect("a JSON body")
    };
    if method != "sendMessage" && !is_file {
        return change(&api, &method, &body).await;
    }
    let (lie, number) = api.note(&token, &body);
    let chat = body["chat_id"].clone();
    let sent = json!({"ok": true, "result": {"message_id": number, "chat": {"id": chat}, "date": 1}});

    match lie {
        None => Json(sent).into_response(),
        Some(Lie::Limit(seconds)) => {
            let text = format!("Too Many Requests: retry after {seconds}");
            let parameters = json!({"retry_after": seconds});
            let mut limited = error(StatusCode::TOO_MANY_REQUESTS, &text, &parameters);
            limited.headers_mut().insert("retry-after", seconds.into());
            limited
        }
        Some(Lie::QuietLimit(seconds)) => {
            let body = json!({
                "ok": false, "error_code": 429, "description": "Too Many Requests", "parameters": {"retry_after": seconds},
            });
            Json(body).into_response()
        }
        Some(Lie::Unreadable) => {
            let text = "Bad Request: can't parse entities: Unsupported start tag \"x\"";
            error(StatusCode::BAD_REQUEST, text, &json!({}))
        }
        Some(Lie::Unshowable) => error(
            StatusCode::BAD_REQUEST,
            "Bad Request: PHOTO_INVALID_DIMENSIONS",
            &json!({}),
        ),
        Some(Lie::Blocked) => error(
            StatusCode::FORBIDDEN,
            "Forbidden: bot was blocked by the user",
            &json!({}),
        ),
        Some(Lie::Moved(to)) => {
            let text = "Bad Request: group chat was upgraded to a supergroup chat";
            error(StatusCode::BAD_REQUEST, text, &json!({"migrate_to_chat_id": to}))
        }
        Some(Lie::Lost) => {
            let torn = stream::iter([
                Ok(Bytes::from_static(b"{\"ok\":tr")),
                Err(std::io::Error::other("torn")),
            ]);
            Response::new(Body::from_stream(torn))
        }
        Some(Lie::Silent) => std::future::pending().await,
        Some(Lie::Gateway) => (StatusCode::BAD_GATEWAY, "<html>Bad Gateway</html>").into_response(),
    }
}
