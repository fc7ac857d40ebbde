mod books;
mod places;
mod queue_modes;

use shared::model::ledger::{LedgerEntry, ToolCall, TurnUsage};
use ulid::Ulid;

use shared::model::order::SessionOrder;

use super::*;
use crate::sample::{pending, session};
use crate::turn::Turn;
use crate::turn::journal::RunningTurn;
use crate::turn::steps::{StepContext, TurnStep, next};
use crate::turn::used::RecordTime;

const NOW: UnixMillis = UnixMillis(5_000);
const STAMP: RecordTime = RecordTime { at: NOW, held_ms: 0 };

fn arrived(pendings: Vec<PendingDispatch>) -> SessionInput {
    SessionInput::Arrived(pendings.into_iter().map(InboxItem::Dispatch).collect())
}

/// Returns message `number` in `mode`, at sequence `number`, arrived at [`NOW`].
fn message(number: u64, mode: QueueMode) -> PendingDispatch {
    let mut one = pending(number, number, "a", 50);
    one.arrived = NOW;
    Arc::make_mut(&mut one.dispatch).queue_mode = Some(mode);
    one
}

fn order_to(sequence: u64, wanted: OrderKind) -> SessionInput {
    SessionInput::Arrived(vec![InboxItem::Order(PlacedOrder {
        sequence,
        arrived: NOW,
        order: SessionOrder {
            id: Ulid::from(u128::from(sequence)),
            target: session(),
            wanted,
            by: "ada".to_owned(),
            reason: String::new(),
            at: NOW,
        },
    })])
}

/// Returns `effects` in short form.
fn told(effects: &[SessionEffect]) -> Vec<String> {
    let effect = |effect: &SessionEffect| match effect {
        SessionEffect::Start { pendings, .. } => {
            let sequences: Vec<String> = pendings.iter().map(|p| p.sequence.to_string()).collect();
            format!("start {}", sequences.join("+"))
        }
        SessionEffect::Drop { pending, reason } => format!("drop {} {}", pending.sequence, reason.name()),
        SessionEffect::Cancel { reason: _ } => "cancel".to_owned(),
        SessionEffect::Carry { placed } => format!("carry {}", placed.order.wanted.name()),
        SessionEffect::Repeated { placed } => format!("repeated {}", placed.order.wanted.name()),
        SessionEffect::Decide { told } => format!(
            "decide {}",
            told.decision
                .as_ref()
                .map_or("nothing", |decision| decision.status.name())
        ),
        SessionEffect::Wake { at } => format!("wake {}", at.since(NOW)),
    };

    effects.iter().map(effect).collect()
}

/// Ends turns until none runs, at a time when every debounce is over; returns the turns that were started.
fn drained(machine: &mut SessionQueue) -> Vec<String> {
    let later = NOW.plus(60_000);
    let mut all = told(&machine.handle(SessionInput::Tick, later));
    while machine.is_running() {
        all.extend(told(&machine.handle(SessionInput::TurnEnded, later)));
    }
    all
}

/// State of a session when messages come.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Idle,
    /// Before its first model call.
    Running,
    /// The model is answering.
    Streaming,
    /// The first of two tools is running.
    Tool,
}

/// Returns the journal of turn 1 in `state`.
fn journal(state: State) -> Option<RunningTurn> {
    let limits = crate::agent::personas::PersonaLimits::default();
    let mut fold = SessionState::default();
    let turn = Turn::for_pendings(
        &session(),
        &fold,
        &[message(1, QueueMode::Followup)],
        &limits,
        &shared::model::permission::PermissionPresets::default(),
    );

    fold.at = NOW;
    fold.apply_entry(&turn.started_entry());

    let call = |id: &str| ToolCall {
        call: id.to_owned(),
        name: "look".to_owned(),
        arguments: serde_json::Value::Null,
    };

    match state {
        State::Idle => return None,
        State::Running | State::Streaming => {}
        State::Tool => {
            fold.apply_entry(&LedgerEntry::ModelAnswered {
                opaque: None,
                attachments: Vec::new(),
                model: None,
                step: 1,
                content: String::new(),
                tool_calls: vec![call("1-1"), call("1-2")],
                usage: TurnUsage::default(),
            });

            fold.apply_entry(&LedgerEntry::ToolStarted {
                call: "1-1".to_owned(),
                name: "look".to_owned(),
                args_hash: String::new(),
                arguments: None,
            });
        }
    }

    fold.running
}

#[test]
fn what_is_pending_at_one_look_is_ordered_by_event_then_priority_then_hook() {
    let mut machine = SessionQueue::default();
    let batch = vec![
        pending(7, 2, "a", 90),
        pending(8, 1, "b", 50),
        pending(9, 1, "a", 50),
        pending(10, 1, "z", 90),
    ];

    let mut said = told(&machine.handle(arrived(batch), NOW));
    said.extend(drained(&mut machine));
    assert_eq!(said, ["start 10", "start 9", "start 8", "start 7"]);
}

