use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::json;
use shared::clock::{Clock as _, SystemClock};
use shared::platform::accounts::read_platforms;
use shared::testing::{SeededIds, eventually};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::super::account_context::AccountContext;
use super::super::address_gate::AddressGate;
use super::super::client::open_http;
use super::*;

/// Number of dispatches that the gateway has, and the size of each in bytes.
const DISPATCHES: usize = 200;
const SIZE: usize = 1024 * 1024;
/// Maximum number of messages that the gateway has not sent: more than a test makes.
const QUEUE: usize = 100_000;

/// An account at the API at `address`.
fn context(address: &str) -> AccountContext {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "77.a.secret").expect("written");
    let token = file.path().display();
    let text = format!("discord: {{accounts: {{main: {{token: 'file:{token}', base_url: 'http://{address}/api'}}}}}}");
    let accounts = read_platforms(&text).expect("the file is read");
    AccountContext {
        name: "main".to_owned(),
        account: accounts.discord.accounts["main"].clone(),
        http: open_http().expect("a client"),
        ids: Arc::new(SeededIds::new(1)),
        timer: Arc::new(SystemClock),
        clock: Arc::new(SystemClock),
        gate: AddressGate::default(),
    }
}

fn text(frame: &Value) -> Message {
    Message::text(frame.to_string())
}

/// The gateway's end of a connection.
struct Gateway {
    /// Messages to send. Answers to heartbeats go before those that are not sent yet.
    frames: mpsc::Sender<Message>,
    /// Number of messages that were taken, without answers to heartbeats.
    sent: Arc<AtomicUsize>,
    /// Number of heartbeats.
    beats: Arc<AtomicUsize>,
    /// Whether the client has closed the socket.
    is_left: Arc<AtomicBool>,
}

/// Returns a socket, and the gateway behind it, which begins a session.
async fn connect() -> (WebSocketStream<tokio::io::DuplexStream>, Gateway) {
    let (ours, theirs) = tokio::io::duplex(SIZE);
    let config = WebSocketConfig::default();
    let socket = WebSocketStream::from_raw_socket(ours, Role::Client, Some(config)).await;
    let gateway = WebSocketStream::from_raw_socket(theirs, Role::Server, Some(config)).await;
    let (mut write, mut read) = gateway.split();

    let (frames, mut outgoing) = mpsc::channel::<Message>(QUEUE);
    let (answers, mut answering) = mpsc::channel::<Message>(QUEUE);
    // Long enough to read a large message in.
    let hello = json!({"op": 10, "d": {"heartbeat_interval": 1_000}});
    let ready = json!({"op": 0, "s": 1, "t": "READY", "d": {"session_id": "s", "resume_gateway_url": "ws://r"}});
    for frame in [text(&hello), text(&ready)] {
        frames.try_send(frame).expect("sent");
    }
    let (sent, beats) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let is_left = Arc::new(AtomicBool::new(false));
    let (counted, beaten, left) = (Arc::clone(&sent), Arc::clone(&beats), Arc::clone(&is_left));
    tokio::spawn(async move {
        loop {
            let (next, count) = tokio::select! {
                biased;
                Some(answer) = answering.recv() => (answer, 0),
                Some(frame) = outgoing.recv() => (frame, 1),
                else => return,
            };
            if write.send(next).await.is_err() {
                return;
            }
            counted.fetch_add(count, Ordering::SeqCst);
        }
    });
    tokio::spawn(async move {
        while let Some(Ok(Message::Text(frame))) = read.next().await {
            let frame: Value = serde_json::from_str(&frame).expect("JSON");
            if frame["op"] == 1 {
                beaten.fetch_add(1, Ordering::SeqCst);
                let _closed = answers.try_send(text(&json!({"op": 11})));
            }
        }
        left.store(true, Ordering::SeqCst);
    });
    let gateway = Gateway {
        frames,
        sent,
        beats,
        is_left,
    };
    (socket, gateway)
}

/// What a socket brings, the way to confirm, and its end.
type Driven = (
    mpsc::Receiver<LinkItem>,
    watch::Sender<u64>,
    tokio::task::JoinHandle<CloseReason>,
);

/// Drives `socket` for an account at the API at `address`.
fn drive(socket: WebSocketStream<tokio::io::DuplexStream>, address: &str) -> Driven {
    drive_behind(socket, address, None)
}

