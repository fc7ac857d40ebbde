//! `nexus topology plan|apply`: compares the server's streams, consumers and buckets with the needed ones, and makes or
//! changes those that differ.

use anyhow::Result;
use shared::bus::EnsureReport;
use shared::wire::rights::BusRole;
use shared::wire::topology::topology;

use crate::args::{Common, TopologyAction};
use crate::connect::{connect_as, nats_config};
use crate::exit::{Exit, failure};
use crate::output::View;

/// Runs the command.
///
/// # Errors
/// Fails if the server differs (`plan`) or refuses a change (`apply`).
pub async fn execute(common: &Common, action: TopologyAction) -> Result<()> {
    let wanted = topology(nats_config(common)?.replicas);
    let bus = connect_as(common, BusRole::Topology).await?;
    match action {
        TopologyAction::Plan => {
            let drift = bus.find_drift(&wanted).await?;
            let lines: Vec<String> = drift.iter().map(ToString::to_string).collect();
            let text = if drift.is_empty() {
                "the server has exactly this topology".to_owned()
            } else {
                lines.join("\n")
            };
            let mut names: Vec<String> = drift.iter().map(|difference| difference.what.clone()).collect();
            names.dedup();
            View::of(&drift)?.ids(names).line(text).show(common)?;

            match drift.len() {
                0 => Ok(()),
                count => {
                    let text = format!("{count} differences; run `nexus topology apply` to remove them");
                    Err(failure(Exit::No, text))
                }
            }
        }
        TopologyAction::Apply => {
            let report = bus.ensure_topology(&wanted, true).await?;
            let changed: Vec<String> = report.created.iter().chain(&report.updated).cloned().collect();
            let made = report.created.iter().map(|what| format!("made {what}"));
            let updated = report.updated.iter().map(|what| format!("changed {what}"));
            let mut lines: Vec<String> = made.chain(updated).collect();
            if report == EnsureReport::default() {
                lines.push("nothing to do".to_owned());
            }

            View::of(&report)?.ids(changed).line(lines.join("\n")).show(common)
        }
    }
}
