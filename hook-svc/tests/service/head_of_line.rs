//! A hook that is slow upon some conversations delays no other one, whatever partition they are in.

use std::time::Duration;

use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::event::Event;
use shared::testing::eventually;
use shared::wire::session_mark::PartitionFloors;
use shared::wire::subject;
use shared::wire::topology::streams::{EVENTS, INVOCATIONS};
use shared::wire::topology::{buckets, partition_filter};

use crate::world::{World, event};

/// Takes twenty seconds upon what busy people write.
const SLOW: &str = "/** @timeout 25s */
export default async ({ event }) => {
    if (event.from.id.startsWith('busy')) await new Promise((resolve) => setTimeout(resolve, 20000));
    return { fire: false };
};\n";

/// Takes a moment, and answers in the session that the event names.
const STEADY: &str = "/** @timeout 25s */
export default async ({ event }) => {
    await new Promise((resolve) => setTimeout(resolve, 30));
    return { fire: true, routing: { session: event.content } };
};\n";

/// How long an event of another conversation may take on a busy machine, far below what the slow hook takes.
const SOON: Duration = Duration::from_secs(8);

/// What one busy conversation writes: two hundred messages.
fn crowd() -> Vec<Event> {
    let mut busy = Vec::new();
    for number in 1..=200 {
        let mut slow = event("crowd", number, "wait");
        slow.from.id = "busy".to_owned();
        busy.push(slow);
    }
    busy
}

/// What sixteen busy conversations write, one of them two hundred messages.
fn crowds() -> Vec<Event> {
    let mut busy = crowd();
    for crowd in 1..16 {
        busy.extend((1..=80).map(|number| event(&format!("busy-{crowd}"), number, "wait")));
    }
    busy
}

/// How long it takes until `event` has its record.
async fn takes(world: &World, event: &Event) -> Duration {
    let begun = SystemClock.monotonic();
    let sequence = world.publish(event).await;
    let partition = world.partition(sequence).await;
    let record = subject::invocation(partition, &event.id);

    while SystemClock.monotonic().duration_since(begun) < 2 * SOON {
        let stored = world.bus.last_on_subject(INVOCATIONS, &record).await.expect("readable");
        if stored.is_some() {
            break;
        }
        pause(Duration::from_millis(5)).await;
    }

    SystemClock.monotonic().duration_since(begun)
}

/// Somebody in the partition of `peer`.
async fn neighbour(world: &World, peer: &str) -> String {
    let of_peer = world.partition(world.publish(&event(peer, 0, "where?")).await).await;
    for number in 0..10_000 {
        let other = format!("quiet-{number}");
        if world.partition(world.publish(&event(&other, 0, "where?")).await).await == of_peer {
            return other;
        }
    }
    panic!("nobody is in partition {of_peer}");
}

