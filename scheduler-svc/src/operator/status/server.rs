//! The NATS server as this replica sees it.

use shared::bus::{Bus, TopologyDrift};
use shared::process::status::announced_replicas;
use shared::wire::operator::status::{ClockOffset, Known, ServerStatus, StorageUse, TopologyDifferences};
use shared::wire::topology::topology;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::operator::OperatorContext;

/// Returns the differences between the server and the topology with `replicas` copies. It runs on a thread of its own,
/// because the comparison cannot move between threads, as requests do.
async fn find_drift(bus: &Bus, replicas: usize) -> Result<Vec<TopologyDrift>, String> {
    let (bus, runtime) = (bus.clone(), Handle::current());
    let compared = spawn_blocking(move || runtime.block_on(bus.find_drift(&topology(replicas))));
    let drift = compared.await.map_err(|error| error.to_string())?;
    drift.map_err(|error| error.to_string())
}

/// Returns the state of the server.
pub(super) async fn read(context: &OperatorContext) -> ServerStatus {
    let bus = &context.bus;
    let drift = find_drift(bus, context.replicas)
        .await
        .map(|drift| TopologyDifferences {
            count: drift.len(),
            first: drift.first().map(ToString::to_string),
        });
    let storage = bus.storage_use().await.map(|(used_bytes, limit_bytes)| StorageUse {
        used_bytes,
        limit_bytes,
    });
    let clock = bus
        .server_clock(context.clock.as_ref())
        .await
        .map(|offset| ClockOffset {
            ahead_ms: offset.ahead_ms,
            uncertain_ms: offset.uncertain_ms,
            is_too_large: offset.is_too_large(),
        });

    ServerStatus {
        version: bus.server_version(),
        topology: drift.into(),
        restoring: bus.restore_under_way().await.into(),
        storage: storage.into(),
        clock: clock.into(),
        announced: Known::from(announced_replicas(bus).await),
    }
}
