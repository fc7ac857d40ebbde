//! A stand-in of Discord with one bot: a gateway whose sessions can be resumed, histories of the channels, and messages,
//! which it recognises by their nonces.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Json, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock, pause};
use tokio::sync::watch;

use super::{ANSWERED_AFTER, OpenReader, Readers};

const BOT: &str = "700";
const GUILD: &str = "20";
/// Beginning of the vendor's time, in milliseconds since 1970.
const EPOCH_MS: i64 = 1_420_070_400_000;

/// The stand-in; clones are the same server.
#[derive(Debug, Clone)]
pub(super) struct Discord {
    address: String,
    state: Arc<Mutex<Guild>>,
    changed: watch::Sender<usize>,
    pub(super) readers: Readers,
}

#[derive(Debug, Default)]
struct Guild {
    /// What was dispatched in each session of the gateway.
    sessions: Vec<Vec<Value>>,
    messages: i64,
    /// Messages of persons by channel.
    history: BTreeMap<String, Vec<Value>>,
    /// Channels and texts of the bot's messages.
    sent: Vec<(String, String)>,
    /// Messages of the bot by channel and nonce.
    known: BTreeMap<(String, String), Value>,
}

impl Discord {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let this = Self {
            address: listener.local_addr().expect("an address").to_string(),
            state: Arc::default(),
            changed: watch::channel(0).0,
            readers: Readers::default(),
        };
        let routes = Router::new()
            .route("/gateway/", any(open_gateway))
            .route("/api/{*path}", get(look_up))
            .route("/api/channels/{channel}/messages", get(history).post(create))
            .with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        this
    }

    /// The section of channels.yaml.
    pub(super) fn account(&self) -> String {
        let address = &self.address;
        format!(
            "discord: {{accounts: {{main: {{token: 'env:DISCORD_TOKEN', base_url: 'http://{address}/api', groups: {{{GUILD}: \
             {{require_mention: false}}}}}}}}}}\n"
        )
    }

    pub(super) fn environment() -> (String, String) {
        ("DISCORD_TOKEN".to_owned(), "NzAw.secret.word".to_owned())
    }

    fn lock(&self) -> MutexGuard<'_, Guild> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a session was begun.
    pub(super) fn is_connected(&self) -> bool {
        !self.lock().sessions.is_empty()
    }

    pub(super) fn write(&self, chat: u64, text: &str) {
        let mut state = self.lock();
        let message = message(
            &mut state.messages,
            &chat.to_string(),
            (&format!("5{chat}"), false),
            text,
        );
        state.history.entry(chat.to_string()).or_default().push(message.clone());
        dispatch(&mut state, "MESSAGE_CREATE", &message);
        drop(state);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn sent(&self) -> Vec<(String, String)> {
        self.lock().sent.clone()
    }

    /// Begins a session; returns its number.
    fn identify(&self) -> usize {
        let mut state = self.lock();
        state.sessions.push(Vec::new());
        let number = state.sessions.len() - 1;
        let resume = format!("ws://{}/gateway", self.address);
        let guilds = json!([{"id": GUILD, "unavailable": true}]);
        let user = json!({"id": BOT, "username": "nexus"});
        let ready = json!({
            "v": 10, "session_id": number.to_string(), "resume_gateway_url": resume, "guilds": guilds, "user": user,
        });
        dispatch(&mut state, "READY", &ready);
        let guild = guild(&state);
        dispatch(&mut state, "GUILD_CREATE", &guild);
        number
    }

    /// Resumes session `number`; returns it.
    fn resume(&self, number: usize) -> Option<usize> {
        let mut state = self.lock();
        let session = state.sessions.get_mut(number)?;
        // Behind everything that the client does not have, as the vendor does.
        session.push(json!({"op": 0, "s": session.len() + 1, "t": "RESUMED", "d": {}}));
        Some(number)
    }
}

/// Dispatches `data` in the newest session.
fn dispatch(state: &mut Guild, kind: &str, data: &Value) {
    if let Some(session) = state.sessions.last_mut() {
        session.push(json!({"op": 0, "s": session.len() + 1, "t": kind, "d": data}));
    }
}

/// The guild with its channels, and the newest message of each.
fn guild(state: &Guild) -> Value {
    let channels = state.history.iter().map(|(channel, messages)| {
        let newest = messages.last().map(|last| last["id"].clone());
        json!({"id": channel, "type": 0, "name": "talk", "last_message_id": newest})
    });
    let channels: Vec<Value> = channels.collect();
    json!({"id": GUILD, "name": "guild", "channels": channels, "threads": [], "members": []})
}

