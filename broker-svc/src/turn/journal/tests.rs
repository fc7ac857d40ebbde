use serde_json::json;

use super::*;
use crate::approval::machine::tests::{asked_in, confirmation};
use crate::ledger::state::SessionState;
use crate::sample::pending;
use crate::turn::arguments::args_hash;
use crate::turn::steps::left_ms;
use shared::model::approval::{ApprovalDecision, ApprovalRequest, ApprovalStatus};

const BEGAN: UnixMillis = UnixMillis(1_000);

fn call() -> ToolCall {
    ToolCall {
        call: "1-1".to_owned(),
        name: "pay".to_owned(),
        arguments: json!({"amount": 60_000}),
    }
}

/// Returns a turn whose model wants to pay, with the entries after that, each at its time.
fn running(entries: Vec<(i64, LedgerEntry)>) -> RunningTurn {
    let mut fold = SessionState {
        at: BEGAN,
        held_ms: 1_000,
        ..SessionState::default()
    };
    fold.apply_entry(&LedgerEntry::TurnStarted {
        turn: Ulid::nil(),
        parent: None,
        dispatches: vec![pending(1, 1, "a", 50).dispatch_ref()],
        permissions: PermissionSet::default(),
        limits: TurnLimits::default(),
    });

    fold.apply_entry(&LedgerEntry::ModelAnswered {
        step: 1,
        content: String::new(),
        tool_calls: vec![call()],
        usage: TurnUsage::default(),
        opaque: None,
        attachments: Vec::new(),
        model: None,
    });

    for (at, entry) in entries {
        fold.at = UnixMillis(at);
        fold.held_ms = u64::try_from(at).expect("a time");
        fold.apply_entry(&entry);
    }

    fold.running.expect("a turn")
}

fn asks(id: &str, arguments: Value) -> LedgerEntry {
    let request = ApprovalRequest {
        id: id.to_owned(),
        arguments_hash: args_hash(&arguments),
        arguments,
        asked_in: Some(Box::new(asked_in())),
        ..confirmation(ApprovalStatus::Pending).request
    };
    LedgerEntry::ApprovalRequested { request }
}

fn decides(id: &str, status: ApprovalStatus, edited: Option<Value>) -> LedgerEntry {
    LedgerEntry::ApprovalDecided {
        decision: ApprovalDecision {
            id: id.to_owned(),
            status,
            decided_by: Some("ann".to_owned()),
            arguments: edited,
            response: None,
        },
        sequence: None,
        cursor: None,
    }
}

#[test]
fn a_call_stands_with_the_humans_by_the_hash_of_its_final_arguments() {
    let asked = || (2_000, asks("a", json!({"amount": 60_000})));
    let same = args_hash(&json!({"amount": 60_000}));
    let other = args_hash(&json!({"amount": 61_000}));
    let stands = |entries: Vec<(i64, LedgerEntry)>, hash: &str| call_standing(&running(entries), "1-1", hash, None);

    assert_eq!(stands(vec![], &same), CallApproval::None);
    assert_eq!(stands(vec![asked()], &same), CallApproval::Pending);

    let approved = || vec![asked(), (3_000, decides("a", ApprovalStatus::Approved, None))];
    assert_eq!(stands(approved(), &same), CallApproval::Approved);
    assert_eq!(
        stands(approved(), &other),
        CallApproval::Superseded,
        "a hook changed them after the yes"
    );

    let ends = [
        (ApprovalStatus::Expired, CallApproval::Expired),
        (ApprovalStatus::Canceled, CallApproval::Canceled),
        (ApprovalStatus::Superseded, CallApproval::Superseded),
        (
            ApprovalStatus::Denied,
            CallApproval::Denied {
                by: "ann".to_owned(),
                response: None,
            },
        ),
    ];

    for (status, expected) in ends {
        assert_eq!(
            stands(vec![asked(), (3_000, decides("a", status, None))], &same),
            expected
        );
    }
}

