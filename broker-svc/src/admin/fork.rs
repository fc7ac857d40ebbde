//! Creates a session from another one's history.

use std::sync::Arc;

use serde::Deserialize;
use shared::bus::ledger::{self, AppendLedgerError};
use shared::model::ledger::{AppendId, LedgerCursor, LedgerEntry, LedgerRecord};
use shared::model::session::SessionRef;
use shared::wire::headers::TraceCarrier;
use ulid::Ulid;

use super::{Refusal, View, show};
use crate::broker::BrokerContext;
use crate::ledger::state::{SessionState, restore_fold};
use crate::ledger::writer::{LedgerSegment, read_stretch};

/// Request of `fork`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForkRequest {
    persona: String,
    session: String,
    /// Name of the new session.
    to: String,
    /// Last turn of the new session; absent = the newest, unless the history was reset after it.
    turn: Option<Ulid>,
}

/// Creates a session that begins as another one was after a turn.
pub(super) async fn fork_session(broker: Arc<BrokerContext>, forking: ForkRequest) -> Result<View, Refusal> {
    let from = SessionRef {
        persona: forking.persona.clone(),
        session: forking.session,
    };
    let to = SessionRef {
        persona: forking.persona,
        session: forking.to,
    };

    let fold = as_it_was(&broker, &from, forking.turn).await?;
    let entries = forked_entries(fold, &to);
    let record = LedgerRecord {
        append: AppendId {
            broker: broker.instance.clone(),
            epoch: 0,
            counter: broker.next_append(),
        },
        at: broker.clock.now(),
        held_ms: 0,
        entries,
    };

    // Expecting sequence 0 makes the creation atomic: a session that exists is never overwritten.
    let appended = ledger::append(&broker.bus, &to, &record, 0, &TraceCarrier::default()).await;
    match appended {
        Ok(_) => show(broker, to).await,
        Err(AppendLedgerError::FenceLost { .. }) => Err((409, format!("session {to} exists already"))),
        Err(error) => Err((503, error.to_string())),
    }
}

/// Returns the session `from` as it was at the end of `turn`, or of its newest finished turn.
async fn as_it_was(broker: &BrokerContext, from: &SessionRef, turn: Option<Ulid>) -> Result<SessionState, Refusal> {
    let mut through = None;
    loop {
        let stretch = read_stretch(broker, from, through).await;
        let stretch = stretch.map_err(|error| (500, error.to_string()))?;
        if let Some(fold) = fold_through_turn(&stretch, turn) {
            return Ok(fold);
        }

        if stretch.upon.is_none() {
            let why = match turn {
                _ if through.is_none() && stretch.records.is_empty() => format!("there is no session {from}"),
                Some(turn) => format!("session {from} has no finished turn {turn}"),
                None => format!("session {from} has no finished turn"),
            };
            return Err((404, why));
        }

        through = stretch.upon;
    }
}

/// Returns the fold of `stretch` through the end of `turn`, or through the newest finished turn with any ending, or
/// the reset after it; `None` if that is before the stretch. A ledger may begin with inherited turns: a fork's does.
fn fold_through_turn(stretch: &LedgerSegment, turn: Option<Ulid>) -> Option<SessionState> {
    let begins = stretch.records.first().and_then(|(_, record)| record.entries.first());
    let mut state = match begins {
        Some(LedgerEntry::Checkpoint { fold, .. }) => restore_fold(fold).unwrap_or_default(),
        Some(_) | None => SessionState::default(),
    };

    // The checkpoint may already contain the wanted turn: then no record of it is read.
    let newest = state.history.back().map(|exchange| exchange.turn).or(state.head);
    let inherited = turn.filter(|_| stretch.upon.is_none()).or(newest);
    let mut found = inherited
        .filter(|inherited| turn.is_none_or(|turn| turn == *inherited))
        .and_then(|through| cut_history(&state, through));
    for (_, record) in &stretch.records {
        state.at = record.at;

        for entry in &record.entries {
            state.apply_entry(entry);

            if let LedgerEntry::TurnCompleted { turn: ended, .. }
            | LedgerEntry::TurnFailed { turn: ended, .. }
            | LedgerEntry::TurnInterrupted { turn: ended, .. } = entry
                && turn.is_none_or(|turn| turn == *ended)
            {
                found = Some(state.clone());
            }

            // The history before a reset is available only by naming a turn.
            if matches!(entry, LedgerEntry::SessionReset { .. }) && turn.is_none() {
                found = Some(state.clone());
            }
        }
    }

    found
}

/// Returns `fold` with `through` as the newest turn of its history; `None` if the fold does not remember the turn.
fn cut_history(fold: &SessionState, through: Ulid) -> Option<SessionState> {
    let last = fold.history.iter().position(|exchange| exchange.turn == through);
    // The fold's newest turn may be in the summary only.
    let kept = last
        .map(|last| last + 1)
        .or((fold.head == Some(through)).then_some(0))?;

    let mut fold = fold.clone();
    if kept < fold.history.len() {
        fold.history.truncate(kept);
        fold.head = Some(through);
    }

    Some(fold)
}

