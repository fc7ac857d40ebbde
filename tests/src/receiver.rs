//! A receiver of webhooks on loopback: it notes the id of each call, takes its time, and says 200.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    arrived: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Receiver {
    /// Starts one that takes `pace` to answer a call.
    ///
    /// # Panics
    /// Where no port is free.
    pub async fn start(pace: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let arrived: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let noted = Arc::clone(&arrived);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, pace, Arc::clone(&noted)));
            }
        });
        Self { url, arrived }
    }

    /// How often each `webhook-id` arrived.
    #[must_use]
    pub fn arrived(&self) -> BTreeMap<String, usize> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Answers the calls of one connection. A call counts once all of it is there.
async fn serve(mut socket: TcpStream, pace: Duration, arrived: Arc<Mutex<BTreeMap<String, usize>>>) {
    let mut read = Vec::new();
    loop {
        let Some((id, length)) = whole(&read) else {
            let mut more = [0; 8_192];
            match socket.read(&mut more).await {
                Ok(count) if count > 0 && read.len() < MAX_REQUEST => read.extend_from_slice(&more[..count]),
                _ => return,
            }
            continue;
        };
        read.drain(..length);
        *arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(id)
            .or_default() += 1;
        pause(pace).await;
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        if socket.write_all(answer).await.is_err() {
            return;
        }
    }
}

/// The `webhook-id` of the first request in `read` and that request's length, once all of it is there.
fn whole(read: &[u8]) -> Option<(String, usize)> {
    let end = read.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
    let field = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.trim().to_owned())
    };
    let length = end + 4 + field("content-length")?.parse::<usize>().ok()?;
    (read.len() >= length).then(|| (field("webhook-id").unwrap_or_default(), length))
}