#[test]
fn a_dispatch_of_the_same_id_is_dropped_with_its_reason() {
    let mut machine = SessionQueue::default();
    let effects = machine.handle(arrived(vec![pending(3, 1, "a", 50), pending(9, 1, "a", 50)]), NOW);
    assert_eq!(told(&effects), ["start 3"]);
    let again = machine.handle(arrived(vec![pending(3, 1, "a", 50)]), NOW);
    assert!(again.is_empty(), "the same message again: {again:?}");

    // The copy is dropped once the dispatch is done: until then it may be the only one that the stream still has.
    assert_eq!(machine.lowest_open(&machine.own_sequences()), Some(9));
    assert_eq!(
        told(&machine.handle(SessionInput::TurnEnded, NOW)),
        ["drop 9 duplicate"]
    );
    let late = machine.handle(arrived(vec![pending(11, 1, "a", 50)]), NOW);
    assert_eq!(told(&late), ["drop 11 duplicate"]);
}

#[test]
fn a_turn_that_a_former_owner_began_runs_and_what_it_has_seen_is_not_queued_again() {
    let mut fold = SessionState {
        running: journal(State::Running),
        ..SessionState::default()
    };
    let steered = |number: u64, backlog| LedgerEntry::Steered {
        dispatch: message(number, QueueMode::Steer).dispatch_ref(),
        backlog,
    };

    fold.apply_entry(&steered(2, false));
    fold.apply_entry(&steered(3, true));
    let mut machine = SessionQueue::new(&fold, Arc::default());

    assert!(machine.is_running());

    let batch = vec![
        message(1, QueueMode::Followup),
        message(2, QueueMode::Steer),
        message(3, QueueMode::SteerBacklog),
        message(4, QueueMode::Followup),
    ];

    assert!(machine.handle(arrived(batch), NOW).is_empty());
    assert!(!machine.is_steering(), "it was put in already");
    assert_eq!(machine.lowest_open(&[1, 2]), Some(3));
    assert_eq!(told(&machine.handle(SessionInput::TurnEnded, NOW)), ["start 3"]);
    assert_eq!(drained(&mut machine), ["start 4"]);
}

#[test]
fn collected_messages_to_different_places_become_different_turns() {
    let mut machine = SessionQueue::default();
    let to = |number: u64, peer: &str| {
        let mut one = message(number, QueueMode::Collect);
        let context = &mut Arc::make_mut(&mut one.dispatch).delivery_context;
        context.peer_id = Some(peer.to_owned());
        context.reply_to_id = Some(number.to_string());
        one
    };

    let batch = vec![
        to(1, "a"),
        to(2, "b"),
        to(3, "a"),
        message(4, QueueMode::Followup),
        to(5, "a"),
    ];

    let mut said = told(&machine.handle(arrived(batch), NOW));
    said.extend(drained(&mut machine));
    assert_eq!(said, ["start 1+3", "start 2", "start 4", "start 5"]);
}

#[test]
fn a_debounce_counts_from_the_last_arrival_and_ends_at_last() {
    let mut machine = SessionQueue::default();
    let at = |number: u64, ms: i64| {
        let mut one = message(number, QueueMode::Collect);
        one.arrived = NOW.plus(ms);
        one
    };

    assert_eq!(told(&machine.handle(arrived(vec![at(1, 0)]), NOW)), ["wake 1000"]);
    assert_eq!(
        told(&machine.handle(arrived(vec![at(2, 900)]), NOW.plus(900))),
        ["wake 1900"]
    );
    assert_eq!(
        told(&machine.handle(SessionInput::Tick, NOW.plus(1_899))),
        ["wake 1900"]
    );
    assert_eq!(
        told(&machine.handle(SessionInput::Tick, NOW.plus(1_900))),
        ["start 1+2"]
    );

    let mut machine = SessionQueue::default();
    for number in 1..=11 {
        let ms = i64::try_from(number - 1).expect("small") * 950;
        let said = told(&machine.handle(arrived(vec![at(number, ms)]), NOW.plus(ms)));
        assert_eq!(said, [format!("wake {}", (ms + 1_000).min(10_000))], "{number}");
    }

    let all = machine.handle(SessionInput::Tick, NOW.plus(10_000));
    assert!(matches!(&all[..], [SessionEffect::Start { pendings, .. }] if pendings.len() == 11));
}

