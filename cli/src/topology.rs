//! `nexus topology plan|apply`: compares the server's streams, consumers and buckets with the needed ones, and makes or
//! changes those that differ.

use anyhow::{Result, bail};
use shared::bus::EnsureReport;
use shared::wire::topology::topology;

use crate::args::{Common, TopologyAction};
use crate::output::{bus, json, nats_config};
use crate::say;

/// Runs the command.
///
/// # Errors
/// Fails if the server differs (`plan`) or refuses a change (`apply`).
pub async fn execute(common: &Common, action: TopologyAction) -> Result<()> {
    let wanted = topology(nats_config(common)?.replicas);
    let bus = bus(common).await?;
    match action {
        TopologyAction::Plan => {
            let drift = bus.find_drift(&wanted).await?;
            if common.json {
                json(&drift)?;
            } else if drift.is_empty() {
                say!("the server has exactly this topology");
            } else {
                drift.iter().for_each(|difference| say!("{difference}"));
            }

            if !drift.is_empty() {
                bail!("{} differences; `nexus topology apply` makes them", drift.len());
            }
        }
        TopologyAction::Apply => {
            let report = bus.ensure_topology(&wanted, true).await?;
            if common.json {
                return json(&report);
            }

            report.created.iter().for_each(|what| say!("made {what}"));
            report.updated.iter().for_each(|what| say!("changed {what}"));

            if report == EnsureReport::default() {
                say!("nothing to do");
            }
        }
    }

    Ok(())
}
