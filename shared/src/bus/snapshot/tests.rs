//! Snapshots against real servers.

use std::io::Cursor;

use super::*;
use crate::bus::OutgoingMessage;
use crate::testing::{connect_to, world};
use crate::wire::headers::Headers;
use crate::wire::topology::{SESSION_PARTS, claims_consumer, streams};

async fn filled(bus: &Bus) {
    for number in 0..50 {
        let subject = format!("nexus.receipt.webhook.demo.p{}", number % 3);
        let payload = Bytes::from(format!("payload {number}"));
        let out = OutgoingMessage::raw(subject, Headers::new(), payload).msg_id(format!("id-{number}"));
        bus.publish(out).await.expect("stored");
    }
    // A gap: a restore must keep the sequences, not count again.
    assert!(bus.delete_message(streams::RECEIPTS, 7).await.expect("deleted"));
}

#[tokio::test]
async fn a_restored_stream_has_the_same_messages_at_the_same_sequences_and_times() {
    let (_from, bus) = world().await;
    filled(&bus).await;
    let mut file = Vec::new();
    let mut head = bus
        .write_snapshot(streams::RECEIPTS, &mut file)
        .await
        .expect("a snapshot");

    assert_eq!(
        (head.position().first, head.position().last, head.position().messages),
        (1, 50, 49)
    );

    let (_to, other) = world().await;
    let taken = other
        .restore_stream(streams::RECEIPTS, &head, &mut Cursor::new(&file))
        .await;

    assert!(
        matches!(taken, Err(SnapshotError::Refused { .. })),
        "it exists: {taken:?}"
    );
    assert!(other.delete_stream(streams::RECEIPTS).await.expect("deleted"));
    assert!(!other.delete_stream(streams::RECEIPTS).await.expect("looked for"));

    head.config["metadata"] = json!({ "nexus_test": "another" });
    let state = other
        .restore_stream(streams::RECEIPTS, &head, &mut Cursor::new(&file))
        .await;

    assert_eq!(state.expect("restored").last, 50);

    for sequence in 1..=50 {
        let (was, is) = (
            bus.next_on_subject(streams::RECEIPTS, ">", sequence)
                .await
                .expect("asked"),
            other
                .next_on_subject(streams::RECEIPTS, ">", sequence)
                .await
                .expect("asked"),
        );

        assert_eq!(was, is, "{sequence}");
    }

    let again = other
        .write_snapshot(streams::RECEIPTS, &mut Vec::new())
        .await
        .expect("a snapshot");
    assert_eq!(again.config["metadata"]["nexus_test"], "another");
    assert!(
        other
            .find_drift(&crate::wire::topology::topology(1))
            .await
            .expect("asked")
            .is_empty()
    );
}

#[tokio::test]
async fn consumers_come_with_their_stream() {
    let (_from, bus) = world().await;
    let mut file = Vec::new();
    let head = bus
        .write_snapshot(streams::CLAIMS, &mut file)
        .await
        .expect("a snapshot");
    let server = crate::testing::nats::NatsServer::start().await;
    let other = connect_to(&server.url(), "empty").await;
    assert!(other.stream_names().await.expect("listed").is_empty());

    other
        .restore_stream(streams::CLAIMS, &head, &mut Cursor::new(&file))
        .await
        .expect("restored");
    assert_eq!(other.stream_names().await.expect("listed"), [streams::CLAIMS]);

    for part in 0..SESSION_PARTS {
        let lag = other.consumer_lag(streams::CLAIMS, &claims_consumer(part)).await;
        lag.expect("its consumers are there");
    }
}

#[tokio::test]
async fn what_is_no_snapshot_is_refused() {
    let (_server, bus) = world().await;
    let nobody = bus.write_snapshot("NOBODY", &mut Vec::new()).await;
    assert!(matches!(nobody, Err(SnapshotError::Refused { .. })), "{nobody:?}");

    let mut file = Vec::new();
    let head = bus.write_snapshot(streams::DLQ, &mut file).await.expect("a snapshot");
    bus.delete_stream(streams::DLQ).await.expect("deleted");
    let cut = file.len() / 2;
    let restored = bus
        .restore_stream(streams::DLQ, &head, &mut Cursor::new(&file[..cut]))
        .await;

    assert!(restored.is_err(), "{restored:?}");
}
