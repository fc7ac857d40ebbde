//! Bounds: a full spool, a message too large for the server, requests that never end.

use serde_json::{Value, json};
use shared::testing::eventually;
use shared::testing::nats::{NatsOptions, NatsServer};
use shared::wire::dead_letter::DeadLetter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::World;

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

fn event(id: &str, bytes: usize) -> Value {
    json!({ "id": id, "timestamp": 5, "channel": "crm", "content": "x".repeat(bytes) })
}

#[tokio::test]
async fn a_full_spool_refuses_and_takes_again_once_it_is_drained() {
    let mut world = World::start("spool_max_bytes = 100000").await;
    world.nats.kill9();
    let mut taken = 0;

    let refused = loop {
        let answer = world
            .post("/v1/events", &JSON, event(&format!("crm:{taken}"), 20_000).to_string())
            .await;
        if answer.status != 200 {
            break answer;
        }
        taken += 1;
    };

    assert_eq!(
        (refused.status, refused.code(), refused.retry_after.as_deref()),
        (503, "spool_full", Some("1"))
    );
    assert_eq!(taken, 4);

    world.nats.restart().await;
    assert_eq!(world.events(taken).await.len(), 4);

    eventually("there is room again", async || {
        world
            .post("/v1/events", &JSON, event("crm:more", 20_000).to_string())
            .await
            .status
            == 200
    })
    .await;

    assert!(world.health.readiness().parts.contains_key("spool"));

    world.stop().await;
}

#[tokio::test]
async fn what_the_server_would_never_take_is_refused_at_the_door() {
    let options = NatsOptions {
        max_payload: Some(8_192),
        ..NatsOptions::default()
    };
    let world = World::with(
        NatsServer::with(options).await,
        tempfile::tempdir().expect("a folder"),
        "",
    )
    .await;

    let answer = world.post("/v1/events", &JSON, event("crm:1", 9_000).to_string()).await;
    assert_eq!((answer.status, answer.code()), (413, "too_large"));
    assert_eq!(
        world
            .post("/v1/events", &JSON, event("crm:2", 4_000).to_string())
            .await
            .status,
        200
    );

    world.events(1).await;
    world.stop().await;
}

#[tokio::test]
async fn what_the_server_refuses_for_good_is_a_dead_letter_and_blocks_nothing() {
    use adapter_svc::encoded_event::EncodedEvent;
    use adapter_svc::outbox::EventSpool;
    use shared::model::event::{Event, EventId};
    use shared::model::time::UnixMillis;
    use shared::wire::headers::TraceCarrier;

    let folder = tempfile::tempdir().expect("a folder");
    let outbox = EventSpool::open(&folder.path().join("spool"), 1 << 20)
        .await
        .expect("a spool");
    let of = |id: &str| {
        let event = Event::new(EventId::parse(id).expect("an id"), "crm", "p", UnixMillis(1));
        EncodedEvent::encode_event(&event, &shared::testing::trust(), &TraceCarrier::default(), 1 << 20)
            .expect("a parcel")
    };

    let broken = EncodedEvent {
        subject: "nexus event".to_owned(),
        ..of("crm:1")
    };
    outbox
        .store_events(vec![broken, of("crm:2")])
        .await
        .expect("it is durable");
    drop(outbox);
    eventually("the spool is let go", async || {
        shared::store::LocalStore::open(folder.path().join("spool")).is_ok()
    })
    .await;

    let world = World::with(NatsServer::start().await, folder, "").await;
    assert_eq!(world.events(1).await[0].id.as_str(), "crm:2");

    eventually("the letter is there", async || {
        world
            .bus
            .stream_state("DLQ")
            .await
            .is_ok_and(|state| state.messages == 1)
    })
    .await;

    let letter: DeadLetter = world
        .bus
        .read_history("DLQ", "nexus.dlq.>", 1, 10)
        .await
        .expect("letters")[0]
        .decode()
        .expect("a letter");
    assert_eq!(
        (letter.service.as_str(), letter.reason.as_str()),
        ("adapter-svc", "refused")
    );

    let event: Event = ciborium::from_reader(letter.payload_bytes().expect("bytes").as_slice()).expect("an event");
    assert_eq!(event.id.as_str(), "crm:1");

    world.stop().await;
}

#[tokio::test]
async fn an_event_that_lists_too_much_is_refused_by_name() {
    let world = World::start("").await;
    let listing = |field: &str, count: usize| {
        let entry = match field {
            "participants" => json!({ "id": "p", "role": "cc" }),
            "attachments" => json!({ "media_type": "image" }),
            _ => json!("x"),
        };
        let mut event = event("crm:1", 1);
        event[field] = vec![entry; count].into();

        event.to_string()
    };

    for (field, most) in [
        ("participants", 1_000),
        ("attachments", 100),
        ("tags", 256),
        ("content_types", 100),
    ] {
        let answer = world.post("/v1/events", &JSON, listing(field, most + 1)).await;
        assert_eq!((answer.status, answer.code()), (400, "invalid"), "{}", answer.body);
        assert!(answer.body.to_string().contains(field), "{}", answer.body);
        let answer = world.post("/v1/events", &JSON, listing(field, most)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    world.stop().await;
}

#[tokio::test]
async fn requests_without_end_are_ended() {
    let world = World::start("header_timeout_ms = 200\nrequest_timeout_ms = 200").await;
    let address = world.base.trim_start_matches("http://").to_owned();
    for (sent, expected) in [
        ("POST /v1/events HTTP/1.1\r\nhost: localhost\r\n", None),
        (
            "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer the token of crm in the tests\r\n\
             content-type: application/json\r\ncontent-length: 9\r\n\r\n{",
            Some("503"),
        ),
    ] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.expect("it listens");
        stream.write_all(sent.as_bytes()).await.expect("it reads");
        let mut answer = vec![0; 64];
        let read = stream.read(&mut answer).await.expect("it is ended");
        let answer = String::from_utf8_lossy(&answer[..read]);

        match expected {
            None => assert_eq!(read, 0, "{sent}: {answer}"),
            Some(status) => assert!(answer.contains(status), "{sent}: {answer}"),
        }
    }

    world.stop().await;
}

#[tokio::test]
async fn an_address_that_asks_too_fast_is_told_when_to_come_again() {
    let world = World::start("per_address_per_second = 1\nper_address_burst = 3").await;
    let ask = async |number: u32| {
        let event = event(&format!("crm:{number}"), 5).to_string();
        world.post("/v1/events", &JSON, event).await
    };
    for number in 0..3 {
        assert_eq!(ask(number).await.status, 200, "{number}");
    }

    let refused = ask(3).await;
    assert_eq!((refused.status, refused.code()), (429, "too_fast"));
    assert_eq!(refused.retry_after.as_deref(), Some("1"));

    world.clock.advance(1_000);
    assert_eq!(ask(3).await.status, 200, "there is room again");
    assert_eq!(ask(4).await.status, 429);

    world.stop().await;
}
