//! Checks every replica of every service by its own report, and finds replicas that should report and do not.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::process::ProcessName;
use shared::process::status::{ReplicaStatus, hear_replicas};
use shared::wire::operator::status::Known;

use super::{Finding, Surroundings, local};
use crate::launch::SERVICES;

/// Difference between a replica's clock and ours that is reported, in milliseconds. An answer may be some seconds old.
const CLOCKS_APART_MS: u64 = 5_000;
/// Longest time for the second request, made because a replica did not answer; the slowest replica gets a third of it.
const ONCE_MORE: Duration = Duration::from_secs(9);
/// Gauges that should be zero, each with the meaning of another value.
const SHOULD_BE_ZERO: [(&str, &str); 4] = [
    ("nexus_hook_breakers_open", "hooks paused (`nexus breaker list`)"),
    (
        "nexus_broker_sessions_quarantined",
        "sessions quarantined (`nexus session release`)",
    ),
    (
        "nexus_delivery_parked_destinations",
        "destinations fail; their replies are parked",
    ),
    (
        "nexus_positions_degraded",
        "positions are void: a stream was restored; completed work is found by its records",
    ),
];

/// Returns one finding per replica, and one for each service without an answering replica.
pub(super) fn services(surroundings: &Surroundings) -> LocalBoxFuture<'_, Vec<Finding>> {
    async {
        match (&surroundings.bus, &surroundings.heard) {
            (Ok(bus), Ok(heard)) => {
                let mut findings = look(&heard.replicas, SystemClock.now().0);
                findings.extend(unread(heard.unread));
                findings.extend(silent(bus, surroundings, &heard.replicas).await);
                findings
            }
            (Ok(_), Err(error)) => vec![Finding::unknown("services", error)],
            (Err(_), _) => Vec::new(),
        }
    }
    .boxed_local()
}

/// Returns the replicas that should answer and do not, even to a second request: running processes of this machine, and
/// replicas that have announced themselves on the bus.
async fn silent(bus: &Bus, surroundings: &Surroundings, heard: &[ReplicaStatus]) -> Vec<Finding> {
    let here = running_here(&local::data_directory(surroundings).join("run"));
    // Without scheduler-svc, which is reported, only the replicas of this machine are known.
    let server = surroundings
        .status
        .as_ref()
        .ok()
        .and_then(|status| status.server.as_ref());
    let elsewhere = match server.map(|server| &server.announced) {
        Some(Known::Known(elsewhere)) => elsewhere.clone(),
        Some(Known::Unknown(why)) => return vec![Finding::unknown("services", why)],
        None => BTreeSet::new(),
    };

    let answers = |heard: &[ReplicaStatus], name: &str| heard.iter().any(|replica| replica.instance == name);
    let all = here.iter().chain(&elsewhere);
    if all.clone().all(|name| answers(heard, name)) {
        return Vec::new();
    }

    let again = match hear_replicas(bus, ONCE_MORE).await {
        Ok(again) => again.replicas,
        Err(error) => return vec![Finding::unknown("services", error)],
    };
    let is_silent = |name: &&String| !answers(heard, name) && !answers(&again, name);
    let hung = here
        .iter()
        .filter(is_silent)
        .map(|name| Finding::fault(name, "the process is running but does not answer; restart it"));
    let gone = elsewhere
        .iter()
        .filter(|name| is_silent(name) && !here.contains(*name))
        .map(|name| {
            Finding::warning(
                name,
                "seen in the last ten minutes, does not answer now: it hangs or was killed",
            )
        });

    hung.chain(gone).collect()
}

/// Returns the instances that have announced themselves in `directory` and whose processes run.
fn running_here(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let announced = entries.filter_map(|entry| {
        let text = std::fs::read_to_string(entry.path()).ok()?;
        let announced: serde_json::Value = serde_json::from_str(&text).ok()?;
        let process = ProcessName::parse(announced["process"].as_str()?)?;
        let instance = announced["instance"].as_str()?;
        process.is_running().then(|| instance.to_owned())
    });
    announced.collect()
}

fn look(replicas: &[ReplicaStatus], now: i64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let versions: BTreeSet<&str> = replicas.iter().map(|replica| replica.version.as_str()).collect();

    for name in SERVICES {
        let of_service: Vec<&ReplicaStatus> = replicas.iter().filter(|replica| replica.service == name).collect();
        if of_service.is_empty() {
            findings.push(Finding::fault(name, "no replica answers; start one"));
        }

        for replica in of_service {
            findings.push(told(replica, now));
            findings.extend(weakened(replica));
            findings.extend(counted(replica));
        }
    }

    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        let detail = format!("replicas run {}: finish the upgrade", versions.join(", "));
        findings.push(Finding::warning("versions", detail));
    }

    findings
}

