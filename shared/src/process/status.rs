//! What every replica tells about itself over the bus, to whoever asks all of them at once (`nexus doctor`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};

use super::health::{Health, Part};
use super::lifecycle::Shutdown;
use crate::bus::{Bus, ReadStreamError};
use crate::clock::{Clock as _, SystemClock, pause};
use crate::model::time::UnixMillis;
use crate::wire::headers::Headers;
use crate::wire::session_mark::LeaseRecord;
use crate::wire::subject::token;
use crate::wire::topology::buckets;

/// Where every replica listens.
const SUBJECT: &str = "nexus.svc.replica.status";
/// What keys in KV `leases` begin with under which replicas say that they are there.
const REPLICA: &str = "replica.";
/// How long that counts, and how often it is said.
const ANNOUNCED_FOR: Duration = Duration::from_secs(600);
const ANNOUNCED_EVERY: Duration = Duration::from_secs(60);
/// How long it may take to say that a replica ends.
const TAKEN_BACK_WITHIN: Duration = Duration::from_millis(500);
/// How long a replica waits before it listens again, if it could not.
const AGAIN: Duration = Duration::from_secs(1);

/// What a replica tells about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Its service: `hook-svc`.
    pub service: String,
    /// Its name among the service's replicas.
    pub instance: String,
    /// The version that it runs.
    pub version: String,
    /// Its process id, on its host.
    pub pid: u32,
    /// Its host's wall clock when it answered.
    pub now: UnixMillis,
    /// As `/readyz` says: whether all parts are well.
    pub ready: bool,
    /// As `/readyz` says: its parts.
    pub parts: BTreeMap<String, Part>,
    /// Why only a new process helps, as `/livez` says; none = it is alive.
    pub lost: Option<String>,
    /// Counters and gauges as on `/metrics`, by name, added up over their labels; histograms are left out.
    pub metrics: BTreeMap<String, f64>,
}

/// Asks every replica on the bus; returns the answers that come within `patience`, sorted by service and instance. How
/// many replicas there are is not known to the bus: after an answer the next one may take a third of `patience`.
///
/// # Errors
/// The client's word if the question cannot be asked, and where an answer cannot be read: a replica is there, and nobody
/// knows which.
pub async fn ask_replicas(bus: &Bus, patience: Duration) -> Result<Vec<ReplicaStatus>, String> {
    let Heard { replicas, unread } = hear_replicas(bus, patience).await?;
    match unread {
        0 => Ok(replicas),
        unread => Err(format!("{unread} replicas answer what cannot be read")),
    }
}

/// What replicas answered.
#[derive(Debug, Default)]
pub struct Heard {
    /// The answers, sorted by service and instance.
    pub replicas: Vec<ReplicaStatus>,
    /// How many answers cannot be read.
    pub unread: usize,
}

/// As [`ask_replicas`], with answers that cannot be read counted.
///
/// # Errors
/// The client's word if the question cannot be asked.
pub async fn hear_replicas(bus: &Bus, patience: Duration) -> Result<Heard, String> {
    let answers = bus.gather(SUBJECT, patience).await?;
    let read = |answer: &Bytes| serde_json::from_slice::<ReplicaStatus>(answer).ok();
    let mut replicas: Vec<ReplicaStatus> = answers.iter().filter_map(read).collect();
    replicas.sort_by(|a, b| (&a.service, &a.instance).cmp(&(&b.service, &b.instance)));

    let unread = answers.len() - replicas.len();
    Ok(Heard { replicas, unread })
}

/// Instances of the replicas that have said within ten minutes that they are there, and not that they end: those that should
/// answer [`ask_replicas`].
///
/// # Errors
/// [`ReadStreamError`] if KV `leases` cannot be read.
pub async fn announced_replicas(bus: &Bus) -> Result<BTreeSet<String>, ReadStreamError> {
    let leases = bus.kv::<LeaseRecord>(buckets::LEASES).survey().await?;
    let replicas = leases.entries.into_iter().filter(|(key, _)| key.starts_with(REPLICA));
    Ok(replicas.map(|(_, lease)| lease.value.holder).collect())
}

/// Who answers.
#[derive(Debug, Clone)]
pub(super) struct Teller {
    pub(super) service: &'static str,
    pub(super) instance: String,
    pub(super) health: Health,
    pub(super) metrics: PrometheusHandle,
}

impl Teller {
    /// Says in KV `leases` that this replica is there, until `ended`; then that it is not.
    pub(super) async fn announce(self, bus: Bus, ended: Shutdown) {
        let leases = bus.kv::<LeaseRecord>(buckets::LEASES);
        let key = format!("{REPLICA}{}.{}", self.service, token(&self.instance));
        let record = LeaseRecord {
            holder: self.instance,
            epoch: 0,
            in_progress: None,
            unclean: 0,
            released: false,
        };

        while !ended.is_requested() {
            let said = tokio::select! {
                said = leases.put_ttl(&key, &record, ANNOUNCED_FOR) => said,
                () = ended.requested() => break,
            };
            let wait = match said {
                Ok(_) => ANNOUNCED_EVERY,
                Err(error) => {
                    tracing::debug!(%error, "this replica could not say that it is there");
                    AGAIN
                }
            };

            tokio::select! {
                () = pause(wait) => {}
                () = ended.requested() => {}
            }
        }

        let taken_back = tokio::time::timeout(TAKEN_BACK_WITHIN, leases.delete(&key, None)).await;
        if !matches!(taken_back, Ok(Ok(()))) {
            tracing::debug!("this replica could not say that it ends");
        }
    }

    /// Answers over `bus` until `ended`.
    pub(super) async fn serve(self, bus: Bus, ended: Shutdown) {
        while !ended.is_requested() {
            match bus.core_subscribe(SUBJECT).await {
                Ok(mut questions) => loop {
                    let question = tokio::select! {
                        question = questions.next() => question,
                        () = ended.requested() => return,
                    };
                    let Some(question) = question else { break };
                    if let Some(reply) = question.reply {
                        bus.core_publish(&reply, &Headers::new(), self.answer()).await;
                    }
                },
                Err(error) => tracing::debug!(error, "not listening for questions about this replica"),
            }

            tokio::select! {
                () = pause(AGAIN) => {}
                () = ended.requested() => {}
            }
        }
    }

    fn answer(&self) -> Bytes {
        let readiness = self.health.readiness();
        let status = ReplicaStatus {
            service: self.service.to_owned(),
            instance: self.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            now: SystemClock.now(),
            ready: readiness.ready,
            parts: readiness.parts,
            lost: self.health.lost(),
            metrics: sums(&self.metrics.render()),
        };

        serde_json::to_vec(&status).unwrap_or_default().into()
    }
}

/// The counters and gauges of a Prometheus text, added up over their labels.
fn sums(text: &str) -> BTreeMap<String, f64> {
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
        assert_eq!(sums(text), BTreeMap::from(expected));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_replica_answers() {
        let (_server, bus) = world().await;
        let ended = Shutdown::default();
        let none = ask_replicas(&bus, Duration::from_millis(50)).await.expect("asked");

        assert_eq!(none, [], "nobody is there");

        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        for instance in ["b", "a"] {
            let teller = Teller {
                service: "hook-svc",
                instance: instance.to_owned(),
                health: Health::default(),
                metrics: recorder.handle(),
            };

            teller.health.set("nats", instance == "a", "as it is");
            tokio::spawn(teller.serve(bus.clone(), ended.clone()));
        }

        // Who has just subscribed is heard of by the server in its own time.
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
        let ended = Shutdown::default();
        let teller = Teller {
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
