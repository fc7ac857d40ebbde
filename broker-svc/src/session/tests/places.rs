//! Dispatches that are lost and made again, and copies of dispatches that are not done.

use std::sync::Arc;

use shared::model::ledger::{LedgerCursor, LedgerEntry};
use shared::model::order::OrderKind;
use shared::model::session::QueueMode;

use super::{NOW, State, arrived, journal, message, order_to, told};
use crate::ledger::state::{SessionState, advance_cursor};
use crate::session::{DropReason, PendingDispatch, SessionInput, SessionQueue};

/// Returns the state of a session whose owner is gone and whose turn, of message 1 at sequence 1, runs.
fn running() -> SessionState {
    SessionState {
        running: journal(State::Running),
        ..SessionState::default()
    }
}

/// Returns message `number`, stored at `sequence`.
fn at(sequence: u64, number: u64) -> PendingDispatch {
    PendingDispatch {
        sequence,
        ..message(number, QueueMode::Followup)
    }
}

#[test]
fn another_message_at_the_place_of_the_running_turns_dispatch_gets_its_turn() {
    let fold = running();
    let place = fold.running.as_ref().expect("a turn").dispatches[0].sequence;
    let mut machine = SessionQueue::new(&fold, Arc::default());

    // The stream was restored, and its lost dispatches were made again in another order.
    let moved = at(place, 9);
    assert!(machine.handle(arrived(vec![moved.clone()]), NOW).is_empty());
    assert!(
        machine.handle(arrived(vec![moved]), NOW).is_empty(),
        "the same message again"
    );

    assert_eq!(
        machine.lowest_open(&[]),
        Some(place),
        "it is not consumed with the turn"
    );
    assert!(machine.own_sequences().is_empty());
    assert_eq!(
        told(&machine.handle(SessionInput::TurnEnded, NOW)),
        [format!("start {place}")]
    );
}

/// The turn's dispatch is made again at a lower sequence than it had (the stream was created again) or at a higher one (it
/// was emptied).
#[test]
fn a_turn_whose_dispatch_was_made_again_keeps_its_session_open_until_it_is_over() {
    for place in [1, 3, 40] {
        let mut fold = running();
        fold.running.as_mut().expect("a turn").dispatches[0].sequence = 7;
        let mut machine = SessionQueue::new(&fold, Arc::default());
        assert!(machine.own_sequences().is_empty(), "it was not read yet");

        assert!(machine.handle(arrived(vec![at(place, 1)]), NOW).is_empty());
        assert_eq!(machine.lowest_open(&[]), Some(place), "at {place}");
        assert_eq!(machine.own_sequences(), [place]);

        // Whatever is recorded meanwhile, the cursor does not pass it.
        let cursor = advance_cursor(
            &LedgerCursor::default(),
            place + 1,
            place + 1,
            machine.lowest_open(&[place + 1]),
        );
        assert!(!cursor.contains(place), "{cursor:?}");

        assert!(machine.handle(SessionInput::TurnEnded, NOW).is_empty());
        assert_eq!(machine.lowest_open(&[]), None);
    }
}

#[test]
fn a_dispatch_that_the_owner_found_itself_is_not_handed_in_again() {
    let mut machine = SessionQueue::new(&running(), Arc::default());
    machine.note_found(&[at(30, 1)]);
    assert_eq!(machine.own_sequences(), [30]);
    assert!(machine.handle(arrived(vec![at(30, 1)]), NOW).is_empty());
    assert!(machine.handle(SessionInput::TurnEnded, NOW).is_empty());
}

#[test]
fn a_copy_is_dropped_after_the_dispatch_that_runs_waits_or_joins_and_of_several_the_newest_is_kept() {
    let mut machine = SessionQueue::default();
    assert_eq!(told(&machine.handle(arrived(vec![at(1, 1)]), NOW)), ["start 1"]);
    let behind = vec![at(2, 2), message(3, QueueMode::Steer)];
    assert!(machine.handle(arrived(behind), NOW).is_empty());

    let copies = vec![at(11, 1), at(12, 2), at(13, 3)];
    assert!(machine.handle(arrived(copies), NOW).is_empty());
    assert_eq!(
        told(&machine.handle(arrived(vec![at(21, 1)]), NOW)),
        ["drop 11 duplicate"]
    );
    assert_eq!(machine.take_steering().len(), 1, "it joins the turn");
    assert!(machine.is_open(at(13, 3).dispatch.id));

    let mut ended = told(&machine.handle(SessionInput::TurnEnded, NOW));
    ended[..2].sort();
    assert_eq!(ended, ["drop 13 duplicate", "drop 21 duplicate", "start 2"]);
    assert_eq!(
        told(&machine.handle(order_to(30, OrderKind::Abort), NOW)),
        ["cancel", "carry abort"]
    );
    assert_eq!(
        told(&machine.handle(SessionInput::TurnEnded, NOW)),
        ["drop 12 duplicate"]
    );
    assert_eq!(machine.lowest_open(&[]), None);
}

/// An owner that is killed after it dropped a copy leaves the waiting dispatch to the next one.
#[test]
fn a_dropped_copy_does_not_keep_the_waiting_dispatch_from_its_turn() {
    for reason in [DropReason::Duplicate, DropReason::Repeated] {
        let mut fold = SessionState::default();
        fold.apply_entry(&LedgerEntry::DispatchDropped {
            dispatch: at(12, 2).dispatch_ref(),
            reason,
            detail: None,
            cursor: LedgerCursor::default(),
        });

        let mut machine = SessionQueue::new(&fold, Arc::default());
        assert_eq!(
            told(&machine.handle(arrived(vec![at(2, 2)]), NOW)),
            ["start 2"],
            "{reason:?}"
        );
    }
}

#[test]
fn a_dispatch_whose_turn_was_given_up_because_it_was_lost_is_new_when_it_comes() {
    let mut fold = running();
    let turn = fold.running.clone().expect("a turn");
    let mut machine = SessionQueue::new(&fold, Arc::default());
    fold.apply_entry(&LedgerEntry::TurnInterrupted {
        turn: turn.turn,
        reason: "lost".to_owned(),
        partial: String::new(),
        cursor: LedgerCursor::default(),
    });
    fold.apply_entry(&LedgerEntry::DispatchDropped {
        dispatch: turn.dispatches[0].clone(),
        reason: DropReason::Lost,
        detail: None,
        cursor: LedgerCursor::default(),
    });
    machine.forget_ids(&[turn.dispatches[0].id]);
    assert!(machine.handle(SessionInput::TurnEnded, NOW).is_empty());

    for mut machine in [machine, SessionQueue::new(&fold, Arc::default())] {
        assert_eq!(told(&machine.handle(arrived(vec![at(50, 1)]), NOW)), ["start 50"]);
    }
}
