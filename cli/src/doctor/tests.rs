//! Tests that state which the server does not have, or which cannot be read, is not reported as sound.

use std::path::Path;

use bytes::Bytes;
use shared::bus::{Bus, NatsConfig, OutgoingMessage};
use shared::process::config::{ConfigDocument, ConfigEnvironment};
use shared::process::status::HeardStatus;
use shared::testing::nats::NatsServer;
use shared::wire::headers::Headers;
use shared::wire::held::HELD_LETTER;
use shared::wire::subject;

use super::*;

/// Streams and buckets that the checks of the work read, each with the name of its finding and its check.
const READ: [(&str, &str, Check); 11] = [
    ("DELIVERIES", "deliveries", work::waiting),
    ("PARKED", "parked", work::waiting),
    ("DLQ", "dead letters", work::dead_letters),
    ("CLAIMS", "sessions", work::sessions),
    ("KV_session_overrides", "quarantine", work::sessions),
    ("KV_held", "held", work::held),
    ("KV_positions", "positions", work::held),
    ("KV_breakers", "paused hooks", work::hooks),
    ("KV_schedules", "schedules", work::schedules),
    ("KV_pairings", "pairings", work::pairings),
    ("AUDIT", "pairings", work::pairings),
];

async fn surroundings() -> (NatsServer, Surroundings) {
    let (server, bus) = shared::testing::world().await;
    let document = ConfigDocument::parse(Path::new("nexus.toml"), "", &ConfigEnvironment::default());
    let surroundings = Surroundings {
        options: DoctorOptions::default(),
        document,
        nats: Ok(NatsConfig::default()),
        bus: Ok(bus),
        heard: Ok(HeardStatus::default()),
    };

    (server, surroundings)
}

fn bus(surroundings: &Surroundings) -> &Bus {
    surroundings.bus.as_ref().expect("a connection")
}

/// Returns the findings of `check` about `what`.
async fn told(surroundings: &Surroundings, what: &str, check: Check) -> Vec<(Level, String)> {
    let found = check(surroundings).await.into_iter();
    found
        .filter(|finding| finding.what == what)
        .map(|finding| (finding.level, finding.detail))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_not_known() {
    let (_server, surroundings) = surroundings().await;
    for (stream, what, check) in READ {
        let deleted = bus(&surroundings).delete_stream(stream).await;
        assert!(deleted.expect("asked"), "{stream} was there");

        let told = told(&surroundings, what, check).await;
        let [(level, detail)] = told.as_slice() else {
            panic!("{what}: {told:?}")
        };

        assert_eq!(*level, Level::Fault, "{what}: {detail}");
        assert!(detail.starts_with("not known: "), "{what}: {detail}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_not_known() {
    let (_server, surroundings) = surroundings().await;
    for (stream, what, check) in READ {
        let Some(bucket) = stream.strip_prefix("KV_") else {
            continue;
        };

        let before = told(&surroundings, what, check).await;
        assert!(
            before.iter().all(|(level, _)| *level == Level::Ok),
            "{what}: {before:?}"
        );

        let headers = Headers::new();
        let garbage = OutgoingMessage::raw(format!("$KV.{bucket}.one"), headers, Bytes::from_static(b"{"));
        bus(&surroundings).publish(garbage).await.expect("stored");
        let after = told(&surroundings, what, check).await;
        let unknown = after.iter().find(|(level, _)| *level == Level::Fault);

        assert!(
            unknown.is_some_and(|(_, detail)| detail.starts_with("not known: ")),
            "{what}: {after:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_no_dead_letter() {
    let (_server, surroundings) = surroundings().await;
    let letter = |service: &str| {
        let body = Bytes::from_static(b"a letter");
        OutgoingMessage::raw(subject::dlq(service), Headers::new(), body)
    };
    for (service, level, says) in [(HELD_LETTER, Level::Ok, "0 ("), ("hook-svc", Level::Fault, "1 (")] {
        bus(&surroundings).publish(letter(service)).await.expect("stored");
        let told = told(&surroundings, "dead letters", work::dead_letters).await;
        let [(found, detail)] = told.as_slice() else {
            panic!("{told:?}")
        };

        assert_eq!(*found, level, "{detail}");
        assert!(detail.starts_with(says), "{detail}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_could_not_be_asked_are_not_known() {
    let (_server, mut surroundings) = surroundings().await;
    surroundings.heard = Err("no answer".to_owned());
    let told = told(&surroundings, "services", replicas::services).await;
    assert_eq!(told, [(Level::Fault, "not known: no answer".to_owned())]);
}
