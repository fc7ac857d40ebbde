//! A stand-in of Discord with one bot: a gateway whose sessions can be resumed, histories of the channels, and messages,
//! which it recognises by their nonces.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Json, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, patch, post};
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::platform::discord::snowflake::first_id_at;
use tokio::sync::watch;

use super::{OpenReader, Readers};

/// Id of the bot.
pub const BOT: &str = "700";
/// The server in which it is.
pub const GUILD: &str = "20";
/// Variable with the bot's token, and the token.
pub const TOKEN: (&str, &str) = ("DISCORD_TOKEN", "NzAw.secret.word");

/// The stand-in; clones are the same server.
#[derive(Debug, Clone)]
pub struct Discord {
    address: String,
    state: Arc<Mutex<Guild>>,
    changed: watch::Sender<usize>,
    answered_after: Duration,
    /// Open sessions of the gateway.
    pub readers: Readers,
}

#[derive(Debug, Default)]
struct Guild {
    /// What was dispatched in each session of the gateway.
    sessions: Vec<Vec<Value>>,
    messages: u64,
    /// Messages of persons by channel.
    history: BTreeMap<String, Vec<Value>>,
    /// Threads that the bot began, with their channels.
    threads: BTreeMap<String, String>,
    /// Channels for direct messages, with the persons.
    direct: BTreeMap<String, String>,
    /// Messages of the bot, as Discord shows them.
    sent: Vec<Value>,
    /// Bodies of the messages of the bot with buttons, with the messages.
    buttons: Vec<(Value, Value)>,
    /// Messages of the bot by channel and nonce.
    known: BTreeMap<(String, String), Value>,
    /// Edits of messages: the message's id, and the body.
    edits: Vec<(String, Value)>,
    /// Answers to interactions.
    answered: Vec<Value>,
}

