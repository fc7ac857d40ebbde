//! A stand-in of Telegram's Bot API with one bot. It has no idempotency.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Json, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock, pause};
use tokio::sync::watch;

use super::{OpenReader, Readers};

/// Id of the bot.
pub const BOT: i64 = 700;
/// Variable with the bot's token, and the token.
pub const TOKEN: (&str, &str) = ("TELEGRAM_TOKEN", "700:secret");
/// Longest time that it waits for an update.
const LONG_POLL: Duration = Duration::from_secs(5);

/// The stand-in; clones are the same server.
#[derive(Debug, Clone)]
pub struct Telegram {
    base: String,
    state: Arc<Mutex<Bot>>,
    added: watch::Sender<usize>,
    answered_after: Duration,
    /// Calls that wait for updates.
    pub readers: Readers,
}

#[derive(Debug, Default)]
struct Bot {
    messages: i64,
    updates: Vec<Value>,
    /// Messages of the bot, as Telegram shows them.
    sent: Vec<Value>,
    /// Numbers of messages with buttons, and the data of the buttons.
    buttons: Vec<(i64, Vec<String>)>,
    /// Bodies of the edits of messages.
    edits: Vec<Value>,
    /// Files that people have sent, by id.
    files: BTreeMap<String, Vec<u8>>,
}

impl Telegram {
    /// Starts it. A message is answered `answered_after` it is there.
    ///
    /// # Panics
    /// Panics if no port is free.
    pub async fn start(answered_after: Duration) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let this = Self {
            base: format!("http://{}", listener.local_addr().expect("an address")),
            state: Arc::default(),
            added: watch::channel(0).0,
            answered_after,
            readers: Readers::default(),
        };
        let routes = Router::new()
            .route("/{bot}/{method}", post(answer))
            .route("/file/{bot}/files/{id}", get(hand_out))
            .with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        this
    }

    /// Returns the section of channels.yaml, with the account `main` and its other `keys`.
    #[must_use]
    pub fn account(&self, keys: &str) -> String {
        let (base, variable) = (&self.base, TOKEN.0);
        format!("telegram: {{accounts: {{main: {{token: 'env:{variable}', base_url: '{base}', {keys}}}}}}}\n")
    }

    /// Returns the variable that the account needs.
    #[must_use]
    pub fn environment() -> (String, String) {
        (TOKEN.0.to_owned(), TOKEN.1.to_owned())
    }

    fn lock(&self) -> MutexGuard<'_, Bot> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings an update of `kind`.
    pub fn bring(&self, kind: &str, payload: &Value) {
        let mut state = self.lock();
        let id = state.updates.len() + 1;
        state.updates.push(json!({ "update_id": id, kind: payload }));
        drop(state);
        self.added.send_replace(id);
    }

    /// A person writes `text` to the bot.
    pub fn write(&self, person: i64, text: &str) {
        let message = {
            let mut state = self.lock();
            state.messages += 1;
            message(state.messages, (person, false), person, text)
        };
        self.bring("message", &message);
    }

    /// A person sends the voice note `bytes` of `seconds` to the bot.
    pub fn speak(&self, person: i64, bytes: &[u8], seconds: u64) {
        let said = {
            let mut state = self.lock();
            state.messages += 1;
            let file = format!("voice-{}", state.messages);
            state.files.insert(file.clone(), bytes.to_vec());
            let voice = json!({
                "file_id": file, "file_unique_id": format!("u-{file}"), "file_size": bytes.len(), "duration": seconds,
                "mime_type": "audio/ogg",
            });
            with_voice(message(state.messages, (person, false), person, ""), voice)
        };
        self.bring("message", &said);
    }

    /// A person presses the button with `data` of the message `number`.
    ///
    /// # Panics
    /// Panics if the bot has no such message.
    pub fn press(&self, person: i64, number: i64, data: &str) {
        let sent = self.messages().into_iter().find(|sent| sent["message_id"] == number);
        let from = json!({ "id": person, "is_bot": false, "first_name": "Somebody" });
        let sent = sent.expect("a message of the bot");
        let query = json!({ "id": "4382", "from": from, "message": sent, "chat_instance": "1", "data": data });
        self.bring("callback_query", &query);
    }

    /// Returns the messages of the bot, as Telegram shows them.
    #[must_use]
    pub fn messages(&self) -> Vec<Value> {
        self.lock().sent.clone()
    }

    /// Returns chats and texts of the bot's messages.
    #[must_use]
    pub fn sent(&self) -> Vec<(i64, String)> {
        let read = |message: &Value| {
            let text = message["text"].as_str().unwrap_or_default().to_owned();
            (message["chat"]["id"].as_i64().unwrap_or_default(), text)
        };
        self.lock().sent.iter().map(read).collect()
    }

    /// Returns numbers of messages with buttons, and the data of the buttons.
    #[must_use]
    pub fn buttons(&self) -> Vec<(i64, Vec<String>)> {
        self.lock().buttons.clone()
    }

    /// Returns the bodies of the edits of messages.
    #[must_use]
    pub fn edits(&self) -> Vec<Value> {
        self.lock().edits.clone()
    }

    async fn updates_from(&self, offset: usize) -> Value {
        let mut added = self.added.subscribe();
        let found = added.wait_for(|count| *count >= offset.max(1));
        let _ = tokio::time::timeout(LONG_POLL, found).await;
        let state = self.lock();
        json!(state.updates.get(offset.saturating_sub(1)..).unwrap_or_default())
    }

    fn create(&self, body: &Value) -> Value {
        let mut state = self.lock();
        state.messages += 1;
        let number = state.messages;
        let chat = body["chat_id"].as_i64().expect("a chat");
        let sent = message(number, (BOT, true), chat, body["text"].as_str().expect("a text"));
        let rows = body["reply_markup"]["inline_keyboard"].as_array();
        let row = rows.and_then(|rows| rows.first()?.as_array());
        let data = |button: &Value| button["callback_data"].as_str().unwrap_or_default().to_owned();
        if let Some(row) = row {
            state.buttons.push((number, row.iter().map(data).collect()));
        }
        state.sent.push(sent.clone());
        sent
    }
}