/// As [`drive`], for a reader that has not taken `earlier` yet: it takes one item at a time.
fn drive_behind(socket: WebSocketStream<tokio::io::DuplexStream>, address: &str, earlier: Option<LinkItem>) -> Driven {
    let context = context(address);
    let (items, received) = mpsc::channel(1);
    if let Some(earlier) = earlier {
        items.try_send(earlier).expect("there is room");
    }
    let (stored, confirmed) = watch::channel(0);
    let driving = tokio::spawn(async move {
        let client = DiscordClient::new(&context);
        let driver = LinkDriver {
            client: &client,
            token: "77.a.secret",
            jitter: 0.5,
            items,
            stored: confirmed,
            account: "main",
            timer: &context.timer,
        };
        driver.drive(socket, GatewayLink::new(None)).await
    });
    (received, stored, driving)
}

/// Takes `count` dispatches.
async fn take_dispatches(received: &mut mpsc::Receiver<LinkItem>, count: usize) {
    let mut taken = 0;
    while taken < count {
        let item = received.recv().await.expect("the connection lives");
        taken += usize::from(matches!(item, LinkItem::Dispatch(_)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_stored_slows_the_gateway_at_a_bound_of_bytes_and_the_connection_lives_on() {
    let (socket, gateway) = connect().await;
    let large = json!({"op": 0, "s": 2, "t": "MESSAGE_CREATE", "d": {"content": "x".repeat(SIZE)}});
    let large = text(&large);
    for _ in 0..DISPATCHES {
        gateway.frames.try_send(large.clone()).expect("sent");
    }
    let (mut received, stored, driving) = drive(socket, "127.0.0.1:9");

    // Nothing more is read, while heartbeats go on for several intervals.
    let (sent, beats) = (gateway.sent, gateway.beats);
    eventually("the gateway is slowed", async || {
        let (before, begun) = (sent.load(Ordering::SeqCst), beats.load(Ordering::SeqCst));
        eventually("heartbeats go on", async || beats.load(Ordering::SeqCst) >= begun + 2).await;
        sent.load(Ordering::SeqCst) == before
    })
    .await;
    let held = sent.load(Ordering::SeqCst);
    assert!((64..=70).contains(&held), "{held} MiB were taken");

    // Once it is stored, everything comes.
    take_dispatches(&mut received, DISPATCHES + 1).await;
    drop(stored);
    let left = driving.await.expect("it ends in order");
    assert_eq!(left, CloseReason::Resume("the reader ended".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn presses_beyond_the_bound_are_handed_over_and_not_answered() {
    // An API that takes calls and answers none.
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let answer = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<StatusCode>()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let routes = Router::new().route("/api/interactions/{id}/{token}/callback", post(answer));
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let (socket, gateway) = connect().await;
    for number in 0..DISPATCHES {
        let press = json!({"id": number.to_string(), "token": "t", "type": 3});
        let press = json!({"op": 0, "s": 2 + number, "t": "INTERACTION_CREATE", "d": press});
        gateway.frames.try_send(text(&press)).expect("sent");
    }
    let begun = SystemClock.monotonic();
    let (mut received, stored, driving) = drive(socket, &address);
    take_dispatches(&mut received, DISPATCHES + 1).await;
    eventually("presses are answered", async || {
        calls.load(Ordering::SeqCst) >= MAX_PRESSES
    })
    .await;
    drop(stored);
    driving.await.expect("it ends in order");

    // A call that has no answer for three seconds makes room for another one.
    let is_within = SystemClock.monotonic().saturating_duration_since(begun) < Duration::from_secs(3);
    let made = calls.load(Ordering::SeqCst);
    assert!(
        made == MAX_PRESSES || !is_within,
        "{made} presses were answered at a time"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_begun_is_handed_over_although_its_socket_is_left_first() {
    let (socket, gateway) = connect().await;
    let reconnect = json!({"op": 7, "d": null});
    gateway.frames.try_send(text(&reconnect)).expect("sent");
    let (mut received, stored, driving) = drive_behind(socket, "127.0.0.1:9", Some(LinkItem::Alive));
    eventually("the socket is left", async || gateway.is_left.load(Ordering::SeqCst)).await;

    assert!(matches!(received.recv().await, Some(LinkItem::Alive)));
    let Some(LinkItem::Dispatch(ready)) = received.recv().await else {
        panic!("the session is not handed over");
    };
    assert_eq!(
        (ready.dispatch.kind.as_str(), ready.dispatch.session.as_str()),
        ("READY", "s")
    );
    let left = driving.await.expect("it ends in order");
    assert_eq!(left, CloseReason::Resume("the gateway asks to reconnect".to_owned()));
    drop(stored);
}
