//! Standing of dispatches and orders by the records of a ledger. *Pure.*

use ulid::Ulid;

use super::{LedgerEntry, LedgerRecord};
use crate::model::ledger::DropReason;

/// Standing of a dispatch or an order by one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DispatchStanding {
    /// The session has begun it or is done with it.
    Consumed,
    /// The session had begun it and could not go on, because `DISPATCHES` has lost it: it is not done.
    Lost,
}

impl LedgerRecord {
    /// Returns the standings of the dispatches and orders that this record names, in its order: the last one counts.
    #[must_use]
    pub fn dispatch_standings(&self) -> Vec<(Ulid, DispatchStanding)> {
        let mut standings = Vec::new();
        // A dispatch is consumed by its turn, by joining one alone, or by being dropped; an order by being obeyed.
        for entry in &self.entries {
            match entry {
                LedgerEntry::TurnStarted { dispatches, .. } => {
                    standings.extend(dispatches.iter().map(|known| (known.id, DispatchStanding::Consumed)));
                }
                LedgerEntry::Steered {
                    dispatch,
                    backlog: false,
                } => standings.push((dispatch.id, DispatchStanding::Consumed)),
                LedgerEntry::DispatchDropped {
                    dispatch,
                    reason: DropReason::Lost,
                    ..
                } => standings.push((dispatch.id, DispatchStanding::Lost)),
                LedgerEntry::DispatchDropped { dispatch, reason, .. } if reason.consumes() => {
                    standings.push((dispatch.id, DispatchStanding::Consumed));
                }
                LedgerEntry::Ordered { order, .. } => standings.push((order.id, DispatchStanding::Consumed)),
                LedgerEntry::Steered { .. }
                | LedgerEntry::DispatchDropped { .. }
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
                | LedgerEntry::TurnCompleted { .. }
                | LedgerEntry::ReplyPublished { .. }
                | LedgerEntry::Checkpoint { .. }
                | LedgerEntry::TurnFailed { .. }
                | LedgerEntry::TurnInterrupted { .. }
                | LedgerEntry::Compacted { .. }
                | LedgerEntry::SessionReset { .. } => {}
            }
        }

        standings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::EventId;
    use crate::model::ledger::{AppendId, DispatchRef, LedgerCursor};
    use crate::model::time::UnixMillis;

    fn record(entries: Vec<LedgerEntry>) -> LedgerRecord {
        LedgerRecord {
            append: AppendId {
                broker: "b".to_owned(),
                epoch: 1,
                counter: 1,
            },
            at: UnixMillis(1),
            held_ms: 0,
            entries,
        }
    }

    fn dropped(number: u64, reason: DropReason) -> LedgerEntry {
        LedgerEntry::DispatchDropped {
            dispatch: dispatch(number),
            reason,
            detail: None,
            cursor: LedgerCursor::default(),
        }
    }

    fn dispatch(number: u64) -> DispatchRef {
        DispatchRef {
            id: Ulid::from(u128::from(number)),
            sequence: number,
            event_id: EventId::parse(format!("test:{number}")).expect("an id"),
            content: String::new(),
            stranger: None,
        }
    }

    #[test]
    fn a_copy_says_nothing_of_its_dispatch_and_neither_does_a_message_that_gets_a_turn_as_well() {
        let steered = |number, backlog| LedgerEntry::Steered {
            dispatch: dispatch(number),
            backlog,
        };
        let said = record(vec![
            dropped(1, DropReason::Duplicate),
            dropped(2, DropReason::Repeated),
            steered(3, true),
            steered(4, false),
            dropped(5, DropReason::Held),
            dropped(4, DropReason::Lost),
        ])
        .dispatch_standings();

        let expected = [
            (4, DispatchStanding::Consumed),
            (5, DispatchStanding::Consumed),
            (4, DispatchStanding::Lost),
        ];
        assert_eq!(said, expected.map(|(number, standing)| (Ulid::from(number), standing)));
    }
}
