//! Albums and bursts under times and orders that the test chooses.

use proptest::prelude::*;
use serde_json::json;
use shared::model::event::{EventDirection, FROM_BOT, PlatformIds};

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

fn take(merger: &mut MessageMerger<i64>, now: i64) -> Vec<(String, Vec<String>)> {
    let ready = merger.take_ready(UnixMillis(now));
    let files = |event: &Event| {
        event
            .attachments
            .iter()
            .filter_map(|file| file.handle.clone())
            .collect()
    };
    ready
        .iter()
        .map(|ready| (ready.event.id.to_string(), files(&ready.event)))
        .collect()
}

fn told(id: i64, files: &[i64]) -> (String, Vec<String>) {
    let files = files.iter().map(|file| format!("f{file}")).collect();
    (format!("telegram:main/5/{id}"), files)
}

#[test]
fn an_album_is_one_event_once_nothing_more_comes() {
    let mut merger = merger(WAITS, &[]);
    merger.push(CHAT, 12, event(12, Some("a")), UnixMillis(0));
    merger.push(CHAT, 11, event(11, Some("a")), UnixMillis(900));
    assert_eq!(take(&mut merger, 1_899), []);
    assert_eq!(
        (first_waiting(&merger), merger.next_due()),
        (Some(11), Some(UnixMillis(1_900)))
    );

    let ready = merger.take_ready(UnixMillis(1_900));
    let [album] = ready.as_slice() else { panic!("{ready:?}") };
    assert_eq!(album.event.id.as_str(), "telegram:main/5/11");
    assert_eq!(album.event.content, "c11\nc12");
    assert_eq!(album.event.content_types, ["image", "text"]);
    let ids = PlatformIds::from_event(&album.event).expect("ids").ids;
    assert_eq!(ids, ["5/11", "5/12"]);
    assert_eq!(album.event.metadata["raw"].as_array().map(Vec::len), Some(2));
    assert_eq!(album.decision.as_ref().expect("it is decided").messages, [11, 12]);
    assert_eq!((first_waiting(&merger), merger.next_due()), (None, None));
}

#[test]
fn what_follows_an_album_in_its_chat_waits_and_another_chat_does_not() {
    let mut merger = merger(WAITS, &[]);
    let mut other = event(30, None);
    other.peer.id = "6".to_owned();
    merger.push(CHAT, 11, event(11, Some("a")), UnixMillis(0));
    merger.push(CHAT, 12, event(12, None), UnixMillis(1));
    merger.push("6", 30, other, UnixMillis(2));
    assert_eq!(take(&mut merger, 3), [told(30, &[30])]);
    assert!(holds(&merger, 11) && holds(&merger, 12) && !holds(&merger, 30));
    assert_eq!(take(&mut merger, 1_000), [told(11, &[11]), told(12, &[12])]);
}

#[test]
fn an_album_that_keeps_growing_is_closed_in_the_end() {
    let mut merger = merger(WAITS, &[]);
    for number in 0..8 {
        merger.push(CHAT, number, event(number + 1, Some("a")), UnixMillis(number * 900));
        let ready = take(&mut merger, number * 900);
        assert_eq!(ready.len(), usize::from(number == 6), "at {number}");
    }
}

#[test]
fn after_a_crash_an_album_has_the_messages_that_were_decided() {
    let mut merger = merger(WAITS, &[decided("a", &[11, 12])]);
    for id in [11, 12, 13] {
        merger.push(CHAT, id, event(id, Some("a")), UnixMillis(0));
    }

    // The message that came too late is an event of its own, as before the crash.
    assert_eq!(take(&mut merger, 0), [told(11, &[11, 12])]);
    assert_eq!(take(&mut merger, 1_000), [told(13, &[13])]);
}

#[test]
fn the_rest_of_an_album_that_was_stored_before_a_crash_is_no_second_event() {
    let stored = MergeDecision {
        is_stored: true,
        ..decided("a", &[11, 12])
    };
    let mut merger = merger(WAITS, &[stored]);
    assert!(!merger.push(CHAT, 12, event(12, Some("a")), UnixMillis(0)));
    assert_eq!(take(&mut merger, 1_000), []);
    assert_eq!(first_waiting(&merger), None);
}

