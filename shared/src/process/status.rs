//! Status of every replica over the bus, for callers that ask all of them at once (`nexus doctor`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};

use super::health::{Health, HealthPart};
use super::lifecycle::ShutdownSignal;
use crate::bus::{Bus, ReadStreamError};
use crate::clock::{Clock as _, SystemClock, pause};
use crate::model::time::UnixMillis;
use crate::wire::headers::Headers;
use crate::wire::session_mark::LeaseRecord;
use crate::wire::subject::token;
use crate::wire::topology::buckets;

/// Subject on which every replica listens.
const SUBJECT: &str = "nexus.svc.replica.status";
/// Prefix of the keys in KV `leases` under which replicas announce themselves.
const REPLICA: &str = "replica.";

/// Lifetime of an announcement, and the interval between two of them.
const ANNOUNCED_FOR: Duration = Duration::from_secs(600);
const ANNOUNCED_EVERY: Duration = Duration::from_secs(60);

/// Maximum time to withdraw the announcement when the replica ends.
const TAKEN_BACK_WITHIN: Duration = Duration::from_millis(500);

/// Pause before a replica subscribes again, after that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// Status of one replica, as the replica reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Name of the service: `hook-svc`.
    pub service: String,
    /// Instance name among the service's replicas.
    pub instance: String,
    /// Version of the program.
    pub version: String,
    /// Process id on the replica's host.
    pub pid: u32,
    /// Wall clock of the replica's host at its response.
    pub now: UnixMillis,
    /// Whether all parts are well, as in `/readyz`.
    pub ready: bool,
    /// States of the parts, as in `/readyz`.
    pub parts: BTreeMap<String, HealthPart>,
    /// Reason why only a restart helps, as in `/livez`; `None` if the process is alive.
    pub lost: Option<String>,
    /// Counters and gauges as on `/metrics`, by name, summed over their labels; histograms are left out.
    pub metrics: BTreeMap<String, f64>,
}

/// Asks every replica on the bus. Returns the responses that arrive within `patience`, sorted by service and instance.
/// The bus does not know how many replicas there are: after each response the next one may take a third of `patience`.
///
/// # Errors
/// Returns the client's error text if the request cannot be sent, and an error if a response cannot be decoded: a
/// replica is running then, and it is unknown which one.
pub async fn ask_replicas(bus: &Bus, patience: Duration) -> Result<Vec<ReplicaStatus>, String> {
    let HeardStatus { replicas, unread } = hear_replicas(bus, patience).await?;
    match unread {
        0 => Ok(replicas),
        unread => Err(format!("{unread} replicas answer what cannot be read")),
    }
}

/// Responses of the replicas.
#[derive(Debug, Default)]
pub struct HeardStatus {
    /// Decoded responses, sorted by service and instance.
    pub replicas: Vec<ReplicaStatus>,
    /// Number of responses that cannot be decoded.
    pub unread: usize,
}

/// As [`ask_replicas`], but counts the responses that cannot be decoded.
///
/// # Errors
/// Returns the client's error text if the request cannot be sent.
pub async fn hear_replicas(bus: &Bus, patience: Duration) -> Result<HeardStatus, String> {
    let answers = bus.gather_answers(SUBJECT, patience).await?;
    let read = |answer: &Bytes| serde_json::from_slice::<ReplicaStatus>(answer).ok();
    let mut replicas: Vec<ReplicaStatus> = answers.iter().filter_map(read).collect();
    replicas.sort_by(|a, b| (&a.service, &a.instance).cmp(&(&b.service, &b.instance)));

    let unread = answers.len() - replicas.len();
    Ok(HeardStatus { replicas, unread })
}

/// Returns the instances that announced themselves within ten minutes and did not withdraw: those that should answer
/// [`ask_replicas`].
///
/// # Errors
/// Returns [`ReadStreamError`] if KV `leases` cannot be read.
pub async fn announced_replicas(bus: &Bus) -> Result<BTreeSet<String>, ReadStreamError> {
    let leases = bus.kv::<LeaseRecord>(buckets::LEASES).survey().await?;
    let replicas = leases.entries.into_iter().filter(|(key, _)| key.starts_with(REPLICA));
    Ok(replicas.map(|(_, lease)| lease.value.holder).collect())
}

/// Responder for this replica's status.
#[derive(Debug, Clone)]
pub(super) struct StatusResponder {
    pub(super) service: &'static str,
    pub(super) instance: String,
    pub(super) health: Health,
    pub(super) metrics: PrometheusHandle,
}

impl StatusResponder {
    /// Creates the responder of one replica of `service`.
    pub(super) fn new(service: &'static str, instance: &str, health: &Health, metrics: &PrometheusHandle) -> Self {
        Self {
            service,
            instance: instance.to_owned(),
            health: health.clone(),
            metrics: metrics.clone(),
        }
    }

