use serde_json::json;
use shared::model::ledger::{LedgerEntry, TurnLimits, TurnUsage};
use shared::model::permission::PermissionSet;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::*;
use crate::agent::port::TurnMessage;
use crate::sample::pending;
use crate::turn::used::{RecordTime, UsedTime};

const BEGAN: RecordTime = RecordTime {
    at: UnixMillis(1_000),
    held_ms: 40,
};

fn journal(limits: TurnLimits, entries: impl IntoIterator<Item = LedgerEntry>) -> RunningTurn {
    let mut running = RunningTurn {
        turn: Ulid::nil(),
        dispatches: vec![pending(1, 1, "a", 50).dispatch_ref()],
        permissions: PermissionSet::default(),
        limits,
        began_at: BEGAN.at,
        notes: Vec::new(),
        passages: Vec::new(),
        hiding: Vec::new(),
        hidden: Vec::new(),
        usage: TurnUsage::default(),
        reserved_usd: 0.0,
        given_up_usd: 0.0,
        awaits: None,
        refused: Vec::new(),
        used: UsedTime::begin_at(BEGAN),
        asked: Vec::new(),
    };

    entries.into_iter().for_each(|entry| running.apply(&entry, BEGAN));
    running
}

fn call(id: &str) -> ToolCall {
    ToolCall {
        call: id.to_owned(),
        name: "look".to_owned(),
        arguments: json!({}),
    }
}

fn answered(step: u32, calls: &[&str]) -> LedgerEntry {
    LedgerEntry::ModelAnswered {
        opaque: None,
        attachments: Vec::new(),
        model: None,
        step,
        content: format!("said {step}"),
        tool_calls: calls.iter().map(|id| call(id)).collect(),
        usage: TurnUsage {
            tokens_in: 10,
            tokens_out: 5,
            cost_usd: 0.5,
        },
    }
}

fn started(id: &str) -> LedgerEntry {
    LedgerEntry::ToolStarted {
        call: id.to_owned(),
        name: "look".to_owned(),
        args_hash: String::new(),
        arguments: None,
    }
}

fn finished(id: &str) -> LedgerEntry {
    LedgerEntry::ToolFinished {
        call: id.to_owned(),
        outcome: ToolOutcome::Ok { result: json!(id) },
        unseen: false,
    }
}

fn steered() -> LedgerEntry {
    LedgerEntry::Steered {
        dispatch: shared::model::ledger::DispatchRef {
            content: "wait".to_owned(),
            ..pending(2, 2, "a", 50).dispatch_ref()
        },
        backlog: false,
    }
}

fn check(entries: Vec<LedgerEntry>, steering: bool, expected: &TurnStep) {
    let running = journal(TurnLimits::default(), entries);
    let situation = StepContext {
        held_ms: BEGAN.held_ms,
        steering,
    };
    assert_eq!(&next(&running, situation), expected);
}

#[test]
fn a_turn_asks_runs_what_it_is_told_in_order_asks_again_and_ends() {
    let run = |id| TurnStep::Run { call: call(id) };
    check(vec![], false, &TurnStep::Ask { step: 1 });
    check(vec![answered(1, &["a", "b"])], false, &run("a"));
    check(
        vec![answered(1, &["a", "b"]), started("a")],
        false,
        &TurnStep::Recover { call: call("a") },
    );

    let one_done = vec![answered(1, &["a", "b"]), started("a"), finished("a")];
    check(one_done.clone(), false, &run("b"));

    let both = [one_done, vec![started("b"), finished("b")]].concat();
    check(both.clone(), false, &TurnStep::Ask { step: 2 });

    let content = "said 2".to_owned();
    check(
        [both, vec![answered(2, &[])]].concat(),
        false,
        &TurnStep::Finish {
            content,
            attachments: Vec::new(),
        },
    );
}

#[test]
fn what_the_hooks_behind_a_call_have_not_seen_is_shown_to_them_first() {
    let unseen = LedgerEntry::ToolFinished {
        call: "a".to_owned(),
        outcome: ToolOutcome::Ok { result: json!("raw") },
        unseen: true,
    };
    let begun_with = LedgerEntry::ToolStarted {
        call: "a".to_owned(),
        name: "look".to_owned(),
        args_hash: String::new(),
        arguments: Some(json!({"depth": 1})),
    };

    let entries = vec![answered(1, &["a", "b"]), begun_with, unseen];
    let observe = TurnStep::Observe {
        call: ToolCall {
            arguments: json!({"depth": 1}),
            ..call("a")
        },
        outcome: ToolOutcome::Ok { result: json!("raw") },
    };

    check(entries.clone(), true, &observe);

    let late = StepContext {
        held_ms: BEGAN.held_ms + 10_000_000,
        steering: false,
    };
    let limit = "wall_ms";
    assert_eq!(
        next(&journal(TurnLimits::default(), entries.clone()), late),
        TurnStep::Fail { limit }
    );
    check(
        [entries, vec![finished("a")]].concat(),
        false,
        &TurnStep::Run { call: call("b") },
    );
}

