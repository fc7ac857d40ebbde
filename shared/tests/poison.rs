//! What cannot be read: it is not written where we write, and stands for nothing where it is found.

use std::time::Duration;

use bytes::Bytes;
use shared::bus::ledger::{self, AppendLedgerError};
use shared::bus::{Bus, CasError, KvEvent, OutgoingMessage, PublishError, claim};
use shared::model::ledger::{AppendId, LedgerEntry, LedgerRecord};
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::testing::nats::publish_by_hand;
use shared::testing::world;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::{Headers, TraceCarrier};
use shared::wire::session_mark::SettledFloor;
use shared::wire::topology::{buckets, streams};

#[tokio::test]
async fn a_record_that_nobody_could_read_is_not_appended() {
    let (_server, bus) = world().await;
    let session = SessionRef {
        persona: "default".to_owned(),
        session: "main".to_owned(),
    };

    let record = |bytes: usize| LedgerRecord {
        append: AppendId {
            broker: "b".to_owned(),
            epoch: 1,
            counter: 1,
        },
        at: UnixMillis(1),
        held_ms: 0,
        entries: vec![LedgerEntry::SessionReset {
            reason: "x".repeat(bytes),
        }],
    };

    let append = async |bytes| ledger::append(&bus, &session, &record(bytes), 0, &TraceCarrier::default()).await;
    let refused = append(4 * 1_024 * 1_024).await.expect_err("too large");
    assert!(
        matches!(
            refused,
            AppendLedgerError::Refused {
                source: PublishError::TooLarge { .. },
                ..
            }
        ),
        "{refused}"
    );

    append(1_000).await.expect("nothing stands before it");
    assert_eq!(ledger::read_after(&bus, &session, 0).await.expect("readable").len(), 1);
}

#[tokio::test]
async fn a_value_that_cannot_be_read_counts_as_none_and_is_overwritten_at_its_revision() {
    let (_server, bus) = world().await;
    let kv = bus.kv::<SettledFloor>(buckets::SESSION_CHECKPOINTS);
    assert_eq!(kv.find("k").await.expect("asked"), (None, 0));

    let subject = format!("$KV.{}.k", buckets::SESSION_CHECKPOINTS);
    let garbage = OutgoingMessage::raw(subject, Headers::new(), Bytes::from_static(b"\xff"));
    let poisoned = bus.publish(garbage).await.expect("stored").sequence;

    assert_eq!(kv.find("k").await.expect("asked"), (None, poisoned));

    let floor = SettledFloor {
        sequence: 7,
        position: None,
    };
    let early = kv.update("k", &floor, 0).await;
    assert!(matches!(early, Err(CasError::Conflict { .. })), "{early:?}");

    let revision = kv.update("k", &floor, poisoned).await.expect("overwritten");
    assert_eq!(kv.find("k").await.expect("asked"), (Some(floor), revision));

    kv.delete("k", None).await.expect("deleted");
    let (value, marker) = kv.find("k").await.expect("asked");
    assert!(value.is_none() && marker > revision);
}

/// How long a poisoned reader may take to go on: three lost connections, a look, and a machine that is busy.
const HEALED: Duration = Duration::from_secs(60);

/// The dead letter of the message that was the last of `stream`.
async fn letter(bus: &Bus, stream: &str, sequence: u64) -> DeadLetter {
    let mut letters = bus.read_ordered(streams::DLQ, &[], 1).await.expect("readable");
    loop {
        let letter: DeadLetter = letters.next().await.decode().expect("a letter");
        if (letter.stream.as_str(), letter.sequence) == (stream, sequence) {
            return letter;
        }
    }
}

async fn in_time<T>(what: &str, waited: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(HEALED, waited).await;
    waited.unwrap_or_else(|_| panic!("not in time: {what}"))
}

fn good(subject: &str) -> OutgoingMessage {
    OutgoingMessage::raw(subject.to_owned(), Headers::new(), Bytes::from_static(b"good"))
}

