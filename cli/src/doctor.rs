//! `nexus doctor`: is everything here that is needed, and does what runs keep its promises?

use anyhow::{Result, bail};
use shared::bus::{Bus, Promise, partition};
use shared::wire::envelope::MIN_SERVER_PAYLOAD_BYTES;
use shared::wire::topology::{PARTITIONS, streams, topology};

use crate::args::Common;
use crate::launch::programs::{BUN_MINIMUM, NATS_MINIMUM, tool};
use crate::output::{json, nats_config};

/// One thing that was looked at.
#[derive(Debug, serde::Serialize)]
struct Finding {
    what: &'static str,
    ok: bool,
    detail: String,
}

/// Runs the command.
///
/// # Errors
/// Where something is not as it should be.
pub async fn execute(common: &Common) -> Result<()> {
    let mut findings = vec![program("nats-server", NATS_MINIMUM), program("bun", BUN_MINIMUM)];
    let config = nats_config(common)?;
    let connect = tokio::time::timeout(std::time::Duration::from_secs(5), Bus::connect(&config, "nexus-doctor"));
    match connect.await {
        Ok(Ok(bus)) => {
            let version = bus.server_version();
            findings.push(Finding {
                what: "server",
                ok: is_new_enough(&version),
                detail: format!("nats-server {version}"),
            });
            let promise = Promise::of(&config).await;
            findings.push(Finding {
                what: "promise",
                ok: promise != Promise::Broken,
                detail: format!(
                    "durability {:?}, {} copies of each stream: {promise}",
                    config.durability, config.replicas
                ),
            });
            findings.push(payload(&bus));
            findings.push(drift(&bus, config.replicas).await);
            findings.extend(lags(&bus).await);
        }
        Ok(Err(error)) => findings.push(Finding {
            what: "server",
            ok: false,
            detail: error.to_string(),
        }),
        Err(_) => findings.push(Finding {
            what: "server",
            ok: false,
            detail: "no answer in 5 s".to_owned(),
        }),
    }
    report(common, &findings)
}

fn report(common: &Common, findings: &[Finding]) -> Result<()> {
    if common.json {
        json(&findings)?;
    } else {
        for finding in findings {
            println!(
                "{} {:<12} {}",
                if finding.ok { "ok  " } else { "BAD " },
                finding.what,
                finding.detail
            );
        }
    }
    match findings.iter().filter(|finding| !finding.ok).count() {
        0 => Ok(()),
        bad => bail!("{bad} of {} things are not as they should be", findings.len()),
    }
}

fn program(name: &'static str, minimum: (u32, u32)) -> Finding {
    match tool(name, minimum) {
        Ok(path) => Finding {
            what: name,
            ok: true,
            detail: path.display().to_string(),
        },
        Err(error) => Finding {
            what: name,
            ok: false,
            detail: error.to_string(),
        },
    }
}

fn is_new_enough(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= NATS_MINIMUM
}

fn payload(bus: &Bus) -> Finding {
    let (found, wanted) = (bus.max_payload(), MIN_SERVER_PAYLOAD_BYTES);
    let detail = format!("the server takes {found} bytes a message, {wanted} are needed (`max_payload: 8MB`)");
    Finding {
        what: "payload",
        ok: found >= wanted,
        detail,
    }
}

async fn drift(bus: &Bus, replicas: usize) -> Finding {
    match bus.drift(&topology(replicas)).await {
        Ok(drift) if drift.is_empty() => Finding {
            what: "topology",
            ok: true,
            detail: "as it should be".to_owned(),
        },
        Ok(drift) => {
            let detail = format!("{} differences, the first: {}", drift.len(), drift[0]);
            Finding {
                what: "topology",
                ok: false,
                detail,
            }
        }
        Err(error) => Finding {
            what: "topology",
            ok: false,
            detail: error.to_string(),
        },
    }
}

/// What waits where. Waiting is no fault in itself; dead letters are.
async fn lags(bus: &Bus) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut deliveries = 0;
    for partition in 0..PARTITIONS {
        let consumer = format!("delivery-{partition}");
        deliveries += bus
            .consumer_lag(streams::DELIVERIES, &consumer)
            .await
            .unwrap_or_default()
            .all();
    }
    let hooks = partition::unsettled(bus, streams::EVENTS, "hook").await.unwrap_or(0);
    for (what, waiting) in [("hooks", hooks), ("deliveries", deliveries)] {
        findings.push(Finding {
            what,
            ok: true,
            detail: format!("{waiting} messages wait"),
        });
    }
    if let Ok(state) = bus.stream_state(streams::CLAIMS).await {
        findings.push(Finding {
            what: "sessions",
            ok: true,
            detail: format!("{} claimed", state.messages),
        });
    }
    if let Ok(state) = bus.stream_state(streams::DLQ).await {
        let ok = state.messages == 0;
        findings.push(Finding {
            what: "dead letters",
            ok,
            detail: format!("{} (`nexus dlq list`)", state.messages),
        });
    }
    findings
}
