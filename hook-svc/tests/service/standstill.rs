//! Copies of the read model that do not get on: only the hooks that read them wait.

use std::collections::BTreeSet;

use shared::model::event::EventId;
use shared::model::invocation::EventInvocations;
use shared::testing::{eventually, eventually_some};
use shared::wire::headers::Headers;

use crate::copies::{
    PLAIN, READS, check, dispatched, hold_back, loss_is_told, numbered, position, publish, told_by, world,
};
use crate::world::{DEADLINE, World, event};

#[tokio::test(flavor = "multi_thread")]
async fn while_all_copies_stand_still_only_the_hooks_that_read_them_wait() {
    let world = two_copies_of_40_events().await;

    // One of the replicas has more of them than an author has places.
    let holding = [hold_back(&world, "h-0").await, hold_back(&world, "h-1").await];
    publish(&world, 40, 600).await;
    dispatched(&world, 2 * 40 + 600).await;

    // Once the copies count as far behind, the hooks that read are deferred, and their events keep nothing in memory.
    told_by(&world, 2, "hooks that read").await;
    let ids: Vec<_> = (640..700).map(|number| numbered(number).id).collect();
    publish(&world, 640, 60).await;
    dispatched(&world, 2 * 40 + 660).await;
    assert_eq!(world.dispatches().await.len(), 2 * 40 + 660);
    let records = records_of(&world, &ids).await;
    assert!(records.iter().all(defers_the_reader), "{records:?}");

    drop(holding);
    check(&world, 700).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_one_conversation_that_wait_for_a_copy_hold_up_no_hook_that_reads_nothing() {
    // More than a conversation may have in memory.
    const AT_ONCE: u32 = 200;
    let world = two_copies_of_40_events().await;

    // They come at once, before the copies count as far behind.
    let holding = [hold_back(&world, "h-0").await, hold_back(&world, "h-1").await];
    let events: Vec<_> = (40..40 + AT_ONCE).map(|number| event("v0", number, "hello")).collect();
    world.publish_all(&events).await;
    dispatched(&world, 2 * 40 + u64::from(AT_ONCE)).await;

    drop(holding);
    check(&world, 40 + AT_ONCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_reads_and_is_added_while_all_copies_are_being_built_stops_no_other() {
    let mut world = World::new(&[("plain.ts", PLAIN)]).await;
    world.sections = "[hooks.read_model]\ncopies = 2\n".to_owned();
    world.start("h-0");
    world.start("h-1");
    world.wait_for_members(2).await;
    eventually("both copies answer", async || {
        position(&world, "h-0").await.is_some() && position(&world, "h-1").await.is_some()
    })
    .await;

    // The copies of the next processes do not get on.
    world.replica("h-0").kill();
    world.replica("h-1").kill();
    let holding = [hold_back(&world, "h-0").await, hold_back(&world, "h-1").await];
    world.start("h-0");
    world.start("h-1");
    world.write_hook("reads.ts", READS);
    let number = until_deferred(&world).await;
    loss_is_told(&world).await;

    let events: Vec<_> = (number..number + 200).map(numbered).collect();
    world.publish_all(&events).await;
    let of_them = async || {
        let mut dispatches = world.dispatches().await;
        dispatches.retain(|dispatch| events.iter().any(|event| event.id == dispatch.event_id));
        dispatches
    };
    eventually("what reads nothing is dispatched", async || {
        of_them().await.len() >= 200
    })
    .await;
    assert_eq!(of_them().await.len(), 200, "nothing was read");

    // Operators are told why there is no answer, and are answered once a copy is there.
    let question = serde_json::json!({"event_id": events[0].id.as_str()});
    let trace = async || {
        let subject = "nexus.svc.events.trace";
        let asked = world
            .bus
            .request::<_, serde_json::Value>(subject, Headers::new(), &question, DEADLINE);
        asked.await.map_err(|error| error.to_string())
    };
    let opening = "503: the file of the read model is being fetched or opened";
    eventually(opening, async || trace().await.is_err_and(|why| why.contains(opening))).await;

    drop(holding);
    eventually("a copy answers", async || trace().await.is_ok()).await;
    eventually("what reads is dispatched", async || of_them().await.len() >= 400).await;
    world.wait_until_acked().await;
    let ids: BTreeSet<_> = of_them().await.iter().map(|dispatch| dispatch.id).collect();
    assert_eq!((of_them().await.len(), ids.len()), (400, 400));
    assert!(world.dead_letters().await.is_empty());
}

/// Returns a world with the replicas `h-0` and `h-1`, each of which keeps a copy that has all of 40 events.
async fn two_copies_of_40_events() -> World {
    let mut world = world(2).await;
    world.start("h-0");
    world.start("h-1");
    world.wait_for_members(2).await;
    publish(&world, 0, 40).await;
    eventually("both copies are at the last event", async || {
        let (one, other) = (position(&world, "h-0").await, position(&world, "h-1").await);
        (one, other) == (Some(40), Some(40))
    })
    .await;
    world.wait_until_acked().await;
    world
}

/// Publishes rounds of forty events until the hook that reads is deferred for each event of a round, so that all replicas
/// know it. Returns the number of the next event.
async fn until_deferred(world: &World) -> u32 {
    let mut number = 0;
    eventually("the hook that reads is deferred", async || {
        let ids: Vec<_> = (number..number + 40).map(|number| numbered(number).id).collect();
        publish(world, number, 40).await;
        number += 40;
        let records = records_of(world, &ids).await;
        records.iter().all(defers_the_reader)
    })
    .await;
    number
}

/// Waits until the first record of each of the events `ids` is stored, and returns them.
async fn records_of(world: &World, ids: &[EventId]) -> Vec<EventInvocations> {
    eventually_some("each event has a record", async || {
        let records = world.invocations().await;
        let first = |id: &EventId| records.iter().find(|record| record.event_id == *id).cloned();
        ids.iter().map(first).collect::<Option<Vec<_>>>()
    })
    .await
}

fn defers_the_reader(record: &EventInvocations) -> bool {
    let mut hooks = record.hooks.iter();
    hooks.any(|hook| hook.hook_id == "reads" && hook.outcome.is_deferred())
}