/// The updates of the events that may be published at `now`, each once an event.
fn take_keys(merger: &mut MessageMerger<i64>, now: i64) -> Vec<i64> {
    let ready = merger.take_ready(UnixMillis(now)).into_iter();
    let keys = ready.flat_map(|mut ready| {
        ready.keys.sort_unstable();
        ready.keys.dedup();
        ready.keys
    });
    keys.collect()
}

proptest! {
    #[test]
    fn every_update_leaves_once_whatever_comes_twice_or_in_another_order(
        order in prop::collection::vec((0_i64..6, 0_i64..600), 1..40)
    ) {
        let mut merger = merger(WAITS, &[]);
        let mut left: Vec<i64> = Vec::new();
        let mut now = 0;
        let mut pushed: Vec<i64> = Vec::new();
        for (id, later) in order {
            now += later;
            // Updates that were published are not handed over again before they are confirmed.
            if left.contains(&id) || (holds(&merger, id) && id < 2) {
                continue;
            }
            pushed.push(id);
            // Messages 2 to 5 are an album.
            merger.push(CHAT, id, event(id + 1, (id >= 2).then_some("a")), UnixMillis(now));
            left.extend(take_keys(&mut merger, now));
        }
        left.extend(take_keys(&mut merger, now + 10 * WAITS.album_ms));

        pushed.sort_unstable();
        pushed.dedup();
        left.sort_unstable();
        prop_assert_eq!(left, pushed);
        prop_assert_eq!(first_waiting(&merger), None);
    }
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
fn texts_of_one_person_behind_each_other_are_one_event() {
    let mut merger = merger(BURSTS, &[]);
    merger.push(CHAT, 1, text(1, 7), UnixMillis(0));
    assert_eq!(contents(&mut merger, 1_999), [""; 0]);
    merger.push(CHAT, 2, text(2, 7), UnixMillis(1_999));
    assert_eq!(contents(&mut merger, 3_998), [""; 0]);
    assert_eq!(first_waiting(&merger), Some(1));

    let ready = merger.take_ready(UnixMillis(3_999));
    let [burst] = ready.as_slice() else { panic!("{ready:?}") };
    assert_eq!(
        (burst.event.content.as_str(), burst.keys.as_slice()),
        ("t1\nt2", &[1, 2][..])
    );
    assert_eq!(burst.event.id.as_str(), "telegram:main/5/1");
    let decision = burst.decision.as_ref().expect("it is decided");
    assert_eq!(
        (decision.name.as_str(), decision.messages.as_slice()),
        ("burst/1", &[1, 2][..])
    );
}

#[test]
fn what_comes_between_ends_a_burst_and_the_chat_keeps_its_order() {
    let mut merger = merger(BURSTS, &[]);
    merger.push(CHAT, 1, text(1, 7), UnixMillis(0));
    merger.push(CHAT, 2, text(2, 8), UnixMillis(1));
    merger.push(CHAT, 3, text(3, 7), UnixMillis(2));
    let mut answer = text(4, 7);
    answer.reply_to = Some("telegram:main/5/1".to_owned());
    merger.push(CHAT, 4, answer, UnixMillis(3));
    let mut edit = text(4, 7);
    edit.direction = EventDirection::Updated;
    merger.push(CHAT, 5, edit, UnixMillis(4));
    merger.push(CHAT, 6, event(6, Some("a")), UnixMillis(5));
    assert_eq!(contents(&mut merger, 2_003), ["t1", "t2", "t3", "t4", "t4", "c6"]);
}

#[test]
fn what_a_program_or_somebody_under_another_name_writes_is_in_no_burst_of_a_person() {
    let changes: [fn(&mut Event); 3] = [
        |event| event.add_tag(FROM_BOT),
        |event| event.from.display_name = Some("Ann".to_owned()),
        |event| event.from.roles.push("admin".to_owned()),
    ];
    for change in changes {
        let mut merger = merger(BURSTS, &[]);
        let mut other = text(2, 7);
        change(&mut other);
        merger.push(CHAT, 1, text(1, 7), UnixMillis(0));
        merger.push(CHAT, 2, other, UnixMillis(1));
        merger.push(CHAT, 3, text(3, 7), UnixMillis(2));
        assert_eq!(contents(&mut merger, 5_000), ["t1", "t2", "t3"]);
    }
}

#[test]
fn a_burst_has_no_more_text_than_an_event_can_carry() {
    let mut merger = merger(BURSTS, &[]);
    for id in 1..=3 {
        let mut long = text(id, 7);
        long.content = "x".repeat(MAX_BURST_BYTES / 2);
        merger.push(CHAT, id, long, UnixMillis(0));
    }
    let sizes: Vec<usize> = contents(&mut merger, 5_000).iter().map(String::len).collect();
    assert_eq!(sizes, [MAX_BURST_BYTES + 1, MAX_BURST_BYTES / 2]);
}

#[test]
fn a_command_and_the_decision_of_an_approval_are_events_of_their_own() {
    for words in ["approve K7Q2-M9PX", "Deny K7Q2-M9PX", "/new"] {
        let mut merger = merger(BURSTS, &[]);
        let mut decision = text(2, 7);
        decision.content = words.to_owned();
        merger.push(CHAT, 1, text(1, 7), UnixMillis(0));
        merger.push(CHAT, 2, decision, UnixMillis(1));
        merger.push(CHAT, 3, text(3, 7), UnixMillis(2));
        assert_eq!(contents(&mut merger, 5_000), ["t1", words, "t3"]);
    }
}

#[test]
fn a_burst_that_keeps_growing_is_closed_in_the_end() {
    let mut merger = merger(BURSTS, &[]);
    for number in 0..30 {
        merger.push(CHAT, number, text(number + 1, 7), UnixMillis(number));
    }
    let ready = merger.take_ready(UnixMillis(5_000));
    let sizes: Vec<usize> = ready.iter().map(|ready| ready.keys.len()).collect();
    assert_eq!(sizes, [MAX_BURST, 10]);
}

#[test]
fn after_a_crash_a_burst_has_the_messages_that_were_decided() {
    let mut merger = merger(BURSTS, &[decided("burst/1", &[1, 2]), decided("burst/3", &[3])]);
    for id in 1..=4 {
        merger.push(CHAT, id, text(id, 7), UnixMillis(0));
    }
    // A late text is an event of its own: those before may be stored, and the repetition of theirs is read by nobody.
    assert_eq!(contents(&mut merger, 0), ["t1\nt2", "t3"]);
    assert_eq!(contents(&mut merger, 2_000), ["t4"]);
}

#[test]
fn what_is_stored_comes_no_second_time_and_nothing_is_merged_with_it() {
    let mut merger = merger(BURSTS, &[]);
    merger.push(CHAT, 1, text(1, 7), UnixMillis(0));
    merger.push(CHAT, 2, text(2, 7), UnixMillis(1));
    let ready = merger.take_ready(UnixMillis(2_001));
    let decisions: Vec<MergeDecision> = ready.into_iter().filter_map(|ready| ready.decision).collect();
    merger.note_stored(&decisions);

    for id in [1, 2] {
        assert!(!merger.push(CHAT, 10 + id, text(id, 7), UnixMillis(2_500)));
    }
    merger.push(CHAT, 13, text(3, 7), UnixMillis(2_500));
    assert_eq!(contents(&mut merger, 4_500), ["t3"]);
}

#[test]
fn what_was_decided_and_does_not_come_whole_is_decided_anew() {
    let mut merger = merger(BURSTS, &[decided("burst/1", &[1, 2])]);
    merger.push(CHAT, 2, text(2, 7), UnixMillis(0));
    merger.push(CHAT, 3, text(3, 7), UnixMillis(0));
    assert_eq!(contents(&mut merger, REBUILD_MS - 1), [""; 0]);

    let ready = merger.take_ready(UnixMillis(REBUILD_MS));
    let messages: Vec<Vec<i64>> = ready
        .iter()
        .filter_map(|ready| Some(ready.decision.as_ref()?.messages.clone()))
        .collect();
    assert_eq!(messages, [[2], [3]]);
    // The first one is lost to no decision of before.
    merger.push(CHAT, 1, text(1, 7), UnixMillis(REBUILD_MS));
    assert_eq!(contents(&mut merger, REBUILD_MS + 2_000), ["t1"]);
}

#[test]
fn texts_that_may_be_stored_alone_are_not_merged_where_numbers_ascend() {
    let memory = MergeMemory {
        until: Some(2),
        decided: Vec::new(),
    };
    let mut merger = MessageMerger::new(BURSTS, memory);
    for id in 1..=4 {
        merger.push(CHAT, id, text(id, 7), UnixMillis(0));
    }
    assert_eq!(contents(&mut merger, 0), ["t1", "t2"]);
    assert_eq!(contents(&mut merger, 2_000), ["t3\nt4"]);

    let stored = merger.to_stored();
    assert_eq!(stored.until, Some(4));
    assert_eq!(stored.decided, [decided("burst/3", &[3, 4])]);
    assert!(MergeMemory::default().is_empty() && !stored.is_empty());
    // An older memory lets what was stored since then come again, and nothing is merged with that.
    assert_eq!(stored.clone().with_ascending_numbers(9).until, Some(9));
    assert_eq!(stored.with_ascending_numbers(3).until, Some(4));

    // Without `debounce_ms` nothing is noted, so that the next start with it begins anew.
    let memory = MergeMemory::default().with_ascending_numbers(9);
    assert!(MessageMerger::<i64>::new(WAITS, memory).to_stored().is_empty());
}

#[test]
fn texts_of_before_are_not_merged_unless_that_was_decided() {
    let waits = MergeWaits {
        alone_until: UnixMillis(10_000),
        ..BURSTS
    };
    let mut merger = merger(waits, &[decided("burst/1", &[1, 2])]);
    for id in 1..=6 {
        let mut text = text(id, 7);
        text.timestamp = UnixMillis(if id <= 4 { 10_000 } else { 11_000 });
        merger.push(CHAT, id, text, UnixMillis(0));
    }
    assert_eq!(contents(&mut merger, 0), ["t1\nt2", "t3", "t4"]);
    assert_eq!(contents(&mut merger, 2_000), ["t5\nt6"]);
}

#[test]
fn no_more_is_decided_than_is_taken_and_nothing_is_left() {
    let mut merger = merger(BURSTS, &[]);
    for id in 1..=5_i64 {
        merger.push(&id.to_string(), id, text(id, 7), UnixMillis(0));
        merger.push(&id.to_string(), id + 10, text(id + 10, 7), UnixMillis(0));
    }
    let mut taken = Vec::new();
    while !merger.is_empty() {
        let ready = merger.take_some_ready(UnixMillis(60_000), 2);
        taken.push(ready.len());
        assert_eq!(merger.to_stored().decided.len(), taken.iter().sum::<usize>());
    }
    assert_eq!(taken, [2, 2, 1]);
}

#[test]
fn texts_that_come_late_are_events_of_their_own() {
    let mut merger = merger(BURSTS, &[]);
    for id in 1..=4 {
        merger.note_alone_until(UnixMillis(if id <= 2 { 9_000 } else { 10_000 }));
        let mut text = text(id, 7);
        text.timestamp = UnixMillis(10_000);
        merger.push(CHAT, id, text, UnixMillis(0));
    }
    assert_eq!(contents(&mut merger, 2_000), ["t1\nt2", "t3", "t4"]);
}

#[test]
fn decisions_that_are_forgotten_leave_how_far_they_went() {
    let memory = MergeMemory::default().with_ascending_numbers(0);
    let mut merger = MessageMerger::new(BURSTS, memory);
    let count = i64::try_from(MAX_REMEMBERED).expect("small") + 1;
    for id in 1..=count {
        // Two persons take turns.
        merger.push(CHAT, id, text(id, 7 + id % 2), UnixMillis(0));
    }
    assert_eq!(merger.take_ready(UnixMillis(2_000)).len(), MAX_REMEMBERED + 1);
    assert_eq!(merger.memory.until, Some(1));

    // The forgotten one may be stored, so that nothing is merged with it.
    merger.push(CHAT, 1, text(1, 7), UnixMillis(3_000));
    merger.push(CHAT, count + 1, text(count + 1, 7), UnixMillis(3_000));
    assert_eq!(contents(&mut merger, 3_000), ["t1"]);
    assert!(merger.to_stored().decided.is_empty(), "each is of one message");
}

#[test]
fn a_page_of_a_history_has_no_stored_text_and_merges_what_was_decided() {
    let stored = MergeDecision {
        is_stored: true,
        ..decided("burst/1", &[1, 2])
    };
    let memory = MergeMemory {
        until: Some(4),
        decided: vec![stored, decided("burst/3", &[3, 4])],
    };
    let mut merger: MessageMerger<i64> = MessageMerger::new(BURSTS, memory);
    let page = (1..=5).map(|id| text(id, 7)).collect();
    let (events, decisions) = merger.merge_page(CHAT, page);
    let found: Vec<&str> = events.iter().map(|event| event.content.as_str()).collect();
    assert_eq!(found, ["t3\nt4", "t5"]);
    assert_eq!(decisions, [decided("burst/3", &[3, 4])]);

    // What the page had comes from the socket too.
    merger.note_stored(&decisions);
    assert!(!merger.push(CHAT, 4, text(4, 7), UnixMillis(0)));
    merger.push(CHAT, 5, text(5, 7), UnixMillis(0));
    merger.push(CHAT, 6, text(6, 7), UnixMillis(0));
    assert_eq!(contents(&mut merger, 0), ["t5"]);
}

#[test]
fn a_burst_ends_with_what_follows_and_where_nothing_more_is_awaited() {
    let mut merger = merger(BURSTS, &[]);
    merger.push(CHAT, 1, text(1, 7), UnixMillis(5));
    let mut command = text(2, 7);
    command.content = "/stop".to_owned();
    merger.push(CHAT, 2, command, UnixMillis(6));
    assert_eq!(contents(&mut merger, 6), ["t1", "/stop"]);

    merger.push(CHAT, 3, text(3, 7), UnixMillis(6));
    assert_eq!(
        (merger.waiting_since(), merger.is_empty()),
        (Some(UnixMillis(6)), false)
    );
    merger.close(CHAT);
    assert_eq!(contents(&mut merger, 6), ["t3"]);
    merger.push(CHAT, 4, text(4, 7), UnixMillis(6));
    merger.close_all();
    assert_eq!(contents(&mut merger, 6), ["t4"]);

    // The clock was set back.
    merger.push(CHAT, 5, text(5, 7), UnixMillis(6));
    assert_eq!(contents(&mut merger, 5), ["t5"]);
    assert!(merger.is_empty());
}

#[test]
fn what_was_decided_is_awaited_when_nothing_else_is() {
    let mut merger = merger(BURSTS, &[decided("burst/1", &[1, 2])]);
    merger.push(CHAT, 1, text(1, 7), UnixMillis(0));
    merger.push("6", 8, text(8, 7), UnixMillis(0));
    merger.close_growing();
    assert_eq!(contents(&mut merger, 0), ["t8"]);
    merger.push(CHAT, 2, text(2, 7), UnixMillis(9));
    assert_eq!(contents(&mut merger, 9), ["t1\nt2"]);
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

#[test]
fn answers_to_one_message_are_one_event_and_a_message_may_be_handed_over_twice() {
    let mut merger = merger(BURSTS, &[]);
    let answer = |id: i64| {
        let mut answer = text(id, 7);
        answer.reply_to = Some("telegram:main/5/1".to_owned());
        answer
    };
    merger.push(CHAT, 2, answer(2), UnixMillis(0));
    merger.push(CHAT, 3, answer(3), UnixMillis(0));
    assert!(merger.push(CHAT, 9, answer(2), UnixMillis(0)));
    let ready = merger.take_ready(UnixMillis(2_000));
    let [burst] = ready.as_slice() else { panic!("{ready:?}") };
    assert_eq!(
        (burst.event.content.as_str(), burst.keys.as_slice()),
        ("t2\nt3", &[2, 3, 9][..])
    );
}
