//! Poison, repetition, newer versions.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use shared::bus::OutgoingMessage;
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::{EventParticipant, ParticipantRole};
use shared::model::position::StreamPlace;
use shared::projection::api::{EventTrace, TraceStage};
use shared::testing::eventually;
use shared::wire::headers::{Headers, SCHEMA};
use shared::wire::session_mark::LeaseRecord;
use shared::wire::subject;
use shared::wire::topology::buckets::ATTEMPTS;
use shared::wire::topology::streams::EVENTS;

use crate::world::{World, event};

const FIRE: &str = "export default () => ({ fire: true });\n";

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_a_dead_letter_and_blocks_nobody() {
    let world = World::with_one_replica(&[("fire.ts", FIRE)]).await;
    let good = event("v1", 1, "hello");
    let subject = subject::event(&good);
    let garbage = OutgoingMessage::raw(subject.clone(), Headers::new(), Bytes::from_static(b"\xff\x00garbage"));
    world.bus.publish(garbage).await.expect("published");
    let newer = OutgoingMessage::new(subject, &event("v1", 2, "from the future")).header(SCHEMA, "event/9");
    world.bus.publish(newer).await.expect("published");
    world.publish(&good).await;
    world.record(&good).await;
    eventually("two dead letters", async || world.dead_letters().await.len() == 2).await;

    let letters = world.dead_letters().await;
    let mut reasons: Vec<_> = letters.iter().map(|letter| letter.reason.as_str()).collect();
    reasons.sort_unstable();

    assert_eq!(reasons, ["malformed", "newer_schema"]);

    let malformed = letters
        .iter()
        .find(|letter| letter.reason == "malformed")
        .expect("found");
    assert_eq!(malformed.payload_bytes().as_deref(), Some(&b"\xff\x00garbage"[..]));
    assert_eq!(malformed.redrive_subject, "nexus.event.webchat.default.v1");

    world.wait_until_acked().await;
    assert_eq!(world.dispatches().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_twenty_thousand_participants_is_shown_to_nobody_and_delays_nobody() {
    let world = World::with_one_replica(&[("fire.ts", FIRE)]).await;
    let (mut fat, good) = (event("v1", 1, "everybody"), event("v1", 2, "hello"));
    fat.participants = (0..20_000)
        .map(|number| EventParticipant {
            id: number.to_string(),
            role: ParticipantRole::Cc,
            display_name: None,
        })
        .collect();

    let begun = SystemClock.monotonic();
    world.publish(&fat).await;
    world.publish(&good).await;
    world.record(&good).await;
    let took = SystemClock.monotonic().duration_since(begun);

    assert!(took < Duration::from_secs(20), "{took:?}");

    eventually("the dead letter", async || !world.dead_letters().await.is_empty()).await;
    let letters = world.dead_letters().await;
    assert!(
        letters[0].detail.contains("participants: 20000 entries"),
        "{}",
        letters[0].detail
    );

    let evaluated = world.invocations().await;
    assert!(evaluated.iter().all(|record| record.event_id == good.id));

    world.wait_until_acked().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_event_changes_nothing() {
    let world = World::with_one_replica(&[("fire.ts", FIRE)]).await;
    let event = event("v1", 1, "hello");
    for _ in 0..3 {
        world.publish_anonymously(&event).await;
    }

    world.wait_until_acked().await;
    assert_eq!(
        (world.dispatches().await.len(), world.invocations().await.len()),
        (1, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_keeps_killing_its_owner_is_given_up() {
    let mut world = World::new(&[("fire.ts", FIRE)]).await;
    let (killer, good) = (event("v1", 1, "boom"), event("v1", 2, "hello"));
    let sequence = world.publish(&killer).await;
    world.publish(&good).await;
    let innocent = event("v2", 1, "hello");
    let another = world.publish(&innocent).await;

    assert_ne!(world.partition(sequence).await, world.partition(another).await);

    let stored = world.bus.at_sequence(EVENTS, sequence).await.expect("readable");
    let place = StreamPlace {
        sequence,
        stored_at_ns: stored.expect("stored").stored_at_ns,
    };

    // Another had the sequence of the second one before the stream was put back, and killed its owners.
    let gone = StreamPlace {
        sequence: another,
        stored_at_ns: place.stored_at_ns - 1,
    };
    for (at, place) in [(sequence, place), (another, gone)] {
        let record = LeaseRecord {
            holder: "dead".to_owned(),
            epoch: 1,
            in_progress: Some(place),
            runs: vec!["one".to_owned(), "two".to_owned(), "three".to_owned()],
            released: false,
            session: String::new(),
        };

        let key = format!("attempts.hook.{}", world.partition(at).await);
        let noted = world.bus.kv::<LeaseRecord>(ATTEMPTS).put(&key, &record).await;
        noted.expect("noted");
    }

    world.start("a");
    world.record(&good).await;
    world.record(&innocent).await;
    world.wait_until_acked().await;
    let letters = world.dead_letters().await;
    let [letter] = letters.as_slice() else {
        panic!("{letters:?}")
    };

    assert_eq!((letter.reason.as_str(), letter.sequence), ("kills_its_owner", sequence));
    assert_eq!(world.dispatches().await.len(), 2, "of the good ones");

    // A trace does not wait for what was given up, and says so.
    eventually("the trace ends with the dead letter", async || {
        let question = json!({"event_id": killer.id});
        let patience = Duration::from_secs(5);
        let asked = world
            .bus
            .request("nexus.svc.events.trace", Headers::new(), &question, patience);
        let trace: EventTrace = asked.await.expect("answered");
        let last = trace
            .steps
            .last()
            .is_some_and(|step| step.stage == TraceStage::DeadLetter);

        trace.complete && last
    })
    .await;
}
