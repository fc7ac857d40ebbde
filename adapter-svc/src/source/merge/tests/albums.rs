//! Albums, which are complete if nothing more of them came for a while.

use proptest::prelude::*;
use shared::model::event::PlatformIds;

use super::*;

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