/// What two hundred busy conversations write, a few messages each.
fn many_crowds() -> Vec<Event> {
    let of = |crowd: u32| (1..=10).map(move |number| event(&format!("busy-{crowd}"), number, "wait"));
    let mut busy: Vec<Event> = (0..200).flat_map(of).collect();
    busy.push(event("crowd", 1, "hello"));
    busy
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_conversations_delay_no_other() {
    check_others_beside(&crowds()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_slow_conversations_delay_no_other() {
    check_others_beside(&many_crowds()).await;
}

/// Nobody else waits while `busy` people are being answered, not even in the partition of `crowd`.
async fn check_others_beside(busy: &[Event]) {
    let world = World::with_one_replica(&[("slow.ts", SLOW)]).await;
    let beside = neighbour(&world, "crowd").await;
    world.publish_all(busy).await;

    for number in 1..=5 {
        for peer in [beside.as_str(), "somewhere"] {
            let took = takes(&world, &event(peer, number, "hello")).await;
            println!("{peer}: {took:?}");
            assert!(took < SOON, "{peer} waited {took:?} behind slow conversations");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_as_numbers_comes_in_order_and_once_through_a_kill() {
    let mut world = World::new(&[("steady.ts", STEADY)]).await;
    world.sections = "in_flight_per_conversation = 4\n".to_owned();
    world.start("a");
    world.wait_for_members(1).await;

    let wanted: Vec<String> = (0..150).map(|number| format!("s{number}")).collect();
    for (number, session) in (0..).zip(&wanted) {
        world.publish(&event("v1", number, session)).await;
    }

    let bus = world.bus.clone();
    let dispatched = async || bus.stream_state("DISPATCHES").await.map_or(0, |state| state.last);
    eventually("some are dispatched", async || dispatched().await >= 20).await;
    world.replica("a").kill();

    assert!(dispatched().await < 150, "killed in the middle");

    world.start("b");
    world.wait_for_records(150).await;
    let sessions: Vec<String> = world
        .dispatches()
        .await
        .into_iter()
        .map(|dispatch| dispatch.target.session)
        .collect();

    assert_eq!(sessions, wanted);

    world.wait_until_acked().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_open_event_stops_nobody_a_thousand_messages_further_and_a_new_owner_passes_over_what_is_settled() {
    const OTHERS: u32 = 1_300;

    let mut world = World::with_one_replica(&[("slow.ts", SLOW)]).await;
    let beside = neighbour(&world, "crowd").await;
    let mut open = event("crowd", 1, "wait");
    open.from.id = "busy".to_owned();
    let partition = world.partition(world.publish(&open).await).await;
    let before = world.invocations().await.len() as u64;
    let others: Vec<Event> = (1..=OTHERS).map(|number| event(&beside, number, "hello")).collect();
    world.publish_all(&others).await;
    world.wait_for_records(before + u64::from(OTHERS)).await;

    let floors = world.bus.kv::<PartitionFloors>(buckets::ATTEMPTS);
    let last = world
        .bus
        .last_on_subject(EVENTS, &partition_filter(EVENTS, partition))
        .await;

    let last = last.expect("readable").expect("an event").sequence;
    let stored = async || {
        let record = floors.get("floors.hook").await.expect("readable");
        record
            .and_then(|record| record.value.floor_of(partition))
            .unwrap_or_default()
    };

    eventually("what is settled behind the open event is stored", async || {
        stored().await.settled.contains(last)
    })
    .await;
    let reached = stored().await;
    assert!(
        reached.at.sequence < last - u64::from(OTHERS),
        "the open event is not settled: {reached:?}"
    );

    assert!(
        world
            .invocations()
            .await
            .iter()
            .all(|record| record.event_id != open.id)
    );

    // The next owner need not wait as long.
    world.replica("a").kill();
    world.write_hook("slow.ts", &SLOW.replace("20000", "1"));
    world.start("b");
    let quick = event(&beside, OTHERS + 1, "hello");
    world.publish(&quick).await;

    assert_eq!(world.record(&quick).await.evaluated_by, "b");
    assert_eq!(world.record(&open).await.evaluated_by, "b");

    world.wait_until_acked().await;
    let by_b = world
        .invocations()
        .await
        .into_iter()
        .filter(|record| record.evaluated_by == "b");

    assert_eq!(by_b.count(), 2, "each event has one record");
}

/// How many events of others a round measures, and how many rounds there are; the median round counts.
const MEASURED: u32 = 200;
const ROUNDS: usize = 5;

/// The 99th percentile of what events of `peers` take, one after the other.
async fn p99(world: &World, peers: &[&str], first: u32) -> Duration {
    let mut took = Vec::new();
    for number in first..first + MEASURED {
        let peer = peers[number as usize % peers.len()];
        took.push(takes(world, &event(peer, number, "hello")).await);
    }
    took.sort();
    took[took.len() * 99 / 100]
}

/// The 99th percentile of others beside `busy` people, and without them.
async fn tails(busy: &[Event]) -> (Duration, Duration) {
    let world = World::with_one_replica(&[("slow.ts", SLOW)]).await;
    let beside = neighbour(&world, "crowd").await;
    let peers = [beside.as_str(), "somewhere"];
    let without = p99(&world, &peers, 1_000).await;
    world.publish_all(busy).await;
    (p99(&world, &peers, 2_000).await, without)
}

/// The median round of `rounds` rounds beside `busy` people: with them, and without.
async fn median(form: &str, busy: &[Event], rounds: usize) -> (Duration, Duration) {
    let mut measured = Vec::new();
    for _ in 0..rounds {
        measured.push(tails(busy).await);
    }

    measured.sort_by_key(|(with, without)| with.saturating_sub(*without));
    let (with, without) = measured[rounds / 2];
    println!("beside {form}: p99 {with:?}, without {without:?}, of {measured:?}");

    (with, without)
}

/// The long form checks the figures that the design promises, which need a quiet machine (`NEXUS_CHAOS=long`). The short form
/// checks one round, within a bound that a busy machine keeps and that waiting for one slow answer breaks.
#[tokio::test(flavor = "multi_thread")]
async fn the_tail_of_others_is_what_it_is_without_slow_conversations() {
    #[expect(clippy::disallowed_methods, reason = "a test asks which form it has")]
    let is_long = std::env::var("NEXUS_CHAOS").is_ok_and(|form| form == "long");

    if !is_long {
        let (with, without) = median("sixteen", &crowds(), 1).await;
        assert!(with <= without + SOON, "p99 {with:?}, without {without:?}");
        return;
    }

    // The design names no figure for two hundred: the burst of two thousand messages is itself a load.
    let forms = [
        ("one", crowd(), true),
        ("sixteen", crowds(), true),
        ("two hundred", many_crowds(), false),
    ];

    for (form, busy, is_promised) in forms {
        let (with, without) = median(form, &busy, ROUNDS).await;
        assert!(
            !is_promised || with <= 2 * without || with <= without + Duration::from_millis(20),
            "beside {form}: p99 {with:?}, without {without:?}"
        );
    }
}
