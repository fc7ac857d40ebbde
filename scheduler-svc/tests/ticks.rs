//! Two replicas, one clock in the test's hand, a real server: one event for each minute.

use std::sync::Arc;
use std::time::Duration;

use scheduler_svc::tick::MINUTE_MS;
use scheduler_svc::ticker::TickPublisher;
use shared::bus::{Bus, NatsConfig};
use shared::clock::pause;
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::testing::ManualClock;
use shared::testing::nats::NatsServer;
use shared::wire::topology::{streams, topology};

const START: i64 = 28_333_333;
const DEADLINE: Duration = Duration::from_secs(60);

struct Replica {
    shutdown: ShutdownSignal,
    task: tokio::task::JoinHandle<()>,
}

impl Replica {
    async fn start(server: &NatsServer, clock: &ManualClock) -> Self {
        let (bus, shutdown) = (connect(server).await, ShutdownSignal::default());
        let ticker = TickPublisher::new(bus, Arc::new(clock.clone()), Duration::from_millis(5));
        let stop = shutdown.clone();
        let task = tokio::spawn(async move { ticker.run(&stop).await });
        Self { shutdown, task }
    }

    async fn stop(self) {
        self.shutdown.trigger();
        self.task.await.expect("it ends");
    }
}

async fn connect(server: &NatsServer) -> Bus {
    let config = NatsConfig {
        servers: vec![server.url()],
        ..NatsConfig::default()
    };
    shared::testing::connect(&config, "test").await
}

async fn minutes(bus: &Bus) -> Vec<i64> {
    let stored = bus
        .read_history(streams::EVENTS, "nexus.ev.>", 1, 1_000)
        .await
        .expect("the stream is read");
    let events = stored.iter().map(|stored| stored.decode::<Event>().expect("an event"));
    events.map(|event| event.timestamp.0 / MINUTE_MS - START).collect()
}

async fn check(bus: &Bus, expected: &[i64]) {
    let waited = tokio::time::timeout(DEADLINE, async {
        while minutes(bus).await.len() < expected.len() {
            pause(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("in time");
    let mut found = minutes(bus).await;
    found.sort_unstable();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_make_one_tick_a_minute_and_an_outage_is_caught_up() {
    let server = NatsServer::start().await;
    let bus = connect(&server).await;
    bus.ensure_topology(&topology(1), false)
        .await
        .expect("the topology is made");
    let clock = ManualClock::at(UnixMillis(START * MINUTE_MS + 30_000));
    let (first, second) = (
        Replica::start(&server, &clock).await,
        Replica::start(&server, &clock).await,
    );

    check(&bus, &[0]).await;

    clock.advance(29_999);
    check(&bus, &[0]).await;

    clock.advance(1);
    check(&bus, &[0, 1]).await;

    clock.advance(60_000);
    check(&bus, &[0, 1, 2]).await;

    first.stop().await;
    clock.advance(60_000);
    check(&bus, &[0, 1, 2, 3]).await;

    second.stop().await;

    clock.advance(20 * 60_000);
    let (first, second) = (
        Replica::start(&server, &clock).await,
        Replica::start(&server, &clock).await,
    );

    check(&bus, &[0, 1, 2, 3, 19, 20, 21, 22, 23]).await;

    first.stop().await;
    second.stop().await;
    assert_eq!(minutes(&bus).await.len(), 9, "nothing came twice");
}
