//! Connecting a process to its bus, and watching the connection.
//!
//! If a server is away or still electing its leader, that is not an error: the process waits, alive and not ready. A
//! wrong address or an incompatible topology is an error at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::health::Health;
use super::lifecycle::ShutdownSignal;
use crate::bus::{Bus, ConnectBusError, DurabilityPromise, EnsureTopologyError, NatsConfig};
use crate::clock::{SystemClock, pause};
use crate::retry::{Failure, RetryError, RetrySchedule, retry};
use crate::wire::envelope::MIN_SERVER_PAYLOAD_BYTES;
use crate::wire::topology::{Topology, topology};

/// Interval at which an open connection is probed.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// Timeout of a probe.
const PROBE_WITHIN: Duration = Duration::from_secs(5);
/// Number of probes in a row without a response, while the client reports a connection, after which its task counts as
/// dead. If the server hangs, the client notices that earlier.
const MAX_SILENT: u32 = 3;

/// Interval at which the servers are asked whether they provide the durability that `nats.durability` promises.
const PROMISE_EVERY: Duration = Duration::from_secs(30);
/// Interval at which the server's clock is compared with the host's.
const CLOCKS_EVERY: Duration = Duration::from_secs(30);

/// Interval at which the state of the connection is reported to the health pages.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Delays between attempts to reach NATS at the start: short, and without a limit of attempts.
const CONNECT: RetrySchedule = RetrySchedule {
    initial_ms: 50,
    max_ms: 2_000,
    factor: 2.0,
    max_attempts: 0,
    jitter: 0.3,
};

/// Connects to the server, or begins to if the service can work `alone`. Returns `None` if the shutdown came first.
pub(super) async fn connect_service(
    alone: bool,
    nats: &NatsConfig,
    name: &str,
    health: &Health,
    shutdown: &ShutdownSignal,
) -> anyhow::Result<Option<Bus>> {
    if alone {
        return Ok(Some(Bus::connect_later(nats, name).await?));
    }
    Ok(connect(nats, name, health, shutdown).await?)
}

/// Connects, however long it takes. Returns `None` if the process is asked to stop first. A wrong address is an error
/// at once.
async fn connect(
    nats: &NatsConfig,
    name: &str,
    health: &Health,
    shutdown: &ShutdownSignal,
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

    let connected = value_or_stopped(retry(&CONNECT, shutdown, attempt).await)?;
    if let Some(bus) = &connected
        && bus.max_payload() < MIN_SERVER_PAYLOAD_BYTES
    {
        // The service starts nevertheless: it works, apart from the large dead letters.
        let (found, wanted) = (bus.max_payload(), MIN_SERVER_PAYLOAD_BYTES);
        tracing::error!(
            found,
            wanted,
            "the server's max_payload is too small: large dead letters will not fit"
        );
    }

    Ok(connected)
}

/// Creates or checks streams, consumers and buckets. Returns false if the process is asked to stop first. An
/// incompatible topology is an error.
pub(super) async fn agree_on_topology(
    bus: &Bus,
    nats: &NatsConfig,
    health: &Health,
    shutdown: &ShutdownSignal,
) -> Result<bool, EnsureTopologyError> {
    // The promise of the durability is checked first: without it no message may be accepted.
    let promise = DurabilityPromise::check_servers(nats).await;
    if promise == DurabilityPromise::Broken {
        health.set("topology", false, promise.to_string());
        return Err(EnsureTopologyError::Durability(promise.to_string()));
    }

    let wanted = topology(nats.replicas);
    let attempt = |_| async {
        agree_once(bus, &wanted, nats.ensure).await.map_err(|error| {
            health.set("topology", false, error.to_string());

            match error {
                EnsureTopologyError::Incompatible { .. } | EnsureTopologyError::Durability(_) => {
                    Failure::permanent(error)
                }
                // The server may still be electing its leader, or another replica may be creating the same.
                EnsureTopologyError::Create { .. } | EnsureTopologyError::Lookup { .. } => {
                    tracing::warn!(%error, "waiting for the topology");
                    Failure::transient(error)
                }
            }
        })
    };

    let agreed = value_or_stopped(retry(&CONNECT, shutdown, attempt).await)?.is_some();
    if agreed {
        health.set(
            "topology",
            true,
            format!("as version {} requires it", env!("CARGO_PKG_VERSION")),
        );
    }

    Ok(agreed)
}

