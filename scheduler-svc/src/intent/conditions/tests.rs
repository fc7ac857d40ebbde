use shared::bus::{NatsConfig, Outgoing};
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::EventId;
use shared::model::intent::EventMatch;
use shared::process::lifecycle::Shutdown;
use shared::testing::nats::NatsServer;
use shared::testing::{SeededIds, connect};
use shared::wire::subject;
use shared::wire::topology::topology;
use ulid::Ulid;

use super::*;
use crate::intent::registry::Registry;
use crate::intent::service::{Needs, desk};

fn mark(number: u128, from: u64) -> IntentMark {
    IntentMark {
        intent: Ulid::from_parts(1, number),
        agent: "default".to_owned(),
        matches: EventMatch {
            contains: Some(format!("word {number}")),
            ..EventMatch::default()
        },
        from,
        at: SystemClock.now(),
    }
}

/// Streams can be away when a mark is heard of: it is read for later, from where the earliest mark wants it.
#[tokio::test(flavor = "multi_thread")]
async fn events_that_cannot_be_read_yet_are_read_later() {
    let server = NatsServer::start().await;
    let config = NatsConfig {
        servers: vec![server.url()],
        ..NatsConfig::default()
    };
    let bus = connect(&config, "test").await;
    let mut without = topology(1);
    without.streams.retain(|stream| stream.name != EVENTS);
    bus.ensure(&without, false).await.expect("all but the events");
    let needs = Needs {
        bus: bus.clone(),
        clock: Arc::new(SystemClock),
        ids: Arc::new(SeededIds::new(1)),
        owner: tokio::sync::watch::channel(None).1,
        instance: "s".to_owned(),
        shutdown: Shutdown::default(),
    };
    let desk = desk(&needs, Registry::shipped().expect("kinds"));
    let mut conditions = Conditions::new(Arc::clone(&desk.clerk));
    let filters = [format!("$KV.{INTENTS}.c.>")];
    let mut changes = bus.ordered(STREAM, &filters, 1).await.expect("marks");
    for (number, from) in [(1, 1), (2, 0), (3, 2)] {
        remember(&bus, &mark(number, from)).await.expect("kept");
        conditions.changed(&changes.next().await).await;
    }
    assert!(conditions.reader.is_none());
    assert_eq!(conditions.again_from, Some(0));
    bus.ensure(&topology(1), false).await.expect("the events too");
    conditions.read_again().await;
    assert_eq!(conditions.again_from, None);
    let mut event = Event::new(
        EventId::parse("webchat:1").expect("an id"),
        "webchat",
        "v1",
        SystemClock.now(),
    );
    "word 2".clone_into(&mut event.content);
    let out = Outgoing::new(subject::event(&event), &event).msg_id(event.id.as_str());
    bus.publish(out).await.expect("stored");
    let stored = next(&mut conditions.reader).await;
    assert_eq!(stored.sequence, 1);
    conditions.event(&stored).await;
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