/// The next message, in `channel`.
fn message(count: &mut i64, channel: &str, (author, is_bot): (&str, bool), text: &str) -> Value {
    *count += 1;
    let now = SystemClock.now();
    json!({
        "id": (((now.0 - EPOCH_MS) << 22) + *count).to_string(), "channel_id": channel, "guild_id": GUILD, "type": 0,
        "content": text, "edited_timestamp": null, "timestamp": now.to_rfc3339(), "mentions": [], "mention_roles": [],
        "author": {"id": author, "username": "somebody", "bot": is_bot}, "attachments": [], "embeds": [],
    })
}

async fn open_gateway(State(discord): State<Discord>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |socket| {
        let _ended = serve_gateway(discord, socket).await;
    })
}

async fn serve_gateway(discord: Discord, mut socket: WebSocket) -> Option<()> {
    let frame = |value: Value| Message::Text(value.to_string().into());
    let hello = json!({"op": 10, "d": {"heartbeat_interval": 1_000}});
    socket.send(frame(hello)).await.ok()?;
    let mut changed = discord.changed.subscribe();
    // The session, and how much of it was sent.
    let mut session: Option<(usize, usize)> = None;
    let mut reader = None;
    loop {
        if let Some((number, count)) = &mut session {
            let frames = discord.lock().sessions[*number]
                .get(*count..)
                .unwrap_or_default()
                .to_vec();
            *count += frames.len();
            for dispatch in frames {
                socket.send(frame(dispatch)).await.ok()?;
            }
        }
        tokio::select! {
            _ = changed.changed() => {}
            received = socket.recv() => {
                let Message::Text(text) = received?.ok()? else { continue };
                let received: Value = serde_json::from_str(&text).ok()?;
                match received["op"].as_u64() {
                    Some(1) => socket.send(frame(json!({"op": 11}))).await.ok()?,
                    Some(2) => {
                        reader.get_or_insert_with(|| OpenReader::open(&discord.readers));
                        session = Some((discord.identify(), 0));
                    }
                    Some(6) => {
                        reader.get_or_insert_with(|| OpenReader::open(&discord.readers));
                        let number = received["d"]["session_id"].as_str()?.parse().ok()?;
                        let seq = usize::try_from(received["d"]["seq"].as_u64()?).ok()?;
                        session = Some((discord.resume(number)?, seq));
                    }
                    _ => {}
                }
            }
        }
    }
}

async fn look_up(State(discord): State<Discord>, Path(path): Path<String>) -> Response {
    let found = match path.as_str() {
        "users/@me" => json!({"id": BOT, "username": "nexus"}),
        "gateway/bot" => json!({"url": format!("ws://{}/gateway", discord.address), "shards": 1,
            "session_start_limit": {"total": 1_000, "remaining": 999, "reset_after": 0, "max_concurrency": 1}}),
        _ => match path.strip_prefix("channels/") {
            Some(channel) => json!({"id": channel, "type": 0, "guild_id": GUILD, "name": "talk"}),
            None => return StatusCode::NOT_FOUND.into_response(),
        },
    };
    Json(found).into_response()
}

async fn history(
    State(discord): State<Discord>,
    Path(channel): Path<String>,
    Query(query): Query<BTreeMap<String, u64>>,
) -> Json<Value> {
    let after = query.get("after").copied().unwrap_or(0);
    let id = |message: &Value| message["id"].as_str().and_then(|id| id.parse::<u64>().ok());
    let state = discord.lock();
    let messages = state.history.get(&channel).map(Vec::as_slice).unwrap_or_default();
    let newer = messages.iter().filter(|message| id(message) > Some(after));
    // The oldest hundred, the newest of them first.
    let mut page: Vec<&Value> = newer.take(100).collect();
    page.reverse();
    Json(json!(page))
}

async fn create(State(discord): State<Discord>, Path(channel): Path<String>, Json(body): Json<Value>) -> Json<Value> {
    let text = |key: &str| body[key].as_str().expect("a text").to_owned();
    assert_eq!(body["enforce_nonce"], true, "{body}");
    let sent = {
        let mut state = discord.lock();
        let key = (channel.clone(), text("nonce"));
        if let Some(known) = state.known.get(&key) {
            known.clone()
        } else {
            let sent = message(&mut state.messages, &channel, (BOT, true), &text("content"));
            state.sent.push((channel, text("content")));
            state.known.insert(key, sent.clone());
            sent
        }
    };
    pause(ANSWERED_AFTER).await;
    Json(sent)
}
