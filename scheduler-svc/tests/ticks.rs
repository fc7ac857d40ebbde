//! Two replicas, one clock in the test's hand, a real server: one event for each minute.

use std::sync::Arc;
use std::time::Duration;

use scheduler_svc::tick::MINUTE_MS;
use scheduler_svc::ticker::TickPublisher;
use shared::bus::Bus;
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::testing::nats::NatsServer;
use shared::testing::{ManualClock, connect_to, eventually, world};
use shared::wire::topology::streams;

const START: i64 = 28_333_333;

struct Replica {
    shutdown: ShutdownSignal,
    task: tokio::task::JoinHandle<()>,
}

impl Replica {
    async fn start(server: &NatsServer, clock: &ManualClock) -> Self {
        let (bus, shutdown) = (connect_to(&server.url(), "test").await, ShutdownSignal::default());
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

async fn minutes(bus: &Bus) -> Vec<i64> {
    let stored = bus
        .read_history(streams::EVENTS, "nexus.ev.>", 1, 1_000)
        .await
        .expect("the stream is read");
    let events = stored.iter().map(|stored| stored.decode::<Event>().expect("an event"));
    events.map(|event| event.timestamp.0 / MINUTE_MS - START).collect()
}

async fn check(bus: &Bus, expected: &[i64]) {
    eventually("all minutes", async || minutes(bus).await.len() >= expected.len()).await;
    let mut found = minutes(bus).await;
    found.sort_unstable();
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_make_one_tick_a_minute_and_an_outage_is_caught_up() {
    let (server, bus) = world().await;
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
