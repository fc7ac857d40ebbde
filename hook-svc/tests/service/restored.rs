//! Floors and streams put back to an older state: nothing is evaluated twice, and nothing is left unseen.

use std::collections::BTreeMap;

use shared::bus::{MarkedStream, OutgoingMessage, StreamWitness};
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::Dispatch;
use shared::model::event::{Event, EventDirection};
use shared::model::invocation::EventInvocations;
use shared::model::ledger::LedgerEntry;
use shared::testing::model_server::{ModelServer, ScriptedAnswer};
use shared::testing::{eventually, sample};
use shared::wire::session_mark::PartitionFloors;
use shared::wire::subject;
use shared::wire::topology::buckets;
use shared::wire::topology::streams::{DISPATCHES, EVENTS, INVOCATIONS, LEDGER};
use shared::wire::witness::WaitingMark;

use crate::world::{World, event};

/// Asks the model once for each event.
const ASKS: &str = "export default async ({ llm }) => { await llm('well?'); return { fire: false }; };\n";

async fn world(model: &ModelServer) -> World {
    let mut world = World::new(&[("asks.ts", ASKS)]).await;
    let url = model.base_url("openai");
    world.sections = format!(
        "[llm]\nprovider = \"openai\"\nmodel = \"m\"\nprices.m = {{ input = 0, output = 0 }}\nbase_url = \"{url}\"\n"
    );
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_that_are_lost_make_nobody_evaluate_again_however_far_behind() {
    // More than a partition's owner ever has past its floor.
    const EVENTS: u32 = 1_100;

    let model = ModelServer::ruled(|_, _| ScriptedAnswer::text("no")).await;
    let mut world = world(&model).await;
    world.start("a");
    world.wait_for_members(1).await;

    for number in 0..EVENTS {
        world.publish(&event("v1", number, "hello")).await;
    }

    world.wait_for_records(u64::from(EVENTS)).await;
    world.wait_until_acked().await;
    world.replica("a").kill();

    assert_eq!(model.calls(), EVENTS as usize);

    let floors = world.bus.kv::<PartitionFloors>(buckets::ATTEMPTS);
    floors
        .put("floors.hook", &PartitionFloors::default())
        .await
        .expect("stored");

    world.publish(&event("v1", EVENTS, "hello")).await;
    world.start("b");
    world.wait_for_records(u64::from(EVENTS) + 1).await;
    world.wait_until_acked().await;

    assert_eq!(model.calls(), EVENTS as usize + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_behind_a_floor_of_a_stream_that_is_gone_are_evaluated() {
    let model = ModelServer::ruled(|_, _| ScriptedAnswer::text("no")).await;
    let mut world = world(&model).await;
    world.start("a");
    world.wait_for_members(1).await;

    for number in 0..5 {
        world.publish(&event("v1", number, "hello")).await;
    }

    world.wait_for_records(5).await;
    world.wait_until_acked().await;
    assert!(world.replica("a").stop().await, "it ends well");

    world.nats.stop().await;
    let older = world.nats.copy_of(EVENTS);
    world.nats.restart().await;

    world.start("b");

    for number in 5..40 {
        world.publish(&event("v1", number, "hello")).await;
    }

    world.wait_for_records(40).await;
    world.wait_until_acked().await;
    assert!(world.replica("b").stop().await, "it ends well");

    world.nats.stop().await;
    world.nats.put_back(EVENTS, &older);
    world.nats.restart().await;

    // More than the gap: the sequence that the floor names is given out again.
    for number in 40..100 {
        world.publish(&event("v1", number, "hello")).await;
    }

    world.start("c");
    world.wait_for_records(100).await;
    eventually("all are settled", async || world.invocations().await.len() == 100).await;
    world.wait_until_acked().await;

    assert_eq!(model.calls(), 100, "each event once");
}

/// Fires upon everything, after it has asked the model.
const ASKS_AND_FIRES: &str = "export default async ({ llm }) => { await llm('well?'); return { fire: true }; };\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_sent_again_after_its_stream_lost_it_has_been_evaluated() {
    let model = ModelServer::ruled(|_, _| ScriptedAnswer::text("no")).await;
    let mut world = world(&model).await;
    world.write_hook("asks.ts", ASKS_AND_FIRES);
    world.start("a");
    world.wait_for_members(1).await;

    for number in 0..5 {
        world.publish(&event("v1", number, "hello")).await;
    }

    world.wait_for_records(5).await;
    world.wait_until_acked().await;
    assert!(world.replica("a").stop().await, "it ends well");

    world.nats.stop().await;
    let older = world.nats.copy_of(EVENTS);
    world.nats.restart().await;

    world.start("b");
    let lost: Vec<Event> = (5..10).map(|number| event("v1", number, "hello")).collect();
    world.publish_all(&lost).await;
    world.wait_for_records(10).await;
    world.wait_until_acked().await;
    assert!(world.replica("b").stop().await, "it ends well");

    world.nats.stop().await;
    world.nats.put_back(EVENTS, &older);
    world.nats.restart().await;

    // Its source sends the last one again, at another sequence than it had, and what is new behind it.
    let new = event("v1", 10, "hello");
    world.publish(&lost[4]).await;
    world.publish(&new).await;

    world.start("c");
    world.record(&new).await;
    world.wait_until_acked().await;

    let records = world.invocations().await;
    let of_lost = records.iter().filter(|record| record.event_id == lost[4].id);
    assert_eq!(of_lost.count(), 1, "its record stands");

    let dispatches = world.dispatches().await;
    let of_lost = dispatches.iter().filter(|dispatch| dispatch.event_id == lost[4].id);
    assert_eq!(of_lost.count(), 1);
    assert_eq!(model.calls(), 11, "each event once");
}

/// Asks the model once for each change.
const ASKS_OF_CHANGES: &str = "/** @match direction=updated,deleted */
export default async ({ llm, event }) => { await llm(`of ${event.content}`); return { fire: true }; };\n";

/// Keeps changes open, so that there is no record yet.
const SLOW_UPON_CHANGES: &str = "/** @match direction=updated,deleted\n * @timeout 60s */
export default async () => { await new Promise((resolve) => setTimeout(resolve, 20000)); return { fire: false }; };\n";

/// How often the model was asked about each change.
fn asked(model: &ModelServer) -> BTreeMap<String, usize> {
    let mut asked = BTreeMap::new();
    for request in model.requests() {
        if let Some(text) = request.last_user_text().strip_prefix("of ") {
            *asked.entry(text.to_owned()).or_default() += 1;
        }
    }
    asked
}

/// Each of `texts` once.
fn once(texts: &[&str]) -> BTreeMap<String, usize> {
    texts.iter().map(|text| ((*text).to_owned(), 1)).collect()
}

/// A change of the one item, which says `text`.
fn change(text: &str) -> Event {
    Event {
        direction: EventDirection::Updated,
        content: text.to_owned(),
        ..event("v1", 0, "the item")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_change_at_the_sequence_of_one_that_is_gone_is_evaluated() {
    let model = ModelServer::ruled(|_, _| ScriptedAnswer::text("no")).await;
    let mut world = world(&model).await;
    world.write_hook("changes.ts", ASKS_OF_CHANGES);
    world.start("a");
    world.wait_for_members(1).await;
    world.publish(&event("v1", 0, "the item")).await;
    world.wait_for_records(1).await;
    world.wait_until_acked().await;

    assert!(world.replica("a").stop().await, "it ends well");

    world.nats.stop().await;
    let older = world.nats.copy_of(EVENTS);
    world.nats.restart().await;

    world.start("b");

    for text in ["first", "second"] {
        world.publish(&change(text)).await;
    }

    world.wait_for_records(3).await;
    world.wait_until_acked().await;
    assert!(world.replica("b").stop().await, "it ends well");

    world.nats.stop().await;
    world.nats.put_back(EVENTS, &older);
    world.nats.restart().await;

    // The second comes again, where the first was; what is new has the sequence that the second had.
    for text in ["second", "third"] {
        world.publish(&change(text)).await;
    }

    world.start("c");
    eventually("the new change is evaluated", async || {
        world.dispatches().await.len() >= 3
    })
    .await;

    world.wait_until_acked().await;

    let dispatches = world.dispatches().await.into_iter();
    let mut contents: Vec<String> = dispatches.map(|dispatch| dispatch.message.content).collect();
    contents.sort();

    assert_eq!(contents, ["first", "second", "third"], "each once");
    assert_eq!(asked(&model), once(&["first", "second", "third"]));
    assert_eq!(world.dead_letters().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_owner_was_killed_between_the_answer_and_the_record_is_asked_about_once() {
    let model = ModelServer::ruled(|_, _| ScriptedAnswer::text("no")).await;
    let mut world = world(&model).await;
    world.write_hook("changes.ts", ASKS_OF_CHANGES);
    world.write_hook("slow.ts", SLOW_UPON_CHANGES);
    world.start("a");
    world.wait_for_members(1).await;
    world.publish(&event("v1", 0, "the item")).await;
    world.wait_for_records(1).await;

    for text in ["first", "second"] {
        world.publish(&change(text)).await;
    }

    eventually("both are answered", async || world.dispatches().await.len() == 2).await;
    assert_eq!(world.invocations().await.len(), 1, "neither has a record yet");

    // The next owner need not wait as long.
    world.replica("a").kill();
    world.write_hook("slow.ts", &SLOW_UPON_CHANGES.replace("20000", "1"));

    world.start("b");
    world.wait_for_records(3).await;
    world.wait_until_acked().await;

    assert_eq!(asked(&model), once(&["first", "second"]));
    assert_eq!(world.dispatches().await.len(), 2, "each once");

    let records = world.invocations().await;
    assert_eq!(records.len(), 3);

    for record in &records[1..] {
        let hooks = record.hooks.iter().map(|hook| hook.hook_id.as_str());
        assert_eq!(hooks.collect::<Vec<_>>(), ["changes"], "{record:?}");
        assert_eq!(record.evaluated_by, "b");
    }
}

/// Fires upon everything, and says what it made of it.
const ANSWERS: &str = "export default async ({ event }) => ({
    fire: true, context: { extracted: { said: event.content } },
});\n";

/// A world in which three events were dispatched after `streams` had been copied; the replica is gone.
async fn three_dispatched(streams: &[&str]) -> (World, Vec<tempfile::TempDir>, Vec<Dispatch>) {
    let mut world = World::new(&[("answers.ts", ANSWERS)]).await;
    world.nats.stop().await;
    let older = streams.iter().map(|stream| world.nats.copy_of(stream)).collect();
    world.nats.restart().await;

    world.start("a");
    world.wait_for_members(1).await;

    for peer in ["v1", "v2", "v3"] {
        world.publish(&event(peer, 0, "hello")).await;
    }

    world.wait_for_records(3).await;
    world.wait_until_acked().await;
    assert!(world.replica("a").stop().await, "it ends well");

    let dispatches = world.dispatches().await;
    assert_eq!(dispatches.len(), 3);

    (world, older, dispatches)
}

/// Notes that a broker has run `dispatch`.
async fn run(world: &World, dispatch: &Dispatch) {
    let turn = sample::whole_turn(dispatch, SystemClock.now());
    let out = OutgoingMessage::new(subject::ledger(&dispatch.target), &turn);
    world.bus.publish(out).await.expect("stored");
}

/// Notes that a broker runs `dispatch`, and has not come to the turn's end.
async fn begin(world: &World, dispatch: &Dispatch) {
    let mut turn = sample::whole_turn(dispatch, SystemClock.now());
    turn.entries
        .retain(|entry| matches!(entry, LedgerEntry::TurnStarted { .. }));
    let out = OutgoingMessage::new(subject::ledger(&dispatch.target), &turn);
    world.bus.publish(out).await.expect("stored");
}

fn sorted(mut dispatches: Vec<Dispatch>) -> Vec<Dispatch> {
    dispatches.sort_by_key(|dispatch| dispatch.id);
    dispatches
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatches_that_their_stream_has_lost_are_published_again_unless_they_were_handled() {
    let (mut world, older, mut dispatches) = three_dispatched(&[DISPATCHES]).await;
    run(&world, &dispatches.remove(1)).await;
    // Whoever goes on with its turn reads it again.
    begin(&world, &dispatches[1]).await;
    world.nats.stop().await;
    world.nats.put_back(DISPATCHES, &older[0]);
    world.nats.restart().await;

    assert_eq!(world.dispatches().await, [], "they are lost");

    world.start("b");
    eventually("both are there again", async || world.dispatches().await.len() >= 2).await;
    assert_eq!(sorted(world.dispatches().await), sorted(dispatches), "as they were");

    // Emptied under the hands of a replica; and whoever comes later finds nothing more to do.
    world.bus.purge_subject(DISPATCHES, ">").await.expect("emptied");
    eventually("and again", async || world.dispatches().await.len() >= 2).await;
    world.replica("b").kill();
    world.start("c");
    world.publish(&event("v4", 0, "hello")).await;
    world.wait_for_records(4).await;
    world.wait_until_acked().await;

    assert_eq!(world.dispatches().await.len(), 3);
    assert_eq!(world.dead_letters().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_dispatches_of_which_the_ledger_cannot_tell_are_held() {
    let (mut world, older, dispatches) = three_dispatched(&[DISPATCHES, LEDGER]).await;
    run(&world, &dispatches[1]).await;
    let witness = StreamWitness::new(&world.bus, MarkedStream::Dispatches);
    witness.check(SystemClock.now()).await.expect("kept");
    world.nats.stop().await;
    world.nats.put_back(DISPATCHES, &older[0]);
    world.nats.put_back(LEDGER, &older[1]);
    world.nats.restart().await;

    world.start("b");
    eventually("all are held", async || {
        world
            .bus
            .held_bucket()
            .entries()
            .await
            .is_ok_and(|held| held.len() == 3)
    })
    .await;

    assert_eq!(world.dispatches().await, [], "none may be run again");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_dispatches_of_events_that_were_sent_again_are_made_of_those() {
    let (mut world, older, dispatches) = three_dispatched(&[DISPATCHES, EVENTS]).await;
    world.nats.stop().await;
    world.nats.put_back(DISPATCHES, &older[0]);
    world.nats.put_back(EVENTS, &older[1]);
    world.nats.restart().await;

    // Their source sends them again in another order: two have a new sequence, and one is that of another event now.
    for peer in ["v3", "v2", "v1"] {
        world.publish(&event(peer, 0, "hello")).await;
    }

    world.start("b");
    eventually("all are there again", async || world.dispatches().await.len() >= 3).await;
    world.wait_until_acked().await;

    let again = sorted(world.dispatches().await);
    let sequences: Vec<u64> = again.iter().map(|dispatch| dispatch.event_seq).collect();
    let with_sequences = sorted(dispatches).into_iter().zip(&sequences);
    let expected: Vec<Dispatch> = with_sequences
        .map(|(dispatch, event_seq)| Dispatch {
            event_seq: *event_seq,
            ..dispatch
        })
        .collect();

    assert_eq!(again, expected, "as they were");
    let by_peer: BTreeMap<String, u64> = again.iter().map(|d| (d.message.from.clone(), d.event_seq)).collect();
    assert_eq!(by_peer.into_values().collect::<Vec<_>>(), [3, 2, 1], "{again:?}");
    assert_eq!(world.dead_letters().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatches_of_events_that_were_evaluated_again_later_are_not_lost() {
    let (mut world, _, dispatches) = three_dispatched(&[]).await;

    // An owner that was stopped between the dispatches and the records: the next one writes them, a minute later.
    for stored in world.bus.read_history(INVOCATIONS, ">", 1, 10).await.expect("readable") {
        let record: EventInvocations = stored.decode().expect("a record");
        let later = EventInvocations {
            started_at: record.started_at.plus(60_000),
            ..record
        };
        let out = OutgoingMessage::new(stored.subject.clone(), &later);
        world.bus.publish(out).await.expect("stored");
    }

    world.start("b");
    world.publish(&event("v4", 0, "hello")).await;
    eventually("it takes part", async || world.dispatches().await.len() > 3).await;
    world.wait_until_acked().await;

    let mut ids: Vec<_> = world.dispatches().await.iter().map(|dispatch| dispatch.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(world.dispatches().await.len(), 4, "none is stored again");
    assert_eq!(ids.len(), 4);
    assert!(dispatches.iter().all(|dispatch| ids.contains(&dispatch.id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatches_of_replicas_whose_clocks_are_ahead_are_not_lost() {
    const AHEAD_MS: i64 = 86_400_000;
    let mut world = World::new(&[("answers.ts", ANSWERS)]).await;
    world.sections = format!("clock_offset_ms = {AHEAD_MS}\n");
    world.start("a");
    world.wait_for_members(1).await;
    for peer in ["v1", "v2", "v3"] {
        let ahead = SystemClock.now().plus(AHEAD_MS);
        let event = Event {
            timestamp: ahead,
            received_at: ahead,
            ..event(peer, 0, "hello")
        };
        world.publish(&event).await;
    }
    world.wait_for_records(3).await;
    world.wait_until_acked().await;
    world.replica("a").kill();

    // The mark is written once the stream has been compared.
    let marks = world.bus.kv::<WaitingMark>(buckets::POSITIONS);
    marks.delete(DISPATCHES, None).await.expect("deleted");
    world.start("b");
    eventually("the stream is compared", async || {
        marks.find(DISPATCHES).await.is_ok_and(|(mark, _)| mark.is_some())
    })
    .await;
    assert_eq!(world.dispatches().await.len(), 3, "none is stored again");
}
