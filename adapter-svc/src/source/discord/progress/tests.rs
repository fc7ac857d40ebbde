use shared::wire::watermark::SourceWatermark;

use super::*;

const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

fn session(seq: u64) -> GatewaySession {
    GatewaySession {
        id: "s".to_owned(),
        resume_url: "wss://r".to_owned(),
        seq,
    }
}

fn id(millis: i64) -> u64 {
    first_id_at(NOW.plus(millis))
}

/// The channel whose history is read behind that of `last`, and the id from which on.
fn next_pending(progress: &DiscordProgress, last: Option<&str>) -> Option<(String, u64)> {
    let next = progress.pending_after(last).next();
    next.map(|(channel, after)| (channel.clone(), after))
}

/// The progress that a process finds which starts at `now`, if `before` was written.
fn restart(before: &mut DiscordProgress, token: &str, now: UnixMillis) -> DiscordProgress {
    let SourcePosition {
        of,
        position,
        complete_until,
    } = before.make_position(now);
    let by = "run".to_owned();
    let from = SourceWatermark {
        of,
        position,
        complete_until,
        by,
    };
    DiscordProgress::resume("77", token, Some(&from), now)
}

#[test]
fn a_first_start_replays_nothing_and_misses_nothing() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    assert_eq!(progress.begin_session(session(0), &["g".to_owned()], NOW), None);
    progress.note_listed("g", "c", Some(id(-1)), 0);
    progress.note_listed("g", "quiet", None, 0);
    progress.note_listed("unknown", "d", Some(id(5)), 0);
    assert_eq!(next_pending(&progress, None), None);
}

#[test]
fn a_lost_session_is_a_gap_whose_messages_are_read() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    progress.begin_session(session(0), &["g".to_owned()], NOW);
    progress.note_message("c", id(1_000));
    progress.note_message("c", id(500));
    progress.note_message("dm", id(2_000));
    progress.note_message("busy", id(25_000));
    progress.note_complete(NOW.plus(30_000));

    let later = NOW.plus(100_000);
    let mut progress = restart(&mut progress, "t", later);
    assert_eq!(progress.position.session, Some(session(0)));
    let gap = progress
        .begin_session(session(1), &["g".to_owned(), "new".to_owned()], later)
        .expect("a gap");
    assert_eq!((gap.from, gap.to), (NOW.plus(30_000), later));

    // A channel without news is not asked; one that is in no list is.
    progress.note_listed("g", "c", Some(id(1_000)), 0);
    // Beside the newest one of a busy channel another one may have been on its way.
    progress.note_listed("g", "busy", Some(id(25_000)), 0);
    progress.note_listed("g", "silent", Some(id(-50)), 0);
    progress.note_listed("g", "loud", Some(id(50_000)), 0);
    progress.note_listed("new", "old", Some(id(60_000)), 0);
    let pending: Vec<&str> = progress.position.pending.keys().map(String::as_str).collect();
    assert_eq!(pending, ["busy", "dm", "loud"]);
    assert_eq!(progress.position.pending["dm"], id(-8_000));
    assert_eq!(progress.position.pending["loud"], id(0));
}

#[test]
fn a_crash_before_the_gap_of_a_lost_session_is_stored_tells_it_later() {
    let resume = |position: SourcePosition| {
        let from = SourceWatermark {
            of: position.of,
            position: position.position,
            complete_until: position.complete_until,
            by: "run".to_owned(),
        };
        DiscordProgress::resume("77", "t", Some(&from), NOW.plus(90_000))
    };
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    assert_eq!(progress.start_session(session(3), &[], NOW).gap, None);
    progress.note_message("c", id(1_000));

    let before = progress.make_position(NOW.plus(90_000));
    let start = progress.start_session(session(8), &[], NOW.plus(90_000));
    let gap = start.gap.expect("a gap");
    let mut before = resume(before);
    assert_eq!(before.position.session, Some(session(3)), "the session that is over");
    assert_eq!(before.position.pending.len(), 0);
    let again = before.start_session(session(9), &[], NOW.plus(90_000));
    assert_eq!(again.gap, Some(gap.clone()));

    let after = resume(start.after);
    assert_eq!(
        (after.position.session, after.complete_until),
        (Some(session(8)), gap.to)
    );
    assert_eq!(after.position.pending["c"], id(-9_000));
}