    /// Announces this replica in KV `leases` until `ended`, then withdraws the announcement.
    pub(super) async fn announce(self, bus: Bus, ended: ShutdownSignal) {
        let leases = bus.kv::<LeaseRecord>(buckets::LEASES);
        let key = format!("{REPLICA}{}.{}", self.service, token(&self.instance));
        let record = LeaseRecord::held_by(self.instance);

        while !ended.is_requested() {
            // With a time to live, so that a process that is killed disappears by itself.
            let said = tokio::select! {
                said = leases.put_ttl(&key, &record, ANNOUNCED_FOR) => said,
                () = ended.requested() => break,
            };
            let wait = match said {
                Ok(_) => ANNOUNCED_EVERY,
                Err(error) => {
                    tracing::debug!(%error, "failed to announce this replica");
                    AGAIN
                }
            };

            tokio::select! {
                () = pause(wait) => {}
                () = ended.requested() => {}
            }
        }

        // Bounded: a server that is gone must not delay the end of the process.
        let taken_back = tokio::time::timeout(TAKEN_BACK_WITHIN, leases.delete(&key, None)).await;
        if !matches!(taken_back, Ok(Ok(()))) {
            tracing::debug!("failed to withdraw this replica's announcement");
        }
    }

    /// Responds over `bus` until `ended`.
    pub(super) async fn serve(self, bus: Bus, ended: ShutdownSignal) {
        while !ended.is_requested() {
            match bus.core_subscribe(SUBJECT).await {
                Ok(mut questions) => loop {
                    let question = tokio::select! {
                        question = questions.next() => question,
                        () = ended.requested() => return,
                    };
                    // The subscription has ended: subscribe again after a pause.
                    let Some(question) = question else { break };
                    if let Some(reply) = question.reply {
                        bus.core_publish(&reply, &Headers::new(), self.status_payload()).await;
                    }
                },
                Err(error) => tracing::debug!(error, "failed to subscribe to status requests"),
            }

            tokio::select! {
                () = pause(AGAIN) => {}
                () = ended.requested() => {}
            }
        }
    }

    fn status_payload(&self) -> Bytes {
        let readiness = self.health.readiness();
        let status = ReplicaStatus {
            service: self.service.to_owned(),
            instance: self.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            now: SystemClock.now(),
            ready: readiness.ready,
            parts: readiness.parts,
            lost: self.health.lost_reason(),
            metrics: sum_metrics(&self.metrics.render()),
        };

        serde_json::to_vec(&status).unwrap_or_default().into()
    }
}

/// Returns the counters and gauges of a Prometheus text, summed over their labels.
fn sum_metrics(text: &str) -> BTreeMap<String, f64> {
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            kinds.extend(kind.split_once(' '));
            continue;
        }

        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        if let (Some("counter" | "gauge"), Some(value)) = (kinds.get(name).copied(), value)
            && value.is_finite()
        {
            *sums.entry(name.to_owned()).or_default() += value;
        }
    }

    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::world;

    #[test]
    fn metrics_are_added_up_over_their_labels() {
        let text = "# HELP a what\n# TYPE a counter\na{x=\"1 } \"} 2\na{x=\"2\"} 3\n# TYPE b gauge\nb 0.5\n\
                    # TYPE c histogram\nc_bucket{le=\"1\"} 7\nc_sum 7\nc_count 7\n# TYPE d gauge\nd NaN\n";
        let expected = [("a".to_owned(), 5.0), ("b".to_owned(), 0.5)];
        assert_eq!(sum_metrics(text), BTreeMap::from(expected));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_replica_answers() {
        let (_server, bus) = world().await;
        let ended = ShutdownSignal::default();
        let none = ask_replicas(&bus, Duration::from_millis(50)).await.expect("asked");

        assert_eq!(none, [], "nobody is there");

        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        for instance in ["b", "a"] {
            let teller = StatusResponder {
                service: "hook-svc",
                instance: instance.to_owned(),
                health: Health::default(),
                metrics: recorder.handle(),
            };

            teller.health.set("nats", instance == "a", "as it is");
            tokio::spawn(teller.serve(bus.clone(), ended.clone()));
        }

        // The server learns of a new subscription with some delay.
        let mut found = Vec::new();
        while found.len() < 2 {
            found = ask_replicas(&bus, Duration::from_secs(3)).await.expect("asked");
        }

        let told: Vec<_> = found.iter().map(|one| (one.instance.as_str(), one.ready)).collect();
        assert_eq!(told, [("a", true), ("b", false)]);
        assert_eq!(found[1].parts["nats"].detail, "as it is");

        ended.trigger();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_replica_that_ends_well_is_not_awaited() {
        let (_server, bus) = world().await;
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let ended = ShutdownSignal::default();
        let teller = StatusResponder {
            service: "hook-svc",
            instance: "a.b/c".to_owned(),
            health: Health::default(),
            metrics: recorder.handle(),
        };

        let announcing = tokio::spawn(teller.announce(bus.clone(), ended.clone()));
        let expected = BTreeSet::from(["a.b/c".to_owned()]);
        while announced_replicas(&bus).await.expect("asked") != expected {
            pause(Duration::from_millis(10)).await;
        }

        ended.trigger();
        announcing.await.expect("it ends");
        assert_eq!(announced_replicas(&bus).await.expect("asked"), BTreeSet::new());
    }
}
