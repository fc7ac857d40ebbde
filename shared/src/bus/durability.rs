//! Check of whether the servers provide the durability that `nats.durability` promises.
//!
//! The number of replicas is a setting of each stream, and is compared with the rest of the topology. No client can
//! ask a server whether it syncs each message before it acks; only the server's monitoring port reports it (`/jsz`).
//! Source: `docs/design/wire.md` §8.1.

use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::nats_config::{NatsConfig, StreamDurability};

/// Timeout of a request to a monitoring port.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longest response that is read, in bytes; the server's is below 1 KiB.
const MAX_ANSWER: u64 = 64 * 1_024;

/// Result of checking the promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurabilityPromise {
    /// The promise does not depend on the servers' own settings.
    ByProtocol,
    /// Every server that answered syncs each message.
    Kept,
    /// A server reports that it does not sync each message.
    Broken,
    /// No server could be asked.
    Unchecked,
}

impl std::fmt::Display for DurabilityPromise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ByProtocol => "no server setting is needed",
            Self::Kept => "the server syncs each message",
            Self::Broken => "the server does not sync each message (set `sync_interval: always`)",
            Self::Unchecked => "not checked: no server in nats.monitors answers",
        })
    }
}

impl DurabilityPromise {
    /// Checks the servers of `nats`, if the promise depends on their settings.
    pub async fn check_servers(nats: &NatsConfig) -> Self {
        match nats.durability {
            StreamDurability::Process | StreamDurability::Replicated => return Self::ByProtocol,
            StreamDurability::Power => {}
        }

        let mut told = Self::Unchecked;
        for monitor in &nats.monitors {
            match tokio::time::timeout(PATIENCE, syncs_always(monitor)).await {
                Ok(Ok(true)) => told = Self::Kept,
                Ok(Ok(false)) => return Self::Broken,
                Ok(Err(error)) => tracing::debug!(monitor, %error, "the server's monitoring port gave no answer"),
                Err(_) => tracing::debug!(monitor, "the server's monitoring port timed out"),
            }
        }

        told
    }
}

#[derive(Debug, thiserror::Error)]
enum AskMonitorError {
    #[error("not an address of the form http://host:port")]
    Address,
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("no answer from a monitoring port")]
    Answer,
}

/// Returns whether the server with the monitoring port `monitor` syncs each message before it acks it.
async fn syncs_always(monitor: &str) -> Result<bool, AskMonitorError> {
    #[derive(Deserialize)]
    struct JetStreamReport {
        config: ServerConfig,
    }

    #[derive(Deserialize)]
    struct ServerConfig {
        #[serde(default)]
        sync_always: bool,
    }

    let address = monitor.strip_prefix("http://").ok_or(AskMonitorError::Address)?;
    let mut stream = TcpStream::connect(address).await?;
    let question = format!("GET /jsz HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(question.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    // The body starts after the first empty line.
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
    let body = body.filter(|_| answer.starts_with(b"HTTP/1.0 200") || answer.starts_with(b"HTTP/1.1 200"));
    let body = body.and_then(|at| answer.get(at..)).ok_or(AskMonitorError::Answer)?;
    let told: JetStreamReport = serde_json::from_slice(body).map_err(|_| AskMonitorError::Answer)?;

    Ok(told.config.sync_always)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, SystemClock, pause};
    use crate::testing::nats::{NatsOptions, NatsServer};

    /// Deadline by which a running server answers, however busy the machine is.
    const DEADLINE: Duration = Duration::from_secs(60);

    /// Asserts that the promise is `expected`, once servers answer in time.
    async fn comes_to(nats: &NatsConfig, expected: DurabilityPromise) {
        let begun = SystemClock.monotonic();
        loop {
            let told = DurabilityPromise::check_servers(nats).await;
            if told == expected {
                return;
            }
            let waited = SystemClock.monotonic().saturating_duration_since(begun);

            assert!(told == DurabilityPromise::Unchecked && waited < DEADLINE, "{told:?}");

            pause(Duration::from_millis(50)).await;
        }
    }

    async fn check(sync: Option<&str>, durability: StreamDurability, asks: bool, expected: DurabilityPromise) {
        let options = NatsOptions {
            sync_interval: sync.map(str::to_owned),
            ..NatsOptions::default()
        };
        let server = NatsServer::with(options).await;
        let nats = NatsConfig {
            durability,
            monitors: asks.then(|| server.monitor()).into_iter().collect(),
            ..NatsConfig::default()
        };

        comes_to(&nats, expected).await;
    }

    #[tokio::test]
    async fn a_server_that_syncs_now_and_then_does_not_keep_against_power_loss() {
        check(Some("always"), StreamDurability::Power, true, DurabilityPromise::Kept).await;
        check(None, StreamDurability::Power, true, DurabilityPromise::Broken).await;
        check(
            Some("always"),
            StreamDurability::Power,
            false,
            DurabilityPromise::Unchecked,
        )
        .await;
        check(None, StreamDurability::Process, true, DurabilityPromise::ByProtocol).await;
    }

    #[tokio::test]
    async fn who_does_not_answer_tells_nothing() {
        let mut server = NatsServer::start().await;
        let nats = NatsConfig {
            durability: StreamDurability::Power,
            monitors: vec![
                server.monitor(),
                "mail.example".to_owned(),
                server.url().replace("nats", "http"),
            ],
            ..NatsConfig::default()
        };

        comes_to(&nats, DurabilityPromise::Broken).await;
        server.kill9();
        assert_eq!(
            DurabilityPromise::check_servers(&nats).await,
            DurabilityPromise::Unchecked
        );
    }
}