#[test]
fn what_has_no_room_is_dropped_as_the_session_says() {
    let check = |overflow, expected: &[&str]| {
        let mut machine = SessionQueue::default();
        let settings = QueueSettings {
            cap: Some(2),
            overflow: Some(overflow),
            ..QueueSettings::default()
        };

        assert_eq!(
            told(&machine.handle(order_to(1, OrderKind::Queue { settings }), NOW)),
            ["carry queue"]
        );

        let batch = (10..15).map(|n| message(n, QueueMode::Followup)).collect();
        assert_eq!(
            told(&machine.handle(arrived(batch), NOW)),
            ["start 10"],
            "what waited for an idle session is not too much"
        );

        drop(machine.handle(SessionInput::TurnEnded, NOW));
        drop(machine.handle(SessionInput::TurnEnded, NOW));
        assert_eq!(machine.queued_count(), 2);

        let more = arrived(vec![message(20, QueueMode::Followup)]);
        let mut said = told(&machine.handle(more, NOW));
        said.extend(drained(&mut machine));

        assert_eq!(said, expected);
    };

    check(
        OverflowPolicy::Summarize,
        &["drop 13 overflow_summarized", "start 14", "start 20"],
    );
    check(OverflowPolicy::Old, &["drop 13 overflow_old", "start 14", "start 20"]);
    check(OverflowPolicy::New, &["drop 20 overflow_new", "start 13", "start 14"]);
}

#[test]
fn orders_are_carried_out_once_and_in_their_place() {
    let mut machine = SessionQueue::default();
    let batch = (1..4).map(|n| message(n, QueueMode::Followup)).collect();
    assert_eq!(told(&machine.handle(arrived(batch), NOW)), ["start 1"]);
    assert!(machine.handle(order_to(10, OrderKind::Reset), NOW).is_empty());
    assert_eq!(
        told(&machine.handle(order_to(11, OrderKind::Interrupt), NOW)),
        ["cancel", "carry interrupt"]
    );
    assert_eq!(machine.lowest_open(&[1]), Some(2));
    assert_eq!(
        told(&machine.handle(SessionInput::TurnEnded, NOW)),
        ["carry reset", "start 2"]
    );

    let said = told(&machine.handle(order_to(12, OrderKind::Abort), NOW));
    assert_eq!(said, ["drop 3 aborted", "cancel", "carry abort"]);
    assert!(machine.handle(SessionInput::TurnEnded, NOW).is_empty());

    let mut again = SessionQueue {
        ids: machine.ids.clone(),
        ..SessionQueue::default()
    };
    assert_eq!(
        told(&again.handle(order_to(12, OrderKind::Abort), NOW)),
        ["repeated abort"]
    );
}

#[test]
fn what_is_withdrawn_is_dropped_where_it_waits_and_canceled_where_it_runs_alone() {
    let take_back = |number, spares_turn| OrderKind::Withdraw {
        dispatch: message(number, QueueMode::Followup).dispatch.id,
        spares_turn,
    };
    let mut machine = SessionQueue::default();
    let batch = (1..4).map(|n| message(n, QueueMode::Followup)).collect();

    assert_eq!(told(&machine.handle(arrived(batch), NOW)), ["start 1"]);

    let waits = machine.handle(order_to(10, take_back(2, false)), NOW);
    assert_eq!(told(&waits), ["drop 2 withdrawn", "carry withdraw"]);

    let asks = machine.handle(order_to(11, take_back(1, true)), NOW);
    assert_eq!(told(&asks), ["carry withdraw"], "the turn that wants it goes on");

    let runs = machine.handle(order_to(12, take_back(1, false)), NOW);
    assert_eq!(told(&runs), ["cancel", "carry withdraw"]);
    assert_eq!(told(&machine.handle(SessionInput::TurnEnded, NOW)), ["start 3"]);

    let steers = machine.handle(arrived(vec![message(5, QueueMode::Steer)]), NOW);
    assert!(steers.is_empty() && machine.take_steering().len() == 1);

    let joined = machine.handle(order_to(13, take_back(3, false)), NOW);
    assert_eq!(told(&joined), ["carry withdraw"], "it is another's turn as well");

    let early = order_to(14, take_back(20, false));
    let SessionInput::Arrived(orders) = &early else {
        panic!("an order");
    };

    let InboxItem::Order(placed) = &orders[0] else {
        panic!("an order");
    };

    let mut fold = SessionState::default();
    fold.apply_entry(&LedgerEntry::Ordered {
        order: Box::new(placed.order.clone()),
        sequence: 14,
        cursor: shared::model::ledger::LedgerCursor::default(),
    });

    let later = SessionQueue::new(&fold, Arc::default());
    for mut machine in [machine, later] {
        let _ = machine.handle(early.clone(), NOW);
        let late = machine.handle(arrived(vec![message(20, QueueMode::Followup)]), NOW);
        assert_eq!(told(&late), ["drop 20 duplicate"], "it comes after the word");
    }
}

#[test]
fn an_edit_is_recorded_and_cancels_no_turn() {
    let edit = |number| OrderKind::Edit {
        dispatch: message(number, QueueMode::Followup).dispatch.id,
        from: "U1".to_owned(),
        content: format!("edited {number}"),
        edited_at: NOW,
    };
    let mut machine = SessionQueue::default();
    let batch = (1..3).map(|n| message(n, QueueMode::Followup)).collect();
    assert_eq!(told(&machine.handle(arrived(batch), NOW)), ["start 1"]);
    for number in [1, 2] {
        let carried = machine.handle(order_to(10 + number, edit(number)), NOW);
        assert_eq!(told(&carried), ["carry edit"], "{number}");
    }
}