#[test]
fn what_comes_while_a_history_is_read_does_not_hide_the_rest_of_it() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    progress.begin_session(session(0), &[], NOW);
    progress.note_message("dm", id(1_000));
    progress.begin_session(session(0), &[], NOW.plus(90_000));
    progress.note_message("dm", id(99_000));
    progress.note_page("dm", id(-9_000), Some(id(40_000)));
    progress.note_complete(NOW.plus(99_000));

    // A crash: another process goes on with the history, whether or not the session is resumed.
    let mut progress = restart(&mut progress, "t", NOW.plus(100_000));
    assert_eq!(next_pending(&progress, None), Some(("dm".to_owned(), id(40_000))));
    assert!(
        progress
            .begin_session(session(2), &[], NOW.plus(100_000))
            .expect("a gap")
            .from
            < NOW.plus(90_000)
    );
    assert_eq!(next_pending(&progress, None), Some(("dm".to_owned(), id(-9_000))));

    progress.note_page("dm", id(-9_000), Some(id(99_000)));
    progress.note_page("dm", id(99_000), None);
    assert_eq!(
        (next_pending(&progress, None), progress.position.channels["dm"]),
        (None, id(99_000))
    );
    progress.note_page("dm", id(99_000), None);
}

#[test]
fn a_history_that_is_still_to_be_read_stays_so_whatever_the_next_session_lists() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    let guilds = ["g".to_owned()];
    progress.begin_session(session(0), &guilds, NOW);
    progress.note_message("c", id(1_000));
    progress.note_complete(NOW.plus(2_000));

    // One that was written before the newest one may be on its way when the session ends: the history has it. The next
    // session ends before that is read, and so does this process.
    progress.start_session(session(1), &guilds, NOW.plus(90_000));
    let mut same = progress.clone();
    let mut other = restart(&mut progress, "t", NOW.plus(95_000));
    for progress in [&mut same, &mut other] {
        progress.start_session(session(2), &guilds, NOW.plus(99_000));
        progress.note_listed("g", "c", Some(id(1_000)), 0);
        assert_eq!(next_pending(progress, None), Some(("c".to_owned(), id(-9_000))));
    }
    // As if the session had not ended.
    let mut resumed = restart(&mut same, "t", NOW.plus(100_000));
    resumed.note_listed("g", "c", Some(id(1_000)), 0);
    assert_eq!(next_pending(&resumed, None), Some(("c".to_owned(), id(-9_000))));

    // Once it is read, the list says enough.
    resumed.note_page("c", id(-9_000), Some(id(1_000)));
    resumed.note_page("c", id(1_000), None);
    resumed.note_complete(NOW.plus(101_000));
    resumed.start_session(session(3), &guilds, NOW.plus(200_000));
    resumed.note_listed("g", "c", Some(id(1_000)), 0);
    assert_eq!(next_pending(&resumed, None), None);
}

#[test]
fn a_new_token_keeps_the_channels_and_another_bot_nothing() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    progress.begin_session(session(5), &[], NOW);
    progress.note_message("c", id(1));
    let renewed = restart(&mut progress, "other", NOW);
    assert_eq!((renewed.position.session, renewed.position.channels.len()), (None, 1));

    let SourcePosition { of, position, .. } = progress.make_position(NOW);
    let from = SourceWatermark {
        of,
        position,
        complete_until: NOW,
        by: String::new(),
    };
    let other = DiscordProgress::resume("7", "t", Some(&from), NOW);
    assert_eq!(other.position, DiscordPosition::default());
    let strange = SourceWatermark {
        position: serde_json::json!({"session": 5}),
        ..from
    };
    assert!(DiscordProgress::resume("77", "t", Some(&strange), NOW).is_first);
}

#[test]
fn many_channels_keep_the_newest_marks_and_lose_no_message() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    progress.begin_session(session(0), &["g".to_owned()], NOW);
    for number in 0..1_500 {
        progress.note_message(&format!("c{number}"), id(1_000 * (1 + number)));
    }
    assert_eq!(progress.position.channels.len(), 1_000);
    progress.begin_session(session(1), &["g".to_owned()], NOW.plus(2_000_000));
    // The mark of `c5` is gone, and the floor of its guild is not above the first message that is missing.
    progress.note_listed("g", "c5", Some(id(1_600_000)), 0);
    assert!(progress.position.pending["c5"] <= id(1_600_000));
    progress.note_listed("g", "c6", Some(id(7_000)), 0);
    assert!(!progress.position.pending.contains_key("c6"));
}

#[test]
fn a_channel_that_cannot_be_read_is_told_and_forgotten() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    progress.begin_session(session(0), &[], NOW);
    progress.note_message("c", id(0));
    progress.begin_session(session(1), &[], NOW.plus(5));
    let (channel, after) = next_pending(&progress, None).expect("pending");
    let gap = progress
        .give_up_channel(&channel, after, "error 403: Missing Access", NOW.plus(5))
        .expect("a gap");
    assert_eq!((gap.from, gap.to), (NOW.plus(-OVERLAP_MS), NOW.plus(5)));
    assert_eq!(
        (next_pending(&progress, None), progress.position.channels.len()),
        (None, 0)
    );
    progress.enter_guild("g", NOW);
    progress.leave_guild("g");
    assert!(progress.position.guilds.is_empty());
}

