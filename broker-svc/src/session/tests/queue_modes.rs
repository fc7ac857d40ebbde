//! The table of queue modes.

use super::*;

/// Puts a session into `state`, hands in `count` messages of `mode` (numbers from 2), and returns the effects: at
/// once, in the running turn's next step, and after the turn.
fn cell(mode: QueueMode, state: State, count: u64) -> String {
    let mut machine = SessionQueue::default();
    if state != State::Idle {
        assert_eq!(
            told(&machine.handle(arrived(vec![message(1, QueueMode::Followup)]), NOW)),
            ["start 1"]
        );
    }

    let mut said = told(&machine.handle(arrived((2..2 + count).map(|n| message(n, mode)).collect()), NOW));
    if let Some(mut running) = journal(state).filter(|_| !said.contains(&"cancel".to_owned())) {
        // The running tool, and the model that is answering, finish first.
        let ends = match state {
            State::Idle | State::Running => None,
            State::Streaming => Some(LedgerEntry::ModelAnswered {
                opaque: None,
                attachments: Vec::new(),
                model: None,
                step: 1,
                content: "done".to_owned(),
                tool_calls: Vec::new(),
                usage: TurnUsage::default(),
            }),
            State::Tool => Some(LedgerEntry::ToolFinished {
                call: "1-1".to_owned(),
                outcome: shared::model::ledger::ToolOutcome::Ok {
                    result: serde_json::Value::Null,
                },
                unseen: false,
            }),
        };

        ends.iter().for_each(|entry| running.apply(entry, STAMP));

        loop {
            let steering = machine.is_steering();
            match next(&running, StepContext { held_ms: 0, steering }) {
                TurnStep::Ask { step } => {
                    let steered = machine.take_steering();
                    let steered: Vec<String> = steered.iter().map(|s| s.pending.sequence.to_string()).collect();
                    said.push(format!("ask {step} with [{}]", steered.join(" ")));
                    break;
                }
                TurnStep::Skip { call, outcome } => {
                    said.push(format!("skip {}", call.call));
                    let finished = LedgerEntry::ToolFinished {
                        call: call.call,
                        outcome,
                        unseen: false,
                    };

                    running.apply(&finished, STAMP);
                }
                TurnStep::Run { call } => {
                    said.push(format!("run {}", call.call));
                    break;
                }
                TurnStep::Finish { .. } => {
                    said.push("finish".to_owned());
                    break;
                }
                other @ (TurnStep::Recover { .. } | TurnStep::Observe { .. } | TurnStep::Fail { .. }) => {
                    panic!("{other:?}")
                }
            }
        }
    }

    said.push("|".to_owned());

    if state == State::Idle && !machine.is_running() {
        said.extend(drained(&mut machine));
    } else {
        said.extend(told(&machine.handle(SessionInput::TurnEnded, NOW)));
        said.extend(drained(&mut machine));
    }

    assert_eq!(machine.lowest_open(&[]), None, "something was forgotten: {said:?}");
    said.join(", ")
}

/// Every cell of the table in `docs/design/sessions.md` §2: mode × state of the session × one or three messages.
#[test]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
fn every_cell_of_the_table_of_queue_modes() {
    use QueueMode::{Collect, Followup, Interrupt, Steer, SteerBacklog};
    use State::{Idle, Running, Streaming, Tool};

    let table = [
        (Followup, Idle, 1, "start 2, |"),
        (Followup, Idle, 3, "start 2, |, start 3, start 4"),
        (Followup, Running, 1, "ask 1 with [], |, start 2"),
        (Followup, Running, 3, "ask 1 with [], |, start 2, start 3, start 4"),
        (Followup, Streaming, 1, "finish, |, start 2"),
        (Followup, Streaming, 3, "finish, |, start 2, start 3, start 4"),
        (Followup, Tool, 1, "run 1-2, |, start 2"),
        (Followup, Tool, 3, "run 1-2, |, start 2, start 3, start 4"),
        (Collect, Idle, 1, "wake 1000, |, start 2"),
        (Collect, Idle, 3, "wake 1000, |, start 2+3+4"),
        (Collect, Running, 1, "ask 1 with [], |, wake 1000, start 2"),
        (Collect, Running, 3, "ask 1 with [], |, wake 1000, start 2+3+4"),
        (Collect, Streaming, 1, "finish, |, wake 1000, start 2"),
        (Collect, Streaming, 3, "finish, |, wake 1000, start 2+3+4"),
        (Collect, Tool, 1, "run 1-2, |, wake 1000, start 2"),
        (Collect, Tool, 3, "run 1-2, |, wake 1000, start 2+3+4"),
        (Steer, Idle, 1, "start 2, |"),
        // The first starts a turn before the others are looked at; they steer that turn.
        (Steer, Idle, 3, "start 2, |, start 3, start 4"),
        (Steer, Running, 1, "ask 1 with [2], |"),
        (Steer, Running, 3, "ask 1 with [2 3 4], |"),
        // The model ends the turn before they could be put in.
        (Steer, Streaming, 1, "finish, |, start 2"),
        (Steer, Streaming, 3, "finish, |, start 2, start 3, start 4"),
        (Steer, Tool, 1, "skip 1-2, ask 2 with [2], |"),
        (Steer, Tool, 3, "skip 1-2, ask 2 with [2 3 4], |"),
        (SteerBacklog, Idle, 1, "start 2, |"),
        (SteerBacklog, Idle, 3, "start 2, |, start 3, start 4"),
        (SteerBacklog, Running, 1, "ask 1 with [2], |, start 2"),
        (
            SteerBacklog,
            Running,
            3,
            "ask 1 with [2 3 4], |, start 2, start 3, start 4",
        ),
        (SteerBacklog, Streaming, 1, "finish, |, start 2"),
        (SteerBacklog, Streaming, 3, "finish, |, start 2, start 3, start 4"),
        (SteerBacklog, Tool, 1, "skip 1-2, ask 2 with [2], |, start 2"),
        (
            SteerBacklog,
            Tool,
            3,
            "skip 1-2, ask 2 with [2 3 4], |, start 2, start 3, start 4",
        ),
        (Interrupt, Idle, 1, "start 2, |"),
        (Interrupt, Idle, 3, "drop 2 superseded, drop 3 superseded, start 4, |"),
        (Interrupt, Running, 1, "cancel, |, start 2"),
        (
            Interrupt,
            Running,
            3,
            "cancel, drop 2 superseded, drop 3 superseded, |, start 4",
        ),
        (Interrupt, Streaming, 1, "cancel, |, start 2"),
        (
            Interrupt,
            Streaming,
            3,
            "cancel, drop 2 superseded, drop 3 superseded, |, start 4",
        ),
        (Interrupt, Tool, 1, "cancel, |, start 2"),
        (
            Interrupt,
            Tool,
            3,
            "cancel, drop 2 superseded, drop 3 superseded, |, start 4",
        ),
    ];

    let wrong: Vec<String> = table
        .iter()
        .map(|&(mode, state, count, expected)| (mode, state, count, expected, cell(mode, state, count)))
        .filter(|(_, _, _, expected, got)| expected != got)
        .map(|(mode, state, count, expected, got)| format!("{mode:?} {state:?} {count}: {expected} / {got}"))
        .collect();

    assert!(wrong.is_empty(), "{wrong:#?}");
}
