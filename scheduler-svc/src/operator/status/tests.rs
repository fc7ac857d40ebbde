//! Tests that state which the server does not have, or which cannot be read, is not reported as known.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use shared::bus::{Bus, OutgoingMessage};
use shared::clock::{SystemClock, SystemIds};
use shared::testing::nats::NatsServer;
use shared::wire::headers::Headers;
use shared::wire::held::HELD_LETTER;
use shared::wire::subject;

use super::*;

/// Streams and buckets that the status reads, each with the field of the work, of the accounts or of the streams.
const READ: [(&str, &str); 15] = [
    ("DELIVERIES", "/work/deliveries"),
    ("PARKED", "/work/parked"),
    ("DLQ", "/work/dead_letters"),
    ("CLAIMS", "/work/claimed"),
    ("KV_session_overrides", "/work/quarantined"),
    ("KV_held", "/work/held"),
    ("KV_positions", "/work/witnessed"),
    ("KV_breakers", "/work/paused_hooks"),
    ("KV_schedules", "/work/schedules"),
    ("KV_pairings", "/work/pairings"),
    ("KV_restore", "/work/restored"),
    ("AUDIT", "/work/pairings"),
    ("KV_channels", "/accounts"),
    ("INVOCATIONS", "/streams"),
    ("EVENTS", "/work/hooks"),
];

async fn context() -> (NatsServer, OperatorContext) {
    let (server, bus) = shared::testing::world().await;
    let context = OperatorContext {
        bus,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SystemIds),
        replicas: 1,
    };
    (server, context)
}

/// Returns the whole status as JSON.
async fn status(context: &OperatorContext) -> Value {
    let question = AskStatus {
        parts: vec![
            StatusPart::Server,
            StatusPart::Work,
            StatusPart::Streams,
            StatusPart::Accounts,
        ],
        sessions: 10,
    };
    serde_json::to_value(read_status(context, &question).await).expect("JSON")
}

/// Returns the status' field at `path`, as JSON.
fn field<'a>(status: &'a Value, path: &str) -> &'a Value {
    status.pointer(path).unwrap_or_else(|| panic!("{path}: {status}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_as_it_should_be_is_known_whole() {
    let (_server, context) = context().await;
    let status = status(&context).await;
    for (_, path) in READ {
        assert!(
            field(&status, path)["known"] != Value::Null || path == "/work/restored",
            "{path}: {status}"
        );
        assert!(field(&status, path).get("unknown").is_none(), "{path}: {status}");
    }
    assert_eq!(status["server"]["topology"]["known"]["count"], 0, "{status}");
    assert_eq!(status["server"]["clock"]["known"]["is_too_large"], false, "{status}");
    assert_eq!(status["server"]["restoring"]["known"], Value::Null, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_not_known() {
    let (_server, context) = context().await;
    for (stream, path) in READ {
        let deleted = context.bus.delete_stream(stream).await;
        assert!(deleted.expect("asked"), "{stream} was there");
        let status = status(&context).await;
        assert!(field(&status, path)["unknown"].is_string(), "{stream}: {status}");
        assert_ne!(status["server"]["topology"]["known"]["count"], 0, "{stream}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_told() {
    let (_server, context) = context().await;
    let buckets = [
        "session_overrides",
        "held",
        "positions",
        "breakers",
        "schedules",
        "pairings",
    ];
    for bucket in buckets {
        let (_, path) = READ
            .into_iter()
            .find(|(stream, _)| stream.strip_prefix("KV_") == Some(bucket))
            .expect("it is read");
        assert!(
            field(&status(&context).await, path)["known"]["unread"].is_null(),
            "{bucket}"
        );

        let garbage = OutgoingMessage::raw(format!("$KV.{bucket}.one"), Headers::new(), Bytes::from_static(b"{"));
        context.bus.publish(garbage).await.expect("stored");
        let status = status(&context).await;
        let unread = field(&status, path)["known"]["unread"].as_str();
        assert!(
            unread.is_some_and(|unread| unread.contains("one: ")),
            "{bucket}: {status}"
        );
    }
}

async fn letter(bus: &Bus, service: &str) {
    let body = Bytes::from_static(b"a letter");
    let out = OutgoingMessage::raw(subject::dlq(service), Headers::new(), body);
    bus.publish(out).await.expect("stored");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_is_no_dead_letter() {
    let (_server, context) = context().await;
    for (service, count) in [(HELD_LETTER, 0), ("hook-svc", 1)] {
        letter(&context.bus, service).await;
        let status = status(&context).await;
        assert_eq!(status["work"]["dead_letters"]["known"], count, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_was_asked_for_is_read() {
    let (_server, context) = context().await;
    let nothing = read_status(&context, &AskStatus::default()).await;
    assert!(nothing.server.is_none() && nothing.work.is_none(), "{nothing:?}");
    assert!(nothing.streams.is_none() && nothing.accounts.is_none(), "{nothing:?}");
}
