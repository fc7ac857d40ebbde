//! Floors and streams put back while events come, some are deferred, and some are kept as numbers: each event that the
//! stream has is evaluated once, and the operator is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use shared::bus::{Bus, OutgoingMessage};
use shared::clock::pause;
use shared::model::event::Event;
use shared::process::status::{ReplicaStatus, ask_replicas};
use shared::testing::eventually;
use shared::wire::session_mark::PartitionFloors;
use shared::wire::topology::buckets;
use shared::wire::topology::streams::{EVENTS, INVOCATIONS};

use crate::world::{World, event};

/// Waits upon work, so that its author has no place left, and answers everything else at once.
const GUARDED: &str = "/** @timeout 60s */
export default async ({ event }) => {
    if (event.content === 'work') await new Promise((resolve) => setTimeout(resolve, 6000));
    return { fire: true, routing: { session: 'slow' } };
};\n";

/// More than a conversation may owe.
const CROWD: u32 = 1_100;

/// Publishes events, one after the other, until it is stopped; a server that is away is waited for.
struct Flow {
    stop: Arc<AtomicBool>,
    published: Arc<AtomicU32>,
    task: tokio::task::JoinHandle<()>,
}

impl Flow {
    fn begin(bus: &Bus) -> Self {
        let (stop, published) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let (is_stopped, count, bus) = (Arc::clone(&stop), Arc::clone(&published), bus.clone());
        let task = tokio::spawn(async move {
            while !is_stopped.load(Ordering::Relaxed) {
                let number = count.load(Ordering::Relaxed);
                let next = event(&format!("f{}", number % 20), number, "quick");
                if bus.publish(OutgoingMessage::event(&next, bus.trust())).await.is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                pause(Duration::from_millis(20)).await;
            }
        });

        Self { stop, published, task }
    }

    /// Waits until `more` have come.
    async fn goes_on(&self, more: u32) {
        let wanted = self.published.load(Ordering::Relaxed) + more;
        eventually("events come", async || self.published.load(Ordering::Relaxed) >= wanted).await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("it ends");
    }
}

/// The events of which something is deferred, or was.
async fn deferred(world: &World) -> BTreeSet<String> {
    let records = world.invocations().await.into_iter();
    let deferred = records.filter(|record| record.deferred_hooks().next().is_some());
    deferred.map(|record| record.event_id.to_string()).collect()
}

/// The replica that is there, as `nexus doctor` asks it.
async fn told(world: &World) -> Option<ReplicaStatus> {
    let replicas = ask_replicas(&world.bus, Duration::from_secs(2)).await.ok()?;
    replicas.into_iter().next()
}

/// How often each event was dispatched.
async fn dispatched(world: &World) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for dispatch in world.dispatches().await {
        *times.entry(dispatch.event_id.to_string()).or_default() += 1;
    }
    times
}

/// How often a record says of an event, at its place in the stream, that nothing is deferred any more.
async fn ended(world: &World) -> BTreeMap<(String, u64), usize> {
    let mut times = BTreeMap::new();
    for record in world.invocations().await {
        if record.deferred_hooks().next().is_none() {
            *times
                .entry((record.event_id.to_string(), record.event_seq))
                .or_default() += 1;
        }
    }
    times
}

/// The events that the stream has, with their sequences.
async fn stored(world: &World) -> Vec<(String, u64)> {
    let state = world.bus.stream_state(EVENTS).await.expect("its state");
    let mut found = Vec::new();
    for sequence in state.first.max(1)..=state.last {
        if let Some(stored) = world.bus.at_sequence(EVENTS, sequence).await.expect("readable") {
            let event: Event = stored.decode().expect("it decodes");
            found.push((event.id.to_string(), sequence));
        }
    }
    found
}

