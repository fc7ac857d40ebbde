//! The memory that idle accounts take in adapter-svc. A third of them each is read by a long poll (Telegram), over a socket of
//! its app (Slack) and over a gateway (Discord).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Json, Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{any, get, post};
use serde_json::{Value, json};
use shared::clock::pause;
use shared::testing::eventually_within;
use tests::world::{Setup, World};

use crate::kills::is_long;

/// The longest time that a poll is held open. Telegram holds it for as long as the caller asks, here 50 s.
const HELD: Duration = Duration::from_secs(50);
/// The interval of a gateway's heartbeats, in milliseconds, as Discord names it.
const HEARTBEAT_MS: u64 = 41_250;
/// The time within which every account is read. Each begins with some calls, on a machine that may be slow.
const UP: Duration = Duration::from_secs(240);
/// The time for which memory is looked at.
const LOOKED_AT: Duration = Duration::from_secs(15);
/// Largest memory of adapter-svc with 1,000 accounts, in bytes.
const MOST_BYTES: u64 = 150 << 20;

/// A stand-in of all three platforms; clones are the same server.
#[derive(Debug, Clone)]
struct Platforms {
    address: String,
    /// Accounts that are read, by platform and token.
    read: Arc<Mutex<BTreeSet<String>>>,
}

impl Platforms {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let this = Self {
            address: listener.local_addr().expect("an address").to_string(),
            read: Arc::default(),
        };
        let routes = Router::new()
            .route("/telegram/{bot}/{method}", post(answer_bot))
            .route("/slack/api/{method}", post(answer_app))
            .route("/slack/link", any(open_link))
            .route("/discord/users/@me", get(own_user))
            .route("/discord/gateway/bot", get(find_gateway))
            .route("/gateway/", any(open_gateway))
            .with_state(this.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        this
    }

    fn note_read(&self, account: String) {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(account);
    }

    /// Number of accounts that are read.
    fn read(&self) -> usize {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns channels.yaml with `count` accounts, and the variables of their tokens.
    fn accounts(&self, count: usize) -> (String, Vec<(String, String)>) {
        let address = &self.address;
        let (mut telegram, mut slack, mut discord) = (String::new(), String::new(), String::new());
        let mut variables = Vec::new();
        for number in 0..count {
            let (name, id) = (format!("IDLE_{number}"), 1_000 + number);
            let keys = format!("token: 'env:{name}', direct: open");
            let (section, more, token) = match number % 3 {
                0 => (
                    &mut telegram,
                    format!("base_url: 'http://{address}/telegram'"),
                    format!("{id}:secret"),
                ),
                1 => {
                    variables.push((format!("APP_{number}"), format!("xapp-{id}-secret")));
                    let app = format!("receive: socket, app_token: 'env:APP_{number}'");
                    (
                        &mut slack,
                        format!("base_url: 'http://{address}/slack', {app}"),
                        format!("xoxb-{id}-secret"),
                    )
                }
                _ => (
                    &mut discord,
                    format!("base_url: 'http://{address}/discord'"),
                    format!("{id}.idle.secret"),
                ),
            };
            let _ = writeln!(section, "    idle{number}: {{{keys}, {more}}}");
            variables.push((name, token));
        }

        let channels =
            format!("telegram:\n  accounts:\n{telegram}slack:\n  accounts:\n{slack}discord:\n  accounts:\n{discord}");
        (channels, variables)
    }
}

async fn answer_bot(State(platforms): State<Platforms>, Path((bot, method)): Path<(String, String)>) -> Json<Value> {
    let id = bot
        .trim_start_matches("bot")
        .split(':')
        .next()
        .and_then(|id| id.parse::<i64>().ok());
    let result = match method.as_str() {
        "getMe" => json!({ "id": id, "is_bot": true, "first_name": "Nexus", "username": format!("idle_{bot}") }),
        "getWebhookInfo" => json!({ "url": "", "pending_update_count": 0 }),
        "getUpdates" => {
            platforms.note_read(bot);
            pause(HELD).await;
            json!([])
        }
        _ => json!(true),
    };
    Json(json!({ "ok": true, "result": result }))
}

/// The token of a call.
fn token(headers: &HeaderMap) -> String {
    let value = headers.get("authorization").and_then(|value| value.to_str().ok());
    let (_, token) = value.and_then(|value| value.split_once(' ')).expect("a token");
    token.to_owned()
}

async fn answer_app(State(platforms): State<Platforms>, Path(method): Path<String>, headers: HeaderMap) -> Json<Value> {
    let (token, address) = (token(&headers), &platforms.address);
    Json(match method.as_str() {
        "auth.test" => json!({"ok": true, "team_id": "T1", "user_id": token, "bot_id": "B7", "user": "nexus"}),
        "apps.connections.open" => json!({"ok": true, "url": format!("ws://{address}/slack/link?{token}")}),
        _ => json!({"ok": false, "error": "unknown_method"}),
    })
}

fn frame(value: &Value) -> Message {
    Message::Text(value.to_string().into())
}

async fn open_link(State(platforms): State<Platforms>, RawQuery(app): RawQuery, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |mut socket: WebSocket| {
        let hello = json!({"type": "hello", "num_connections": 1});
        if socket.send(frame(&hello)).await.is_ok() {
            platforms.note_read(app.expect("a ticket"));
        }
        // Pings are answered by the server as long as it is read.
        while socket.recv().await.is_some_and(|received| received.is_ok()) {}
    })
}