#[test]
fn what_was_asked_again_stands_by_its_last_answer_and_its_last_edit() {
    let less = json!({"amount": 40_000});
    let turn = running(vec![
        (2_000, asks("a", json!({"amount": 60_000}))),
        (3_000, decides("a", ApprovalStatus::Approved, Some(less.clone()))),
    ]);

    assert_eq!(
        turn.arguments_of(&call()),
        less,
        "gates begin with what the approver wrote"
    );
    assert_eq!(
        call_standing(&turn, "1-1", &args_hash(&less), None),
        CallApproval::Approved
    );
    assert_eq!(
        call_standing(&turn, "1-1", &args_hash(&call().arguments), None),
        CallApproval::Superseded
    );

    let rewritten = json!({"amount": 40_000, "note": "by a hook"});
    let again = running(vec![
        (2_000, asks("a", json!({"amount": 60_000}))),
        (3_000, decides("a", ApprovalStatus::Approved, Some(less.clone()))),
        (3_001, decides("a", ApprovalStatus::Superseded, None)),
        (3_002, asks("b", rewritten.clone())),
        (4_000, decides("b", ApprovalStatus::Approved, None)),
    ]);

    assert_eq!((again.arguments_of(&call()), again.times_asked("1-1")), (less, 2));
    assert_eq!(
        call_standing(&again, "1-1", &args_hash(&rewritten), None),
        CallApproval::Approved
    );
}

#[test]
fn waiting_for_a_human_takes_no_time_of_the_turn() {
    let wall = TurnLimits::default().wall_ms;
    let waits = running(vec![(2_000, asks("a", json!({})))]);
    assert_eq!(left_ms(&waits, 9_000_000), wall - 1_000);
    let goes_on = running(vec![
        (2_000, asks("a", json!({}))),
        (9_000_000, decides("a", ApprovalStatus::Approved, None)),
    ]);
    assert_eq!((&goes_on.awaits, left_ms(&goes_on, 9_000_500)), (&None, wall - 1_500));
}

#[test]
fn what_a_hook_says_again_for_the_same_step_stands_in_place_of_what_it_said() {
    let said = |hook: &str, text: &str| {
        let (hook, point, text) = (hook.to_owned(), "pre_stream".to_owned(), text.to_owned());
        (2_000, LedgerEntry::ContextAdded { hook, point, text })
    };
    let hides = |hook: &str| {
        let (hook, tools) = (hook.to_owned(), vec!["pay".to_owned()]);
        (2_000, LedgerEntry::ToolsHidden { hook, tools })
    };
    let answered = LedgerEntry::ModelAnswered {
        step: 1,
        content: "one".to_owned(),
        tool_calls: Vec::new(),
        usage: TurnUsage::default(),
        opaque: None,
        attachments: Vec::new(),
        model: None,
    };

    let taken_over = vec![
        said("a", "be kind"),
        hides("a"),
        said("b", "be quick"),
        hides("b"),
        said("a", "be kinder"),
    ];
    let running_on = |more: Vec<(i64, LedgerEntry)>| running([taken_over.clone(), more].concat());
    let once = running_on(Vec::new());

    assert_eq!(once.injected_texts().collect::<Vec<_>>(), ["be kinder", "be quick"]);
    assert_eq!(once.hiding, ["pay"]);

    let next_step = running_on(vec![(3_000, answered), said("a", "be kind")]);
    assert_eq!(
        next_step.injected_texts().collect::<Vec<_>>(),
        ["be kinder", "be quick", "be kind"]
    );
}

#[test]
fn a_call_that_was_refused_has_an_end_and_did_not_run() {
    let started = LedgerEntry::ToolStarted {
        call: "1-1".to_owned(),
        name: "pay".to_owned(),
        args_hash: String::new(),
        arguments: None,
    };

    let denied = LedgerEntry::ToolFinished {
        call: "1-1".to_owned(),
        outcome: ToolOutcome::Error {
            error: "denied by ann".to_owned(),
        },
        unseen: false,
    };

    let refused = running(vec![(2_000, denied.clone())]);
    assert!(refused.call_outcome("1-1").is_some() && refused.begun_calls().is_empty());

    let failed = running(vec![(2_000, started), (3_000, denied)]);
    assert_eq!(failed.begun_calls(), ["pay"]);
}
