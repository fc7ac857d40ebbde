//! Albums and bursts under times and orders that the test chooses.

mod albums;
mod bursts;
mod decisions;

use serde_json::json;

use super::*;
use crate::source::telegram::BotAccount;
use crate::source::telegram::normalize::update_events;

/// The chat of all messages.
const CHAT: &str = "5";

const WAITS: MergeWaits = MergeWaits {
    album_ms: 1_000,
    burst_ms: 0,
    burst_most_ms: 0,
    alone_until: UnixMillis(0),
};

/// The same with bursts.
const BURSTS: MergeWaits = MergeWaits {
    burst_ms: 2_000,
    burst_most_ms: 10_000,
    ..WAITS
};

/// Returns a merger that decided `decided` before, as one of Telegram, whose updates have numbers.
fn merger(waits: MergeWaits, decided: &[MergeDecision]) -> MessageMerger<i64> {
    let memory = MergeMemory {
        until: None,
        decided: decided.to_vec(),
    };
    MessageMerger::new(waits, memory)
}

/// Returns the decision that `messages` are the album or burst `name`.
fn decided(name: &str, messages: &[i64]) -> MergeDecision {
    MergeDecision {
        place: CHAT.to_owned(),
        name: name.to_owned(),
        messages: messages.to_vec(),
        is_stored: false,
    }
}

/// Returns the lowest number of the updates that wait.
fn first_waiting(merger: &MessageMerger<i64>) -> Option<i64> {
    merger.keys().copied().min()
}

fn holds(merger: &MessageMerger<i64>, update: i64) -> bool {
    merger.keys().any(|waiting| *waiting == update)
}

fn account() -> BotAccount {
    BotAccount {
        name: "main".to_owned(),
        bot_id: 77,
        username: "nexusbot".to_owned(),
    }
}

/// The event of message `id` in chat 5, of `album` if it has one.
fn event(id: i64, album: Option<&str>) -> Event {
    let mut message = json!({
        "message_id": id, "date": 10, "from": {"id": 5}, "chat": {"id": 5, "type": "private"}, "caption": format!("c{id}"),
        "photo": [{"file_id": format!("f{id}"), "file_unique_id": format!("u{id}"), "width": 1, "height": 1}],
    });
    if let Some(album) = album {
        message["media_group_id"] = json!(album);
    }

    let raw = json!({"update_id": id, "message": message});
    let mut events = update_events(&account(), &raw, UnixMillis(20_000)).expect("an event");
    events.remove(0)
}

/// The event of the text `id` of user `from` in group 5.
fn text(id: i64, from: i64) -> Event {
    let message = json!({
        "message_id": id, "date": 10, "from": {"id": from}, "chat": {"id": 5, "type": "group"}, "text": format!("t{id}"),
    });
    let raw = json!({"update_id": id, "message": message});
    update_events(&account(), &raw, UnixMillis(20_000))
        .expect("an event")
        .remove(0)
}

/// The contents of the events that may be published at `now`.
fn contents(merger: &mut MessageMerger<i64>, now: i64) -> Vec<String> {
    let ready = merger.take_ready(UnixMillis(now));
    ready.into_iter().map(|ready| ready.event.content).collect()
}

#[test]
fn everything_is_stored_up_to_the_oldest_that_waits() {
    let mut merger = merger(BURSTS, &[]);
    let complete = |merger: &MessageMerger<i64>, now: i64| merger.complete_until(UnixMillis(now)).0;
    assert_eq!(complete(&merger, 60_000), 60_000);

    // The album holds back what follows it.
    let mut older = text(2, 7);
    older.timestamp = UnixMillis(9_000);
    merger.push(CHAT, 1, event(1, Some("a")), UnixMillis(0));
    merger.push(CHAT, 2, older, UnixMillis(0));
    assert_eq!((complete(&merger, 60_000), complete(&merger, 5_000)), (8_999, 5_000));
    assert_eq!(contents(&mut merger, 1_000), ["c1"]);
    assert_eq!(contents(&mut merger, 2_000), ["t2"]);
    assert_eq!(complete(&merger, 60_000), 60_000);
}
