//! Destination of the demo's deliveries: a web server that keeps the requests that it receives.

use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::complain;

/// Largest number of requests that may wait to be shown.
const BACKLOG: usize = 16;

/// A web server that receives the demo's deliveries.
#[derive(Debug)]
pub struct Receiver {
    address: std::net::SocketAddr,
    requests: mpsc::Receiver<String>,
    server: JoinHandle<()>,
}

impl Receiver {
    /// Listens on a free port of loopback.
    ///
    /// # Errors
    /// Fails if there is no free port.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("failed to listen for the channel's request")?;
        let address = listener
            .local_addr()
            .context("failed to listen for the channel's request")?;
        let (sender, requests) = mpsc::channel(BACKLOG);
        let router = Router::new().route("/inbound", post(keep)).with_state(sender);
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                complain!("nexus: the demo's receiver ended: {error}");
            }
        });

        Ok(Self {
            address,
            requests,
            server,
        })
    }

    /// Returns the address of the receiver.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/inbound", self.address)
    }

    /// Returns the next request, as text, or `None` if none comes within `patience`.
    pub async fn next(&mut self, patience: Duration) -> Option<String> {
        tokio::time::timeout(patience, self.requests.recv())
            .await
            .ok()
            .flatten()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn keep(State(sender): State<mpsc::Sender<String>>, headers: HeaderMap, body: Bytes) -> &'static str {
    let mut text = String::from("  POST /inbound\n");
    for (name, value) in &headers {
        text.push_str(&format!("  {name}: {}\n", value.to_str().unwrap_or("?")));
    }
    text.push_str(&format!("\n  {}", String::from_utf8_lossy(&body)));
    // The receiving side may be gone; the sender gets its answer all the same.
    let _ = sender.try_send(text);
    "ok"
}
