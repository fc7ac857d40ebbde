//! Several replicas: killed, stopped, taken over from.

use std::collections::BTreeMap;

use crate::world::{World, event};

const FIRE: &str = "export default async ({ event }) => {
  await new Promise((done) => setTimeout(done, 5));
  return { fire: true, routing: { session: event.peer.id } };
};\n";

/// Publishes `count` events on ten conversations.
async fn publish(world: &World, from: u32, count: u32) {
    for number in from..from + count {
        world
            .publish(&event(&format!("v{}", number % 10), number, "hello"))
            .await;
    }
}

/// Every event has one record and one dispatch, and each session has them in order.
async fn check(world: &World, events: u32) {
    world.wait_for_records(u64::from(events)).await;
    world.wait_until_acked().await;
    assert_eq!(world.invocations().await.len(), events as usize);

    let dispatches = world.dispatches().await;
    assert_eq!(dispatches.len(), events as usize);

    let mut sessions: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for dispatch in dispatches {
        sessions
            .entry(dispatch.target.session)
            .or_default()
            .push(dispatch.event_seq);
    }

    for (session, order) in sessions {
        assert!(order.is_sorted(), "{session}: {order:?}");
    }

    assert!(world.dead_letters().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_is_taken_over_from_without_loss_or_repetition() {
    let mut world = World::new(&[("fire.ts", FIRE)]).await;
    world.start("a");
    world.start("b");
    world.wait_for_members(2).await;
    publish(&world, 0, 100).await;
    world.replica("a").kill();
    publish(&world, 100, 100).await;
    check(&world, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_replica_drains_and_hands_over() {
    let mut world = World::new(&[("fire.ts", FIRE)]).await;
    world.start("a");
    world.start("b");
    world.wait_for_members(2).await;
    publish(&world, 0, 100).await;
    assert!(world.replica("a").stop().await, "it ends well");
    publish(&world, 100, 100).await;
    check(&world, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_may_be_killed_and_come_back() {
    let mut world = World::with_one_replica(&[("fire.ts", FIRE)]).await;
    publish(&world, 0, 50).await;
    world.nats.kill9();
    world.nats.restart().await;
    publish(&world, 50, 50).await;
    check(&world, 100).await;
}
