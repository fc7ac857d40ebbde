//! Albums under times and orders that the test chooses.

use proptest::prelude::*;
use serde_json::json;

use super::super::BotAccount;
use super::super::normalize::update_events;
use super::*;

const WAITS: MergeWaits = MergeWaits {
    album_ms: 1_000,
    burst_ms: 0,
};

/// The same with bursts.
const BURSTS: MergeWaits = MergeWaits {
    burst_ms: 2_000,
    ..WAITS
};

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

fn take(merger: &mut AlbumMerger, now: i64) -> Vec<(String, Vec<String>)> {
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
    let mut merger = AlbumMerger::new(WAITS, Vec::new());
    merger.push(12, event(12, Some("a")), UnixMillis(0));
    merger.push(11, event(11, Some("a")), UnixMillis(900));
    assert_eq!(take(&mut merger, 1_899), []);
    assert_eq!(
        (merger.first_update(), merger.next_due()),
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
    assert_eq!(album.closed.as_ref().expect("closed").messages, [11, 12]);
    assert_eq!((merger.first_update(), merger.next_due()), (None, None));
}

#[test]
fn what_follows_an_album_in_its_chat_waits_and_another_chat_does_not() {
    let mut merger = AlbumMerger::new(WAITS, Vec::new());
    let mut other = event(30, None);
    other.peer.id = "6".to_owned();
    merger.push(11, event(11, Some("a")), UnixMillis(0));
    merger.push(12, event(12, None), UnixMillis(1));
    merger.push(30, other, UnixMillis(2));
    assert_eq!(take(&mut merger, 3), [told(30, &[30])]);
    assert!(merger.holds(11) && merger.holds(12) && !merger.holds(30));
    assert_eq!(take(&mut merger, 1_000), [told(11, &[11]), told(12, &[12])]);
}

#[test]
fn an_album_that_keeps_growing_is_closed_in_the_end() {
    let mut merger = AlbumMerger::new(WAITS, Vec::new());
    for number in 0..8 {
        merger.push(number, event(number + 1, Some("a")), UnixMillis(number * 900));
        let ready = take(&mut merger, number * 900);
        assert_eq!(ready.len(), usize::from(number == 6), "at {number}");
    }
}

#[test]
fn after_a_crash_an_album_has_the_messages_that_were_decided() {
    let decided = ClosedAlbum {
        chat: "5".to_owned(),
        album: "a".to_owned(),
        messages: vec![11, 12],
    };
    let mut merger = AlbumMerger::new(WAITS, vec![decided]);
    for id in [11, 12, 13] {
        merger.push(id, event(id, Some("a")), UnixMillis(0));
    }

    // The message that came too late is an event of its own, as before the crash.
    assert_eq!(take(&mut merger, 0), [told(11, &[11, 12])]);
    assert_eq!(take(&mut merger, 1_000), [told(13, &[13])]);
}

#[test]
fn the_rest_of_an_album_that_was_published_before_a_crash_is_no_second_event() {
    let decided = ClosedAlbum {
        chat: "5".to_owned(),
        album: "a".to_owned(),
        messages: vec![11, 12],
    };
    let mut merger = AlbumMerger::new(WAITS, vec![decided]);
    // The first message was confirmed, so the event of both is stored.
    merger.push(12, event(12, Some("a")), UnixMillis(0));
    assert_eq!(take(&mut merger, 1_000), []);
    assert_eq!(merger.first_update(), None);
}

proptest! {
    #[test]
    fn every_update_leaves_once_whatever_comes_twice_or_in_another_order(
        order in prop::collection::vec((0_i64..6, 0_i64..600), 1..40)
    ) {
        let mut merger = AlbumMerger::new(WAITS, Vec::new());
        let mut left: Vec<i64> = Vec::new();
        let mut now = 0;
        let mut pushed: Vec<i64> = Vec::new();
        for (id, later) in order {
            now += later;
            // Updates that were published are not handed over again before they are confirmed.
            if left.contains(&id) || (merger.holds(id) && id < 2) {
                continue;
            }
            pushed.push(id);
            // Messages 2 to 5 are an album.
            merger.push(id, event(id + 1, (id >= 2).then_some("a")), UnixMillis(now));
            left.extend(merger.take_ready(UnixMillis(now)).into_iter().flat_map(|ready| ready.updates));
        }
        left.extend(merger.take_ready(UnixMillis(now + 10 * WAITS.album_ms)).into_iter().flat_map(|ready| ready.updates));

        pushed.sort_unstable();
        pushed.dedup();
        left.sort_unstable();
        prop_assert_eq!(left, pushed);
        prop_assert_eq!(merger.first_update(), None);
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
fn contents(merger: &mut AlbumMerger, now: i64) -> Vec<String> {
    let ready = merger.take_ready(UnixMillis(now));
    ready.into_iter().map(|ready| ready.event.content).collect()
}

#[test]
fn texts_of_one_person_behind_each_other_are_one_event() {
    let mut merger = AlbumMerger::new(BURSTS, Vec::new());
    merger.push(1, text(1, 7), UnixMillis(0));
    assert_eq!(contents(&mut merger, 1_999), [""; 0]);
    merger.push(2, text(2, 7), UnixMillis(1_999));
    assert_eq!(contents(&mut merger, 3_998), [""; 0]);
    assert_eq!(merger.first_update(), Some(1));

    let ready = merger.take_ready(UnixMillis(3_999));
    let [burst] = ready.as_slice() else { panic!("{ready:?}") };
    assert_eq!(
        (burst.event.content.as_str(), burst.updates.as_slice()),
        ("t1\nt2", &[1, 2][..])
    );
    assert_eq!(burst.event.id.as_str(), "telegram:main/5/1");
    let closed = burst.closed.as_ref().expect("it is decided");
    assert_eq!(
        (closed.album.as_str(), closed.messages.as_slice()),
        ("burst/1", &[1, 2][..])
    );
}

#[test]
fn what_comes_between_ends_a_burst_and_the_chat_keeps_its_order() {
    let mut merger = AlbumMerger::new(BURSTS, Vec::new());
    merger.push(1, text(1, 7), UnixMillis(0));
    merger.push(2, text(2, 8), UnixMillis(1));
    merger.push(3, text(3, 7), UnixMillis(2));
    let mut answer = text(4, 7);
    answer.reply_to = Some("telegram:main/5/1".to_owned());
    merger.push(4, answer, UnixMillis(3));
    let mut edit = text(4, 7);
    edit.direction = EventDirection::Updated;
    merger.push(5, edit, UnixMillis(4));
    merger.push(6, event(6, Some("a")), UnixMillis(5));
    assert_eq!(contents(&mut merger, 2_003), ["t1", "t2", "t3", "t4", "t4", "c6"]);
}

#[test]
fn a_command_and_the_decision_of_an_approval_are_events_of_their_own() {
    for words in ["approve K7Q2-M9PX", "Deny K7Q2-M9PX", "/new"] {
        let mut merger = AlbumMerger::new(BURSTS, Vec::new());
        let mut decision = text(2, 7);
        decision.content = words.to_owned();
        merger.push(1, text(1, 7), UnixMillis(0));
        merger.push(2, decision, UnixMillis(1));
        merger.push(3, text(3, 7), UnixMillis(2));
        assert_eq!(contents(&mut merger, 5_000), ["t1", words, "t3"]);
    }
}

#[test]
fn a_burst_that_keeps_growing_is_closed_in_the_end() {
    let mut merger = AlbumMerger::new(BURSTS, Vec::new());
    for number in 0..30 {
        merger.push(number, text(number + 1, 7), UnixMillis(number));
    }
    let ready = merger.take_ready(UnixMillis(5_000));
    let sizes: Vec<usize> = ready.iter().map(|ready| ready.updates.len()).collect();
    assert_eq!(sizes, [MAX_BURST, 10]);
}

#[test]
fn after_a_crash_a_burst_has_the_messages_that_were_decided() {
    let decided = |messages: &[i64]| ClosedAlbum {
        chat: "5".to_owned(),
        album: format!("burst/{}", messages[0]),
        messages: messages.to_vec(),
    };
    let mut merger = AlbumMerger::new(BURSTS, vec![decided(&[1, 2]), decided(&[3])]);
    for id in 1..=4 {
        merger.push(id, text(id, 7), UnixMillis(0));
    }
    // A late text is an event of its own: those before are stored, and the repetition of theirs is read by nobody.
    assert_eq!(contents(&mut merger, 0), ["t1\nt2", "t3"]);
    assert_eq!(contents(&mut merger, 2_000), ["t4"]);

    // The first text was confirmed, so the event of both is stored.
    let mut merger = AlbumMerger::new(BURSTS, vec![decided(&[1, 2])]);
    merger.push(2, text(2, 7), UnixMillis(0));
    assert_eq!(contents(&mut merger, 2_000), [""; 0]);
    assert_eq!(merger.first_update(), None);
}
