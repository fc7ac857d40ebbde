//! Hooks of an author who has as many evaluations under way as may be: their events settle without them, and they are
//! called later, in order, once, or given up.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use shared::model::event::Event;
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::testing::eventually;
use shared::wire::session_mark::LeaseRecord;
use shared::wire::subject;
use shared::wire::topology::buckets;
use shared::wire::topology::streams::{EVENTS, INVOCATIONS};

use crate::world::{World, event};

/// Evaluations of an author that are under way at once (`docs/design/trust.md` §5).
const PLACES: usize = 256;

/// Takes twelve seconds upon work: longer than everything takes that happens meanwhile.
const SLOW: &str = "/** @timeout 60s */
export default async ({ event }) => {
    if (event.content !== 'work') return { fire: false };
    await new Promise((resolve) => setTimeout(resolve, 12000));
    return { fire: true, routing: { session: 'slow' } };
};\n";

/// Takes so long that most of many are given up.
const TIGHT: &str = "/** @timeout 5s */
export default async ({ event }) => {
    await new Promise((resolve) => setTimeout(resolve, 3000));
    return { fire: false };
};\n";

/// Work for `peers`, `each` a piece.
fn work(peers: u32, each: u32) -> Vec<Event> {
    let of = |number: u32| (0..peers).map(move |peer| event(&format!("p{peer}"), number, "work"));
    (1..=each).flat_map(of).collect()
}

/// The last record of `event`, of partition `partition`.
async fn last_record(world: &World, partition: u16, event: &Event) -> Option<EventInvocations> {
    let subject = subject::invocation(partition, &event.id);
    let stored = world
        .bus
        .last_on_subject(INVOCATIONS, &subject)
        .await
        .expect("readable");
    stored.map(|stored| stored.decode().expect("it decodes"))
}

/// Waits until every one of `events` has a record in which nothing is deferred; returns what hook `slow` did.
async fn outcomes(world: &World, events: &[Event]) -> Vec<HookOutcome> {
    let mut partitions: BTreeMap<String, u16> = BTreeMap::new();
    let mut found = Vec::new();
    for event in events {
        let partition = match partitions.get(&event.peer.id) {
            Some(partition) => *partition,
            None => {
                // Published once more: the server says where it is.
                let sequence = world.publish(event).await;
                let partition = world.partition(sequence).await;
                partitions.insert(event.peer.id.clone(), partition);
                partition
            }
        };

        let mut record = None;
        eventually(&format!("{} is evaluated whole", event.id), async || {
            record = last_record(world, partition, event).await;
            record
                .as_ref()
                .is_some_and(|record| record.deferred_hooks().next().is_none())
        })
        .await;

        let record = record.expect("found");
        assert_eq!(record.event_id, event.id);

        let slow = record.hooks.into_iter().find(|hook| hook.hook_id == "slow");
        found.push(slow.map_or(HookOutcome::Passed, |hook| hook.outcome));
    }

    found
}

/// The records in which something is deferred, by event.
async fn deferred(world: &World) -> BTreeSet<String> {
    let records = world.invocations().await.into_iter();
    let deferred = records.filter(|record| record.deferred_hooks().next().is_some());
    deferred.map(|record| record.event_id.to_string()).collect()
}

