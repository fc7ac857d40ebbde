//! Checks of the server: version, durability, sizes, topology, room for streams.

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use shared::bus::{DurabilityPromise, StreamDurability};
use shared::wire::envelope::MIN_SERVER_PAYLOAD_BYTES;
use shared::wire::operator::status::{Known, ServerStatus, StorageUse, TopologyDifferences};

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

/// What is not known if scheduler-svc does not tell.
const UNTOLD: &str = "topology, clock, storage, backlogs, dead letters and everything else in streams and buckets";

/// Returns the findings of `check` about the server; none if scheduler-svc does not tell, which `topology` has reported.
fn of_server<'a>(
    surroundings: &'a Surroundings,
    check: impl FnOnce(&ServerStatus) -> Vec<Finding> + 'a,
) -> LocalBoxFuture<'a, Vec<Finding>> {
    async move {
        let server = surroundings
            .status
            .as_ref()
            .ok()
            .and_then(|status| status.server.as_ref());
        server.map(check).unwrap_or_default()
    }
    .boxed_local()
}

/// Checks whether streams, consumers and buckets are as the services need them, and no restore is unfinished.
pub(super) fn topology(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    if let (Ok(_), Err(why)) = (&surroundings.bus, &surroundings.status) {
        let finding = Finding::unknown("status", format!("{why}; this is about {UNTOLD}"));
        return async { vec![finding] }.boxed_local();
    }

    of_server(surroundings, |server| {
        let mut findings = vec![match &server.topology {
            Known::Known(TopologyDifferences { first: None, .. }) => Finding::ok("topology", "matches this version"),
            Known::Known(TopologyDifferences {
                count,
                first: Some(first),
            }) => {
                let detail = format!("{count} differences, the first: {first}; see `nexus topology plan`");
                Finding::fault("topology", detail)
            }
            Known::Unknown(why) => Finding::unknown("topology", why),
        }];

        match &server.restoring {
            Known::Known(Some(backup)) => {
                let detail =
                    format!("backup {backup} is being restored; if that was interrupted, run `nexus restore` again");
                findings.push(Finding::fault("restore", detail));
            }
            Known::Known(None) => {}
            Known::Unknown(why) => findings.push(Finding::unknown("restore", why)),
        }

        findings
    })
}

/// Checks the difference between the server's clock and that of scheduler-svc's host.
pub(super) fn clock(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    of_server(surroundings, |server| {
        vec![match &server.clock {
            Known::Known(offset) => {
                let detail = format!(
                    "the server's is {} ms ahead of that of scheduler-svc's host (± {} ms)",
                    offset.ahead_ms, offset.uncertain_ms
                );
                Finding::judged("clock", !offset.is_too_large, detail)
            }
            Known::Unknown(why) => Finding::fault("clock", format!("cannot be compared: {why}")),
        }]
    })
}

/// Checks the share of the server's storage that the streams use.
pub(super) fn storage(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    of_server(surroundings, |server| {
        vec![match &server.storage {
            Known::Known(StorageUse {
                used_bytes,
                limit_bytes,
            }) => {
                let used_mib = used_bytes / (1 << 20);
                match limit_bytes {
                    Some(limit) if *used_bytes > limit / 10 * 9 => {
                        Finding::warning("storage", format!("{used_mib} of {} MiB are used", limit / (1 << 20)))
                    }
                    Some(limit) => Finding::ok("storage", format!("{used_mib} of {} MiB are used", limit / (1 << 20))),
                    None => Finding::ok(
                        "storage",
                        format!("{used_mib} MiB are used, without a limit of the account"),
                    ),
                }
            }
            Known::Unknown(why) => Finding::unknown("storage", why),
        }]
    })
}
