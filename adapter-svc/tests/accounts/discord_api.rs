//! A stand-in of Discord, by the vendor's words: a gateway whose sessions can be resumed elsewhere, and a REST API with
//! the channels' histories.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::any;
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::model::event::PlatformIds;
use shared::model::time::UnixMillis;
use shared::platform::discord::snowflake::{first_id_at, snowflake_time};
use tokio::sync::watch;

use crate::discord_rest;
use crate::file_shelf::FileShelf;
use crate::world::stored_events;

/// Guild of all channels of the stand-in.
pub(crate) const GUILD: &str = "20";
/// First of its channels; the others follow.
pub(crate) const FIRST_CHANNEL: i64 = 1_000;
/// A thread of the first channel, which another person began.
pub(crate) const THREAD: &str = "1500";
/// Interval of heartbeats, in milliseconds. A client leaves a socket whose heartbeat is not answered for so long, so that it is
/// longer than a slow machine takes.
const HEARTBEAT_MS: u64 = 500;

/// The stand-in. Clones share it.
#[derive(Clone)]
pub(crate) struct DiscordApi {
    pub(crate) address: String,
    pub(crate) files: FileShelf,
    bots: Arc<Mutex<BTreeMap<String, Bot>>>,
    changed: watch::Sender<u64>,
    bus: Bus,
    /// The vendor's clock.
    pub(crate) clock: SharedClock,
}

/// A session with everything that was dispatched in it.
#[derive(Default)]
struct Session {
    log: Vec<Value>,
    is_gone: bool,
}

/// What the stand-in knows of a token.
#[derive(Default)]
pub(crate) struct Bot {
    sessions: Vec<Session>,
    /// Messages by channel, oldest first.
    pub(crate) history: BTreeMap<String, Vec<Value>>,
    said: usize,
    /// Ids of messages that were confirmed, and that were handed over.
    confirmed: BTreeSet<String>,
    pub(crate) handed: usize,
    pub(crate) calls: u64,
    /// How each socket began: its path, and `identify` or `resume`.
    begun: Vec<(String, &'static str)>,
    /// Codes with which sockets were closed by the client.
    closed: Vec<u16>,
    open: usize,
    most_open: usize,
    pub(crate) pressed: Vec<String>,
    pub(crate) asked: Vec<String>,
    /// Paths of all calls, and of those that were refused because of a limit.
    pub(crate) paths: Vec<String>,
    pub(crate) refused: Vec<String>,
    pub(crate) faults: DiscordFaults,
    early: Vec<String>,
}

/// How the stand-in misbehaves towards a token.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiscordFaults {
    /// It does not answer at all.
    pub(crate) is_away: bool,
    /// The token was revoked.
    pub(crate) is_revoked: bool,
    /// Each dispatch comes again later, in another order.
    pub(crate) shuffles: bool,
    /// The next so many resumed sessions are not ready.
    pub(crate) not_ready: usize,
    /// The next so many sockets are asked to reconnect as soon as they are open.
    pub(crate) reconnects: usize,
    /// Heartbeats of the next so many sockets are not answered.
    pub(crate) mute: usize,
    /// The next socket is closed with this code.
    pub(crate) closes_with: Option<u16>,
    /// The next so many histories end with 429 or 500, and no answer, in turn.
    pub(crate) refused_pages: usize,
    /// Channels that the bot may not read any more.
    pub(crate) closed_channels: Vec<String>,
    /// Number of sessions that may not be begun any more.
    pub(crate) has_no_starts: bool,
    /// Paths of the API whose calls are refused with 429, and the seconds that the answer names.
    pub(crate) limited: BTreeMap<String, f64>,
    /// Every call is refused with 429 by a server before the API.
    pub(crate) is_barred: bool,
    /// A session, a number in it, and the text that is sent in place of that dispatch.
    pub(crate) garbage: Option<(usize, u64, &'static str)>,
    /// What the list of a guild says of the rights in its channels.
    pub(crate) overwrites: Value,
}

/// The id of the item `number` that was made at `at`.
pub(crate) fn snowflake(number: i64, at: UnixMillis) -> String {
    (first_id_at(at) + number.cast_unsigned()).to_string()
}

/// The message `id` in `channel` from user 5.
pub(crate) fn message(id: &str, channel: &str, text: &str) -> Value {
    let at = snowflake_time(id).expect("an id");
    json!({
        "id": id, "channel_id": channel, "type": 0, "content": text, "timestamp": at.to_rfc3339(),
        "edited_timestamp": null, "author": {"id": "5", "username": "ann", "global_name": "Ann"}, "mentions": [],
        "mention_roles": [], "attachments": [], "embeds": [], "flags": 0, "pinned": false,
    })
}

impl DiscordApi {
    /// Starts the stand-in, whose answers have the time of `clock`; `bus` is asked what is stored when dispatches are
    /// confirmed.
    pub(crate) async fn start(bus: Bus, clock: SharedClock) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let api = Self {
            address: listener.local_addr().expect("an address").to_string(),
            files: FileShelf::default(),
            bots: Arc::default(),
            changed: watch::channel(0).0,
            bus,
            clock,
        };

