//! The stand-in's sockets: payloads over them, acknowledgements, and ends that Slack chooses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, post};
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::model::event::{Event, PlatformIds};
use shared::wire::dead_letter::DeadLetter;
use tokio::sync::watch;

/// A stand-in with one app; clones are the same server.
#[derive(Debug, Clone)]
pub(crate) struct SocketApi {
    pub(crate) base: String,
    /// Name of the account in `channels.yaml`.
    account: &'static str,
    bus: Bus,
    stored: Arc<tokio::sync::Mutex<StoredIds>>,
    state: Arc<Mutex<SocketState>>,
    /// Changes with each payload and each order to a connection.
    changed: watch::Sender<u64>,
}

/// The ids of the events that the stream was seen to have.
#[derive(Debug, Default)]
struct StoredIds {
    ids: BTreeSet<String>,
    last: u64,
}

#[derive(Debug, Default)]
struct SocketState {
    /// Envelopes that no connection has yet.
    waiting: VecDeque<Value>,
    /// Envelopes that were sent and are not acknowledged, by id, with the number of the connection that has each.
    sent: BTreeMap<String, (usize, Value)>,
    acknowledged: Vec<String>,
    /// Events that were acknowledged before they were stored.
    early: Vec<String>,
    /// Events that were acknowledged, each once.
    confirmed: BTreeSet<String>,
    envelopes: usize,
    /// Number of envelopes that were sent, each as often as it was.
    handed: usize,
    /// Number of calls, and of frames that came over sockets.
    calls: u64,
    /// Whether payloads come twice and out of order.
    shuffles: bool,
    connections: u32,
    most_connections: u32,
    opened: usize,
    /// What `apps.connections.open` is answered, instead of an address.
    refused: Option<Value>,
    /// Number of connections of other programs.
    others: u32,
    /// Frame with which every connection of now is told to end; `None` in it = it is cut.
    order: Option<Option<Value>>,
    orders: u64,
}

impl SocketApi {
    pub(crate) async fn start(bus: Bus) -> Self {
        Self::start_of(bus, "main").await
    }

    /// As [`SocketApi::start`], for the app of `account`.
    pub(crate) async fn start_of(bus: Bus, account: &'static str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (changed, _) = watch::channel(0);
        let api = Self {
            base: format!("http://{}", listener.local_addr().expect("an address")),
            account,
            bus,
            stored: Arc::default(),
            state: Arc::default(),
            changed,
        };
        let routes = Router::new()
            .route("/api/{method}", post(answer))
            .route("/link", any(connect))
            .with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        api
    }

    fn lock(&self) -> MutexGuard<'_, SocketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut SocketState)) {
        change(&mut self.lock());
        self.changed.send_modify(|number| *number += 1);
    }

    /// Sends `event` over the connection that is open, or the next one.
    pub(crate) fn bring(&self, event: &Value) {
        let payload = json!({"type": "event_callback", "team_id": "T1", "api_app_id": "A1", "event": event});
        self.bring_frame(json!({"type": "events_api", "payload": payload}));
    }

    /// Sends `frame`, with the id of an envelope.
    pub(crate) fn bring_frame(&self, mut frame: Value) {
        self.change(|state| {
            state.envelopes += 1;
            frame["envelope_id"] = json!(format!("envelope-{}", state.envelopes));
            if state.shuffles {
                let mut again = frame.clone();
                again["envelope_id"] = json!(format!("again-{}", state.envelopes));
                state.waiting.push_front(again);
            }
            state.waiting.push_back(frame);
        });
    }

    /// Tells every connection to end; with `None` it is cut.
    pub(crate) fn end(&self, frame: Option<Value>) {
        self.change(|state| {
            state.order = Some(frame);
            state.orders += 1;
        });
    }

    pub(crate) fn refuse(&self, answer: Option<Value>) {
        self.change(|state| state.refused = answer);
    }

    /// Sends each payload twice from now on, and later ones first.
    pub(crate) fn shuffle(&self) {
        self.change(|state| state.shuffles = true);
    }

    /// Drops what no connection has taken, as Slack does after a while.
    pub(crate) fn forget(&self) {
        self.change(|state| state.waiting.clear());
    }

    /// Number of messages that were acknowledged.
    pub(crate) fn confirmed(&self) -> usize {
        self.lock().confirmed.len()
    }

    pub(crate) fn handed(&self) -> usize {
        self.lock().handed
    }

    pub(crate) fn calls(&self) -> u64 {
        self.lock().calls
    }

    pub(crate) fn set_others(&self, others: u32) {
        self.change(|state| state.others = others);
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.lock().acknowledged.len()
    }

    pub(crate) fn sent(&self) -> usize {
        self.lock().sent.len()
    }

    /// Number of envelopes that are not acknowledged.
    pub(crate) fn waiting(&self) -> usize {
        let state = self.lock();
        state.waiting.len() + state.sent.len()
    }

    pub(crate) fn early(&self) -> Vec<String> {
        self.lock().early.clone()
    }

    pub(crate) fn opened(&self) -> usize {
        self.lock().opened
    }

    pub(crate) fn connections(&self) -> u32 {
        self.lock().connections
    }

    /// Most connections that were open at a time.
    pub(crate) fn most_connections(&self) -> u32 {
        self.lock().most_connections
    }

    /// Whether the stream has the event `id`.
    async fn is_stored(&self, id: &str) -> bool {
        let mut stored = self.stored.lock().await;
        loop {
            let page = self
                .bus
                .read_history("EVENTS", "nexus.ev.>", stored.last + 1, 1_000)
                .await;
            // A server that was killed cannot be asked, and has nothing new.
            let page = page.unwrap_or_default();
            let Some(last) = page.last() else {
                return stored.ids.contains(id);
            };
            stored.last = last.sequence;
            for one in &page {
                let event: Event = one.decode().expect("an event");
                // An event of several messages has the ids of all.
                let messages = PlatformIds::from_event(&event).into_iter().flat_map(|found| found.ids);
                let account = event.account().to_owned();
                stored.ids.extend(messages.map(|id| format!("slack:{account}/{id}")));
                stored.ids.insert(event.id.to_string());
            }
        }
    }

    /// Notes the acknowledgement `text`, and whether its event was stored before. One without a time stamp cannot be an
    /// event, and must be a dead letter.
    async fn take(&self, text: &str) {
        let told: Value = serde_json::from_str(text).expect("JSON");
        let id = told["envelope_id"].as_str().expect("an id").to_owned();
        let event = self
            .lock()
            .sent
            .get(&id)
            .map(|(_, envelope)| envelope["payload"]["event"].clone());
        let event = event.expect("an envelope that was sent");
        let of = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let expected = format!("slack:{}/{}/{}", self.account, of("channel"), of("ts"));
        let is_stored = if event["ts"].is_string() {
            self.is_stored(&expected).await
        } else {
            let letters = self
                .bus
                .read_history("DLQ", "nexus.dlq.>", 1, 100)
                .await
                .unwrap_or_default();
            let text = of("text");
            letters.iter().any(|stored| {
                let letter: DeadLetter = stored.decode().expect("a letter");
                String::from_utf8_lossy(&letter.payload_bytes().expect("bytes")).contains(&text)
            })
        };

        let mut state = self.lock();
        state.sent.remove(&id);
        state.acknowledged.push(id);
        state.confirmed.insert(expected.clone());
        if !is_stored {
            state.early.push(expected);
        }
    }
}

