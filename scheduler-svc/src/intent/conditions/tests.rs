use shared::bus::OutgoingMessage;
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::{Event, EventId};
use shared::model::intent::EventMatch;
use shared::model::origin::EventOrigin;
use shared::process::lifecycle::ShutdownSignal;
use shared::testing::nats::NatsServer;
use shared::testing::{SeededIds, connect_to, world};
use shared::wire::topology::topology;
use ulid::Ulid;

use super::*;
use crate::intent::registry::KindRegistry;
use crate::intent::service::{IntentContext, new_desk};

fn mark(number: u128, from: u64) -> IntentMark {
    IntentMark {
        intent: Ulid::from_parts(1, number),
        agent: "default".to_owned(),
        matches: EventMatch {
            contains: Some(format!("word {number}")),
            ..EventMatch::default()
        },
        from,
        position: None,
        at: SystemClock.now(),
    }
}

fn needs(bus: &Bus) -> IntentContext {
    IntentContext {
        bus: bus.clone(),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SeededIds::new(1)),
        owner: tokio::sync::watch::channel(None).1,
        instance: "s".to_owned(),
        shutdown: ShutdownSignal::default(),
    }
}

/// Stores an event that says `text`.
async fn says(bus: &Bus, number: u32, text: &str) -> u64 {
    let mut event = Event::new(
        EventId::parse(format!("webchat:{number}")).expect("an id"),
        "webchat",
        "v1",
        SystemClock.now(),
    );

    text.clone_into(&mut event.content);
    event.origin = EventOrigin::visitor("default", "v1");
    let out = OutgoingMessage::event(&event, bus.trust());

    bus.publish(out).await.expect("stored").sequence
}

/// The stream is put back to before the marked message, and gives its number out again: events that come then count.
#[tokio::test(flavor = "multi_thread")]
async fn events_count_by_their_time_where_their_stream_was_put_back() {
    let (mut server, bus) = world().await;
    for number in 0..3 {
        says(&bus, number, "earlier").await;
    }

    server.stop().await;
    let older = server.copy_of(EVENTS);
    server.restart().await;

    for number in 3..9 {
        says(&bus, number, "word 1, too early").await;
    }

    let desk = new_desk(&needs(&bus), KindRegistry::shipped_registry().expect("kinds"));
    let position = bus.end_of(EVENTS).await.expect("asked");
    let placed = IntentMark {
        position: Some(position.clone()),
        ..mark(1, position.sequence)
    };

    assert_eq!(position.sequence, 9);

    store_mark(&bus, &placed).await.expect("kept");

    // The last message that was there before the mark stays; the marked one is gone.
    server.stop().await;
    server.put_back(EVENTS, &older);
    server.restart().await;

    assert_eq!(says(&bus, 10, "something else").await, 4);
    assert_eq!(says(&bus, 11, "word 1 at last").await, 5);

    let mut conditions = ConditionWatcher::new(Arc::clone(&desk.clerk));
    let key = key(&placed);
    let heard = |value: IntentMark| KvEvent::Put {
        key: key.clone(),
        value,
        revision: 1,
    };

    conditions.handle_change(heard(placed.clone())).await;
    let mut read = Vec::new();
    while conditions.waiting.is_empty() {
        let stored = tokio::time::timeout(Duration::from_secs(60), next(&mut conditions.reader)).await;
        let stored = stored.expect("the event after the mark is read");
        read.push(stored.sequence);
        conditions.match_event(&stored).await;
    }

    assert_eq!(read, [4, 5], "events before the mark do not count");

    let kept = conditions
        .marks_bucket()
        .get(&key)
        .await
        .expect("readable")
        .expect("kept")
        .value;

    assert_eq!(kept.from, 3, "its place holds from now on");
    assert_eq!(kept.position.as_ref().map(|position| position.sequence), Some(3));

    let place = kept.position.clone().expect("a place");
    assert!(bus.check_position(EVENTS, &place).await.expect("asked").holds());

    // Of a mark by a bare number it is known only that the stream has not come there.
    let bare = IntentMark {
        position: None,
        ..placed
    };
    conditions.marks.clear();
    conditions.handle_change(heard(bare)).await;

    assert_eq!(conditions.marks[&key].from, Some(3), "events since it was made count");
}

#[tokio::test]
async fn the_last_message_up_to_a_time_is_found_also_between_gaps() {
    let (_server, bus) = world().await;
    for number in 0..20 {
        says(&bus, number, "x").await;
    }

    let mut times = Vec::new();
    for sequence in 1..=20 {
        let stored = bus.at_sequence(EVENTS, sequence).await.expect("asked").expect("there");
        times.push((sequence, stored.stored_at_ns));
    }

    for gone in [1, 2, 7, 8, 9, 20] {
        assert!(bus.delete_message(EVENTS, gone).await.expect("deleted"));
        times.retain(|(sequence, _)| *sequence != gone);
    }

    assert_eq!(bus.stored_by(EVENTS, times[0].1 - 1).await.expect("asked").sequence, 0);

    for (sequence, at) in times {
        assert_eq!(bus.stored_by(EVENTS, at).await.expect("asked").sequence, sequence);
    }
}

/// Streams can be away when a mark is heard of: it is read for later, from where the earliest mark wants it.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_cannot_be_read_yet_are_read_later() {
    let server = NatsServer::start().await;
    let bus = connect_to(&server.url(), "test").await;
    let mut without = topology(1);
    without.streams.retain(|stream| stream.name != EVENTS);
    bus.ensure_topology(&without, false).await.expect("all but the events");
    let desk = new_desk(&needs(&bus), KindRegistry::shipped_registry().expect("kinds"));
    let mut conditions = ConditionWatcher::new(Arc::clone(&desk.clerk));
    let mut changes = conditions.marks_bucket().watch(PREFIX);

    assert_eq!(changes.next().await, KvEvent::Current);

    for (number, from) in [(1, 1), (2, 0), (3, 2)] {
        store_mark(&bus, &mark(number, from)).await.expect("kept");
        conditions.handle_change(changes.next().await).await;
    }

    assert!(conditions.reader.is_none() && conditions.has_unasked);

    bus.ensure_topology(&topology(1), false).await.expect("the events too");
    conditions.read_again().await;
    assert!(!conditions.has_unasked && conditions.again_from.is_none());

    says(&bus, 1, "word 2").await;
    let stored = next(&mut conditions.reader).await;
    assert_eq!(stored.sequence, 1);

    conditions.match_event(&stored).await;
    let waits: Vec<Ulid> = conditions.waiting.iter().map(|matched| matched.mark.intent).collect();
    assert_eq!(waits, [mark(2, 0).intent], "its intent may come yet");

    assert!(!conditions.is_full());

    let again = || Match {
        mark: mark(2, 0),
        at: stored.published_at,
    };
    conditions.waiting.extend((1..MAX_WAITING).map(|_| again()));
    assert!(conditions.is_full(), "nothing is dropped, nothing more is read");
}
