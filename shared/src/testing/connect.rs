//! A connection to a server that is known to run.

use std::time::Duration;

use super::nats::NatsServer;
use super::trust::trust;
use crate::bus::{Bus, NatsConfig};
use crate::clock::{Clock as _, SystemClock, pause};
use crate::wire::topology::topology;

/// How long the server's answer may take on a busy machine, all tries together.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// Connects as `name`, with the tests' key. On a busy machine one try may be over before the server has answered, and is made again.
///
/// # Panics
/// Where nobody answers for 20 s.
pub async fn connect(config: &NatsConfig, name: &str) -> Bus {
    let begun = SystemClock.monotonic();
    loop {
        match Bus::connect(config, name).await {
            Ok(bus) => return bus.trusting(trust()),
            Err(error) => {
                let waited = SystemClock.monotonic().saturating_duration_since(begun);
                assert!(waited < PATIENCE, "no server answers within {waited:?}: {error}");
            }
        }

        pause(TRY_EVERY).await;
    }
}

/// A server of one's own with the whole topology, without replicas, and a connection to it.
///
/// # Panics
/// Where it does not start, or does not take the topology.
pub async fn world() -> (NatsServer, Bus) {
    let server = NatsServer::start().await;
    let config = NatsConfig {
        servers: vec![server.url()],
        ..NatsConfig::default()
    };
    let bus = connect(&config, "test").await;
    bus.ensure(&topology(1), false).await.expect("the topology is made");
    (server, bus)
}