async fn answer(State(api): State<SocketApi>, Path(method): Path<String>, headers: HeaderMap) -> Response {
    let token = headers["authorization"]
        .to_str()
        .expect("text")
        .trim_start_matches("Bearer ");
    api.lock().calls += 1;
    let answered = match method.as_str() {
        "auth.test" => {
            assert!(token.starts_with("xoxb-"), "the bot's token");
            json!({"ok": true, "team": "Acme", "user": "nexus", "team_id": "T1", "user_id": "U7", "bot_id": "B7"})
        }
        "apps.connections.open" => {
            assert!(token.starts_with("xapp-"), "the app's token");
            let url = format!("{}/link?ticket=secret", api.base.replacen("http", "ws", 1));
            let refused = api.lock().refused.clone();
            refused.unwrap_or_else(|| json!({"ok": true, "url": url}))
        }
        _ => return StatusCode::NOT_IMPLEMENTED.into_response(),
    };
    axum::Json(answered).into_response()
}

async fn connect(State(api): State<SocketApi>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |socket| {
        let (begun, number) = {
            let mut state = api.lock();
            state.connections += 1;
            state.most_connections = state.most_connections.max(state.connections);
            state.opened += 1;
            (state.orders, state.opened)
        };
        serve(&api, socket, begun, number).await;
        // What was not acknowledged goes to another connection.
        api.change(|state| {
            state.connections -= 1;
            let sent = std::mem::take(&mut state.sent).into_iter();
            let (unanswered, others): (BTreeMap<_, _>, _) = sent.partition(|(_, (of, _))| *of == number);
            state.sent = others;
            state
                .waiting
                .extend(unanswered.into_values().map(|(_, envelope)| envelope));
        });
    })
}

/// Serves the connection `number`, which was told of the orders before `begun`.
async fn serve(api: &SocketApi, mut socket: WebSocket, begun: u64, number: usize) {
    let mut changed = api.changed.subscribe();
    let hello = {
        let state = api.lock();
        json!({"type": "hello", "num_connections": 1 + state.others, "connection_info": {"app_id": "A1"}})
    };
    let text = |value: &Value| Message::Text(value.to_string().into());
    if socket.send(text(&hello)).await.is_err() {
        return;
    }

    let mut told = begun;
    loop {
        let (next, order) = {
            let mut state = api.lock();
            let next = state.waiting.pop_front();
            if let Some(envelope) = &next {
                let id = envelope["envelope_id"].as_str().expect("an id").to_owned();
                state.sent.insert(id, (number, envelope.clone()));
                state.handed += 1;
            }
            let order = if state.orders > told { state.order.clone() } else { None };
            told = state.orders;
            (next, order)
        };
        match order {
            Some(None) => return,
            Some(Some(frame)) if socket.send(text(&frame)).await.is_err() => return,
            Some(Some(_)) | None => {}
        }
        if let Some(envelope) = next {
            if socket.send(text(&envelope)).await.is_err() {
                return;
            }
            continue;
        }

        tokio::select! {
            frame = socket.recv() => {
                api.lock().calls += 1;
                match frame {
                    Some(Ok(Message::Text(text))) => api.take(&text).await,
                    Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                }
            }
            changed = changed.changed() => changed.expect("the server lives"),
        }
    }
}
