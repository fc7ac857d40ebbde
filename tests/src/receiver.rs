//! A receiver of webhooks on loopback: it notes the id, path and body of each call, takes its time, and says 200. While it is
//! shut it says 503 and notes nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use shared::clock::pause;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Longest request, bytes.
const MAX_REQUEST: usize = 1 << 20;

/// The receiver, for as long as the test's runtime lives.
#[derive(Debug, Clone)]
pub struct Receiver {
    /// Where it listens: `http://127.0.0.1:…/`.
    pub url: String,
    calls: Arc<Mutex<Vec<Call>>>,
    is_shut: Arc<AtomicBool>,
}

/// A call that arrived whole.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its `webhook-id`.
    pub id: String,
    /// Where to: `/owner`.
    pub path: String,
    /// What was posted; null where it is no JSON.
    pub body: Value,
}

impl Receiver {
    /// Starts one that takes `pace` to answer a call.
    ///
    /// # Panics
    /// Where no port is free.
    pub async fn start(pace: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let is_shut: Arc<AtomicBool> = Arc::default();

        let receiver = Self { url, calls, is_shut };
        let serving = receiver.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, pace, serving.clone()));
            }
        });

        receiver
    }

    /// Its port.
    ///
    /// # Panics
    /// Never: its address ends with one.
    #[must_use]
    pub fn port(&self) -> u16 {
        let port = self.url.trim_end_matches('/').rsplit(':').next();
        port.and_then(|port| port.parse().ok())
            .expect("an address ends with a port")
    }

    /// Has it refuse all calls, or take them again.
    pub fn set_shut(&self, is_shut: bool) {
        self.is_shut.store(is_shut, Ordering::Relaxed);
    }

    /// How often each `webhook-id` arrived.
    #[must_use]
    pub fn arrived(&self) -> BTreeMap<String, usize> {
        let mut arrived = BTreeMap::new();
        for call in self.calls() {
            *arrived.entry(call.id).or_default() += 1;
        }
        arrived
    }

    /// All calls, in the order in which they arrived.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Answers the calls of one connection. A call counts once all of it is there.
async fn serve(mut socket: TcpStream, pace: Duration, receiver: Receiver) {
    let mut read = Vec::new();
    loop {
        let Some((call, length)) = whole(&read) else {
            let mut more = [0; 8_192];
            match socket.read(&mut more).await {
                Ok(count) if count > 0 && read.len() < MAX_REQUEST => read.extend_from_slice(&more[..count]),
                _ => return,
            }
            continue;
        };

        read.drain(..length);

        let status = if receiver.is_shut.load(Ordering::Relaxed) {
            "503 Service Unavailable"
        } else {
            receiver.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
            pause(pace).await;
            "200 OK"
        };

        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        if socket.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The first request in `read` and that request's length, once all of it is there.
fn whole(read: &[u8]) -> Option<(Call, usize)> {
    let end = read.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
    let field = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    };

    let length = end + 4 + field("content-length")?.parse::<usize>().ok()?;
    let body = read.get(end + 4..length)?;
    let call = Call {
        id: field("webhook-id").unwrap_or_default(),
        path: head.split(' ').nth(1).unwrap_or_default().to_owned(),
        body: serde_json::from_slice(body).unwrap_or_default(),
    };

    Some((call, length))
}
