use serde_json::Value;
use shared::model::ledger::{
    DropReason, FinishedTurn, HookRunOutcome, HookRunResult, ToolCall, ToolOutcome, TurnDescription, TurnEnding,
    TurnFailure, UnseenCall,
};

use super::*;
use crate::agent::message_text::as_data;
use crate::agent::port::AgentAnswer;
use crate::sample::{pending, turn_of};
use crate::turn::Turn;
use shared::model::intent::service::ProposeIntent;

#[test]
fn a_turn_moves_head_cursor_history_and_owes_its_reply() {
    let mut state = SessionState::default();
    let one = pending(4, 1, "a", 50);
    let turn = turn_of(&state, std::slice::from_ref(&one));

    state.apply_entry(&turn.started_entry());
    assert!(state.running.is_some());

    let answer = AgentAnswer {
        content: "hi".to_owned(),
        ..AgentAnswer::default()
    };
    let cursor = advance_cursor(&state.cursor, 4, 4, None);
    turn.completed_entries(answer, cursor)
        .iter()
        .for_each(|entry| state.apply_entry(entry));

    assert_eq!(
        (state.running.is_some(), state.head, state.cursor.floor),
        (false, Some(turn.id), 4)
    );
    assert_eq!(
        state.history[0],
        HistoryTurn {
            turn: turn.id,
            user: as_data("v1", "message 1"),
            agent: "hi".to_owned()
        }
    );

    assert_eq!((state.replies.unpublished.len(), state.recent.len()), (1, 1));

    state.apply_entry(&LedgerEntry::ReplyPublished { turn: turn.id });
    assert!(state.replies.unpublished.is_empty());
}

#[test]
fn a_turn_that_broke_off_is_part_of_the_history_with_what_it_did() {
    let mut state = SessionState::default();
    let end = |state: &mut SessionState, number: u64, end: &dyn Fn(&Turn) -> LedgerEntry| {
        let one = pending(number, number, "a", 50);
        let turn = turn_of(state, &[one]);

        let call = ToolCall {
            call: "1-1".to_owned(),
            name: "pay".to_owned(),
            arguments: Value::Null,
        };
        let entries = [
            turn.started_entry(),
            LedgerEntry::ModelAnswered {
                step: 1,
                content: "let me pay".to_owned(),
                tool_calls: vec![call],
                usage: TurnUsage::default(),
                opaque: None,
                attachments: Vec::new(),
                model: None,
            },
            LedgerEntry::ToolStarted {
                call: "1-1".to_owned(),
                name: "pay".to_owned(),
                args_hash: String::new(),
                arguments: None,
            },
            end(&turn),
        ];

        entries.iter().for_each(|entry| state.apply_entry(entry));
    };

    let interrupted = |turn: &Turn| {
        turn.interrupted_entry(
            "by a newer one".to_owned(),
            "and now".to_owned(),
            LedgerCursor::default(),
        )
    };
    end(&mut state, 1, &interrupted);
    let limit = || TurnFailure::Limit {
        limit: "tokens".to_owned(),
    };
    end(&mut state, 2, &|turn| {
        turn.failed_entry(limit(), LedgerCursor::default())
    });

    let stranger = |said| as_data("v1", said);
    let said: Vec<_> = state
        .history
        .iter()
        .map(|e| (e.user.clone(), e.agent.as_str()))
        .collect();

    assert_eq!(
        said,
        [
            (
                stranger("message 1"),
                "let me pay\nand now\n[tools that ran: pay]\n[interrupted]"
            ),
            (
                stranger("message 2"),
                "let me pay\n[tools that ran: pay]\n[failed: The answer exceeded a limit (tokens).]"
            ),
        ]
    );

    assert_eq!(state.head, None, "neither is what the next turn follows");
}

#[test]
fn what_was_dropped_beyond_the_notes_is_counted() {
    let mut state = SessionState::default();
    let notes = |state: &mut SessionState, count: u64| {
        for number in 0..count {
            let mut dispatch = pending(number, number, "a", 50).dispatch_ref();
            dispatch.content = format!("note {number}");
            state.apply_entry(&LedgerEntry::DispatchDropped {
                dispatch,
                reason: DropReason::OverflowSummarized,
                detail: None,
                cursor: LedgerCursor::default(),
            });
        }

        let one = pending(99, 99, "a", 50);
        let turn = turn_of(state, &[one]);

        state.apply_entry(&turn.started_entry());
        state.running.take().map(|running| running.notes).unwrap_or_default()
    };

    let all = notes(&mut state, 100);
    assert_eq!(all.len(), MAX_NOTES + 1);
    assert_eq!(
        (all[0].as_str(), all[1].as_str()),
        ("(60 older ones, which only the ledger has)", "note 60")
    );
    assert_eq!(notes(&mut state, 2), ["note 0", "note 1"], "they are told of once");
}

#[test]
fn the_cursor_waits_for_what_is_open_and_never_passes_what_was_not_read() {
    let start = LedgerCursor {
        floor: 3,
        above: Vec::new(),
        ..LedgerCursor::default()
    };
    let early = advance_cursor(&start, 9, 9, Some(5));
    assert_eq!(
        early,
        LedgerCursor {
            floor: 4,
            above: vec![9],
            ..LedgerCursor::default()
        }
    );

    assert!(early.contains(4) && !early.contains(5) && early.contains(9));
    assert_eq!(
        advance_cursor(&early, 5, 9, None),
        LedgerCursor {
            floor: 9,
            above: vec![],
            ..LedgerCursor::default()
        }
    );

    // Sequence 900 was begun by a former owner; the subject was read only through 60.
    assert_eq!(
        advance_cursor(&start, 900, 60, None),
        LedgerCursor {
            floor: 60,
            above: vec![900],
            ..LedgerCursor::default()
        }
    );
}