async fn own_user(headers: HeaderMap) -> Json<Value> {
    let token = token(&headers);
    let id = token.split('.').next().unwrap_or_default();
    Json(json!({"id": id, "username": "nexus"}))
}

async fn find_gateway(State(platforms): State<Platforms>) -> Json<Value> {
    let starts = json!({"total": 1_000, "remaining": 999, "reset_after": 0, "max_concurrency": 1});
    let url = format!("ws://{}/gateway", platforms.address);
    Json(json!({"url": url, "shards": 1, "session_start_limit": starts}))
}

async fn open_gateway(State(platforms): State<Platforms>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |socket| {
        let _ended = serve_gateway(&platforms, socket).await;
    })
}

/// Begins a session, and answers its heartbeats.
async fn serve_gateway(platforms: &Platforms, mut socket: WebSocket) -> Option<()> {
    let hello = json!({"op": 10, "d": {"heartbeat_interval": HEARTBEAT_MS}});
    socket.send(frame(&hello)).await.ok()?;
    loop {
        let Message::Text(text) = socket.recv().await?.ok()? else {
            continue;
        };
        let received: Value = serde_json::from_str(&text).ok()?;
        match received["op"].as_u64() {
            Some(1) => socket.send(frame(&json!({"op": 11}))).await.ok()?,
            Some(2) => {
                let token = received["d"]["token"].as_str()?.to_owned();
                let id = token.split('.').next().unwrap_or_default();
                let ready = json!({
                    "v": 10, "session_id": id, "resume_gateway_url": format!("ws://{}/gateway", platforms.address),
                    "guilds": [], "user": {"id": id, "username": "nexus"},
                });
                let ready = json!({"op": 0, "s": 1, "t": "READY", "d": ready});
                socket.send(frame(&ready)).await.ok()?;
                platforms.note_read(token);
            }
            _ => {}
        }
    }
}

/// Returns the resident memory of the process `pid`, in bytes.
fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.expect("a size") << 10
}

/// 99 accounts with the tests, 999 in the long form, which is near the bound in a debug build.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_accounts_at_which_nothing_happens_take_little_memory() {
    let count = if is_long() { 999 } else { 99 };
    let platforms = Platforms::start().await;
    let (channels, environment) = platforms.accounts(count);
    let mut world = World::start(Setup {
        channels,
        environment,
        ..Setup::default()
    })
    .await;
    let pid = world.stack.service("adapter-svc", 0).expect("it runs").pid();
    let before = resident_bytes(pid);

    eventually_within("every account is read", UP, async || {
        let read = platforms.read();
        (read == count)
            .then_some(())
            .ok_or_else(|| format!("{read} of {count}"))
    })
    .await;
    let mut most = 0;
    for _ in 0..LOOKED_AT.as_secs() {
        pause(Duration::from_secs(1)).await;
        most = most.max(resident_bytes(pid));
    }

    println!(
        "{count} idle accounts: adapter-svc has {} MiB, {} MiB when it started",
        most >> 20,
        before >> 20
    );
    assert!(most <= MOST_BYTES, "{most} bytes");
}
