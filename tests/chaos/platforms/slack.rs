//! A stand-in of Slack with one app: it posts events over HTTP until they are taken, takes messages, and shows what a
//! conversation has. It has no idempotency.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Json, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing::post};
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock, pause};
use tests::load::Gateways;
use tests::slack::{SECRET, envelope, signed_post};

use super::ANSWERED_AFTER;

/// Pause before a post that was not taken is repeated. The vendor waits longer and gives up after three; the order of a chat
/// is that of its posts.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Most messages of a page, whatever is asked for: Slack gives an app outside its marketplace no more.
const PAGE: usize = 15;

/// The stand-in; clones are the same server.
#[derive(Debug, Clone)]
pub(super) struct Slack {
    base: String,
    state: Arc<Mutex<App>>,
    client: reqwest::Client,
    gateways: Gateways,
}

#[derive(Debug, Default)]
struct App {
    stamps: u64,
    /// Channels and texts of the app's messages.
    sent: Vec<(String, String)>,
    /// The messages of all, by channel, oldest first.
    messages: BTreeMap<String, Vec<Value>>,
}

impl App {
    /// Returns the messages that `method` shows for `query`: of a conversation the newest first, and of a thread the oldest.
    fn read(&self, method: &str, query: &BTreeMap<String, String>) -> Value {
        let value = |key: &str| query.get(key).map(String::as_str).unwrap_or_default();
        let Some(all) = self.messages.get(value("channel")) else {
            return json!({"ok": false, "error": "channel_not_found"});
        };

        let is_thread = method == "conversations.replies";
        let has_metadata = value("include_all_metadata") == "true";
        let is_here = |message: &&Value| {
            let (ts, thread) = (message["ts"].as_str(), message["thread_ts"].as_str());
            let is_of = match is_thread {
                true => ts == Some(value("ts")) || thread == Some(value("ts")),
                false => thread.is_none_or(|thread| ts == Some(thread)),
            };
            // Stamps of one length are in the order of their times.
            is_of && ts.is_some_and(|ts| ts >= value("oldest"))
        };
        let mut shown: Vec<Value> = all.iter().filter(is_here).cloned().collect();
        if !is_thread {
            shown.reverse();
        }
        for message in shown.iter_mut().filter(|_| !has_metadata) {
            message["metadata"] = Value::Null;
        }

        let from: usize = value("cursor").parse().unwrap_or(0);
        let limit = value("limit").parse().unwrap_or(PAGE).min(PAGE);
        let page: Vec<&Value> = shown.iter().skip(from).take(limit).collect();
        let has_more = from + page.len() < shown.len();
        let next = if has_more {
            (from + page.len()).to_string()
        } else {
            String::new()
        };
        json!({"ok": true, "messages": page, "has_more": has_more, "response_metadata": {"next_cursor": next}})
    }
}

impl Slack {
    /// Starts it; it posts to one of `gateways`.
    pub(super) async fn start(gateways: Gateways) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).no_proxy();
        let this = Self {
            base: format!("http://{}", listener.local_addr().expect("an address")),
            state: Arc::default(),
            client: client.build().expect("a client"),
            gateways,
        };
        let routes = Router::new()
            .route("/api/{method}", post(answer).get(read))
            .with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        this
    }

    /// The section of channels.yaml.
    pub(super) fn account(&self) -> String {
        let base = &self.base;
        format!(
            "slack: {{accounts: {{main: {{token: 'env:SLACK_TOKEN', signing_secret: 'env:SLACK_SECRET', base_url: '{base}', \
             direct: open}}}}}}\n"
        )
    }

    pub(super) fn environment() -> [(String, String); 2] {
        [("SLACK_TOKEN", "xoxb-700-secret"), ("SLACK_SECRET", SECRET)]
            .map(|(key, word)| (key.to_owned(), word.to_owned()))
    }

    fn lock(&self) -> MutexGuard<'_, App> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_stamp(&self) -> String {
        let mut state = self.lock();
        state.stamps += 1;
        format!("{}.{:06}", SystemClock.now().0 / 1_000, state.stamps)
    }

    /// A person writes `text` in the direct messages `chat`; returns when it is taken.
    pub(super) async fn write(&self, chat: u64, text: &str) {
        let ts = self.next_stamp();
        let event = json!({
            "type": "message", "channel": format!("D{chat}"), "channel_type": "im", "user": format!("U{chat}"), "ts": ts,
            "event_ts": ts, "text": text,
        });
        self.lock()
            .messages
            .entry(format!("D{chat}"))
            .or_default()
            .push(event.clone());
        let body = envelope(&event);
        for turn in 0.. {
            if self.post(turn, &body).await {
                return;
            }
            pause(AGAIN_AFTER).await;
        }
    }

    /// Posts `body` to one of the gateways. Returns whether it is taken.
    async fn post(&self, turn: usize, body: &str) -> bool {
        let gateway = {
            let known = self.gateways.lock().unwrap_or_else(PoisonError::into_inner);
            known.get(turn % known.len().max(1)).cloned()
        };
        let Some(gateway) = gateway else { return false };

        let request = signed_post(&self.client, &gateway, body.to_owned());
        request.send().await.is_ok_and(|answer| answer.status().is_success())
    }

    pub(super) fn sent(&self) -> Vec<(String, String)> {
        self.lock().sent.clone()
    }

    /// Notes the message of the app that `body` is, with its stamp `ts`, its channel and its text.
    fn note_sent(&self, body: &Value, ts: &str, (channel, text): (String, String)) {
        let mut message = json!({"type": "message", "ts": ts, "user": "U7", "bot_id": "B7", "text": text,
            "metadata": body["metadata"]});
        if let Some(thread) = body.get("thread_ts") {
            message["thread_ts"] = thread.clone();
        }
        let mut state = self.lock();
        state.messages.entry(channel.clone()).or_default().push(message);
        state.sent.push((channel, text));
    }
}

/// Shows what a conversation, or a thread of it, has.
async fn read(
    State(slack): State<Slack>,
    Path(method): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    match method.as_str() {
        "conversations.history" | "conversations.replies" => Json(slack.lock().read(&method, &query)).into_response(),
        _ => StatusCode::NOT_IMPLEMENTED.into_response(),
    }
}

async fn answer(State(slack): State<Slack>, Path(method): Path<String>, body: Option<Json<Value>>) -> Response {
    let answered = match (method.as_str(), body) {
        ("auth.test", _) => json!({"ok": true, "team_id": "T1", "user_id": "U7", "bot_id": "B7", "user": "nexus"}),
        ("chat.postMessage", Some(Json(body))) => {
            let text = |key: &str| body[key].as_str().expect("a text").to_owned();
            let ts = slack.next_stamp();
            slack.note_sent(&body, &ts, (text("channel"), text("text")));
            pause(ANSWERED_AFTER).await;
            json!({"ok": true, "channel": body["channel"], "ts": ts, "message": {}})
        }
        _ => return StatusCode::NOT_IMPLEMENTED.into_response(),
    };
    Json(answered).into_response()
}