        let routes = Router::new()
            .route("/{path}/", any(open_socket))
            .merge(discord_rest::routes(&api))
            .with_state(api.clone())
            .merge(api.files.routes());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        api
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Bot>> {
        self.bots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn with<T>(&self, token: &str, use_bot: impl FnOnce(&mut Bot) -> T) -> T {
        let used = use_bot(self.lock().entry(token.to_owned()).or_default());
        self.changed.send_modify(|count| *count += 1);
        used
    }

    /// Adds the message `number`, which was written at `at`; its channel and id.
    pub(crate) fn say(&self, token: &str, number: i64, at: UnixMillis) -> (String, String) {
        let (channel, id) = ((FIRST_CHANNEL + number % 7).to_string(), snowflake(number, at));
        let message = message(&id, &channel, &format!("message {number}"));
        self.write(token, &message);
        (channel, id)
    }

    /// Adds `message` to its channel and to the sessions.
    pub(crate) fn write(&self, token: &str, message: &Value) {
        let channel = message["channel_id"].as_str().expect("a channel").to_owned();
        self.with(token, |bot| {
            bot.history.entry(channel).or_default().push(message.clone());
        });
        let mut live = message.clone();
        live["guild_id"] = json!(GUILD);
        live["member"] = json!({"roles": ["600"], "nick": null});
        self.dispatch(token, "MESSAGE_CREATE", &live);
    }

    /// Adds `message` to a direct channel, which is in no list, and to the sessions.
    pub(crate) fn write_directly(&self, token: &str, message: &Value) {
        let channel = message["channel_id"].as_str().expect("a channel").to_owned();
        self.with(token, |bot| {
            bot.history.entry(channel).or_default().push(message.clone());
        });
        self.dispatch(token, "MESSAGE_CREATE", message);
    }

    /// Adds a dispatch to the sessions.
    pub(crate) fn dispatch(&self, token: &str, kind: &str, data: &Value) {
        self.with(token, |bot| {
            bot.said += 1;
            let repeats = bot.faults.shuffles && bot.said.is_multiple_of(10);
            for session in bot.sessions.iter_mut().filter(|session| !session.is_gone) {
                session.push(kind, data);
                if repeats {
                    let recent: Vec<Value> = session.log.iter().rev().take(15).cloned().collect();
                    for frame in recent.iter().filter(|frame| frame["t"] == "MESSAGE_CREATE") {
                        session.push("MESSAGE_CREATE", &frame["d"]);
                    }
                }
            }
        });
    }

    /// Forgets the sessions, and the messages that were not confirmed.
    pub(crate) fn forget(&self, token: &str) {
        self.forget_sessions(token);
        self.with(token, |bot| {
            let confirmed = bot.confirmed.clone();
            for messages in bot.history.values_mut() {
                messages.retain(|message| confirmed.contains(message["id"].as_str().expect("an id")));
            }
        });
    }

    /// Forgets the sessions.
    pub(crate) fn forget_sessions(&self, token: &str) {
        self.with(token, |bot| {
            bot.sessions.iter_mut().for_each(|session| session.is_gone = true);
        });
    }

    pub(crate) fn set(&self, token: &str, faults: DiscordFaults) {
        self.with(token, |bot| bot.faults = faults);
    }

    pub(crate) fn confirmed(&self, token: &str) -> usize {
        self.with(token, |bot| bot.confirmed.len())
    }

    /// The ids of the messages that are not confirmed, by channel.
    pub(crate) fn unconfirmed(&self, token: &str) -> BTreeMap<String, Vec<String>> {
        self.with(token, |bot| {
            let channels = bot.history.iter().map(|(channel, messages)| {
                let ids = messages.iter().filter_map(|message| message["id"].as_str());
                let lacking = ids.filter(|id| !bot.confirmed.contains(*id)).map(str::to_owned);
                (channel.clone(), lacking.collect::<Vec<_>>())
            });
            channels.filter(|(_, lacking)| !lacking.is_empty()).collect()
        })
    }

    pub(crate) fn handed(&self, token: &str) -> usize {
        self.with(token, |bot| bot.handed)
    }

    pub(crate) fn calls(&self, token: &str) -> u64 {
        self.with(token, |bot| bot.calls)
    }

    pub(crate) fn begun(&self, token: &str) -> Vec<(String, &'static str)> {
        self.with(token, |bot| bot.begun.clone())
    }

    pub(crate) fn closed(&self, token: &str) -> Vec<u16> {
        self.with(token, |bot| bot.closed.clone())
    }

    pub(crate) fn most_open(&self, token: &str) -> usize {
        self.with(token, |bot| bot.most_open)
    }

    pub(crate) fn pressed(&self, token: &str) -> Vec<String> {
        self.with(token, |bot| bot.pressed.clone())
    }

    /// The channels whose histories were asked for.
    pub(crate) fn asked(&self, token: &str) -> Vec<String> {
        self.with(token, |bot| bot.asked.clone())
    }

    /// The paths of all calls.
    pub(crate) fn paths(&self, token: &str) -> Vec<String> {
        self.with(token, |bot| bot.paths.clone())
    }

    /// The paths of calls that were refused because of a limit.
    pub(crate) fn refused(&self, token: &str) -> Vec<String> {
        self.with(token, |bot| bot.refused.clone())
    }

    pub(crate) fn early(&self, token: &str) -> Vec<String> {
        self.with(token, |bot| bot.early.clone())
    }

    /// As [`Self::confirm`], beside what answers the client: a gateway does not wait for this look.
    fn confirm_beside(&self, token: &str, ids: Vec<String>) {
        let (api, token) = (self.clone(), token.to_owned());
        tokio::spawn(async move { api.confirm(&token, ids).await });
    }

    /// Notes that `ids` are confirmed, and those whose events are not stored.
    pub(crate) async fn confirm(&self, token: &str, ids: Vec<String>) {
        let fresh: Vec<String> = {
            let mut bots = self.lock();
            let bot = bots.entry(token.to_owned()).or_default();
            ids.into_iter().filter(|id| !bot.confirmed.contains(id)).collect()
        };
        if fresh.is_empty() {
            return;
        }

        let events = stored_events(&self.bus).await;
        let platform = events
            .iter()
            .filter_map(PlatformIds::from_event)
            .flat_map(|platform| platform.ids);
        let stored: BTreeSet<String> = platform
            .filter_map(|id| Some(id.split_once('/')?.1.to_owned()))
            .collect();
        self.with(token, |bot| {
            for id in fresh {
                if !stored.contains(&id) {
                    bot.early.push(id.clone());
                }
                bot.confirmed.insert(id);
            }
        });
    }
}

impl Session {
    fn push(&mut self, kind: &str, data: &Value) {
        let seq = self.log.len() + 1;
        self.log.push(json!({"op": 0, "s": seq, "t": kind, "d": data}));
    }

