//! Sessions and threads, as scripts query them.

use super::Case;
use super::samples::{answered, at, completed, event, ledger, started, stored, turn};
use crate::model::event::{Event, EventDirection};
use crate::model::ledger::LedgerEntry;
use crate::projection::api::{HistoryRequest, MAX_THREAD_EXCERPT, ThreadsRequest, own_thread};

fn answered_by(n: u64, name: Option<&str>) -> LedgerEntry {
    let mut entry = answered(n);
    if let LedgerEntry::ModelAnswered { model, .. } = &mut entry {
        *model = name.map(str::to_owned);
    }
    entry
}

#[tokio::test]
async fn a_session_has_its_model_and_the_turn_that_the_next_one_follows() {
    let of = |n: u64, model| vec![started(n), answered_by(n, model), completed(n)];
    let case = Case::with(vec![ledger(1, of(1, Some("m-1"))), ledger(2, of(2, None))]).await;
    let session = "SELECT model || ' ' || coalesce(head_turn_id, 'none') FROM agent_sessions";

    assert_eq!(case.value::<String>(session), format!("m-1 {}", turn(2)));

    let begun = vec![started(3), answered_by(3, Some("m-2"))];
    case.projection.apply(vec![ledger(3, begun)]).await.unwrap();
    assert_eq!(
        case.value::<String>(session),
        format!("m-2 {}", turn(2)),
        "it has not ended"
    );

    let reset = LedgerEntry::SessionReset {
        reason: "asked".to_owned(),
    };
    case.projection.apply(vec![ledger(4, vec![reset])]).await.unwrap();
    assert_eq!(case.value::<String>(session), "m-2 none");
}

#[tokio::test]
async fn every_conversation_is_a_thread_and_its_events_name_it() {
    let mut named = event(2);
    named.thread_id = Some("t-1".to_owned());
    let case = Case::with(vec![stored(1, event(1)), stored(2, named)]).await;
    let threads = "SELECT group_concat(id, ' ') FROM (SELECT id FROM threads ORDER BY id)";
    let (channel, peer) = (event(1).channel, event(1).peer.id);
    let own = format!("{channel}:default:{peer}");
    let mut expected = ["t-1".to_owned(), own.clone()];
    expected.sort();

    assert_eq!(case.value::<String>(threads), expected.join(" "));

    let joined = "SELECT count(*) FROM events e JOIN threads t ON t.id = e.thread_id AND t.channel = e.channel";
    assert_eq!(case.value::<i64>(joined), 2);

    let of_first = "SELECT thread_id FROM events ORDER BY sequence LIMIT 1";
    assert_eq!(case.value::<String>(of_first), own);
}

/// The event `n` of `peer`, in `thread`.
fn said(n: u64, peer: &str, thread: Option<&str>) -> Event {
    let mut event = event(n);
    event.channel = "webchat".to_owned();
    event.peer.id = peer.to_owned();
    event.thread_id = thread.map(str::to_owned);
    event
}

#[tokio::test]
async fn the_threads_of_a_conversation_are_listed_and_no_others() {
    let answer = Event {
        direction: EventDirection::Sent,
        content: "an answer".to_owned(),
        ..said(2, "ann", Some("7f"))
    };
    let long = Event {
        content: "ä".repeat(400),
        ..said(3, "ann", Some("7f"))
    };
    let deleted = Event {
        direction: EventDirection::Deleted,
        ..said(5, "ann", Some("gone"))
    };
    let events = [
        said(1, "ann", None),
        answer,
        long,
        said(4, "bob", Some("7f")),
        deleted,
        said(6, "ann", Some("b2")),
        said(7, "ann", None),
    ];
    let stored: Vec<_> = (1..).zip(events).map(|(n, event)| stored(n, event)).collect();
    let case = Case::with(stored).await;

    let mut request = ThreadsRequest {
        channel: "webchat".to_owned(),
        account: "default".to_owned(),
        peer: "ann".to_owned(),
        limit: None,
    };
    let listed = case.projection.threads(request.clone()).await.unwrap().threads;
    let rows: Vec<_> = listed
        .iter()
        .map(|row| (row.thread.as_str(), row.excerpt.as_str(), row.began_at, row.last_at))
        .collect();

    let own = own_thread("webchat", "default", "ann");
    let excerpt = "ä".repeat(MAX_THREAD_EXCERPT / 2);
    let expected = [
        (own.as_str(), "hello number 1", at(1), at(7)),
        ("b2", "hello number 6", at(6), at(6)),
        ("7f", excerpt.as_str(), at(2), at(3)),
    ];
    assert_eq!(rows, expected, "the one that was written in last comes first");

    request.limit = Some(1);
    assert_eq!(case.projection.threads(request.clone()).await.unwrap().threads.len(), 1);

    request.peer = "carl".to_owned();
    assert_eq!(case.projection.threads(request).await.unwrap().threads, []);

    let history = async |peer: &str, thread: &str| {
        let request = HistoryRequest {
            channel: "webchat".to_owned(),
            account: "default".to_owned(),
            peer: peer.to_owned(),
            thread: Some(thread.to_owned()),
            before: None,
            limit: None,
        };
        let reply = case.projection.history(request).await.unwrap();
        reply.events.iter().map(|event| event.sequence).collect::<Vec<_>>()
    };
    assert_eq!(history("ann", &own).await, [1, 7]);
    assert_eq!(history("ann", "7f").await, [2, 3]);
    assert_eq!(history("bob", "7f").await, [4], "a thread belongs to one conversation");
    assert_eq!(history("bob", &own).await, [0; 0]);
}
