//! Ledgers as brokers write them, folded from the beginning and from each checkpoint.

use proptest::prelude::*;
use shared::model::ledger::{AppendId, TurnFailure};
use shared::model::time::UnixMillis;

use super::*;
use crate::agent::port::AgentAnswer;
use crate::ledger::state::{HISTORY_BYTES, HISTORY_TURNS, HistoryTurn, RECENT_DISPATCHES, advance_cursor};
use crate::sample::{pending, session, turn_of};

fn record(epoch: u64, counter: u64, entries: Vec<LedgerEntry>) -> LedgerRecord {
    let append = AppendId {
        broker: "b1".to_owned(),
        epoch,
        counter,
    };

    LedgerRecord {
        append,
        at: UnixMillis(1),
        held_ms: 0,
        entries,
    }
}

/// Builds a ledger as brokers write it: checkpoints when they are due, everything else as `steps` say.
fn ledger(steps: &[u8]) -> Vec<(u64, LedgerRecord)> {
    let mut state = SessionState::default();
    let mut records = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let number = index as u64 + 1;
        let mut entries: Vec<LedgerEntry> = state.due_checkpoint().into_iter().collect();
        if state.session.is_none() {
            entries.push(LedgerEntry::SessionOpened { session: session() });
        }

        let one = pending(number, number, "a", 50);
        let turn = turn_of(&state, std::slice::from_ref(&one));

        let cursor = advance_cursor(&state.cursor, number, number, None);
        let answer = AgentAnswer {
            content: "x".repeat(usize::from(*step) * 40),
            ..AgentAnswer::default()
        };
        match step % 7 {
            0 => entries.push(LedgerEntry::Owned {
                epoch: state.epoch + 1,
                broker: "b1".to_owned(),
            }),
            1 => entries.push(turn.started_entry()),
            2 => entries.push(turn.failed_entry(TurnFailure::NoAgent, cursor)),
            3 => entries.extend(
                state
                    .replies
                    .unpublished
                    .first()
                    .map(|r| LedgerEntry::ReplyPublished { turn: r.turn }),
            ),
            4 => entries.push(LedgerEntry::Compacted {
                through: turn.id,
                summary: "so far".to_owned(),
            }),
            _ => {
                entries.push(turn.started_entry());
                entries.extend(turn.completed_entries(answer, cursor));
            }
        }

        if entries.is_empty() {
            entries.push(LedgerEntry::SessionReset {
                reason: "test".to_owned(),
            });
        }

        let record = record(state.epoch, number, entries);
        state.apply(number * 3, &record);
        records.push((number * 3, record));
    }

    records
}

#[test]
fn a_hint_that_leads_into_the_middle_is_found_out() {
    let records = ledger(&[5, 6, 12]);
    assert!(fold_records(&records[1..]).is_none());
    assert!(fold_records(&[]).is_some_and(|empty| empty == SessionState::default()));
}

#[test]
fn everything_remembered_is_bounded() {
    let state = fold_records(&ledger(&[255; 3_000])).expect("a whole ledger");
    assert!(state.history.len() <= HISTORY_TURNS && state.recent.len() <= RECENT_DISPATCHES);
    assert!(state.history.iter().map(HistoryTurn::bytes).sum::<usize>() <= HISTORY_BYTES);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Folding from any checkpoint gives the same session as folding from the beginning.
    #[test]
    fn a_checkpoint_and_the_tail_are_the_whole(steps in prop::collection::vec(any::<u8>(), 1..400)) {
        let records = ledger(&steps);
        let whole = fold_records(&records);
        prop_assert!(whole.is_some());
        for (at, (_, record)) in records.iter().enumerate() {
            if matches!(record.entries.first(), Some(LedgerEntry::Checkpoint { .. })) {
                prop_assert_eq!(&fold_records(&records[at..]), &whole);
            }
        }
    }
}

#[test]
fn a_fold_too_large_for_a_record_waits_with_its_checkpoint() {
    let fold = |summary: usize| SessionState {
        since_checkpoint: CHECKPOINT_EVERY,
        summary: Some("x".repeat(summary)),
        ..SessionState::default()
    };
    assert!(fold(MAX_CHECKPOINT_BYTES / 2).due_checkpoint().is_some());
    assert!(fold(MAX_CHECKPOINT_BYTES).due_checkpoint().is_none());
}