    /// Ids of the messages among the first `count` dispatches.
    fn messages(&self, count: usize) -> Vec<String> {
        let frames = self
            .log
            .iter()
            .take(count)
            .filter(|frame| frame["t"] == "MESSAGE_CREATE");
        frames
            .filter_map(|frame| frame["d"]["id"].as_str().map(str::to_owned))
            .collect()
    }
}

/// The id of the bot with `token`: what stands before the first dot.
pub(crate) fn bot_id(token: &str) -> &str {
    token.split('.').next().expect("a token")
}

/// Counts an open socket.
struct OpenSocket(DiscordApi, String);

impl Drop for OpenSocket {
    fn drop(&mut self) {
        self.0.with(&self.1, |bot| bot.open -= 1);
    }
}

async fn open_socket(State(api): State<DiscordApi>, Path(path): Path<String>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |socket| {
        let _ended = serve_socket(api, path, socket).await;
    })
}

async fn send(socket: &mut WebSocket, frame: &Value) -> Option<()> {
    socket.send(Message::Text(frame.to_string().into())).await.ok()
}

/// The next JSON of the client; `None` once the socket is closed.
async fn receive(socket: &mut WebSocket, closed: &mut Option<u16>) -> Option<Value> {
    loop {
        match socket.recv().await?.ok()? {
            Message::Text(text) => return serde_json::from_str(&text).ok(),
            Message::Close(frame) => {
                *closed = frame.map(|frame| frame.code);
                return None;
            }
            Message::Binary(_) | Message::Ping(_) | Message::Pong(_) => {}
        }
    }
}

async fn serve_socket(api: DiscordApi, path: String, mut socket: WebSocket) -> Option<()> {
    let mut closed = None;
    send(
        &mut socket,
        &json!({"op": 10, "d": {"heartbeat_interval": HEARTBEAT_MS}}),
    )
    .await?;
    let first = receive(&mut socket, &mut closed).await?;
    let token = first["d"]["token"].as_str()?.to_owned();
    let is_resume = first["op"] == 6;

    let faults = api.with(&token, |bot| {
        bot.calls += 1;
        bot.begun
            .push((path.clone(), if is_resume { "resume" } else { "identify" }));
        bot.open += 1;
        bot.most_open = bot.most_open.max(bot.open);
        let faults = bot.faults.clone();
        bot.faults.closes_with = None;
        bot.faults.reconnects = bot.faults.reconnects.saturating_sub(1);
        bot.faults.mute = bot.faults.mute.saturating_sub(1);
        if is_resume {
            bot.faults.not_ready = bot.faults.not_ready.saturating_sub(1);
        }
        faults
    });
    let _open = OpenSocket(api.clone(), token.clone());
    let code = faults.closes_with.or_else(|| faults.is_revoked.then_some(4004));
    if let Some(code) = code {
        let frame = CloseFrame {
            code,
            reason: "closed".into(),
        };
        return socket.send(Message::Close(Some(frame))).await.ok();
    }

    if is_resume && faults.not_ready > 0 {
        send(&mut socket, &json!({"op": 9, "d": true})).await?;
    }
    let begun = begin_session(&api, &token, &first["d"], is_resume).await;
    let Some((session, sent)) = begun else {
        send(&mut socket, &json!({"op": 9, "d": false})).await?;
        // The client leaves. A socket that is dropped with something unread in it takes its last words back.
        while receive(&mut socket, &mut closed).await.is_some() {}
        return None;
    };
    if faults.reconnects > 0 {
        send(&mut socket, &json!({"op": 7, "d": null})).await?;
    }

    let ended = exchange(&api, &token, &mut socket, (session, sent), faults.mute > 0, &mut closed).await;
    api.with(&token, |bot| bot.closed.extend(closed));
    ended
}

/// Begins a session, or finds the one to be resumed; its number, and that of its dispatches that the client has.
async fn begin_session(api: &DiscordApi, token: &str, data: &Value, is_resume: bool) -> Option<(usize, usize)> {
    if !is_resume {
        return Some(api.with(token, |bot| {
            let number = bot.sessions.len();
            let resume = format!("ws://{}/resume", api.address);
            let mut session = Session::default();
            session.push(
                "READY",
                &json!({"v": 10, "session_id": number.to_string(), "resume_gateway_url": resume, "guilds":
                    [{"id": GUILD, "unavailable": true}], "user": {"id": bot_id(token), "username": "nexus"}}),
            );
            session.push("GUILD_CREATE", &guild(bot));
            bot.sessions.push(session);
            (number, 0)
        }));
    }

    let number: usize = data["session_id"].as_str()?.parse().ok()?;
    let seq = usize::try_from(data["seq"].as_u64()?).expect("small");
    let (confirmed, sent) = api.with(token, |bot| {
        let session = bot.sessions.get_mut(number).filter(|session| !session.is_gone)?;
        let confirmed = session.messages(seq);
        session.push("RESUMED", &json!({}));
        Some((confirmed, seq))
    })?;
    api.confirm_beside(token, confirmed);
    Some((number, sent))
}

fn guild(bot: &Bot) -> Value {
    let newest = |channel: &str| {
        bot.history
            .get(channel)
            .and_then(|messages| messages.last())
            .map(|last| last["id"].clone())
    };
    let channels = (FIRST_CHANNEL..FIRST_CHANNEL + 7).map(|channel| {
        let id = channel.to_string();
        json!({"id": id, "type": 0, "name": "general", "last_message_id": newest(&id),
            "permission_overwrites": bot.faults.overwrites})
    });
    let threads = json!([{"id": THREAD, "type": 11, "parent_id": FIRST_CHANNEL.to_string(), "owner_id": "5", "name": "talk",
        "last_message_id": newest(THREAD)}]);
    json!({"id": GUILD, "name": "guild", "channels": channels.collect::<Vec<_>>(), "threads": threads, "members": []})
}

async fn exchange(
    api: &DiscordApi,
    token: &str,
    socket: &mut WebSocket,
    (session, mut sent): (usize, usize),
    is_mute: bool,
    closed: &mut Option<u16>,
) -> Option<()> {
    let mut changed = api.changed.subscribe();
    loop {
        let (frames, is_over) = {
            let mut bots = api.lock();
            let bot = bots.get_mut(token)?;
            let frames: Vec<Value> = bot.sessions[session].log[sent..].to_vec();
            bot.handed += frames.iter().filter(|frame| frame["t"] == "MESSAGE_CREATE").count();
            (frames, bot.faults.is_away || bot.faults.is_revoked)
        };
        if is_over {
            // A revoked token ends its sockets; a server that is away says nothing.
            let frame = CloseFrame {
                code: 4004,
                reason: "Authentication failed.".into(),
            };
            let is_revoked = api.lock().get(token)?.faults.is_revoked;
            return if is_revoked {
                socket.send(Message::Close(Some(frame))).await.ok()
            } else {
                None
            };
        }
        for frame in &frames {
            let garbage = api.lock().get(token)?.faults.garbage;
            match garbage {
                Some((of, number, text)) if of == session && frame["s"] == number => {
                    socket.send(Message::Text(text.into())).await.ok()?;
                }
                Some(_) | None => send(socket, frame).await?,
            }
        }
        sent += frames.len();

        tokio::select! {
            _ = changed.changed() => {}
            frame = receive(socket, closed) => {
                let frame = frame?;
                if frame["op"] == 1 {
                    api.with(token, |bot| bot.calls += 1);
                    let count = usize::try_from(frame["d"].as_u64().unwrap_or(0)).expect("small");
                    let confirmed = api.lock().get(token)?.sessions[session].messages(count);
                    api.confirm_beside(token, confirmed);
                    if !is_mute {
                        send(socket, &json!({"op": 11})).await?;
                    }
                }
            }
        }
    }
}
