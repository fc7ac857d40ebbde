//! Messages at the places of the running turn's dispatches.

use std::sync::Arc;

use shared::model::session::QueueMode;

use super::{NOW, State, arrived, journal, message, told};
use crate::ledger::state::SessionState;
use crate::session::{PendingDispatch, SessionInput, SessionQueue};

#[test]
fn another_message_at_the_place_of_the_running_turns_dispatch_gets_its_turn() {
    let fold = SessionState {
        running: journal(State::Running),
        ..SessionState::default()
    };
    let place = fold.running.as_ref().expect("a turn").dispatches[0].sequence;
    let mut machine = SessionQueue::new(&fold, Arc::default());

    // The stream was restored, and its lost dispatches were made again in another order.
    let moved = PendingDispatch {
        sequence: place,
        ..message(9, QueueMode::Followup)
    };
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
    assert!(machine.still_own([place]).is_empty());
    assert_eq!(
        told(&machine.handle(SessionInput::TurnEnded, NOW)),
        [format!("start {place}")]
    );
}
