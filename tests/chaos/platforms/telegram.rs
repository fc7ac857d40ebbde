//! A stand-in of Telegram's Bot API with one bot, as far as messages go in and out. It has no idempotency.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Json, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing::post};
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock, pause};
use tokio::sync::watch;

use super::{ANSWERED_AFTER, OpenReader, Readers};

const BOT: i64 = 700;
/// Longest time that it waits for an update.
const LONG_POLL: Duration = Duration::from_secs(5);

/// The stand-in; clones are the same server.
#[derive(Debug, Clone)]
pub(super) struct Telegram {
    base: String,
    state: Arc<Mutex<Bot>>,
    added: watch::Sender<usize>,
    pub(super) readers: Readers,
}

#[derive(Debug, Default)]
struct Bot {
    messages: i64,
    updates: Vec<Value>,
    /// Chats and texts of the bot's messages.
    sent: Vec<(String, String)>,
}

impl Telegram {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let this = Self {
            base: format!("http://{}", listener.local_addr().expect("an address")),
            state: Arc::default(),
            added: watch::channel(0).0,
            readers: Readers::default(),
        };
        let routes = Router::new()
            .route("/{bot}/{method}", post(answer))
            .with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        this
    }

    /// The section of channels.yaml.
    pub(super) fn account(&self) -> String {
        let base = &self.base;
        format!("telegram: {{accounts: {{main: {{token: 'env:TELEGRAM_TOKEN', base_url: '{base}', direct: open}}}}}}\n")
    }

    pub(super) fn environment() -> (String, String) {
        ("TELEGRAM_TOKEN".to_owned(), format!("{BOT}:secret"))
    }

    fn lock(&self) -> MutexGuard<'_, Bot> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self, chat: u64, text: &str) {
        let mut state = self.lock();
        state.messages += 1;
        let from = json!({ "id": chat, "is_bot": false, "first_name": "Ann" });
        let message = message(state.messages, &from, chat, text);
        let id = state.updates.len() + 1;
        state.updates.push(json!({ "update_id": id, "message": message }));
        drop(state);
        self.added.send_replace(id);
    }

    pub(super) fn sent(&self) -> Vec<(String, String)> {
        self.lock().sent.clone()
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
        let chat = body["chat_id"].to_string().replace('"', "");
        let text = body["text"].as_str().expect("a text").to_owned();
        let from = json!({ "id": BOT, "is_bot": true, "first_name": "Nexus" });
        let sent = message(state.messages, &from, chat.parse().expect("a number"), &text);
        state.sent.push((chat, text));
        sent
    }
}

fn message(id: i64, from: &Value, chat: u64, text: &str) -> Value {
    json!({
        "message_id": id, "date": SystemClock.now().0 / 1_000, "text": text, "from": from,
        "chat": { "id": chat, "type": "private", "first_name": "Ann" },
    })
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
        "sendMessage" => {
            let sent = telegram.create(&body);
            pause(ANSWERED_AFTER).await;
            sent
        }
        "sendChatAction" => json!(true),
        _ => return StatusCode::NOT_IMPLEMENTED.into_response(),
    };
    Json(json!({ "ok": true, "result": result })).into_response()
}