impl Discord {
    /// Starts it. A message is answered `answered_after` it is there.
    ///
    /// # Panics
    /// Panics if no port is free.
    pub async fn start(answered_after: Duration) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let this = Self {
            address: listener.local_addr().expect("an address").to_string(),
            state: Arc::default(),
            changed: watch::channel(0).0,
            answered_after,
            readers: Readers::default(),
        };
        let routes = Router::new()
            .route("/gateway/", any(open_gateway))
            .route("/api/{*path}", get(look_up))
            .route("/api/channels/{channel}/messages", get(history).post(create))
            .route("/api/channels/{channel}/typing", post(async || StatusCode::NO_CONTENT))
            .route("/api/channels/{channel}/messages/{message}", patch(edit))
            .route("/api/interactions/{id}/{token}/callback", post(take_answer))
            .with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        this
    }

    /// Returns the section of channels.yaml, with the account `main` and its other `keys`.
    #[must_use]
    pub fn account(&self, keys: &str) -> String {
        let (address, variable) = (&self.address, TOKEN.0);
        format!(
            "discord: {{accounts: {{main: {{token: 'env:{variable}', base_url: 'http://{address}/api', {keys}}}}}}}\n"
        )
    }

    /// Returns the variable that the account needs.
    #[must_use]
    pub fn environment() -> (String, String) {
        (TOKEN.0.to_owned(), TOKEN.1.to_owned())
    }

    fn lock(&self) -> MutexGuard<'_, Guild> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a session was begun.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !self.lock().sessions.is_empty()
    }

    /// Has the bot have begun the thread `thread` of `channel`.
    pub fn begin_thread(&self, channel: &str, thread: &str) {
        self.lock().threads.insert(thread.to_owned(), channel.to_owned());
    }

    /// Opens the direct channel `channel` with `person`.
    pub fn open_direct(&self, channel: &str, person: &str) {
        self.lock().direct.insert(channel.to_owned(), person.to_owned());
    }

    /// Dispatches `data` in the newest session.
    pub fn dispatch(&self, kind: &str, data: &Value) {
        dispatch(&mut self.lock(), kind, data);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Returns an id that nothing has yet.
    #[must_use]
    pub fn next_id(&self) -> String {
        next_id(&mut self.lock())
    }

    /// `author` writes `text` in `channel`.
    pub fn write(&self, channel: &str, author: &str, text: &str) {
        let mut state = self.lock();
        let message = message(&mut state, channel, (author, false), text);
        state
            .history
            .entry(channel.to_owned())
            .or_default()
            .push(message.clone());
        dispatch(&mut state, "MESSAGE_CREATE", &message);
        drop(state);
        self.changed.send_modify(|count| *count += 1);
    }

    /// `person` presses the button with `custom_id` of `message`, in a direct channel.
    pub fn press(&self, person: &str, message: &Value, custom_id: &str) {
        let interaction = json!({
            "id": self.next_id(), "application_id": BOT, "type": 3, "token": "press", "version": 1,
            "channel_id": message["channel_id"], "channel": {"id": message["channel_id"], "type": 1},
            "user": {"id": person, "username": "somebody"}, "message": message,
            "data": {"custom_id": custom_id, "component_type": 2},
        });
        self.dispatch("INTERACTION_CREATE", &interaction);
    }

    /// Returns the messages of the bot, as Discord shows them.
    #[must_use]
    pub fn messages(&self) -> Vec<Value> {
        self.lock().sent.clone()
    }

    /// Returns the channels and texts of the bot's messages.
    #[must_use]
    pub fn sent(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let sent = self.messages().into_iter();
        sent.map(|sent| (text(&sent["channel_id"]), text(&sent["content"])))
            .collect()
    }

    /// Returns the messages with buttons: the message, and its components.
    #[must_use]
    pub fn buttons(&self) -> Vec<(Value, Value)> {
        self.lock().buttons.clone()
    }

    /// Returns the edits of messages: the message's id, and the body.
    #[must_use]
    pub fn edits(&self) -> Vec<(String, Value)> {
        self.lock().edits.clone()
    }

    /// Returns the answers to interactions.
    #[must_use]
    pub fn answered(&self) -> Vec<Value> {
        self.lock().answered.clone()
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

fn next_id(state: &mut Guild) -> String {
    state.messages += 1;
    (first_id_at(SystemClock.now()) + state.messages).to_string()
}

/// The guild with its channels, and the newest message of each.
fn guild(state: &Guild) -> Value {
    let here = state
        .history
        .iter()
        .filter(|(channel, _)| !state.direct.contains_key(*channel));
    let channels = here.map(|(channel, messages)| {
        let newest = messages.last().map(|last| last["id"].clone());
        json!({"id": channel, "type": 0, "name": "talk", "last_message_id": newest})
    });
    let channels: Vec<Value> = channels.collect();
    json!({"id": GUILD, "name": "guild", "channels": channels, "threads": [], "members": []})
}

/// The next message, in `channel`.
fn message(state: &mut Guild, channel: &str, (author, is_bot): (&str, bool), text: &str) -> Value {
    let now = SystemClock.now();
    let mut message = json!({
        "id": next_id(state), "channel_id": channel, "type": 0,
        "content": text, "edited_timestamp": null, "timestamp": now.to_rfc3339(), "mentions": [], "mention_roles": [],
        "author": {"id": author, "username": "somebody", "bot": is_bot}, "attachments": [], "embeds": [],
    });
    if !state.direct.contains_key(channel) {
        message["guild_id"] = json!(GUILD);
    }
    message
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
    let state = discord.lock();
    let found = match (path.as_str(), path.strip_prefix("channels/")) {
        ("users/@me", _) => json!({"id": BOT, "username": "nexus"}),
        ("gateway/bot", _) => json!({"url": format!("ws://{}/gateway", discord.address), "shards": 1,
            "session_start_limit": {"total": 1_000, "remaining": 999, "reset_after": 0, "max_concurrency": 1}}),
        (_, Some(channel)) => match (state.threads.get(channel), state.direct.get(channel)) {
            (Some(parent), _) => {
                json!({"id": channel, "type": 11, "guild_id": GUILD, "parent_id": parent, "owner_id": BOT})
            }
            (None, Some(person)) => json!({"id": channel, "type": 1, "recipients": [{"id": person}]}),
            (None, None) => json!({"id": channel, "type": 0, "guild_id": GUILD, "name": "talk"}),
        },
        (_, None) => return StatusCode::NOT_FOUND.into_response(),
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
            let sent = message(&mut state, &channel, (BOT, true), &text("content"));
            state.sent.push(sent.clone());
            if let Some(components) = body.get("components") {
                state.buttons.push((sent.clone(), components.clone()));
            }
            state.known.insert(key, sent.clone());
            sent
        }
    };
    pause(discord.answered_after).await;
    Json(sent)
}

async fn edit(
    State(discord): State<Discord>,
    Path((channel, message)): Path<(String, String)>,
    Json(body): Json<Value>,
) -> Json<Value> {
    discord.lock().edits.push((message.clone(), body));
    Json(json!({"id": message, "channel_id": channel}))
}

async fn take_answer(State(discord): State<Discord>, Json(body): Json<Value>) -> StatusCode {
    discord.lock().answered.push(body);
    StatusCode::NO_CONTENT
}
