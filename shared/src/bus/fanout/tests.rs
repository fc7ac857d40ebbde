use bytes::Bytes;
use futures_util::FutureExt as _;

use super::*;
use crate::model::time::UnixMillis;
use crate::wire::headers::Headers;

fn message(sequence: u64, partition: u16, pending: u64) -> IncomingMessage {
    IncomingMessage {
        subject: format!("nexus.ev.{partition}.webchat.default.p"),
        headers: Headers::new(),
        payload: Bytes::from_static(b"1"),
        sequence,
        consumer_sequence: sequence,
        delivered: 1,
        published_at: UnixMillis(0),
        stored_at_ns: 0,
        pending,
        stream: "EVENTS".to_owned(),
        event: Arc::default(),
        acker: MessageAcker::Floor(Arc::default()),
    }
}

fn heard(taken: &mut TakenSubjects) -> Vec<u64> {
    let waiting = std::iter::from_fn(|| taken.messages.try_recv().ok());
    waiting.map(|(incoming, _)| incoming.sequence).collect()
}

#[tokio::test]
async fn whoever_takes_a_partition_is_passed_its_messages_from_then_on() {
    let tap = StreamTap::default();
    assert!(tap.take(1, &Arc::default()).is_none(), "nobody reads");

    let passing = tap.begin_behind(10, true);
    passing.pass_on(&message(11, 1, 0)).await;
    let mut one = tap.take(1, &Arc::default()).expect("somebody reads");

    assert_eq!(one.from, 11);

    passing.pass_on(&message(12, 2, 0)).await;
    passing.pass_on(&message(13, 1, 0)).await;
    let mut again = tap.take(1, &Arc::default()).expect("somebody reads");

    assert_eq!(again.from, 13);

    passing.pass_on(&message(14, 1, 0)).await;
    assert_eq!(heard(&mut one), [13]);
    assert!(one.next().await.is_none(), "the partition was taken again");
    assert_eq!(heard(&mut again), [14]);

    drop(passing);
    assert!(again.next().await.is_none(), "nobody reads any more");
    assert!(!tap.keeps_up());
}

#[tokio::test]
async fn a_reader_far_from_the_end_passes_on_nothing() {
    let tap = StreamTap::default();
    let passing = tap.begin_behind(0, false);
    passing.pass_on(&message(1, 1, NEAR + 1)).await;
    assert!(tap.take(1, &Arc::default()).is_none());
    passing.pass_on(&message(2, 1, NEAR)).await;
    assert_eq!(tap.take(1, &Arc::default()).expect("near").from, 2);
}

#[tokio::test]
async fn one_that_falls_behind_alone_is_let_go_after_what_it_has() {
    let tap = StreamTap::default();
    let passing = tap.begin_behind(0, true);
    let mut slow = tap.take(1, &Arc::default()).expect("taken");
    let mut others: Vec<TakenSubjects> = (2..10).map(|n| tap.take(n, &Arc::default()).expect("taken")).collect();

    for sequence in 1..=ROOM as u64 + 2 {
        passing.pass_on(&message(sequence, 1, 0)).await;
    }

    passing.pass_on(&message(ROOM as u64 + 3, 2, 0)).await;
    let through = ROOM as u64;
    assert_eq!(heard(&mut slow), (1..=through).collect::<Vec<_>>());
    assert!(slow.next().await.is_none(), "what comes next is in the stream alone");
    assert_eq!(heard(&mut others[0]), [through + 3]);
}

#[tokio::test]
async fn the_reader_waits_where_everybody_is_behind() {
    let tap = StreamTap::default();
    let passing = tap.begin_behind(0, true);
    let mut only = tap.take(1, &Arc::default()).expect("taken");

    for sequence in 1..=ROOM as u64 {
        passing.pass_on(&message(sequence, 1, 0)).await;
    }

    let last = message(ROOM as u64 + 1, 1, 0);
    let (mut waiting, mut first) = (Box::pin(passing.pass_on(&last)), Box::pin(only.next()));
    assert!((&mut waiting).now_or_never().is_none());
    assert_eq!((&mut first).await.expect("the first").sequence, 1);

    waiting.await;
    drop(first);
    assert_eq!(heard(&mut only).last(), Some(&last.sequence), "nothing was left out");
}

#[tokio::test]
async fn what_is_too_much_to_keep_is_left_to_the_stream() {
    let tap = StreamTap::default();
    let passing = tap.begin_behind(0, true);
    let mut one = tap.take(1, &Arc::default()).expect("taken");
    let large = IncomingMessage {
        payload: Bytes::from(vec![0; ROOM_KIB * 1024 / 2]),
        ..message(1, 1, 0)
    };

    passing.pass_on(&large).await;
    passing
        .pass_on(&IncomingMessage {
            sequence: 2,
            ..large.copy_for(MessageAcker::Floor(Arc::default()))
        })
        .await;

    assert_eq!(heard(&mut one), [1]);
    assert!(one.next().await.is_none());
}
