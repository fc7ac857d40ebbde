//! Sessions and threads, as scripts query them.

use super::Case;
use super::samples::{answered, completed, event, ledger, started, stored, turn};
use crate::model::ledger::LedgerEntry;

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
