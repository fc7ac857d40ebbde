//! `nexus status`: whether the server and every replica of every service are ready.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use shared::process::status::{ReplicaStatus, hear_replicas};

use crate::args::Common;
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::launch::SERVICES;
use crate::output::{Column, Table, View};

/// Longest time that all replicas together may take to answer.
const REPLICAS_WITHIN: Duration = Duration::from_secs(3);

/// State of the server or of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct PartStatus {
    /// `nats-server`, or the name of the service.
    service: String,
    /// Name of the replica; empty if the service has none.
    instance: String,
    /// `ready`, `degraded`, `not ready`, `lost` or `missing`.
    state: &'static str,
    /// Whether the part works.
    ready: bool,
    version: String,
    /// Process id on its host; `None` for the server, and if there is no replica.
    pid: Option<u32>,
    /// Parts that are not well, each with its reason.
    detail: String,
}

/// Runs the command.
///
/// # Errors
/// Fails if the server cannot be reached, or if a service has no replica that is ready.
pub async fn execute(common: &Common) -> Result<()> {
    let bus = connect_bus(common).await?;
    let heard = hear_replicas(&bus, REPLICAS_WITHIN).await.map_err(anyhow::Error::msg);
    let heard = heard.context("failed to ask the replicas")?;

    let mut parts = vec![PartStatus {
        service: "nats-server".to_owned(),
        instance: "nats-server".to_owned(),
        state: "ready",
        ready: true,
        version: bus.server_version(),
        pid: None,
        detail: String::new(),
    }];
    parts.extend(service_parts(&heard.replicas));

    let columns = [
        Column::text("SERVICE"),
        Column::id("REPLICA"),
        Column::text("STATE"),
        Column::text("VERSION"),
        Column::number("PID"),
        Column::prose("DETAIL"),
    ];
    let table = Table::new(&columns).with(&parts, |part| {
        [
            (&part.service).into(),
            (&part.instance).into(),
            part.state.into(),
            (&part.version).into(),
            part.pid.into(),
            (&part.detail).into(),
        ]
    });
    let names = parts.iter().map(|part| part.instance.clone());
    let names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
    View::list(&parts, table)?.ids(names).show(common)?;

    let bad = parts.iter().filter(|part| !part.ready).count() + heard.unread;
    match bad {
        0 => Ok(()),
        bad => {
            let text = format!(
                "{bad} of {} are not ready; see `nexus doctor`",
                parts.len() + heard.unread
            );
            Err(failure(Exit::No, text))
        }
    }
}

/// Returns the states of `replicas`, and one for each service without a replica.
fn service_parts(replicas: &[ReplicaStatus]) -> Vec<PartStatus> {
    let mut parts = Vec::new();
    for name in SERVICES {
        let of_service = replicas.iter().filter(|replica| replica.service == name);
        let before = parts.len();
        parts.extend(of_service.map(replica_part));

        if parts.len() == before {
            parts.push(PartStatus {
                service: name.to_owned(),
                instance: String::new(),
                state: "missing",
                ready: false,
                version: String::new(),
                pid: None,
                detail: "no replica answers; start one".to_owned(),
            });
        }
    }

    parts
}

fn replica_part(replica: &ReplicaStatus) -> PartStatus {
    let unwell = replica.parts.iter().filter(|(_, part)| !part.ok || part.degraded);
    let mut details: Vec<String> = unwell.map(|(name, part)| format!("{name}: {}", part.detail)).collect();
    details.extend(replica.lost.iter().map(|reason| format!("must be restarted: {reason}")));

    let state = match (&replica.lost, replica.ready, details.is_empty()) {
        (Some(_), _, _) => "lost",
        (None, false, _) => "not ready",
        (None, true, false) => "degraded",
        (None, true, true) => "ready",
    };
    PartStatus {
        service: replica.service.clone(),
        instance: replica.instance.clone(),
        state,
        ready: replica.ready && replica.lost.is_none(),
        version: replica.version.clone(),
        pid: Some(replica.pid),
        detail: details.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shared::model::time::UnixMillis;
    use shared::process::health::HealthPart;

    use super::*;

    fn replica(service: &str) -> ReplicaStatus {
        ReplicaStatus {
            service: service.to_owned(),
            instance: format!("{service}-0"),
            version: "1".to_owned(),
            pid: 1,
            now: UnixMillis(0),
            ready: true,
            parts: BTreeMap::new(),
            lost: None,
            metrics: BTreeMap::new(),
        }
    }

    #[test]
    fn every_service_has_a_state() {
        let mut replicas: Vec<ReplicaStatus> = SERVICES.iter().skip(1).map(|name| replica(name)).collect();
        let part = |ok, degraded| HealthPart {
            ok,
            degraded,
            detail: "why".to_owned(),
        };
        replicas[0].parts.insert("sandbox".to_owned(), part(true, true));
        replicas[1].ready = false;
        replicas[1].parts.insert("claims".to_owned(), part(false, false));
        replicas[2].lost = Some("stuck".to_owned());

        let parts = service_parts(&replicas);
        let states: Vec<&str> = parts.iter().map(|part| part.state).collect();
        assert_eq!(states, ["missing", "degraded", "not ready", "lost", "ready"]);
        let ready: Vec<bool> = parts.iter().map(|part| part.ready).collect();
        assert_eq!(ready, [false, true, false, false, true]);
        assert_eq!(parts[2].detail, "claims: why");
        assert_eq!(parts[3].detail, "must be restarted: stuck");
    }
}
