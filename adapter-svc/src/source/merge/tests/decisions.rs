//! Earlier decisions about bursts: merged as they were, stored once, and forgotten in time.

use super::*;

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
fn what_was_decided_and_does_not_come_whole_is_decided_again() {
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
fn what_was_decided_is_awaited_when_nothing_else_is() {
    let mut merger = merger(BURSTS, &[decided("burst/1", &[1, 2])]);
    merger.push(CHAT, 1, text(1, 7), UnixMillis(0));
    merger.push("6", 8, text(8, 7), UnixMillis(0));
    merger.close_growing();
    assert_eq!(contents(&mut merger, 0), ["t8"]);
    merger.push(CHAT, 2, text(2, 7), UnixMillis(9));
    assert_eq!(contents(&mut merger, 9), ["t1\nt2"]);
}