/// Returns the first entries of a fork: the history of `fold`, without its queue, its replies and its cursor.
fn forked_entries(fold: SessionState, to: &SessionRef) -> Vec<LedgerEntry> {
    let begin = SessionState {
        session: Some(to.clone()),
        head: fold.head,
        history: fold.history,
        summary: fold.summary,
        active_at: fold.active_at,
        queue: fold.queue,
        send: fold.send,
        ..SessionState::default()
    };

    vec![
        LedgerEntry::Checkpoint {
            fold: serde_json::to_value(&begin).unwrap_or_default(),
            cursor: LedgerCursor::default(),
            through: 0,
        },
        LedgerEntry::SessionOpened { session: to.clone() },
    ]
}

#[cfg(test)]
mod tests {
    use shared::model::ledger::TurnFailure;
    use shared::model::permission::PermissionPresets;
    use shared::model::time::UnixMillis;

    use super::*;
    use crate::agent::personas::PersonaLimits;
    use crate::agent::port::AgentAnswer;
    use crate::sample::{pending, session};
    use crate::turn::Turn;

    fn record(number: u64, entries: Vec<LedgerEntry>) -> (u64, LedgerRecord) {
        let append = AppendId {
            broker: "b1".to_owned(),
            epoch: 1,
            counter: number,
        };
        let at = UnixMillis(1);

        (
            number,
            LedgerRecord {
                append,
                at,
                held_ms: 0,
                entries,
            },
        )
    }

    /// Returns the records of three more turns of the session with the state `state`.
    fn three_turns(mut state: SessionState) -> Vec<(u64, LedgerRecord)> {
        let first = state.last_sequence + 1;
        let one_more = |number| {
            let one = pending(number, number, "a", 50);
            let presets = PermissionPresets::default();
            let turn = Turn::for_pendings(&session(), &state, &[one], &PersonaLimits::default(), &presets);
            let mut entries = vec![turn.started_entry()];
            entries.extend(turn.completed_entries(AgentAnswer::default(), LedgerCursor::default()));
            let record = record(number, entries);
            state.apply(number, &record.1);

            record
        };

        (first..first + 3).map(one_more).collect()
    }

    /// Returns a stretch with the whole of a ledger.
    fn whole(records: Vec<(u64, LedgerRecord)>) -> LedgerSegment {
        LedgerSegment { records, upon: None }
    }

    /// Returns the ledger of a fork through `turn` without any turn of its own.
    fn forked_ledger(stretch: &LedgerSegment, turn: Option<Ulid>) -> LedgerSegment {
        let to = SessionRef {
            persona: "default".to_owned(),
            session: "branch".to_owned(),
        };
        let fold = fold_through_turn(stretch, turn).expect("such a turn");
        whole(vec![record(50, forked_entries(fold, &to))])
    }

    fn history(stretch: &LedgerSegment, turn: Option<Ulid>) -> Option<Vec<Ulid>> {
        let fold = fold_through_turn(stretch, turn)?;
        let turns: Vec<Ulid> = fold.history.iter().map(|exchange| exchange.turn).collect();
        assert_eq!(turns.last(), fold.head.as_ref());
        Some(turns)
    }

    #[test]
    fn a_fork_has_the_history_through_its_turn_and_nothing_else() {
        let ledger = whole(three_turns(SessionState::default()));
        let turns = history(&ledger, None).expect("turns");
        assert_eq!(history(&ledger, Some(turns[1])).as_deref(), Some(&turns[..2]));
        assert_eq!(fold_through_turn(&ledger, Some(Ulid::nil())), None);
        let fork = forked_ledger(&ledger, Some(turns[1]));
        let begun = crate::ledger::state::fold_records(&fork.records).expect("a ledger that begins with a checkpoint");
        assert_eq!(begun.session.map(|session| session.session).as_deref(), Some("branch"));
        assert_eq!((begun.head, begun.history.len()), (Some(turns[1]), 2));
        assert!(
            begun.replies.unpublished.is_empty() && begun.recent.is_empty() && begun.cursor == LedgerCursor::default()
        );
    }

    #[test]
    fn a_fork_is_forked_as_what_it_came_from_is() {
        let turns = history(&whole(three_turns(SessionState::default())), None).expect("turns");
        let mut fork = forked_ledger(&whole(three_turns(SessionState::default())), None);
        assert_eq!(history(&fork, None).as_ref(), Some(&turns), "a fresh one");
        assert_eq!(
            history(&fork, Some(turns[0])).as_deref(),
            Some(&turns[..1]),
            "from a turn that it inherited"
        );

        let begun = crate::ledger::state::fold_records(&fork.records).expect("a fork");
        fork.records.extend(three_turns(begun));
        let all = history(&fork, None).expect("turns");

        assert_eq!((&all[..3], all.len()), (&turns[..], 6), "with turns of its own");
        assert_eq!(history(&fork, Some(all[4])).as_deref(), Some(&all[..5]));

        let again = forked_ledger(&fork, Some(all[4]));
        assert_eq!(history(&again, None).as_deref(), Some(&all[..5]), "a fork of a fork");
    }