/// What was dispatched to `session`, in order.
async fn dispatched(world: &World, session: &str) -> Vec<String> {
    let dispatches = world.dispatches().await.into_iter();
    let to_it = dispatches.filter(|dispatch| dispatch.target.session == session);
    to_it.map(|dispatch| dispatch.event_id.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_good_authors_hooks_do_not_wait_for_a_slow_ones_which_are_called_later_once_and_in_order_through_a_kill() {
    let mut world = World::with_one_replica(&[("slow.ts", SLOW)]).await;
    let good = json!({"name": "good", "created_by": "agent:atlas",
        "script": "return { fire: true, routing: { session: 'good' } };"});
    world.ask("create", good).await.expect("made");
    let mut number = 0;

    eventually("the good hook is in force", async || {
        number += 1;
        let probe = event("probe", number, "hello");
        world.publish(&probe).await;

        world
            .record(&probe)
            .await
            .hooks
            .iter()
            .any(|hook| hook.hook_id == "good")
    })
    .await;

    let events = work(80, 4);
    world.publish_all(&events).await;
    let wanted: BTreeSet<String> = events.iter().map(|event| event.id.to_string()).collect();
    eventually("the good hook has answered each", async || {
        let answered: BTreeSet<String> = dispatched(&world, "good").await.into_iter().collect();
        wanted.is_subset(&answered)
    })
    .await;

    assert_eq!(
        dispatched(&world, "slow").await,
        [""; 0],
        "none of them waited for the slow one"
    );

    eventually("what finds no place is deferred", async || {
        deferred(&world).await.len() >= events.len() - PLACES
    })
    .await;
    eventually("it is shown", async || {
        let details = world.ask("get", json!({"name": "slow"})).await.expect("found");
        details["invocations"][0]["outcome"] == "deferred"
    })
    .await;

    world.replica("a").kill();
    world.start("b");
    let outcomes = outcomes(&world, &events).await;
    let fired = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, HookOutcome::Fired { .. }));

    assert_eq!(fired.count(), events.len());

    world.wait_until_acked().await;
    let stored: Vec<Event> = world.all(EVENTS).await;
    for session in ["slow", "good"] {
        let mut all = dispatched(&world, session).await;
        all.retain(|id| wanted.contains(id));
        assert_eq!(all.len(), events.len(), "{session}: each once");

        for peer in 0..80 {
            let peer = format!("p{peer}");
            let came = stored.iter().filter(|event| event.peer.id == peer);
            let came: Vec<&str> = came.map(|event| event.id.as_str()).collect();
            let is_of_peer = |id: &&String| came.contains(&id.as_str());
            let order: Vec<&String> = all.iter().filter(is_of_peer).collect();
            assert_eq!(order, came, "{session}: in the order of the stream");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_finds_no_place_for_three_times_its_time_is_a_dead_letter() {
    let world = World::with_one_replica(&[("slow.ts", TIGHT)]).await;
    let events = work(2_000, 1);
    world.publish_all(&events).await;
    let outcomes = outcomes(&world, &events).await;
    let is_late =
        |outcome: &&HookOutcome| matches!(outcome, HookOutcome::Skipped { reason } if reason == "deferred_too_long");
    let late = outcomes.iter().filter(is_late).count();

    assert!(late > 0 && late < events.len() - PLACES, "{late} were given up");

    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), late);
    assert!(letters.iter().all(|letter| letter.reason == "deferred_too_long"));

    world.wait_until_acked().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_is_gone_when_its_turn_comes_is_skipped() {
    let world = World::with_one_replica(&[("slow.ts", SLOW)]).await;
    let events = work(300, 1);
    world.publish_all(&events).await;
    eventually("some are deferred", async || {
        deferred(&world).await.len() >= events.len() - PLACES
    })
    .await;

    std::fs::remove_file(world.hooks_dir().join("slow.ts")).expect("removed");
    let outcomes = outcomes(&world, &events).await;
    let is_gone =
        |outcome: &&HookOutcome| matches!(outcome, HookOutcome::Skipped { reason } if reason == "hook_disabled");

    assert!(outcomes.iter().filter(is_gone).count() > 0, "{outcomes:?}");

    world.wait_until_acked().await;
}

/// Stands still upon what both authors are shown.
const STILL: &str = "/** @match content=both\n * @timeout 300s */
export default async () => {
    await new Promise((resolve) => setTimeout(resolve, 250000));
    return { fire: true, routing: { session: 'still' } };
};\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_author_whose_hooks_stand_still_keeps_nothing_from_another_whose_are_deferred_with_them() {
    let mut world = World::new(&[("still.ts", STILL)]).await;
    world.sections = "in_flight = 16\n".to_owned();
    world.start("a");
    world.wait_for_members(1).await;
    let script = "if (event.content === 'both') await new Promise((resolve) => setTimeout(resolve, 3000));
        return { fire: true, routing: { session: 'good' } };";
    let good = json!({"name": "good", "created_by": "agent:atlas", "script": script});
    world.ask("create", good).await.expect("made");

    let mut number = 0;
    eventually("the good hook is in force", async || {
        number += 1;
        let probe = event("probe", number, "hello");
        world.publish(&probe).await;
        let hooks = world.record(&probe).await.hooks;
        hooks.iter().any(|hook| hook.hook_id == "good")
    })
    .await;

    let of = |number: u32| (0..90).map(move |peer| event(&format!("p{peer}"), number, "both"));
    let both: Vec<Event> = (1..=4).flat_map(of).collect();
    world.publish_all(&both).await;
    eventually("hooks of both authors are deferred", async || {
        let records = world.invocations().await.into_iter();
        records.filter(|record| record.deferred_hooks().count() == 2).count() > 32
    })
    .await;

    let alone: Vec<Event> = (0..90).map(|peer| event(&format!("p{peer}"), 5, "alone")).collect();
    world.publish_all(&alone).await;

    let wanted: BTreeSet<String> = both.iter().chain(&alone).map(|event| event.id.to_string()).collect();
    eventually("the good hook has answered each", async || {
        let answered: BTreeSet<String> = dispatched(&world, "good").await.into_iter().collect();
        wanted.is_subset(&answered)
    })
    .await;

    assert_eq!(dispatched(&world, "still").await, [""; 0], "the other stands still");

    eventually("records say that the other alone is called later", async || {
        let records = world.invocations().await.into_iter();
        let halves = records.filter(|record| {
            let fired = |id| matches!(crate::world::of(record, id).outcome, HookOutcome::Fired { .. });
            record.deferred_hooks().eq(["still"]) && fired("good")
        });
        halves.count() > 32
    })
    .await;

    let mut all = dispatched(&world, "good").await;
    all.retain(|id| wanted.contains(id));
    assert_eq!(all.len(), wanted.len(), "each once");
}

/// Takes its time upon the crowd's first and upon others' work, and none upon the rest.
const GUARDED: &str = "/** @timeout 60s */
export default async ({ event }) => {
    if (event.content === 'work') await new Promise((resolve) => setTimeout(resolve, 18000));
    return { fire: true, routing: { session: 'slow' } };
};\n";

/// Most events of one conversation that owe evaluations.
const MAX_OWED: usize = 1_024;

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_owes_so_many_events_and_the_others_come_when_there_is_room_through_a_move_and_a_kill() {
    let mut world = World::with_one_replica(&[("slow.ts", GUARDED)]).await;
    // The author's places: each is taken for a while, again after the move, and again after the kill.
    world.publish_all(&work(300, 1)).await;
    eventually("no place is left", async || !deferred(&world).await.is_empty()).await;
    let crowd: Vec<Event> = (1..=1_300).map(|number| event("crowd", number, "quick")).collect();
    world.publish_all(&crowd).await;

    let of_crowd = async || {
        let deferred = deferred(&world).await;
        crowd
            .iter()
            .filter(|event| deferred.contains(event.id.as_str()))
            .count()
    };

    eventually("as many of the crowd are owed as may be", async || {
        of_crowd().await >= MAX_OWED
    })
    .await;
    assert_eq!(of_crowd().await, MAX_OWED);

    world.start("b");
    world.wait_for_members(2).await;
    world.replica("a").kill();
    world.start("c");
    world.replica("b").kill();

    let outcomes = outcomes(&world, &crowd).await;
    let fired = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, HookOutcome::Fired { .. }));

    assert_eq!(fired.count(), crowd.len());

    world.wait_until_acked().await;
    let wanted: BTreeSet<&str> = crowd.iter().map(|event| event.id.as_str()).collect();
    let mut all = dispatched(&world, "slow").await;
    all.retain(|id| wanted.contains(id.as_str()));
    let stored: Vec<Event> = world.all(EVENTS).await;
    let came = stored.iter().map(|event| event.id.as_str());
    let came: Vec<&str> = came.filter(|id| wanted.contains(id)).collect();

    assert_eq!(all, came, "each once, in the order of the stream");
}

