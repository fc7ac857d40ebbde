//! Pods that are replaced under load: the servers of the bus one after the other, and the copies of the read model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::Value;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::testing::eventually_within;
use tests::cluster::Cluster;
use tests::load::{Gateways, Load, send};
use tests::record::Record;

use super::installation::{Installation, Length, NAMESPACE};
use super::{PATIENCE, SETTLED, token_settings};

/// Longest time for which a stream may have no leader.
const LEADERLESS: Duration = Duration::from_secs(4);

/// Interval at which the servers are asked who leads.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Longest wait for all three servers to be replaced.
const ROLLED: Duration = Duration::from_secs(300);

/// When each stream was last seen with a leader, and its longest time without.
#[derive(Debug, Default)]
struct Leaders {
    led_at: BTreeMap<String, Instant>,
    longest: BTreeMap<String, Duration>,
}

impl Leaders {
    /// Asks every server which streams it leads.
    async fn look(&mut self, client: &reqwest::Client, cluster: &Cluster) {
        let servers = cluster.pods().into_iter().filter(|pod| pod.owner == "nats");
        let asked = servers.map(async |pod| {
            let url = format!("http://{}:8222/jsz?accounts=true&streams=true", pod.ip);
            let answer: Value = client.get(url).send().await.ok()?.json().await.ok()?;
            Some((pod.name, answer))
        });
        let answers = join_all(asked).await;

        let now = SystemClock.monotonic();
        for (server, answer) in answers.into_iter().flatten() {
            let accounts = answer["account_details"].as_array().into_iter().flatten();
            for stream in accounts.flat_map(|account| account["stream_detail"].as_array().into_iter().flatten()) {
                if stream["cluster"]["leader"] == *server {
                    let name = stream["name"].as_str().unwrap_or_default().to_owned();
                    let before = self.led_at.insert(name.clone(), now).unwrap_or(now);
                    let longest = self.longest.entry(name).or_default();
                    *longest = (*longest).max(now.saturating_duration_since(before));
                }
            }
        }
    }
}

/// Returns where events are taken.
fn gateways(cluster: &Cluster) -> Gateways {
    let adapters = cluster.pods().into_iter().filter(|pod| pod.owner == "adapter-svc");
    let addresses = adapters.map(|pod| format!("http://{}:8080", pod.ip)).collect();
    Gateways::new(Mutex::new(addresses))
}

/// Waits until each event of `accepted` was evaluated once.
async fn all_evaluated(installation: &Installation, accepted: &BTreeSet<String>) {
    let bus = installation.bus().await;
    eventually_within("every accepted event was evaluated", PATIENCE, async || {
        let record = Record::read(&bus).await;
        let faults = record.faults(accepted);
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults.join("\n"))
        }
    })
    .await;
}

/// The manifest's probes and waits let a server end only when the others have all of it: no stream is without a leader for
/// long, and no event is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_bus_has_leaders_and_loses_nothing() {
    let Some(installation) = Installation::try_make("base", &token_settings(), Length::Long).await else {
        return;
    };
    let cluster = &installation.cluster;
    cluster.settled(SETTLED).await;

    let load = Load {
        events: 3_000,
        rate: 25,
        sessions: 20,
        copies: 1,
    };
    let sending = tokio::spawn(send(load, gateways(cluster)));

    let client = reqwest::Client::builder().timeout(Duration::from_secs(1)).no_proxy();
    let client = client.build().expect("a client");
    let mut leaders = Leaders::default();
    cluster.restart(NAMESPACE, "nats");
    let begun = SystemClock.monotonic();
    let rolled = async {
        cluster.settled(ROLLED).await;
        SystemClock.monotonic().saturating_duration_since(begun)
    };
    let watching = async {
        loop {
            leaders.look(&client, cluster).await;
            pause(LOOK_EVERY).await;
        }
    };
    let took = tokio::select! {
        took = rolled => took,
        () = watching => unreachable!("it never ends"),
    };

    let mut longest: Vec<(Duration, String)> = leaders.longest.iter().map(|(name, gap)| (*gap, name.clone())).collect();
    longest.sort();
    println!(
        "three servers replaced in {} s; longest without a leader: {:?}",
        took.as_secs(),
        longest.last()
    );
    assert!(longest.len() > 10, "{longest:?}");
    let worst = longest.last().expect("a stream");
    assert!(worst.0 <= LEADERLESS, "{longest:?}\n{}", installation.logs());

    let accepted = sending.await.expect("the sender ends");
    all_evaluated(&installation, &accepted).await;
}

/// Each server loses its volume, one after the other: in the end, none of the first volumes is left, and all that was on them is.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lost_its_volume_gets_everything_from_the_others() {
    let Some(installation) = Installation::try_make("base", &token_settings(), Length::Long).await else {
        return;
    };
    let cluster = &installation.cluster;
    cluster.settled(SETTLED).await;

    let load = Load {
        events: 500,
        rate: 50,
        sessions: 20,
        copies: 1,
    };
    let accepted = send(load, gateways(cluster)).await;
    for number in [2, 1, 0] {
        let server = format!("nats-{number}");
        cluster.lose_claim(NAMESPACE, &format!("data-{server}"));
        cluster.delete_pod(&server);
        cluster.settled(ROLLED).await;
    }

    assert_eq!(accepted.len() as u64, load.events);
    all_evaluated(&installation, &accepted).await;
}

/// A copy of the read model goes on from its volume when its pod is replaced, and does not begin from zero.
/// `chaos::large_copy` is the same with many events, without pods.
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_copy_goes_on_from_its_volume() {
    let Some(installation) = Installation::try_make("overlays/dev", &token_settings(), Length::Long).await else {
        return;
    };
    let cluster = &installation.cluster;
    cluster.settled(SETTLED).await;

    let load = Load {
        events: 500,
        rate: 100,
        sessions: 20,
        copies: 1,
    };
    send(load, gateways(cluster)).await;

    let model = cluster
        .claim(NAMESPACE, "model-hook-svc-copy-0")
        .join("hook-svc-copy-0/read-model.sqlite");
    let size = std::fs::metadata(&model).expect("the copy is on its volume").len();
    assert!(size > 0);
    let begun = SystemClock.monotonic();
    cluster.restart(NAMESPACE, "hook-svc-copy");
    cluster.settled(SETTLED).await;
    let took = SystemClock.monotonic().saturating_duration_since(begun);

    let log = cluster.log("hook-svc-copy-0");
    assert!(log.contains("this replica keeps a copy of the read model"), "{log}");
    assert!(!log.contains("rebuilding"), "{log}");
    assert!(took < Duration::from_secs(60), "{took:?}");

    // What all processes of the pod take is within the limit, and workers follow the request, not the machine.
    for pod in cluster.pods().into_iter().filter(|pod| pod.owner == "hook-svc-copy") {
        let memory = cluster.memory(&pod.name);
        println!("{}: {} MiB", pod.name, memory >> 20);
        assert!(memory < 2 << 30, "{}: {memory} bytes", pod.name);
    }
}