/// Returns a finding about replicas whose answers this version cannot read, if there are any.
fn unread(answers: usize) -> Option<Finding> {
    let why = format!("{answers} replicas sent an answer that this version cannot read");
    (answers > 0).then(|| Finding::unknown("services", why))
}

/// Returns a finding about the health of one replica.
fn told(replica: &ReplicaStatus, now: i64) -> Finding {
    if let Some(lost) = &replica.lost {
        return Finding::fault(&replica.instance, format!("must be started again: {lost}"));
    }

    let bad: Vec<String> = replica
        .parts
        .iter()
        .filter(|(_, part)| !part.ok)
        .map(|(name, part)| format!("{name}: {}", part.detail))
        .collect();

    if !replica.ready || !bad.is_empty() {
        return Finding::fault(&replica.instance, format!("not ready: {}", bad.join("; ")));
    }

    let apart = now.abs_diff(replica.now.0);
    if apart > CLOCKS_APART_MS {
        let detail = format!("ready, but its host's clock differs from this one's by {apart} ms");
        return Finding::warning(&replica.instance, detail);
    }

    let detail = format!("ready, version {}, process {}", replica.version, replica.pid);
    Finding::ok(&replica.instance, detail)
}

/// Returns findings about parts that work, but with reduced quality.
fn weakened(replica: &ReplicaStatus) -> Vec<Finding> {
    let parts = replica.parts.iter().filter(|(_, part)| part.ok && part.degraded);
    parts
        .map(|(name, part)| Finding::warning(&replica.instance, format!("{name}: {}", part.detail)))
        .collect()
}

/// Returns findings about gauges that are not zero.
fn counted(replica: &ReplicaStatus) -> Vec<Finding> {
    let counted = SHOULD_BE_ZERO.iter().filter_map(|(name, meaning)| {
        let value = replica.metrics.get(*name).copied().filter(|value| *value > 0.0)?;
        Some(Finding::warning(&replica.instance, format!("{value} {meaning}")))
    });
    counted.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use shared::model::time::UnixMillis;
    use shared::process::health::HealthPart;

    use super::super::Level;
    use super::*;

    fn replica(service: &str, version: &str) -> ReplicaStatus {
        ReplicaStatus {
            service: service.to_owned(),
            instance: format!("{service}-0"),
            version: version.to_owned(),
            pid: 1,
            now: UnixMillis(10_000),
            ready: true,
            parts: BTreeMap::new(),
            lost: None,
            metrics: BTreeMap::new(),
        }
    }

    fn check(replicas: &[ReplicaStatus], level: Level, says: &str) {
        let found = look(replicas, 10_000);
        let worst = found.iter().map(|finding| finding.level).max();
        assert_eq!(worst, Some(level), "{found:?}");
        assert!(
            found
                .iter()
                .any(|finding| finding.level == level && finding.detail.contains(says)),
            "{found:?}"
        );
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_not_sound() {
        assert!(unread(0).is_none());
        let found = unread(2).expect("a finding");
        assert_eq!((found.level, found.ok), (Level::Fault, false), "{found:?}");
        assert!(found.detail.starts_with("not known: 2 replicas"), "{found:?}");
    }

    #[test]
    fn every_service_has_a_replica_that_is_well() {
        let all: Vec<ReplicaStatus> = SERVICES.iter().map(|name| replica(name, "1")).collect();
        check(&all, Level::Ok, "ready, version 1");
        check(&all[1..], Level::Fault, "no replica answers");

        let changed = |change: &dyn Fn(&mut ReplicaStatus)| {
            let mut changed = all.clone();
            change(&mut changed[2]);
            changed
        };
        check(
            &changed(&|one| one.version = "2".to_owned()),
            Level::Warning,
            "replicas run 1, 2",
        );

        check(
            &changed(&|one| one.lost = Some("dead".to_owned())),
            Level::Fault,
            "dead",
        );
        check(&changed(&|one| one.now = UnixMillis(0)), Level::Warning, "by 10000 ms");

        let part = |ok, degraded, detail: &str| HealthPart {
            ok,
            degraded,
            detail: detail.to_owned(),
        };
        let late = changed(&|one| {
            one.ready = false;
            one.parts.insert("claims".to_owned(), part(false, false, "gone"));
        });

        check(&late, Level::Fault, "not ready: claims: gone");

        let open = changed(&|one| drop(one.parts.insert("sandbox".to_owned(), part(true, true, "open"))));
        check(&open, Level::Warning, "sandbox: open");

        let praised = changed(&|one| {
            one.parts
                .insert("sandbox".to_owned(), part(true, false, "nothing is degraded"));
        });
        check(&praised, Level::Ok, "ready");

        let paused = changed(&|one| {
            one.metrics.insert("nexus_hook_breakers_open".to_owned(), 2.0);
        });
        check(&paused, Level::Warning, "2 hooks paused (`nexus breaker list`)");
    }
}
