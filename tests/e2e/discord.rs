//! People write in a thread on Discord, and are answered in it; the thread has a session of its own, and the bot's own
//! messages that come back fire nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Json, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing::any, routing::get, routing::post};
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::Dispatch;
use shared::platform::discord::snowflake::first_id_at;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::record::read_all;
use tests::world::{Setup, World};
use tokio::sync::watch;

use crate::story::PATIENCE;

const BOT: &str = "700";
const ANN: &str = "11";
const GUILD: &str = "20";
const GENERAL: &str = "1000";
/// A thread of the channel, which the bot began.
const THREAD: &str = "1500";
const TOKEN: &str = "NzAw.secret.word";

/// Brings what is addressed to the bot to the default persona.
const HOOK: &str = r#"/** @name threads */
export default (ctx) => {
  const e = ctx.event;
  return { fire: e.channel === "discord" && e.direction === "received" };
};
"#;

/// Discord as one bot sees it.
#[derive(Debug, Clone)]
struct Discord {
    address: String,
    state: Arc<Mutex<DiscordState>>,
    changed: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct DiscordState {
    dispatches: Vec<Value>,
    messages: u64,
    /// Messages of the bot, as Discord shows them.
    sent: Vec<Value>,
}

impl Discord {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let this = Self {
            address: listener.local_addr().expect("an address").to_string(),
            state: Arc::default(),
            changed: watch::channel(0).0,
        };
        let routes = Router::new()
            .route("/gateway/", any(open_gateway))
            .route("/api/{*path}", get(look_up))
            .route("/api/channels/{channel}/messages", post(create).get(history))
            .with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        this
    }

    fn lock(&self) -> MutexGuard<'_, DiscordState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dispatch(&self, kind: &str, data: &Value) {
        let mut state = self.lock();
        let seq = state.dispatches.len() + 1;
        state.dispatches.push(json!({"op": 0, "s": seq, "t": kind, "d": data}));
        drop(state);
        self.changed.send_replace(seq);
    }

    fn next_id(&self) -> String {
        let mut state = self.lock();
        state.messages += 1;
        (first_id_at(SystemClock.now()) + state.messages).to_string()
    }

    /// `author` writes `text` in the thread.
    fn write(&self, author: &str, text: &str) {
        let message = message(&self.next_id(), author, text);
        self.dispatch("MESSAGE_CREATE", &message);
    }

    /// The channels and texts of what the bot has sent.
    fn sent(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let state = self.lock();
        let sent = state
            .sent
            .iter()
            .map(|sent| (text(&sent["channel_id"]), text(&sent["content"])));
        sent.collect()
    }
}

fn message(id: &str, author: &str, text: &str) -> Value {
    json!({
        "id": id, "channel_id": THREAD, "guild_id": GUILD, "type": 0, "content": text, "edited_timestamp": null,
        "timestamp": SystemClock.now().to_rfc3339(), "author": {"id": author, "username": "somebody", "bot": author == BOT},
        "mentions": [], "mention_roles": [], "attachments": [], "embeds": [],
    })
}

async fn open_gateway(State(discord): State<Discord>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |socket| {
        let _ended = serve_gateway(discord, socket).await;
    })
}

async fn serve_gateway(discord: Discord, mut socket: WebSocket) -> Option<()> {
    let frame = |value: Value| Message::Text(value.to_string().into());
    let hello = json!({"op": 10, "d": {"heartbeat_interval": 500}});
    socket.send(frame(hello)).await.ok()?;
    let mut changed = discord.changed.subscribe();
    let mut sent = None;
    loop {
        if let Some(count) = &mut sent {
            let frames = discord.lock().dispatches[*count..].to_vec();
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
                        discord.lock().dispatches.clear();
                        let resume = format!("ws://{}/gateway", discord.address);
                        discord.dispatch("READY", &json!({"session_id": "s", "resume_gateway_url": resume, "guilds": []}));
                        sent = Some(0);
                    }
                    Some(6) => sent = received["d"]["seq"].as_u64().and_then(|seq| usize::try_from(seq).ok()),
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
        "channels/1500" => json!({"id": THREAD, "type": 11, "guild_id": GUILD, "parent_id": GENERAL, "owner_id": BOT}),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    Json(found).into_response()
}

async fn history() -> Json<Value> {
    Json(json!([]))
}

async fn create(State(discord): State<Discord>, Path(channel): Path<String>, Json(body): Json<Value>) -> Json<Value> {
    let mut sent = message(&discord.next_id(), BOT, body["content"].as_str().expect("a text"));
    sent["channel_id"] = json!(channel);
    discord.lock().sent.push(sent.clone());
    Json(sent)
}

async fn has_sent(discord: &Discord, world: &World, expected: &[&str]) {
    let expected: Vec<(String, String)> = expected
        .iter()
        .map(|text| (THREAD.to_owned(), (*text).to_owned()))
        .collect();
    eventually("the bot has answered in the thread", PATIENCE, async || {
        let sent = discord.sent();
        (sent == expected)
            .then_some(())
            .ok_or_else(|| format!("{sent:?}\n{}", world.logs()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_on_discord_keeps_its_session_and_the_echo_of_an_answer_fires_nothing() {
    let discord = Discord::start().await;
    let address = &discord.address;
    let world = World::start(Setup {
        hooks: vec![("threads.ts", HOOK.to_owned())],
        channels: format!(
            "discord: {{accounts: {{main: {{token: 'env:BOT_TOKEN', base_url: 'http://{address}/api', groups: {{{GUILD}: {{}}}}}}}}}}"
        ),
        environment: vec![("BOT_TOKEN".to_owned(), TOKEN.to_owned())],
        ..Setup::default()
    })
    .await;
    eventually("the bot is connected", PATIENCE, async || {
        let is_connected = !discord.lock().dispatches.is_empty();
        is_connected.then_some(()).ok_or_else(|| world.logs())
    })
    .await;

    discord.write(ANN, "hello");
    has_sent(&discord, &world, &["echo: hello"]).await;

    // What the bot has sent comes back: as it is, under another id, and edited.
    let own = discord.lock().sent[0].clone();
    discord.dispatch("MESSAGE_CREATE", &own);
    let mut again = own.clone();
    again["id"] = json!(discord.next_id());
    discord.dispatch("MESSAGE_CREATE", &again);
    let mut edited = own;
    edited["edited_timestamp"] = json!(SystemClock.now().to_rfc3339());
    edited["content"] = json!("echo: hello?");
    discord.dispatch("MESSAGE_UPDATE", &edited);

    discord.write("12", "and so do I");
    discord.write(ANN, "and again");
    has_sent(
        &discord,
        &world,
        &["echo: hello", "echo: and so do I", "echo: and again"],
    )
    .await;

    let dispatches: Vec<(u64, Dispatch)> = read_all(&world.bus, streams::DISPATCHES).await;
    let sessions: Vec<&str> = dispatches
        .iter()
        .map(|(_, dispatch)| dispatch.target.session.as_str())
        .collect();
    assert_eq!(sessions, ["discord:main:channel:1000:thread:1500"; 3]);
    let ids: Vec<&str> = dispatches
        .iter()
        .map(|(_, dispatch)| dispatch.event_id.as_str())
        .collect();
    assert!(ids.iter().all(|id| id.starts_with("discord:main/1500/")), "{ids:?}");
    assert!(!world.logs().contains(TOKEN), "the token is in a log");

    world.stack.stop().await;
}