async fn agree_once(bus: &Bus, wanted: &Topology, make: bool) -> Result<(), EnsureTopologyError> {
    let lookup = |detail| EnsureTopologyError::Lookup {
        what: "stream",
        name: "RESTORING".to_owned(),
        detail,
    };

    // During a restore streams are missing for a while: they must not be created now.
    if let Some(backup) = bus.restore_under_way().await.map_err(lookup)? {
        let detail = format!("backup {backup} is being restored; if that was interrupted, run `nexus restore` again");
        return Err(lookup(detail));
    }

    if make {
        return bus.ensure_topology(wanted, false).await.map(drop);
    }

    let drift = bus.find_drift(wanted).await?;
    if let Some(first) = drift.iter().find(|drift| drift.is_conflict()) {
        let count = drift.iter().filter(|drift| drift.is_conflict()).count();
        return Err(EnsureTopologyError::Incompatible {
            count,
            first: first.to_string(),
        });
    }

    for wider in drift.iter().filter(|drift| drift.is_wider) {
        tracing::info!(%wider, "a stream takes more than this version needs: a later one may run here");
    }

    // Another process creates the topology if we may not: wait for the missing part.
    let missing = drift.iter().find(|drift| drift.is_missing());
    missing.map_or(Ok(()), |missing| {
        let detail = "missing; waiting for `nexus topology apply`".to_owned();
        Err(EnsureTopologyError::Lookup {
            what: "the",
            name: missing.what.clone(),
            detail,
        })
    })
}

/// Returns the value, `None` if stopped, or the last error itself.
fn value_or_stopped<T, E: std::error::Error>(outcome: Result<T, RetryError<E>>) -> Result<Option<T>, E> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(RetryError::Stopped) => Ok(None),
        Err(RetryError::Refused { source, .. } | RetryError::Exhausted { source, .. }) => Err(source),
    }
}

/// Keeps the parts `nats` and `shutdown` of the health up to date.
///
/// The client's last known state is not enough: a message that it cannot read (a lone CR in a header) makes its task
/// panic, and the state stays "connected" for ever.
pub(super) async fn watch_connection(
    bus: Bus,
    nats: NatsConfig,
    health: Health,
    shutdown: ShutdownSignal,
    ended: ShutdownSignal,
) {
    let silent = AtomicU32::new(0);
    let promise = Mutex::new(None);
    tokio::join!(
        probe_connection(&bus, &health, &silent, &shutdown, &ended),
        check_promise(&nats, &promise, &ended),
        compare_clocks(&bus, &ended),
        update_health(&bus, &nats, &health, (&silent, &promise), &shutdown, &ended)
    );
}

/// Measures at intervals how far the server's clock is from the host's: leases expire by the server's clock.
async fn compare_clocks(bus: &Bus, ended: &ShutdownSignal) {
    let ahead = metrics::gauge!("nexus_nats_clock_ahead_seconds");
    let mut was_too_large = false;
    while !ended.is_requested() {
        match bus.server_clock(&SystemClock).await {
            Ok(difference) => {
                ahead.set(difference.ahead_ms as f64 / 1_000.0);
                let is_too_large = difference.is_too_large();
                // Logged once, not at every interval.
                if is_too_large && !was_too_large {
                    tracing::warn!(
                        ahead_ms = difference.ahead_ms,
                        "the NATS server's clock differs from this host's; leases last longer if it is set back: set the clocks by NTP"
                    );
                }

                was_too_large = is_too_large;
            }
            Err(error) => tracing::debug!(%error, "failed to compare the clock of the NATS server with this host's"),
        }

        tokio::select! {
            () = pause(CLOCKS_EVERY) => {}
            () = ended.requested() => {}
        }
    }
}

/// Asks at intervals whether the servers provide the promised durability: a server may be restarted with other
/// settings.
async fn check_promise(nats: &NatsConfig, promise: &Mutex<Option<DurabilityPromise>>, ended: &ShutdownSignal) {
    while !ended.is_requested() {
        let told = DurabilityPromise::check_servers(nats).await;
        if told == DurabilityPromise::Broken {
            tracing::error!(promise = %told, "the server does not provide the configured durability");
        }
        *promise.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
        tokio::select! {
            () = pause(PROMISE_EVERY) => {}
            () = ended.requested() => {}
        }
    }
}

/// Counts in `silent` the probes in a row that got no response, and reports the process as lost if the connection
/// cannot recover.
async fn probe_connection(
    bus: &Bus,
    health: &Health,
    silent: &AtomicU32,
    shutdown: &ShutdownSignal,
    ended: &ShutdownSignal,
) {
    // A process that is asked to stop closes its connection, so its probes would fail.
    while !ended.is_requested() && !shutdown.is_requested() {
        let stands = !bus.is_connected() || matches!(tokio::time::timeout(PROBE_WITHIN, bus.flush()).await, Ok(Ok(())));
        // The connection may have been lost meanwhile: that is no fault of the client.
        if stands || !bus.is_connected() {
            silent.store(0, Ordering::Relaxed);
            health.set_lost(None);
        } else if silent.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_SILENT {
            health.set_lost(Some("the nats client's task has ended"));
        }

        tokio::select! {
            () = pause(PROBE_EVERY) => {}
            () = shutdown.requested() => {}
            () = ended.requested() => {}
        }
    }
}

