//! Finds the end of a firing's turn in the ledger of its session. *Pure.*
//!
//! The ledger is read backwards, because the end is usually near: each record names its predecessor. Source:
//! `docs/design/schedules.md` §3.9 (Lifecycle); `docs/design/sessions.md` §3.

use shared::model::intent::IntentCode;
use shared::model::ledger::{LedgerEntry, LedgerRecord, TurnFailure};
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::machine::FiringEnd;

/// Largest difference assumed between the clocks of two machines, milliseconds.
const CLOCK_SLACK_MS: i64 = 60_000;

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SearchResult {
    /// The turn has ended.
    Ended(FiringEnd),
    /// The turn runs; absent = the id of the turn that the dispatch joined is not known.
    Runs(Option<Ulid>),
    /// No broker has started the turn: older records cannot contain it.
    NotYet,
    /// The previous record must be read.
    Further,
}

/// The search for the end of one dispatch's turn.
#[derive(Debug)]
pub struct OutcomeSearch {
    dispatch: Ulid,
    fired_at: UnixMillis,
    /// Ends found so far, the oldest last.
    ends: Vec<(Option<Ulid>, FiringEnd)>,
}

fn new_ending(code: IntentCode, why: impl Into<String>) -> FiringEnd {
    FiringEnd { code, why: why.into() }
}

fn failure_text(failure: &TurnFailure) -> String {
    match failure {
        TurnFailure::NoAgent => "no agent serves this persona".to_owned(),
        TurnFailure::Limit { limit } => format!("limit: {limit}"),
        TurnFailure::Agent { error } | TurnFailure::BadDispatch { error } => error.clone(),
    }
}

impl OutcomeSearch {
    /// Creates a search for the turn of `dispatch`, which was published after `fired_at`.
    #[must_use]
    pub const fn new(dispatch: Ulid, fired_at: UnixMillis) -> Self {
        Self {
            dispatch,
            fired_at,
            ends: Vec::new(),
        }
    }

    /// Searches `record`, the next older one.
    #[must_use]
    pub fn feed_record(&mut self, record: &LedgerRecord) -> SearchResult {
        for entry in record.entries.iter().rev() {
            if let Some(found) = self.match_entry(entry) {
                return found;
            }
        }

        if record.at.since(self.fired_at) < -CLOCK_SLACK_MS {
            SearchResult::NotYet
        } else {
            SearchResult::Further
        }
    }

    fn match_entry(&mut self, entry: &LedgerEntry) -> Option<SearchResult> {
        // Ends come first, because the ledger is read backwards: the start of their turn follows.
        match entry {
            LedgerEntry::TurnCompleted { turn, .. } => self.ends.push((Some(*turn), new_ending(IntentCode::Done, ""))),
            LedgerEntry::TurnFailed { turn, failure: why, .. } => {
                self.ends
                    .push((Some(*turn), new_ending(IntentCode::TurnFailed, failure_text(why))));
            }
            LedgerEntry::TurnInterrupted { turn, reason, .. } => {
                self.ends
                    .push((Some(*turn), new_ending(IntentCode::TurnInterrupted, reason)));
            }
            LedgerEntry::DispatchDropped {
                dispatch,
                reason,
                detail,
                ..
            } if dispatch.id == self.dispatch && !reason.has_another_end() => {
                let why = reason.describe(detail.as_deref());
                return Some(SearchResult::Ended(new_ending(IntentCode::DispatchDropped, why)));
            }
            LedgerEntry::TurnStarted { turn, dispatches, .. } => {
                if dispatches.iter().any(|dispatch| dispatch.id == self.dispatch) {
                    let end = self.ends.iter().find(|(ended, _)| *ended == Some(*turn));
                    return Some(end.map_or(SearchResult::Runs(Some(*turn)), |(_, end)| {
                        SearchResult::Ended(end.clone())
                    }));
                }
            }
            // A steered dispatch belongs to the turn whose end was seen last.
            LedgerEntry::Steered { dispatch, .. } if dispatch.id == self.dispatch => {
                let end = self.ends.last();
                return Some(end.map_or(SearchResult::Runs(None), |(_, end)| SearchResult::Ended(end.clone())));
            }
            LedgerEntry::DispatchDropped { .. }
            | LedgerEntry::Steered { .. }
            | LedgerEntry::SessionOpened { .. }
            | LedgerEntry::Owned { .. }
            | LedgerEntry::CostReserved { .. }
            | LedgerEntry::ModelAnswered { .. }
            | LedgerEntry::ToolStarted { .. }
            | LedgerEntry::ToolFinished { .. }
            | LedgerEntry::ApprovalRequested { .. }
            | LedgerEntry::ApprovalDecided { .. }
            | LedgerEntry::HookRan { .. }
            | LedgerEntry::ContextAdded { .. }
            | LedgerEntry::ToolsHidden { .. }
            | LedgerEntry::ReminderShown { .. }
            | LedgerEntry::IntentRefused { .. }
            | LedgerEntry::IntentOwed { .. }
            | LedgerEntry::IntentSettled { .. }
            | LedgerEntry::PostHooksDue { .. }
            | LedgerEntry::UnseenCallShown { .. }
            | LedgerEntry::PostHookRan { .. }
            | LedgerEntry::PostHookFailed { .. }
            | LedgerEntry::PostHooksSettled { .. }
            | LedgerEntry::ReplyPublished { .. }
            | LedgerEntry::Checkpoint { .. }
            | LedgerEntry::Compacted { .. }
            | LedgerEntry::SessionReset { .. }
            | LedgerEntry::Ordered { .. } => {}
        }

        None
    }
}

