//! Connections to a server that is known to run.

use std::time::Duration;

use super::nats::NatsServer;
use super::trust::trust;
use crate::bus::{Bus, NatsConfig};
use crate::clock::{Clock as _, SystemClock, pause};
use crate::wire::topology::topology;

/// Longest wait for the server's response on a busy machine, all tries together.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two tries.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// Connects as `name`, with the tests' key. On a busy machine one try may time out before the server has responded,
/// and is repeated.
///
/// # Panics
/// Panics if no server responds within 60 s.
pub async fn connect(config: &NatsConfig, name: &str) -> Bus {
    let begun = SystemClock.monotonic();
    loop {
        match Bus::connect(config, name).await {
            Ok(bus) => return bus.with_trust(trust()),
            Err(error) => {
                let waited = SystemClock.monotonic().saturating_duration_since(begun);
                assert!(waited < PATIENCE, "no server answers within {waited:?}: {error}");
            }
        }

        pause(TRY_EVERY).await;
    }
}

/// Connects as `name` to the server at `url`, as [`connect`] does, with the defaults for all else.
///
/// # Panics
/// Panics if no server responds within 60 s.
pub async fn connect_to(url: &str, name: &str) -> Bus {
    let config = NatsConfig {
        servers: vec![url.to_owned()],
        ..NatsConfig::default()
    };
    connect(&config, name).await
}

/// Starts a server with the whole topology, without replicas, and connects to it.
///
/// # Panics
/// Panics if the server does not start or rejects the topology.
pub async fn world() -> (NatsServer, Bus) {
    let server = NatsServer::start().await;
    let bus = connect_to(&server.url(), "test").await;
    bus.ensure_topology(&topology(1), false)
        .await
        .expect("the topology is made");
    (server, bus)
}
