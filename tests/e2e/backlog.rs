//! The metrics for autoscalers, on the pages of real replicas: each copy of the read model tells the backlog, no other replica
//! does, and the backlog of before the bus went away is not told. The short form of `tests/chaos/autoscale.rs`, without a
//! Prometheus.

use std::sync::Mutex;
use std::time::Duration;

use tests::autoscaler::Autoscaler;
use tests::eventually::eventually;
use tests::load::{Gateways, Load, send};
use tests::prometheus::parse;
use tests::world::{Setup, World, root, without_ticks};

use crate::story::PATIENCE;

const SERVICE: &str = "hook-svc";
/// The other service that is scaled, and its metric.
const BROKER: &str = "broker-svc";
const CLAIMS: &str = "nexus_broker_claims_pending";
/// Time after which a number on a page may no longer be one of before the bus went away: less than an autoscaler's window.
const SOON: Duration = Duration::from_secs(20);
/// The metric, and the object that scales by it.
const METRIC: &str = "nexus_hook_backlog_events";
const SCALED_OBJECT: &str = "k8s/components/keda/hook-svc.yaml";
/// Replicas, of which two keep a copy of the read model.
const REPLICAS: u16 = 3;
/// Events that each replica may have waiting here, and a backlog that asks for twice as many replicas as two: few enough that
/// so many wait for seconds, even where events come slowly.
const THRESHOLD: f64 = 5.0;
const FOR_FOUR: f64 = 16.0;

/// Takes its time, so that events wait: a conversation's next one waits for it.
const SLOW: &str = r#"/** @name slow */
export default async ({ event }) => {
  if (event.channel === "chaos") await new Promise((done) => setTimeout(done, 300));
  return { fire: false };
};
"#;

/// Returns `metric` on the page of each replica of `service`, none where the page has none.
async fn told(world: &World, service: &str, metric: &str) -> Result<Vec<Option<f64>>, String> {
    let client = cli::http::client().map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for running in world.stack.services.iter().filter(|running| running.name == service) {
        let address = running.address("http").map_err(|error| error.to_string())?;
        let answer = client.get(format!("http://{address}/metrics")).send().await;
        let page = answer.map_err(|error| error.to_string())?.text().await;
        let samples = parse(&page.map_err(|error| error.to_string())?)?;
        let found = samples.iter().find(|sample| sample.name == metric);
        all.push(found.map(|sample| sample.value));
    }
    Ok(all)
}

/// Waits until two replicas tell a backlog from `least` to `most`, and no third one tells any; returns the larger one.
async fn two_tell(world: &World, what: &str, least: f64, most: f64) -> f64 {
    eventually(what, PATIENCE, async || {
        let told = told(world, SERVICE, METRIC).await?;
        let numbers: Vec<f64> = told.iter().flatten().copied().collect();
        match numbers.as_slice() {
            [one, other] if [one, other].iter().all(|number| (least..=most).contains(*number)) => {
                Ok(f64::max(*one, *other))
            }
            _ => Err(format!("{told:?}\n{}", world.logs())),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_copy_tells_the_backlog_and_nobody_else_does() {
    let mut world = World::start(Setup {
        hooks: vec![("slow.ts", SLOW.to_owned())],
        environment: vec![without_ticks()],
        ..Setup::default()
    })
    .await;
    world.scale(SERVICE, REPLICAS).await;
    world.stack.ready().await.expect("three replicas start");
    two_tell(&world, "two copies tell that nothing waits", 0.0, 0.0).await;

    let load = Load {
        events: 100,
        rate: 10_000,
        sessions: 4,
        copies: 1,
    };
    let gateways = Gateways::new(Mutex::new(world.gateways()));
    let sending = tokio::spawn(send(load, gateways));
    let backlog = two_tell(&world, "both tell what waits", FOR_FOUR, load.events as f64).await;

    let text = std::fs::read_to_string(root().join(SCALED_OBJECT)).expect("the manifest");
    let mut scaler = Autoscaler::of_scaled_object(&serde_yaml_ng::from_str(&text).expect("YAML"));
    assert_eq!(scaler.query, format!("max({METRIC}{{namespace=\"nexus\"}})"));
    scaler.threshold = THRESHOLD;
    assert_eq!(
        scaler.look(Some(backlog), 2, Duration::ZERO),
        4,
        "{backlog} events wait"
    );

    let accepted = sending.await.expect("the load was sent");
    assert_eq!(accepted.len() as u64, load.events);
    two_tell(&world, "both tell that it is done", 0.0, 0.0).await;

    let claims = told(&world, BROKER, CLAIMS).await.expect("pages");
    assert!(
        claims.iter().all(Option::is_some),
        "every broker tells the claims: {claims:?}"
    );

    // A number of some time ago would scale; none does not.
    world.stack.nats[0].kill();
    nobody_tells(&world, BROKER, CLAIMS, SOON).await;
    nobody_tells(&world, SERVICE, METRIC, PATIENCE).await;
}

/// Waits until no replica of `service` has `metric` on its page.
async fn nobody_tells(world: &World, service: &str, metric: &str, within: Duration) {
    eventually("without the bus nobody tells a number", within, async || {
        let told = told(world, service, metric).await?;
        if told.iter().all(Option::is_none) {
            Ok(())
        } else {
            Err(format!("{service}: {told:?}\n{}", world.logs()))
        }
    })
    .await;
}
