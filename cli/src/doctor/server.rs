//! Checks of the server: version, durability, sizes, topology, room for streams.

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use shared::bus::{DurabilityPromise, StreamDurability};
use shared::clock::SystemClock;
use shared::wire::envelope::MIN_SERVER_PAYLOAD_BYTES;

use super::{Finding, Surroundings};
use crate::launch::programs::NATS_MINIMUM;

/// Checks version and connection.
pub(super) fn server(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    let finding = match &surroundings.bus {
        Ok(bus) => {
            let version = bus.server_version();
            Finding::judged("server", is_new_enough(&version), format!("nats-server {version}"))
        }
        Err(error) => Finding::fault("server", error.clone()),
    };
    async { vec![finding] }.boxed_local()
}

fn is_new_enough(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= NATS_MINIMUM
}

/// Checks whether the server keeps the promise of `nats.durability`.
pub(super) fn durability(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let (Ok(_), Ok(config)) = (&surroundings.bus, &surroundings.nats) else {
            return Vec::new();
        };
        let promise = DurabilityPromise::check_servers(config).await;
        let detail = format!(
            "{}, {} copies of each stream; {promise}",
            durability_name(config.durability),
            config.replicas
        );

        vec![Finding::judged(
            "durability",
            promise != DurabilityPromise::Broken,
            detail,
        )]
    }
    .boxed_local()
}

/// Returns the name of `durability` in the configuration.
const fn durability_name(durability: StreamDurability) -> &'static str {
    match durability {
        StreamDurability::Process => "process",
        StreamDurability::Power => "power",
        StreamDurability::Replicated => "replicated",
    }
}

/// Checks whether the server accepts messages of our largest size.
pub(super) fn payload(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    let found = surroundings.bus.as_ref().map(|bus| {
        let (found, wanted) = (bus.max_payload(), MIN_SERVER_PAYLOAD_BYTES);
        let detail =
            format!("the server accepts messages of {found} bytes, {wanted} are required (set `max_payload: 8MB`)");
        Finding::judged("payload", found >= wanted, detail)
    });
    async { found.into_iter().collect() }.boxed_local()
}

/// Checks whether streams, consumers and buckets are as this version needs them, and no restore is unfinished.
pub(super) fn topology(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let (Ok(bus), Ok(config)) = (&surroundings.bus, &surroundings.nats) else {
            return Vec::new();
        };
        let wanted = shared::wire::topology::topology(config.replicas);
        let mut findings = vec![match bus.find_drift(&wanted).await {
            Ok(drift) if drift.is_empty() => Finding::ok("topology", "matches this version"),
            Ok(drift) => {
                let detail = format!(
                    "{} differences, the first: {}; see `nexus topology plan`",
                    drift.len(),
                    drift[0]
                );
                Finding::fault("topology", detail)
            }
            Err(error) => Finding::fault("topology", error.to_string()),
        }];

        match bus.restore_under_way().await {
            Ok(Some(backup)) => {
                let detail =
                    format!("backup {backup} is being restored; if that was interrupted, run `nexus restore` again");
                findings.push(Finding::fault("restore", detail));
            }
            Ok(None) => {}
            Err(error) => findings.push(Finding::unknown("restore", error)),
        }

        findings
    }
    .boxed_local()
}

/// Checks the difference between the server's clock and this host's.
pub(super) fn clock(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let finding = match bus.server_clock(&SystemClock).await {
            Ok(difference) => {
                let detail = format!(
                    "the server's is {} ms ahead of this host's (± {} ms)",
                    difference.ahead_ms, difference.uncertain_ms
                );
                Finding::judged("clock", !difference.is_too_large(), detail)
            }
            Err(error) => Finding::fault("clock", format!("cannot be compared: {error}")),
        };

        vec![finding]
    }
    .boxed_local()
}

/// Checks the share of the server's storage that the streams use.
pub(super) fn storage(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        let Ok(bus) = &surroundings.bus else { return Vec::new() };
        let finding = match bus.storage_use().await {
            Ok((used, limit)) => {
                let used_mib = used / (1 << 20);
                match limit {
                    Some(limit) if used > limit / 10 * 9 => {
                        Finding::warning("storage", format!("{used_mib} of {} MiB are used", limit / (1 << 20)))
                    }
                    Some(limit) => Finding::ok("storage", format!("{used_mib} of {} MiB are used", limit / (1 << 20))),
                    None => Finding::ok(
                        "storage",
                        format!("{used_mib} MiB are used, without a limit of the account"),
                    ),
                }
            }
            Err(error) => Finding::fault("storage", error),
        };

        vec![finding]
    }
    .boxed_local()
}
