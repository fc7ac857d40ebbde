//! A compare-and-set is won by one writer, whatever the bytes are.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use shared::bus::{Bus, CasError, OutgoingMessage, PublishError};
use shared::testing::world;
use shared::wire::session_mark::GroupMember;
use shared::wire::topology::buckets;

const ASKERS: usize = 16;
const KEYS: usize = 40;

fn equal_bytes() -> GroupMember {
    GroupMember {
        instance: "everybody says the same".to_owned(),
        run: String::new(),
    }
}

async fn stored(bus: &Bus, key: &str) -> Option<u64> {
    let found = bus
        .kv::<GroupMember>(buckets::MEMBERS)
        .get(key)
        .await
        .expect("readable");
    found.map(|entry| entry.revision)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_sixteen_that_write_equal_bytes_one_wins() {
    let (_server, bus) = world().await;
    let kv = bus.kv::<GroupMember>(buckets::MEMBERS);
    for key in 0..KEYS {
        let key = format!("race-{key}");
        let first = kv.create(&key, &equal_bytes()).await.expect("free");

        let tries = join_all((0..ASKERS).map(|_| {
            let (kv, key) = (kv.clone(), key.clone());
            async move { kv.update(&key, &equal_bytes(), first).await }
        }));
        let mut winners = BTreeSet::new();
        for outcome in tries.await {
            match outcome {
                Ok(revision) => assert!(winners.insert(revision), "{key}: two have the same revision"),
                Err(error) => assert!(matches!(error, CasError::Conflict { .. }), "{key}: {error}"),
            }
        }

        assert_eq!(winners.len(), 1, "{key}");
        assert_eq!(stored(&bus, &key).await, winners.first().copied());
    }
}

#[tokio::test]
async fn a_repetition_is_recognised_by_its_attempt_and_not_by_its_bytes() {
    let (_server, bus) = world().await;
    let place = format!("$KV.{}.k", buckets::MEMBERS);
    let ours = OutgoingMessage::new(place.clone(), &equal_bytes())
        .expect_last(0)
        .repeated();
    let rival = OutgoingMessage::new(place, &equal_bytes()).expect_last(0).repeated();

    let first = bus.publish(ours.clone()).await.expect("free");
    let again = bus.publish(ours.clone()).await.expect("its answer was lost");
    assert_eq!(first.sequence, again.sequence, "stored once");

    let lost = bus.publish(rival).await.expect_err("somebody else's place");
    assert!(matches!(lost, PublishError::WrongLastSequence { .. }), "{lost}");

    let kv = bus.kv::<GroupMember>(buckets::MEMBERS);
    kv.put("k", &equal_bytes()).await.expect("stored");
    let overwritten = bus.publish(ours).await.expect_err("overwritten since");

    assert!(
        matches!(overwritten, PublishError::WrongLastSequence { .. }),
        "{overwritten}"
    );
}

#[tokio::test]
async fn a_repeated_deletion_is_recognised_and_a_rivals_is_not() {
    let (_server, bus) = world().await;
    let kv = bus.kv::<GroupMember>(buckets::MEMBERS);
    let revision = kv.create("k", &equal_bytes()).await.expect("free");
    kv.delete("k", Some(revision)).await.expect("ours");
    let late = kv
        .delete("k", Some(revision))
        .await
        .expect_err("deleted by another attempt");
    assert!(matches!(late, CasError::Conflict { .. }), "{late}");
}