#[tokio::test]
async fn headers_that_no_client_can_read_cost_nobody_what_comes_after() {
    let (server, bus) = world().await;
    let subject = "nexus.dispatch.5.default.main";
    for block in [
        &b"NATS/1.0\r\nno colon here\r\n\r\n"[..],
        b"NATS/1.0\r\nOld: \xff\xfe\r\nKept: yes\r\n\r\n",
    ] {
        let first = bus.publish(good(subject)).await.expect("stored").sequence;
        publish_by_hand(&server.url(), subject, block, b"the \0 payload").await;
        let last = bus.publish(good(subject)).await.expect("stored").sequence;

        assert_eq!(last, first + 2);

        let mut reader = bus
            .read_ordered(streams::DISPATCHES, &[], first)
            .await
            .expect("readable");
        let read = in_time("the reader goes on", async {
            [reader.next().await.sequence, reader.next().await.sequence]
        });

        assert_eq!(read.await, [first, last]);

        let letter = in_time("the dead letter", letter(&bus, streams::DISPATCHES, first + 1)).await;
        assert_eq!(letter.payload_bytes().as_deref(), Some(&b"the \0 payload"[..]));
        assert_eq!(
            (letter.reason.as_str(), letter.subject.as_str()),
            ("unreadable_headers", subject)
        );
    }
}

#[tokio::test]
async fn a_durable_consumer_and_a_watch_go_on_behind_what_cannot_be_read() {
    let (server, bus) = world().await;
    let block = b"NATS/1.0\r\nno colon here\r\n\r\n";
    bus.publish(good("nexus.claim.5.default.a")).await.expect("stored");
    publish_by_hand(&server.url(), "nexus.claim.5.default.b", block, b"x").await;
    bus.publish(good("nexus.claim.5.default.c")).await.expect("stored");
    let mut pull = claim::pull(&bus, 5, 10);

    let taken = in_time("the consumer goes on", async {
        let first = pull.next().await;
        first.ack().await;
        let last = pull.next().await;
        last.ack().await;
        (first.sequence, last.sequence)
    });

    assert_eq!(taken.await, (1, 3));

    let kv = bus.kv::<SettledFloor>(buckets::SESSION_CHECKPOINTS);
    let mut watch = kv.watch_all();
    assert_eq!(watch.next().await, KvEvent::Current);

    publish_by_hand(
        &server.url(),
        &format!("$KV.{}.bad", buckets::SESSION_CHECKPOINTS),
        block,
        b"x",
    )
    .await;

    let value = SettledFloor {
        sequence: 7,
        position: None,
    };
    kv.put("good", &value).await.expect("stored");
    let told = async {
        loop {
            match watch.next().await {
                KvEvent::Put { key, .. } => return key,
                KvEvent::Gone { key, .. } => assert_eq!(key, "bad"),
                other @ (KvEvent::Bad { .. } | KvEvent::Anew | KvEvent::Current) => panic!("{other:?}"),
            }
        }
    };

    assert_eq!(in_time("the watch goes on", told).await, "good");
}

#[tokio::test]
async fn a_message_that_ends_the_clients_task_is_gone_for_the_next_process() {
    let (server, bus) = world().await;
    let subject = "nexus.dispatch.5.default.main";
    publish_by_hand(&server.url(), subject, b"NATS/1.0\r\na: b\rc\r\n\r\n", b"x").await;
    let last = bus.publish(good(subject)).await.expect("stored").sequence;
    let struck = shared::testing::connect_to(&server.url(), "struck").await;
    let mut reader = struck
        .read_ordered(streams::DISPATCHES, &[], 1)
        .await
        .expect("readable");
    let letter = async {
        tokio::select! {
            _ = reader.next() => panic!("the client reads it now: the sentry is needed no more for this"),
            letter = letter(&bus, streams::DISPATCHES, 1) => letter,
        }
    };

    let letter = in_time("the dead letter", Box::pin(letter)).await;
    assert_eq!(letter.payload_bytes().as_deref(), Some(&b"x"[..]));

    let again = shared::testing::connect_to(&server.url(), "again").await;
    let mut reader = again.read_ordered(streams::DISPATCHES, &[], 1).await.expect("readable");
    let read = in_time("the next process reads on", reader.next()).await;

    assert_eq!(read.sequence, last);
}