/// Returns the message `id` of `from`, who may be a bot, in the direct chat `chat`.
#[must_use]
pub fn message(id: i64, (from, is_bot): (i64, bool), chat: i64, text: &str) -> Value {
    json!({
        "message_id": id, "date": SystemClock.now().0 / 1_000, "text": text,
        "from": { "id": from, "is_bot": is_bot, "first_name": "Somebody" },
        "chat": { "id": chat, "type": "private", "first_name": "Somebody" },
    })
}

/// Returns `message` with `voice` in place of its text.
fn with_voice(mut message: Value, voice: Value) -> Value {
    if let Value::Object(fields) = &mut message {
        fields.remove("text");
        fields.insert("voice".to_owned(), voice);
    }
    message
}

async fn hand_out(State(telegram): State<Telegram>, Path((_, id)): Path<(String, String)>) -> Response {
    match telegram.lock().files.get(&id) {
        Some(bytes) => bytes.clone().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn answer(
    State(telegram): State<Telegram>,
    Path((_, method)): Path<(String, String)>,
    Json(body): Json<Value>,
) -> Response {
    let result = match method.as_str() {
        "getMe" => json!({ "id": BOT, "is_bot": true, "first_name": "Nexus", "username": "nexus_bot" }),
        "getWebhookInfo" => json!({ "url": "", "pending_update_count": 0 }),
        "getUpdates" => {
            let _reads = OpenReader::open(&telegram.readers);
            let offset = body["offset"].as_u64().unwrap_or(1);
            telegram.updates_from(usize::try_from(offset).unwrap_or(1)).await
        }
        "getFile" => {
            let id = body["file_id"].as_str().expect("an id");
            let size = telegram.lock().files.get(id).map(Vec::len);
            json!({ "file_id": id, "file_size": size, "file_path": format!("files/{id}") })
        }
        "sendMessage" => {
            let sent = telegram.create(&body);
            pause(telegram.answered_after).await;
            sent
        }
        "sendChatAction" | "answerCallbackQuery" => json!(true),
        "editMessageText" => {
            telegram.lock().edits.push(body);
            json!(true)
        }
        _ => return StatusCode::NOT_IMPLEMENTED.into_response(),
    };
    Json(json!({ "ok": true, "result": result })).into_response()
}