async fn update_health(
    bus: &Bus,
    nats: &NatsConfig,
    health: &Health,
    (silent, promise): (&AtomicU32, &Mutex<Option<DurabilityPromise>>),
    shutdown: &ShutdownSignal,
    ended: &ShutdownSignal,
) {
    let promised = format!(
        "connected, durability {:?}, replicas {}",
        nats.durability, nats.replicas
    )
    .to_lowercase();

    while !ended.is_requested() {
        let kept = *promise.lock().unwrap_or_else(PoisonError::into_inner);
        match (bus.is_connected(), silent.load(Ordering::Relaxed)) {
            (true, 0) => match kept {
                None | Some(DurabilityPromise::ByProtocol) => health.set("nats", true, promised.as_str()),
                Some(told @ (DurabilityPromise::Kept | DurabilityPromise::Unchecked)) => {
                    health.set("nats", true, format!("{promised}: {told}"));
                }
                Some(told @ DurabilityPromise::Broken) => health.set("nats", false, format!("{promised}: {told}")),
            },
            (true, probes) => health.set(
                "nats",
                false,
                format!("connected, and {probes} probes without an answer"),
            ),
            (false, _) => health.set("nats", false, "disconnected"),
        }

        tokio::select! {
            () = pause(LOOK_EVERY) => {}
            () = shutdown.requested(), if !shutdown.is_requested() => health.set("shutdown", false, "draining"),
            () = ended.requested() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::clock::Clock as _;
    use crate::testing::nats::NatsServer;
    use crate::wire::headers::Headers;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// Publishes on `subject` a message whose header holds a lone CR: the server accepts it, the client cannot read
    /// it.
    async fn poison(server: &NatsServer, subject: &str) {
        let address = server.url().replace("nats://", "");
        let mut socket = tokio::net::TcpStream::connect(address).await.expect("connected");
        let header = "NATS/1.0\r\nA: b\rc\r\n\r\n";
        let size = header.len();
        let text = format!(
            "CONNECT {{\"verbose\":false,\"headers\":true}}\r\nHPUB {subject} {size} {size}\r\n{header}\r\nPING\r\n"
        );
        socket.write_all(text.as_bytes()).await.expect("written");

        let mut told = Vec::new();
        while !String::from_utf8_lossy(&told).contains("PONG") {
            assert!(socket.read_buf(&mut told).await.expect("read") > 0, "closed: {told:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_that_panicked_makes_the_process_not_alive() {
        let server = NatsServer::start().await;
        let nats = NatsConfig {
            servers: vec![server.url()],
            ..NatsConfig::default()
        };

        let bus = Bus::connect(&nats, "test").await.expect("connected");
        let (health, ended) = (Health::default(), ShutdownSignal::default());
        let watching = watch_connection(
            bus.clone(),
            nats,
            health.clone(),
            ShutdownSignal::default(),
            ended.clone(),
        );
        let watching = tokio::spawn(watching);
        let begun = SystemClock.monotonic();

        let until = async |what: &str, holds: &dyn Fn() -> bool| {
            while !holds() {
                assert!(
                    SystemClock.monotonic().duration_since(begun) < DEADLINE,
                    "not in time: {what}"
                );
                pause(Duration::from_millis(20)).await;
            }
        };

        until("it is well", &|| {
            health.readiness().ready && !health.readiness().parts.is_empty()
        })
        .await;
        let mut heard = bus.core_subscribe("poison").await.expect("subscribed");

        // A message that is received shows that the server knows of the subscription.
        bus.core_publish("poison", &Headers::new(), bytes::Bytes::new()).await;
        let good = tokio::time::timeout(DEADLINE, heard.next()).await.expect("in time");
        assert!(good.is_some());

        poison(&server, "poison").await;
        let gone = tokio::time::timeout(DEADLINE, heard.next()).await.expect("in time");
        assert!(gone.is_none(), "the client's task is gone");

        until("it is lost", &|| health.lost_reason().is_some()).await;
        assert!(!health.readiness().ready, "{:?}", health.readiness());

        ended.trigger();
        watching.await.expect("it ends");
    }
}