/// Takes all places of its author, for longer than the test.
const ALL_PLACES: &str = "/** @match content=work\n * @timeout 300s */
export default async () => { await new Promise((resolve) => setTimeout(resolve, 250000)); return { fire: false }; };\n";

/// Finds no place, and does not wait long for one.
const BRIEF: &str = "/** @match content=brief\n * @timeout 1s */\nexport default () => ({ fire: true });\n";

#[tokio::test(flavor = "multi_thread")]
async fn events_that_are_given_up_make_room_for_those_of_their_conversation_that_had_none() {
    let world = World::with_one_replica(&[("all.ts", ALL_PLACES), ("slow.ts", BRIEF)]).await;
    world.publish_all(&work(300, 1)).await;
    eventually("no place is left", async || !deferred(&world).await.is_empty()).await;
    let crowd: Vec<Event> = (1..=1_300).map(|number| event("crowd", number, "brief")).collect();
    world.publish_all(&crowd).await;

    let is_late =
        |outcome: &HookOutcome| matches!(outcome, HookOutcome::Skipped { reason } if reason == "deferred_too_long");
    assert!(outcomes(&world, &crowd).await.iter().all(is_late));

    let letters = world.dead_letters().await;
    let sequences: BTreeSet<u64> = letters.iter().map(|letter| letter.sequence).collect();
    assert_eq!(
        (letters.len(), sequences.len()),
        (crowd.len(), crowd.len()),
        "each once"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_owes_evaluations_and_keeps_killing_its_owner_is_given_up_as_any_other() {
    let mut world = World::with_one_replica(&[("slow.ts", GUARDED)]).await;
    let killer = event("killer", 1, "work");
    let its_own = world.publish(&event("killer", 0, "quick")).await;
    let its_own = world.partition(its_own).await;

    // The author's places are taken by conversations of other partitions: the killer is the first undone one of its own.
    let mut others = Vec::new();
    for peer in 0..320 {
        let peer = format!("p{peer}");
        let probe = world.publish(&event(&peer, 0, "quick")).await;
        if world.partition(probe).await != its_own {
            others.push(event(&peer, 1, "work"));
        }
    }

    world.publish_all(&others).await;
    eventually("no place is left", async || !deferred(&world).await.is_empty()).await;
    let sequence = world.publish(&killer).await;
    eventually("the killer is deferred", async || {
        deferred(&world).await.contains(killer.id.as_str())
    })
    .await;

    let attempts = world.bus.kv::<LeaseRecord>(buckets::ATTEMPTS);
    let key = format!("attempts.hook.{its_own}");
    world.replica("a").kill();

    for unclean in 1..=3 {
        let name = format!("b{unclean}");
        world.start(&name);
        eventually("the owner notes what it owes", async || {
            let noted = attempts.get(&key).await.expect("readable").map(|entry| entry.value);
            noted.is_some_and(|noted| {
                let at = noted.in_progress.map(|place| place.sequence);
                (at, noted.runs.len()) == (Some(sequence), unclean)
            })
        })
        .await;

        world.replica(&name).kill();
    }

    world.start("c");
    eventually("it is given up", async || {
        let letters = world.dead_letters().await.into_iter();
        let of_killer = letters.filter(|letter| letter.sequence == sequence);
        let reasons: Vec<String> = of_killer.map(|letter| letter.reason).collect();
        reasons == ["kills_its_owner"]
    })
    .await;

    world.replica("c").kill();
    let fired = dispatched(&world, "slow").await;
    assert!(!fired.contains(&killer.id.to_string()), "nobody was shown it");
}