/// A world with a copy of `stream` as it was before most came, and a replica that has events deferred, more than a
/// conversation may owe, and settled some. Events come on.
async fn busy(stream: &str) -> (World, tempfile::TempDir, Flow) {
    let mut world = World::new(&[("slow.ts", GUARDED)]).await;
    world.publish(&event("early", 1, "quick")).await;
    world.nats.stop().await;
    let older = world.nats.copy_of(stream);
    world.nats.restart().await;
    world.start("a");
    world.wait_for_members(1).await;

    let flow = Flow::begin(&world.bus);
    flow.goes_on(40).await;
    world.wait_for_records(40).await;
    let floors = world.bus.kv::<PartitionFloors>(buckets::ATTEMPTS);
    eventually("floors are stored", async || {
        let stored = floors.get("floors.hook").await.ok().flatten();
        stored.is_some_and(|entry| entry.value.floors.iter().any(|floor| *floor > 1))
    })
    .await;

    let work: Vec<Event> = (0..300).map(|peer| event(&format!("p{peer}"), 1, "work")).collect();
    world.publish_all(&work).await;
    let crowd: Vec<Event> = (0..CROWD).map(|number| event("crowd", number, "quick")).collect();
    world.publish_all(&crowd).await;
    eventually("events are deferred", async || deferred(&world).await.len() > 100).await;

    (world, older, flow)
}

/// Kills the replica, lets `put_back` change what is stored, and starts another one. Events come all the while.
async fn put_back(world: &mut World, flow: &Flow, stream: &str, older: &tempfile::TempDir) {
    world.replica("a").kill();
    world.nats.stop().await;
    world.nats.put_back(stream, older);
    world.nats.restart().await;
    flow.goes_on(50).await;
    world.start("b");
    flow.goes_on(50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_put_back_under_flow_are_evaluated_once_each_and_the_operator_is_told() {
    let (mut world, older, flow) = busy(EVENTS).await;
    put_back(&mut world, &flow, EVENTS, &older).await;
    let mut status = None;

    eventually("the operator is told of void positions", async || {
        status = told(&world).await;
        let parts = status.as_ref().map(|status| &status.parts);
        parts.is_some_and(|parts| parts.contains_key("positions"))
    })
    .await;

    let status = status.expect("told");
    assert!(status.ready, "degraded, and at work: {:?}", status.parts);

    flow.end().await;
    world.wait_until_acked().await;

    let (dispatched, ended) = (dispatched(&world).await, ended(&world).await);
    let stored = stored(&world).await;
    let is_anothers_now = |(id, sequence): &&(String, u64)| stored.iter().any(|(at, of)| of == sequence && at != id);

    assert!(
        ended.keys().find(is_anothers_now).is_some(),
        "sequences were given out again"
    );

    for (id, sequence) in stored {
        assert_eq!(dispatched.get(&id), Some(&1), "{id}");
        assert_eq!(ended.get(&(id.clone(), sequence)), Some(&1), "{id} at {sequence}");
    }

    assert!(dispatched.values().all(|times| *times == 1), "of what is gone as well");
    assert_eq!(world.dead_letters().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_put_back_under_flow_have_nothing_dispatched_twice() {
    let (mut world, older, flow) = busy(INVOCATIONS).await;
    put_back(&mut world, &flow, INVOCATIONS, &older).await;
    flow.end().await;
    world.wait_until_acked().await;

    let dispatched = dispatched(&world).await;
    for (id, _) in stored(&world).await {
        assert_eq!(dispatched.get(&id), Some(&1), "{id}");
    }

    let ended = ended(&world).await;
    assert!(ended.values().all(|times| *times == 1), "{ended:?}");
    assert_eq!(world.dead_letters().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_lost_under_flow_have_nothing_evaluated_twice() {
    let bucket = format!("KV_{}", buckets::ATTEMPTS);
    let (mut world, older, flow) = busy(&bucket).await;
    put_back(&mut world, &flow, &bucket, &older).await;
    flow.end().await;
    world.wait_until_acked().await;

    let (dispatched, ended) = (dispatched(&world).await, ended(&world).await);
    for (id, sequence) in stored(&world).await {
        assert_eq!(dispatched.get(&id), Some(&1), "{id}");
        assert_eq!(ended.get(&(id.clone(), sequence)), Some(&1), "{id} at {sequence}");
    }

    assert_eq!(world.dead_letters().await, []);
}
