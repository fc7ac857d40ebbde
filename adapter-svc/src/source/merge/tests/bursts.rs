//! Bursts: which texts are in one, and what ends it.

use shared::model::event::{EventDirection, FROM_BOT};

use super::*;

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
