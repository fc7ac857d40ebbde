//! Files of messages in the object store of a real server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use shared::attachments::{AttachmentStore, KEPT, SweptFiles};
use shared::bus::{Bus, OutgoingMessage, StoreObjectError};
use shared::clock::{Clock as _, SystemClock};
use shared::model::time::UnixMillis;
use shared::testing::{ManualClock, eventually, world};
use shared::wire::headers::Headers;
use shared::wire::topology::topology;

/// Age from which pieces that nothing names are removed, and from which a file that is used again is written again.
const UNFINISHED_AFTER: Duration = Duration::from_secs(3_600);
const WRITE_AGAIN_AFTER: Duration = Duration::from_secs(24 * 3_600);

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).expect("small")
}

/// A store that lives `ahead` of the server's time.
fn store_at(bus: &Bus, ahead: Duration) -> AttachmentStore {
    let now = SystemClock.now().plus(millis(ahead));
    AttachmentStore::new(bus, Arc::new(ManualClock::at(now)))
}

async fn messages(bus: &Bus) -> u64 {
    let state = bus.stream_state("OBJ_attachments").await;
    state.expect("asked").messages
}

#[tokio::test]
async fn a_file_is_stored_once_and_comes_back() {
    let (_server, bus) = world().await;
    let store = store_at(&bus, Duration::ZERO);
    for size in [0, 1, 128 * 1024, 128 * 1024 + 1, 1 << 20] {
        let bytes = Bytes::from(vec![u8::try_from(size % 251).expect("small"); size]);
        let hash = store.store(bytes.clone()).await.expect("stored");
        let before = messages(&bus).await;
        assert_eq!(store.store(bytes.clone()).await.expect("known"), hash);
        assert_eq!(messages(&bus).await, before, "nothing was written again");

        let size = u64::try_from(size).expect("small");
        let read = store.load(&hash, size).await.expect("asked");
        assert_eq!(read.as_deref(), Some(bytes.as_ref()), "{size}");
        if size > 0 {
            assert_eq!(store.load(&hash, size - 1).await.expect("asked"), None);
        }
    }
    assert_eq!(store.load(&"0".repeat(64), 1 << 30).await.expect("asked"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_at_once_leave_one_whole_file() {
    let (_server, bus) = world().await;
    let bytes = Bytes::from(vec![7; 300_000]);
    let writers = (0..8).map(|_| {
        let (store, bytes) = (store_at(&bus, Duration::ZERO), bytes.clone());
        tokio::spawn(async move { store.store(bytes).await })
    });
    let hashes = futures_util::future::join_all(writers).await;
    let hashes: Vec<String> = hashes
        .into_iter()
        .map(|hash| hash.expect("it ended").expect("stored"))
        .collect();
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");

    let store = store_at(&bus, Duration::ZERO);
    let read = store.load(&hashes[0], 1 << 20).await.expect("asked");
    assert_eq!(read.as_deref(), Some(bytes.as_ref()));

    // Those who were overtaken left their pieces, which nothing names.
    let swept = store_at(&bus, 2 * UNFINISHED_AFTER).sweep().await.expect("swept");
    assert_eq!(swept.expired, 0);
    assert_eq!(messages(&bus).await, 4, "three pieces and a description");
    let read = store.load(&hashes[0], 1 << 20).await.expect("asked");
    assert_eq!(read.as_deref(), Some(bytes.as_ref()));
}

#[tokio::test]
async fn what_a_killed_writer_leaves_is_swept_once_it_is_old() {
    let (_server, bus) = world().await;
    for (number, piece) in [b"one", b"two"].into_iter().enumerate() {
        let subject = "$O.attachments.C.KILLED".to_owned();
        let out = OutgoingMessage::raw(subject, Headers::new(), Bytes::from_static(piece));
        bus.publish(out.msg_id(format!("k-{number}"))).await.expect("stored");
    }
    let store = store_at(&bus, Duration::ZERO);
    let kept = store.store(Bytes::from_static(b"whole")).await.expect("stored");

    assert_eq!(store.sweep().await.expect("swept"), SweptFiles::default());
    assert_eq!(messages(&bus).await, 4, "another writer may be at it");

    let swept = store_at(&bus, 2 * UNFINISHED_AFTER).sweep().await.expect("swept");
    assert_eq!((swept.expired, swept.unfinished), (0, 1));
    assert_eq!(store.load(&kept, 5).await.expect("asked"), Some(b"whole".to_vec()));
}

#[tokio::test]
async fn a_file_that_is_used_again_is_kept_anew() {
    let (_server, bus) = world().await;
    let now = store_at(&bus, Duration::ZERO);
    let used = now.store(Bytes::from_static(b"used")).await.expect("stored");
    let unused = now.store(Bytes::from_static(b"unused")).await.expect("stored");

    // Two days later it is written again; to the server, that is now.
    let before = bus
        .objects("attachments")
        .find(&used)
        .await
        .expect("asked")
        .expect("there");
    let later = store_at(&bus, 2 * WRITE_AGAIN_AFTER);
    assert_eq!(later.store(Bytes::from_static(b"used")).await.expect("stored"), used);
    let after = bus
        .objects("attachments")
        .find(&used)
        .await
        .expect("asked")
        .expect("there");
    assert!(after.stored_at >= before.stored_at);
    assert_eq!(messages(&bus).await, 4, "the former pieces are gone");

    // Both may be of the same millisecond.
    let other = bus.objects("attachments").find(&unused).await;
    let other = other.expect("asked").expect("there");
    let long_after = after.stored_at.plus(millis(KEPT));
    let at = |now: UnixMillis| AttachmentStore::new(&bus, Arc::new(ManualClock::at(now)));
    let swept = at(long_after).sweep().await.expect("swept");
    assert_eq!(swept.expired, usize::from(after.stored_at > other.stored_at));
    assert_eq!(
        at(long_after).load(&used, 9).await.expect("asked"),
        Some(b"used".to_vec())
    );

    let swept = at(long_after.plus(1)).sweep().await.expect("swept");
    assert!(swept.expired >= 1, "{swept:?}");
    for hash in [used, unused] {
        assert_eq!(now.load(&hash, 9).await.expect("asked"), None);
    }
    assert_eq!(messages(&bus).await, 0);
}

#[tokio::test]
async fn a_full_bucket_says_so_and_keeps_no_piece() {
    let (_server, bus) = world().await;
    let mut small = topology(1);
    let spec = small.streams.iter_mut().find(|spec| spec.name == "OBJ_attachments");
    spec.expect("the bucket").max_bytes = 10_000;
    bus.ensure_topology(&small, true).await.expect("changed");

    let store = store_at(&bus, Duration::ZERO);
    let first = store.store(Bytes::from(vec![1; 6_000])).await.expect("stored");
    let refused = store.store(Bytes::from(vec![2; 6_000])).await;
    assert!(matches!(refused, Err(StoreObjectError::Full { .. })), "{refused:?}");
    assert_eq!(store.space().await.expect("asked").max, Some(10_000));
    assert_eq!(messages(&bus).await, 2);

    // What is there needs no room.
    assert_eq!(store.store(Bytes::from(vec![1; 6_000])).await.expect("known"), first);
}

#[tokio::test]
async fn a_damaged_file_is_an_error() {
    let (_server, bus) = world().await;
    let store = store_at(&bus, Duration::ZERO);
    let hash = store.store(Bytes::from(vec![1; 200_000])).await.expect("stored");
    assert!(bus.delete_message("OBJ_attachments", 1).await.expect("deleted"));
    let read = store.load(&hash, 1 << 20).await;
    assert!(matches!(read, Err(StoreObjectError::Bucket { .. })), "{read:?}");
}

#[tokio::test]
async fn other_bytes_under_a_hash_are_an_error() {
    let (_server, bus) = world().await;
    let store = store_at(&bus, Duration::ZERO);
    let hash = store.store(Bytes::from_static(b"own")).await.expect("stored");
    let objects = bus.objects("attachments");
    objects
        .write(&hash, Bytes::from_static(b"foreign"))
        .await
        .expect("written");
    let read = store.load(&hash, 1 << 20).await;
    assert!(matches!(read, Err(StoreObjectError::Bucket { .. })), "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_is_dropped_leaves_no_piece() {
    let (_server, bus) = world().await;
    let store = store_at(&bus, Duration::ZERO);
    let begun = async {
        while messages(&bus).await == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        stored = store.store(Bytes::from(vec![3; 32 << 20])) => panic!("{stored:?}"),
        () = begun => {}
    }
    eventually("its pieces are gone", async || messages(&bus).await == 0).await;
}

#[tokio::test]
async fn a_description_that_cannot_be_read_stops_no_sweep() {
    let (_server, bus) = world().await;
    for subject in ["$O.attachments.M.odd", "$O.attachments.C.KILLED"] {
        let out = OutgoingMessage::raw(subject.to_owned(), Headers::new(), Bytes::from_static(b"{"));
        bus.publish(out).await.expect("stored");
    }
    let swept = store_at(&bus, 2 * UNFINISHED_AFTER).sweep().await.expect("swept");
    assert_eq!((swept.expired, swept.unfinished), (0, 1));
    let swept = store_at(&bus, KEPT + UNFINISHED_AFTER).sweep().await.expect("swept");
    assert_eq!((swept.expired, messages(&bus).await), (1, 0));
}