#[test]
fn a_newer_message_skips_what_was_not_begun_and_is_seen_by_the_next_model_call() {
    let reason = SKIPPED_FOR_NEWER.to_owned();
    let skip = TurnStep::Skip {
        call: call("b"),
        outcome: ToolOutcome::Skipped { reason },
    };

    let one_done = vec![answered(1, &["a", "b"]), started("a"), finished("a")];
    check(one_done.clone(), true, &skip);

    let skipped = LedgerEntry::ToolFinished {
        call: "b".to_owned(),
        outcome: ToolOutcome::Skipped {
            reason: SKIPPED_FOR_NEWER.to_owned(),
        },
        unseen: false,
    };

    let all = [one_done, vec![skipped, steered()]].concat();
    check(all.clone(), false, &TurnStep::Ask { step: 2 });

    let lines = journal(TurnLimits::default(), all).conversation_lines();
    assert!(
        matches!(&lines[..], [TurnMessage::Assistant { .. }, TurnMessage::Tool { name, .. }, TurnMessage::Tool { .. }, TurnMessage::User { content }]
        if name == "look" && content == "wait"),
        "{lines:?}"
    );

    // An answer before the steering message does not end the turn.
    check(vec![answered(1, &[]), steered()], false, &TurnStep::Ask { step: 2 });
}

#[test]
fn every_limit_ends_the_turn_before_the_next_effect_and_not_after_the_last_answer() {
    let limited = |limits, passed, entries| {
        let held_ms = BEGAN.held_ms + passed;
        next(
            &journal(limits, entries),
            StepContext {
                held_ms,
                steering: false,
            },
        )
    };

    let calls = TurnLimits {
        model_calls: 1,
        ..TurnLimits::default()
    };
    let done = || vec![answered(1, &["a"]), started("a"), finished("a")];
    assert_eq!(limited(calls, 0, done()), TurnStep::Fail { limit: "model_calls" });

    let wall = TurnLimits {
        wall_ms: 100,
        ..TurnLimits::default()
    };
    assert_eq!(limited(wall, 100, vec![]), TurnStep::Fail { limit: "wall_ms" });
    assert_eq!(
        limited(wall, 100, vec![answered(1, &["a"])]),
        TurnStep::Fail { limit: "wall_ms" }
    );

    let tokens = TurnLimits {
        tokens: Some(15),
        ..TurnLimits::default()
    };
    assert_eq!(limited(tokens, 0, done()), TurnStep::Fail { limit: "tokens" });

    let cost = TurnLimits {
        cost_usd: Some(0.5),
        ..TurnLimits::default()
    };
    assert_eq!(limited(cost, 0, done()), TurnStep::Fail { limit: "cost_usd" });

    let content = "said 1".to_owned();
    assert_eq!(
        limited(cost, 10_000_000, vec![answered(1, &[])]),
        TurnStep::Finish {
            content,
            attachments: Vec::new(),
        }
    );
}

#[test]
fn the_cost_of_a_model_call_is_reserved_first_and_a_call_without_an_answer_counts_as_spent() {
    let limits = TurnLimits {
        cost_usd: Some(1.0),
        ..TurnLimits::default()
    };
    let reserved = |cost_usd, given_up_usd| LedgerEntry::CostReserved {
        step: 1,
        cost_usd,
        given_up_usd,
    };

    let fresh = journal(limits, []);
    assert_eq!(reserve(&fresh, 1, 1.0, None), Ok(Some(reserved(1.0, 0.0))));
    assert_eq!(reserve(&fresh, 1, 1.000_001, None), Err("cost_usd"));
    assert_eq!(reserve(&journal(TurnLimits::default(), []), 1, 9.0, None), Ok(None));

    // The answer replaces its reservation: 0.5 is spent.
    let answered_once = journal(limits, [reserved(0.9, 0.0), answered(1, &["a"])]);
    assert_eq!(reserve(&answered_once, 1, 0.5, None), Ok(Some(reserved(0.5, 0.0))));
    assert_eq!(reserve(&answered_once, 1, 0.6, None), Err("cost_usd"));

    // The owner of this call is gone, or its answer broke off: it may have been paid for.
    let lost = journal(limits, [reserved(0.4, 0.0)]);
    assert_eq!(reserve(&lost, 1, 0.4, None), Ok(Some(reserved(0.4, 0.4))));
    assert_eq!(reserve(&lost, 1, 0.7, None), Err("cost_usd"));

    // A call that was refused cost nothing, and its reservation is the next one's.
    assert_eq!(reserve(&lost, 1, 0.4, Some(0.0)), Ok(None));
    assert_eq!(reserve(&lost, 1, 0.7, Some(0.0)), Ok(Some(reserved(0.7, 0.0))));

    // Several attempts of one call may have been paid for, or an answer that was longer than usual.
    assert_eq!(reserve(&lost, 1, 0.1, Some(0.9)), Ok(Some(reserved(0.1, 0.9))));
    assert_eq!(reserve(&lost, 1, 0.2, Some(0.9)), Err("cost_usd"));

    let lost_twice = journal(limits, [reserved(0.4, 0.0), reserved(0.4, 0.4), answered(1, &["a"])]);
    let situation = StepContext {
        held_ms: BEGAN.held_ms,
        steering: false,
    };
    assert_eq!(lost_twice.spent_usd(), 0.9);
    assert_eq!(next(&lost_twice, situation), TurnStep::Run { call: call("a") });
    assert_eq!(reserve(&lost_twice, 1, 0.2, None), Err("cost_usd"));
}