#[test]
fn histories_are_read_in_turn() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    for channel in ["a", "b", "c"] {
        progress.position.pending.insert(channel.to_owned(), 1);
    }
    let mut last: Option<String> = None;
    let mut order = String::new();
    for _ in 0..5 {
        let (channel, _) = next_pending(&progress, last.as_deref()).expect("pending");
        order.push_str(&channel);
        last = Some(channel);
    }
    assert_eq!(order, "abcab");
}

#[test]
fn a_channel_that_was_never_read_is_hidden_without_a_gap_until_the_rights_change() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    progress.begin_session(session(0), &["g".to_owned()], NOW);
    progress.note_listed("g", "secret", Some(id(5)), 7);
    let (channel, after) = next_pending(&progress, None).expect("pending");
    assert_eq!(
        progress.give_up_channel(&channel, after, "error 403", NOW.plus(9)),
        None
    );
    progress.hide_channel(&channel, 7);

    // Other sessions, and other processes, do not ask for it again with the same rights.
    let mut progress = restart(&mut progress, "t", NOW.plus(10));
    progress.begin_session(session(1), &["g".to_owned()], NOW.plus(10));
    progress.note_listed("g", "secret", Some(id(50)), 7);
    assert_eq!(next_pending(&progress, None), None);

    // They do with others, and after the vendor has said that they changed.
    let mut changed = progress.clone();
    changed.note_listed("g", "secret", Some(id(50)), 8);
    assert!(next_pending(&changed, None).is_some());
    for forgotten in [Some("secret"), None] {
        let mut changed = progress.clone();
        changed.forget_hidden(forgotten);
        changed.note_listed("g", "secret", Some(id(50)), 7);
        assert!(next_pending(&changed, None).is_some(), "{forgotten:?}");
    }
}

#[test]
fn histories_beyond_the_bound_are_one_gap_a_session() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    progress.begin_session(session(0), &["g".to_owned()], NOW);
    progress.note_complete(NOW.plus(1));
    progress.begin_session(session(1), &["g".to_owned()], NOW.plus(90_000));
    for number in 0..MAX_PENDING {
        progress.note_listed("g", &format!("c{number}"), Some(id(5)), 0);
    }
    assert_eq!(progress.take_left_out(NOW.plus(90_000)), None);
    for number in 0..5 {
        progress.note_listed("g", &format!("d{number}"), Some(id(5)), 0);
    }
    assert_eq!(progress.position.pending.len(), MAX_PENDING);
    let gap = progress.take_left_out(NOW.plus(90_000)).expect("a gap");
    assert_eq!((gap.from, gap.to), (NOW.plus(1), NOW.plus(90_000)));
    progress.leave_to_history("another", id(6));
    assert_eq!(progress.take_left_out(NOW.plus(90_000)), None, "it is told once");
}

#[test]
fn what_is_left_to_a_history_is_read_whatever_page_is_on_its_way() {
    let mut progress = DiscordProgress::resume("77", "t", None, NOW);
    progress.begin_session(session(0), &[], NOW);
    progress.leave_to_history("c", id(60_000));
    assert_eq!(next_pending(&progress, None), Some(("c".to_owned(), id(50_000))));
    // An earlier one comes while the page is read: it is behind the page's beginning.
    progress.leave_to_history("c", id(30_000));
    progress.note_page("c", id(50_000), Some(id(70_000)));
    assert_eq!(next_pending(&progress, None), Some(("c".to_owned(), id(20_000))));
    progress.note_page("c", id(20_000), Some(id(70_000)));
    progress.note_page("c", id(70_000), None);
    assert_eq!(progress.position.channels["c"], id(70_000));
}

#[test]
fn a_position_is_compacted_in_the_same_way_each_time_until_nothing_is_left() {
    let make = || {
        let mut progress = DiscordProgress::resume("77", "t", None, NOW);
        progress.begin_session(session(0), &["g".to_owned()], NOW);
        for number in 0..100 {
            progress.note_message(&format!("c{number}"), id(1_000 * (1 + number)));
            progress.leave_to_history(&format!("d{number}"), id(5));
        }
        progress.hide_channel("h", 1);
        progress
    };
    let (mut one, mut other) = (make(), make());
    let mut sizes = Vec::new();
    while one.compact() {
        assert!(other.compact());
        assert_eq!(one.position, other.position);
        sizes.push(one.make_position(NOW).position.to_string().len());
    }
    assert!(sizes.windows(2).all(|pair| pair[1] < pair[0]), "{sizes:?}");
    // A mark that goes raises its guild's floor to its own id, and never above one that is kept.
    assert_eq!(one.position.guilds["g"], id(100_000));
    assert!(one.position.channels.is_empty() && one.position.pending.is_empty());
    assert!(one.take_left_out(NOW).is_some());
}