#[test]
fn runnable_is_what_is_pending_begun_or_owed_and_not_suspended() {
    let idle = RunState {
        cursor: LedgerCursor {
            floor: 7,
            above: vec![9],
            ..LedgerCursor::default()
        },
        ..RunState::default()
    };

    let at = UnixMillis(100);
    let check = |standing: &RunState, pending, expected| assert_eq!(is_runnable(standing, pending, at), expected);
    check(&idle, None, false);
    check(&idle, Some(9), false);
    check(&idle, Some(8), true);

    check(
        &RunState {
            owes: true,
            ..idle.clone()
        },
        None,
        true,
    );
    check(
        &RunState {
            in_turn: true,
            ..idle.clone()
        },
        None,
        true,
    );

    let until = |millis| {
        Some(AwaitedApproval {
            approval: "a1".to_owned(),
            expires_at: UnixMillis(millis),
        })
    };

    check(
        &RunState {
            in_turn: true,
            awaits: until(101),
            ..idle.clone()
        },
        Some(8),
        false,
    );
    check(
        &RunState {
            in_turn: true,
            awaits: until(100),
            ..idle
        },
        None,
        true,
    );
}

#[test]
fn an_owed_intent_is_owed_since_its_turn_was_over_and_no_more_once_it_was_answered_for() {
    let mut state = SessionState {
        at: UnixMillis(7_000),
        ..SessionState::default()
    };
    let id = Ulid::from_parts(1, 1);
    let wish: ProposeIntent = serde_json::from_value(serde_json::json!({
        "id": id, "agent": "a", "session": "s", "permissions": {"level": "full"}, "delivery_context": {"channel": "test"},
        "wish": {"kind": "remind", "schedule": {"type": "after", "seconds": 60}}
    }))
    .expect("a proposal");

    let proposal = Box::new(wish);
    state.apply_entry(&LedgerEntry::IntentOwed { proposal });
    let owed: Vec<_> = state
        .intents
        .owed
        .iter()
        .map(|owed| (owed.proposal.id, owed.since))
        .collect();
    assert_eq!(owed, [(Some(id), UnixMillis(7_000))]);

    let note = Some("there is no such kind".to_owned());
    state.apply_entry(&LedgerEntry::IntentSettled { id, note });
    assert!(state.intents.owed.is_empty());
    assert_eq!(state.intents.refusals, ["there is no such kind"]);
}

/// A hook may have any name: the ledger's record of its run is never an intent, a reminder or a post-turn hook.
#[test]
fn a_hook_called_intents_changes_nothing_but_the_count_of_entries() {
    let mut state = SessionState::default();
    state.apply_entry(&LedgerEntry::HookRan {
        hook: "intents".to_owned(),
        point: "post_stream".to_owned(),
        outcome: HookRunOutcome {
            result: HookRunResult::Allowed,
            error: Some("note".to_owned()),
            side_effects: vec!["asked".to_owned(), "owes".to_owned()],
        },
    });

    let untouched = SessionState {
        since_checkpoint: 1,
        ..SessionState::default()
    };
    assert_eq!(state, untouched);
}

#[test]
fn a_finished_turn_needs_its_hooks_until_each_has_run_or_all_are_settled() {
    let mut state = SessionState::default();
    let (turn, other) = (Ulid::from_parts(1, 1), Ulid::from_parts(1, 2));
    let due = |turn| LedgerEntry::PostHooksDue {
        finished: Box::new(FinishedTurn {
            turn,
            ended: TurnEnding::Completed,
            works_for: Vec::new(),
            description: TurnDescription::default(),
            unseen: Some(UnseenCall {
                call: ToolCall {
                    call: "1-1".to_owned(),
                    name: "pay".to_owned(),
                    arguments: Value::Null,
                },
                outcome: ToolOutcome::Ok { result: Value::Null },
            }),
        }),
    };
    state.apply_entry(&due(turn));
    state.apply_entry(&due(other));
    assert!(RunState::from_fold(&state, &[]).owes);

    let retry_at = UnixMillis(9_000);
    state.apply_entry(&LedgerEntry::PostHookFailed { turn, retry_at });
    let first = |state: &SessionState| state.post_hooks.first().cloned().expect("a turn");
    assert_eq!((first(&state).tries, first(&state).again_at), (1, Some(retry_at)));

    state.apply_entry(&LedgerEntry::UnseenCallShown { turn });
    let hook = "notify".to_owned();
    state.apply_entry(&LedgerEntry::PostHookRan { turn, hook });
    let pending = first(&state);
    assert!(pending.finished.unseen.is_none() && pending.done.contains("notify"));
    assert_eq!((pending.tries, pending.again_at), (0, None));

    state.apply_entry(&LedgerEntry::PostHooksSettled { turn });
    let pending = first(&state);
    assert!(pending.finished.turn == other && pending.finished.unseen.is_some() && pending.done.is_empty());
    assert!(RunState::from_fold(&state, &[]).owes);

    state.apply_entry(&LedgerEntry::PostHooksSettled { turn: other });
    assert!(!RunState::from_fold(&state, &[]).owes);
}
