//! One record for every kind of ledger entry, with every field set.

use serde_json::json;
use shared::model::approval::{ApprovalDecision, ApprovalStatus};
use shared::model::ledger::{
    AppendId, DispatchRef, DropReason, FinishedTurn, HookRunOutcome, HookRunResult, LedgerEntry, LedgerRecord,
    ToolCall, ToolOutcome, TurnDescription, TurnEnding, TurnFailure, TurnLimits, TurnUsage, UnseenCall,
};
use shared::model::rate::{RateCount, RateWindow};

use super::intents::proposal;
use super::order::session_order;
use super::samples::{AT, approval, attachment, cursor, permissions, reference, reply, session, some, ulid};

#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
fn turn_entries() -> Vec<LedgerEntry> {
    let usage = TurnUsage {
        tokens_in: 10,
        tokens_out: 20,
        cost_usd: 0.25,
    };
    let call = ToolCall {
        call: "c1".to_owned(),
        name: "pay".to_owned(),
        arguments: json!({ "amount": 5 }),
    };

    vec![
        LedgerEntry::SessionOpened { session: session() },
        LedgerEntry::Owned {
            epoch: 3,
            broker: "broker-svc-1".to_owned(),
        },
        LedgerEntry::TurnStarted {
            turn: ulid(1),
            parent: Some(ulid(0)),
            dispatches: vec![reference()],
            permissions: permissions(),
            limits: TurnLimits {
                wall_ms: 600_000,
                model_calls: 50,
                tokens: Some(1_000),
                cost_usd: Some(1.5),
            },
        },
        LedgerEntry::CostReserved {
            step: 1,
            cost_usd: 0.5,
            given_up_usd: 0.25,
        },
        LedgerEntry::ModelAnswered {
            opaque: None,
            attachments: Vec::new(),
            model: None,
            step: 1,
            content: "let me pay".to_owned(),
            tool_calls: vec![call],
            usage,
        },
        LedgerEntry::ToolStarted {
            call: "c1".to_owned(),
            name: "pay".to_owned(),
            args_hash: "00ff".to_owned(),
            arguments: None,
        },
        LedgerEntry::ToolFinished {
            call: "c1".to_owned(),
            outcome: ToolOutcome::Ok { result: json!("done") },
            unseen: false,
        },
        LedgerEntry::ApprovalRequested { request: approval() },
        LedgerEntry::ApprovalDecided {
            decision: ApprovalDecision {
                id: "a1".to_owned(),
                status: ApprovalStatus::Approved,
                decided_by: some("ada"),
                arguments: Some(json!({ "amount": 4 })),
                response: some("less"),
            },
            sequence: None,
            cursor: None,
        },
        LedgerEntry::HookRan {
            hook: "audit".to_owned(),
            point: "PreToolUse".to_owned(),
            outcome: HookRunOutcome {
                result: HookRunResult::Denied,
                error: some("too much"),
                side_effects: vec!["told the owner".to_owned()],
            },
        },
        LedgerEntry::ContextAdded {
            hook: "style".to_owned(),
            point: "pre_stream".to_owned(),
            text: "be brief".to_owned(),
        },
        LedgerEntry::ToolsHidden {
            hook: "style".to_owned(),
            tools: vec!["pay*".to_owned()],
        },
        LedgerEntry::ReminderShown {
            hook: "welcome".to_owned(),
        },
        LedgerEntry::Steered {
            dispatch: reference(),
            backlog: false,
        },
        LedgerEntry::TurnCompleted {
            turn: ulid(1),
            reply: Some(Box::new(reply())),
            head: ulid(1),
            cursor: cursor(),
        },
        LedgerEntry::ReplyPublished { turn: ulid(1) },
    ]
}

fn intent_entries() -> Vec<LedgerEntry> {
    vec![
        LedgerEntry::IntentRefused {
            note: "there is no kind `dance`".to_owned(),
        },
        LedgerEntry::IntentOwed {
            proposal: Box::new(proposal()),
        },
        LedgerEntry::IntentSettled {
            id: ulid(7),
            note: some("it is over budget"),
        },
    ]
}