/// Returns whether `record` may end a turn, so that waiting firings must be checked.
#[must_use]
pub fn ends_something(record: &LedgerRecord) -> bool {
    record.entries.iter().any(|entry| {
        matches!(
            entry,
            LedgerEntry::TurnCompleted { .. }
                | LedgerEntry::TurnFailed { .. }
                | LedgerEntry::TurnInterrupted { .. }
                | LedgerEntry::DispatchDropped { .. }
        )
    })
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::model::ledger::{AppendId, DispatchRef, DropReason, LedgerCursor, TurnLimits};
    use shared::model::permission::PermissionSet;

    use super::*;

    const NOW: UnixMillis = UnixMillis(1_795_305_600_000);

    const fn ulid(number: u128) -> Ulid {
        Ulid::from_parts(5, number)
    }

    fn dispatch(number: u128) -> DispatchRef {
        DispatchRef {
            id: ulid(number),
            sequence: 1,
            event_id: EventId::parse("timer:intent:x:1").expect("an id"),
            content: String::new(),
            stranger: None,
        }
    }

    fn started(turn: u128, of: u128) -> LedgerEntry {
        LedgerEntry::TurnStarted {
            turn: ulid(turn),
            parent: None,
            dispatches: vec![dispatch(of)],
            permissions: PermissionSet::default(),
            limits: TurnLimits::default(),
        }
    }

    fn completed(turn: u128) -> LedgerEntry {
        LedgerEntry::TurnCompleted {
            turn: ulid(turn),
            reply: None,
            head: ulid(turn),
            cursor: LedgerCursor::default(),
        }
    }

    fn failed(turn: u128) -> LedgerEntry {
        LedgerEntry::TurnFailed {
            turn: ulid(turn),
            failure: TurnFailure::NoAgent,
            reply: None,
            cursor: LedgerCursor::default(),
        }
    }

    /// Returns the result for dispatch 1 after `records`, the oldest first, each as a list of entries.
    fn check(records: Vec<Vec<LedgerEntry>>, seconds_ago: i64) -> SearchResult {
        let mut search = OutcomeSearch::new(ulid(1), NOW);
        for entries in records.into_iter().rev() {
            let record = LedgerRecord {
                append: AppendId {
                    broker: "b".to_owned(),
                    epoch: 1,
                    counter: 1,
                },
                at: NOW.plus(-1_000 * seconds_ago),
                held_ms: 0,
                entries,
            };

            match search.feed_record(&record) {
                SearchResult::Further => {}
                found @ (SearchResult::Ended(_) | SearchResult::Runs(_) | SearchResult::NotYet) => return found,
            }
        }

        SearchResult::Further
    }

    fn code(found: SearchResult) -> IntentCode {
        match found {
            SearchResult::Ended(end) => end.code,
            other @ (SearchResult::Runs(_) | SearchResult::NotYet | SearchResult::Further) => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_end_is_that_of_its_own_turn() {
        let one_record = vec![vec![started(7, 1), completed(7)]];
        assert_eq!(code(check(one_record, 0)), IntentCode::Done);
        let others = vec![vec![started(7, 1)], vec![failed(7)], vec![started(8, 2), completed(8)]];
        assert_eq!(code(check(others, 0)), IntentCode::TurnFailed);
    }

    #[test]
    fn steered_and_dropped_ones_end_too() {
        let steered = vec![
            vec![started(7, 2)],
            vec![LedgerEntry::Steered {
                dispatch: dispatch(1),
                backlog: false,
            }],
            vec![completed(7)],
            vec![started(8, 3), failed(8)],
        ];

        assert_eq!(
            code(check(steered, 0)),
            IntentCode::Done,
            "the turn that it was put into"
        );

        let dropped = LedgerEntry::DispatchDropped {
            dispatch: dispatch(1),
            reason: DropReason::OverflowOld,
            detail: None,
            cursor: LedgerCursor::default(),
        };
        assert_eq!(code(check(vec![vec![dropped]], 0)), IntentCode::DispatchDropped);
    }

    #[test]
    fn the_end_of_a_copy_is_not_the_end_of_the_firing() {
        for reason in [
            DropReason::Duplicate,
            DropReason::Repeated,
            DropReason::HandledBefore,
            DropReason::Lost,
        ] {
            let copy = || LedgerEntry::DispatchDropped {
                dispatch: dispatch(1),
                reason,
                detail: None,
                cursor: LedgerCursor::default(),
            };
            let runs = vec![vec![started(7, 1)], vec![copy()]];
            assert_eq!(check(runs, 0), SearchResult::Runs(Some(ulid(7))), "{reason:?}");
            let ended = vec![vec![started(7, 1)], vec![failed(7), copy()]];
            assert_eq!(code(check(ended, 0)), IntentCode::TurnFailed, "{reason:?}");
        }
    }

    #[test]
    fn what_is_not_over_is_not_yet() {
        assert_eq!(
            check(vec![vec![started(7, 1)], vec![started(8, 2), completed(8)]], 0),
            SearchResult::Runs(Some(ulid(7)))
        );
        assert_eq!(check(vec![vec![started(8, 2), completed(8)]], 0), SearchResult::Further);
        assert_eq!(
            check(vec![vec![started(8, 2), completed(8)]], 600),
            SearchResult::NotYet,
            "older than the firing"
        );
    }
}