    #[test]
    fn what_lies_before_a_stretch_is_looked_for_in_the_one_before() {
        let ledger = three_turns(SessionState::default());
        let mut state = fold_through_turn(&whole(ledger), None).expect("turns");
        state.last_sequence = 3;
        state.since_checkpoint = crate::ledger::state::CHECKPOINT_EVERY;
        let turns: Vec<Ulid> = state.history.iter().map(|exchange| exchange.turn).collect();
        let mut newest = three_turns(state.clone());
        newest[0]
            .1
            .entries
            .insert(0, state.due_checkpoint().expect("it is due"));

        let stretch = LedgerSegment {
            records: newest,
            upon: Some(3),
        };
        assert_eq!(history(&stretch, None).map(|turns| turns.len()), Some(6));
        assert_eq!(
            history(&stretch, Some(turns[2])).as_ref(),
            Some(&turns),
            "the checkpoint itself"
        );

        assert_eq!(
            history(&stretch, Some(turns[0])),
            None,
            "it may have forgotten turns that were remembered then"
        );
    }

    /// Returns the records of three turns: one is done, one fails, one is interrupted.
    fn three_ends() -> Vec<(u64, LedgerRecord)> {
        let mut state = SessionState::default();
        let one_more = |number| {
            let one = pending(number, number, "a", 50);
            let presets = PermissionPresets::default();
            let turn = Turn::for_pendings(&session(), &state, &[one], &PersonaLimits::default(), &presets);
            let mut entries = vec![turn.started_entry()];

            match number {
                1 => entries.extend(turn.completed_entries(AgentAnswer::default(), LedgerCursor::default())),
                2 => entries.push(turn.failed_entry(TurnFailure::NoAgent, LedgerCursor::default())),
                _ => entries.push(turn.interrupted_entry("no".to_owned(), "half".to_owned(), LedgerCursor::default())),
            }

            let record = record(number, entries);
            state.apply(number, &record.1);

            record
        };

        (1..=3).map(one_more).collect()
    }

    #[test]
    fn what_was_before_a_reset_is_had_by_naming_a_turn_alone() {
        let reset = LedgerEntry::SessionReset {
            reason: "by operator".to_owned(),
        };
        let mut ledger = three_turns(SessionState::default());
        let turns = history(&whole(ledger.clone()), None).expect("turns");
        ledger.push(record(4, vec![reset]));
        let anew = fold_through_turn(&whole(ledger.clone()), None).expect("it is there");

        assert_eq!((anew.history.len(), anew.head), (0, None));
        assert_eq!(
            history(&whole(ledger.clone()), Some(turns[1])).as_deref(),
            Some(&turns[..2])
        );

        let mut state = SessionState::default();
        ledger.iter().for_each(|(number, record)| state.apply(*number, record));
        state.since_checkpoint = crate::ledger::state::CHECKPOINT_EVERY;
        let later = LedgerSegment {
            records: vec![record(5, vec![state.due_checkpoint().expect("it is due")])],
            upon: Some(4),
        };

        assert_eq!(
            fold_through_turn(&later, None),
            None,
            "the stretch before has the reset"
        );

        ledger.extend(three_turns(state));
        assert_eq!(history(&whole(ledger), None).map(|turns| turns.len()), Some(3));
    }

    #[test]
    fn a_turn_that_was_broken_off_is_forked_from_as_well() {
        let ledger = whole(three_ends());
        let newest = fold_through_turn(&ledger, None).expect("a turn is over");
        let turns: Vec<Ulid> = newest.history.iter().map(|exchange| exchange.turn).collect();

        assert_eq!((turns.len(), newest.head), (3, Some(turns[0])));
        assert_eq!(newest.history[2].agent, "half\n[interrupted]");

        let failed = fold_through_turn(&ledger, Some(turns[1])).expect("it is over");
        assert_eq!((failed.history.len(), failed.head), (2, Some(turns[0])));
        assert!(failed.history[1].agent.starts_with("[failed: "), "{failed:?}");

        let fork = forked_ledger(&ledger, None);
        let again = fold_through_turn(&fork, None).expect("it inherited turns");
        assert_eq!(
            (again.history, again.head),
            (newest.history, Some(turns[0])),
            "a fork of a fork"
        );

        let of_failed = fold_through_turn(&fork, Some(turns[1])).expect("it inherited that one");
        assert_eq!(of_failed.history, failed.history);
    }
}
