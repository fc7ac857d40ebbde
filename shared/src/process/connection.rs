//! How a process comes to its bus and stays aware of it.
//!
//! Neither a server that is away nor one that is still electing its leader is an error: the process waits, alive and
//! not ready. A wrong address or a topology that is not ours is one, at once.

use std::time::Duration;

use super::health::Health;
use super::lifecycle::Shutdown;
use crate::bus::{Bus, ConnectBusError, EnsureTopologyError, NatsConfig};
use crate::clock::pause;
use crate::retry::{Failure, RetryError, Schedule, retry};
use crate::wire::envelope::MIN_SERVER_PAYLOAD_BYTES;
use crate::wire::topology::{Topology, topology};

/// How often the state of the connection is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long between attempts to reach NATS while starting: soon, and without end.
const CONNECT: Schedule = Schedule {
    initial_ms: 50,
    max_ms: 2_000,
    factor: 2.0,
    max_attempts: 0,
    jitter: 0.3,
};

/// Connects, however long it takes; none when asked to stop first. A wrong address is an error at once.
pub(super) async fn connect(
    nats: &NatsConfig,
    name: &str,
    health: &Health,
    shutdown: &Shutdown,
) -> Result<Option<Bus>, ConnectBusError> {
    let attempt = |_| async {
        Bus::connect(nats, name).await.map_err(|error| {
            health.set("nats", false, error.to_string());
            match error {
                ConnectBusError::Unreachable { .. } => Failure::transient(error),
                ConnectBusError::Address(_) | ConnectBusError::Credentials { .. } => Failure::permanent(error),
            }
        })
    };
    let connected = settled(retry(&CONNECT, shutdown, attempt).await)?;
    if let Some(bus) = &connected
        && bus.max_payload() < MIN_SERVER_PAYLOAD_BYTES
    {
        let (found, wanted) = (bus.max_payload(), MIN_SERVER_PAYLOAD_BYTES);
        tracing::error!(
            found,
            wanted,
            "the server's max_payload is too small: large dead letters will not fit"
        );
    }
    Ok(connected)
}

/// Makes or checks streams, consumers and buckets; false when asked to stop first. Another topology is an error.
pub(super) async fn agree_on_topology(
    bus: &Bus,
    nats: &NatsConfig,
    health: &Health,
    shutdown: &Shutdown,
) -> Result<bool, EnsureTopologyError> {
    let wanted = topology(nats.replicas);
    let attempt = |_| async {
        agree_once(bus, &wanted, nats.ensure).await.map_err(|error| {
            health.set("topology", false, error.to_string());
            match error {
                EnsureTopologyError::Incompatible { .. } | EnsureTopologyError::Durability(_) => {
                    Failure::permanent(error)
                }
                // The server may still be looking for its leader, or another replica be making the same.
                EnsureTopologyError::Create { .. } | EnsureTopologyError::Lookup { .. } => {
                    tracing::warn!(%error, "topology is not there yet");
                    Failure::transient(error)
                }
            }
        })
    };
    let agreed = settled(retry(&CONNECT, shutdown, attempt).await)?.is_some();
    if agreed {
        health.set(
            "topology",
            true,
            format!("as version {} wants it", env!("CARGO_PKG_VERSION")),
        );
    }
    Ok(agreed)
}

async fn agree_once(bus: &Bus, wanted: &Topology, make: bool) -> Result<(), EnsureTopologyError> {
    if make {
        return bus.ensure(wanted, false).await.map(drop);
    }
    let drift = bus.drift(wanted).await?;
    if let Some(first) = drift.iter().find(|drift| drift.option != "missing") {
        let count = drift.len();
        return Err(EnsureTopologyError::Incompatible {
            count,
            first: first.to_string(),
        });
    }
    // Somebody else makes it where we may not: what is missing is waited for.
    drift.first().map_or(Ok(()), |missing| {
        let detail = "missing; waiting for `nexus topology apply`".to_owned();
        Err(EnsureTopologyError::Lookup {
            what: "the",
            name: missing.what.clone(),
            detail,
        })
    })
}

/// The value, nothing when stopped, or the last error itself.
fn settled<T, E: std::error::Error>(outcome: Result<T, RetryError<E>>) -> Result<Option<T>, E> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(RetryError::Stopped) => Ok(None),
        Err(RetryError::Refused { source, .. } | RetryError::Exhausted { source, .. }) => Err(source),
    }
}

/// Keeps the parts `nats` and `shutdown` of the health up to date.
pub(super) async fn watch(bus: Bus, nats: NatsConfig, health: Health, shutdown: Shutdown, ended: Shutdown) {
    let promise = format!(
        "connected, durability {:?}, replicas {}",
        nats.durability, nats.replicas
    )
    .to_lowercase();
    while !ended.is_requested() {
        if bus.is_connected() {
            health.set("nats", true, promise.as_str());
        } else {
            health.set("nats", false, "disconnected");
        }
        tokio::select! {
            () = pause(LOOK_EVERY) => {}
            () = shutdown.requested(), if !shutdown.is_requested() => health.set("shutdown", false, "draining"),
            () = ended.requested() => {}
        }
    }
}