fn post_hook_entries() -> Vec<LedgerEntry> {
    let turn = ulid(1);
    let description = TurnDescription {
        user: "ada".to_owned(),
        metadata: [("channel".to_owned(), json!("telegram"))].into_iter().collect(),
    };
    let unseen = UnseenCall {
        call: ToolCall {
            call: "c1".to_owned(),
            name: "pay".to_owned(),
            arguments: json!({ "amount": 5 }),
        },
        outcome: ToolOutcome::Ok { result: json!("done") },
    };

    vec![
        LedgerEntry::PostHooksDue {
            finished: Box::new(FinishedTurn {
                turn,
                ended: TurnEnding::Completed,
                works_for: vec![session()],
                description,
                unseen: Some(unseen),
            }),
        },
        LedgerEntry::UnseenCallShown { turn },
        LedgerEntry::PostHookRan {
            turn,
            hook: "notify".to_owned(),
        },
        LedgerEntry::PostHookFailed { turn, retry_at: AT },
        LedgerEntry::PostHooksSettled { turn },
    ]
}

fn other_entries() -> Vec<LedgerEntry> {
    vec![
        LedgerEntry::Checkpoint {
            fold: json!({ "epoch": 3 }),
            cursor: cursor(),
            through: 40,
        },
        LedgerEntry::TurnFailed {
            turn: ulid(1),
            failure: TurnFailure::Limit {
                limit: "wall_ms".to_owned(),
            },
            reply: Some(Box::new(reply())),
            cursor: cursor(),
        },
        LedgerEntry::TurnInterrupted {
            turn: ulid(1),
            reason: "newer".to_owned(),
            partial: "I was".to_owned(),
            cursor: cursor(),
        },
        LedgerEntry::DispatchDropped {
            dispatch: reference(),
            reason: DropReason::Unreadable,
            detail: some("wrong_session: it is for another session"),
            cursor: cursor(),
        },
        LedgerEntry::Compacted {
            through: ulid(1),
            summary: "they talked".to_owned(),
        },
        LedgerEntry::SessionReset {
            reason: "daily".to_owned(),
        },
        LedgerEntry::Ordered {
            order: Box::new(session_order()),
            sequence: 12,
            cursor: cursor(),
        },
    ]
}

pub(crate) fn ledger() -> Vec<LedgerRecord> {
    let entries = [turn_entries(), intent_entries(), post_hook_entries(), other_entries()];
    entries.into_iter().flatten().map(record).collect()
}

/// A tool that is run with other arguments than the model asked for.
pub(crate) fn rewritten() -> LedgerRecord {
    record(LedgerEntry::ToolStarted {
        call: "c1".to_owned(),
        name: "pay".to_owned(),
        args_hash: "00ff".to_owned(),
        arguments: Some(json!({ "amount": 4 })),
    })
}

/// What a model says at a turn's end.
pub(crate) fn attached() -> LedgerRecord {
    record(LedgerEntry::ModelAnswered {
        step: 2,
        content: "here it is".to_owned(),
        tool_calls: Vec::new(),
        usage: TurnUsage::default(),
        opaque: None,
        attachments: vec![attachment()],
        model: Some("some-model".to_owned()),
    })
}

/// The end of a call that the hooks behind it have not seen.
pub(crate) fn unseen() -> LedgerRecord {
    record(LedgerEntry::ToolFinished {
        call: "c1".to_owned(),
        outcome: ToolOutcome::Ok { result: json!("done") },
        unseen: true,
    })
}

/// A turn that answers what somebody said who is not the owner.
pub(crate) fn of_a_stranger() -> LedgerRecord {
    record(LedgerEntry::TurnStarted {
        turn: ulid(1),
        parent: None,
        dispatches: vec![DispatchRef {
            stranger: some("u1"),
            ..reference()
        }],
        permissions: permissions(),
        limits: TurnLimits::default(),
    })
}

/// What a rate limit has counted.
pub(crate) fn rate_window() -> RateWindow {
    let counted = RateCount {
        at: AT,
        id: "01M80A4BYPJANS8A4KMNFK7P5E/1-1".to_owned(),
    };
    RateWindow { counted: vec![counted] }
}

fn record(entry: LedgerEntry) -> LedgerRecord {
    LedgerRecord {
        append: AppendId {
            broker: "broker-svc-1".to_owned(),
            epoch: 3,
            counter: 8,
        },
        at: AT,
        held_ms: 0,
        entries: vec![entry],
    }
}
