//! Dispatches that need not be made again, by the records of the ledger. *Pure.*

use std::collections::HashMap;

use shared::model::ledger::{DispatchStanding, LedgerEntry, LedgerRecord};
use ulid::Ulid;

/// Reader of the ledger's records, oldest first.
#[derive(Debug, Default)]
pub(super) struct ConsumedDispatches {
    /// Dispatches of the turns that have begun and are not over, by turn.
    open: HashMap<Ulid, Vec<Ulid>>,
}

impl ConsumedDispatches {
    /// Takes `record`, and returns the dispatches that are no longer needed after it. A turn's dispatches are needed
    /// until it is over, because its next owner reads them, and also afterwards if the turn ended because they were lost.
    pub(super) fn take_record(&mut self, record: &LedgerRecord) -> Vec<Ulid> {
        let mut over = Vec::new();
        for entry in &record.entries {
            self.take_entry(entry, &mut over);
        }

        let (mut consumed, mut lost) = (over, Vec::new());
        for (id, standing) in record.dispatch_standings() {
            match standing {
                DispatchStanding::Consumed => consumed.push(id),
                DispatchStanding::Lost => lost.push(id),
            }
        }

        // A record seldom consumes anything while turns are open, and there are few of these.
        consumed.retain(|id| !lost.contains(id) && !self.open.values().any(|ids| ids.contains(id)));
        consumed.sort_unstable();
        consumed.dedup();
        consumed
    }

    /// Notes the turns that `entry` begins or ends, and adds the dispatches of those that it ends to `over`.
    fn take_entry(&mut self, entry: &LedgerEntry, over: &mut Vec<Ulid>) {
        match entry {
            LedgerEntry::TurnStarted { turn, dispatches, .. } => {
                let ids = dispatches.iter().map(|dispatch| dispatch.id).collect();
                self.open.insert(*turn, ids);
            }
            LedgerEntry::TurnCompleted { turn, .. }
            | LedgerEntry::TurnFailed { turn, .. }
            | LedgerEntry::TurnInterrupted { turn, .. } => {
                over.extend(self.open.remove(turn).unwrap_or_default());
            }
            LedgerEntry::SessionOpened { .. }
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
            | LedgerEntry::Steered { .. }
            | LedgerEntry::ReplyPublished { .. }
            | LedgerEntry::Checkpoint { .. }
            | LedgerEntry::DispatchDropped { .. }
            | LedgerEntry::Compacted { .. }
            | LedgerEntry::SessionReset { .. }
            | LedgerEntry::Ordered { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::model::ledger::{DispatchRef, DropReason, LedgerCursor};
    use shared::model::session::SessionRef;
    use shared::model::time::UnixMillis;
    use shared::testing::sample;

    use super::*;

    #[test]
    fn a_dispatch_is_needed_until_its_turn_is_over() {
        let event = EventId::parse("test:1").expect("an id");
        let target = SessionRef {
            persona: "default".to_owned(),
            session: "main".to_owned(),
        };
        let dispatch = sample::dispatch(event, 1, "hook", target, UnixMillis(1_700_000_000_000));
        let whole = sample::whole_turn(&dispatch, UnixMillis(1_700_000_000_000));
        assert_eq!(
            ConsumedDispatches::default().take_record(&whole),
            [dispatch.id],
            "in one record"
        );

        let is_start = |entry: &&LedgerEntry| matches!(entry, LedgerEntry::TurnStarted { .. });
        let (start, rest): (Vec<_>, Vec<_>) = whole.entries.iter().partition(is_start);
        let part = |entries: Vec<&LedgerEntry>| LedgerRecord {
            entries: entries.into_iter().cloned().collect(),
            ..whole.clone()
        };
        let mut consumed = ConsumedDispatches::default();
        assert_eq!(consumed.take_record(&part(start)), []);
        assert_eq!(consumed.take_record(&part(rest)), [dispatch.id]);
    }
    #[test]
    fn a_dispatch_whose_turn_ended_because_it_was_lost_is_needed_and_so_is_one_whose_copy_was_dropped() {
        let event = EventId::parse("test:1").expect("an id");
        let target = SessionRef {
            persona: "default".to_owned(),
            session: "main".to_owned(),
        };
        let dispatch = sample::dispatch(event.clone(), 1, "hook", target, UnixMillis(1_700_000_000_000));
        let whole = sample::whole_turn(&dispatch, UnixMillis(1_700_000_000_000));
        let of = |entries: Vec<LedgerEntry>| LedgerRecord {
            entries,
            ..whole.clone()
        };
        let dropped = |reason| LedgerEntry::DispatchDropped {
            dispatch: DispatchRef {
                id: dispatch.id,
                sequence: 1,
                event_id: event.clone(),
                content: String::new(),
                stranger: None,
            },
            reason,
            detail: None,
            cursor: LedgerCursor::default(),
        };
        let started = |entry: &&LedgerEntry| matches!(entry, LedgerEntry::TurnStarted { .. });
        let begun: Vec<LedgerEntry> = whole.entries.iter().filter(started).cloned().collect();
        let LedgerEntry::TurnStarted { turn, .. } = &begun[0] else {
            panic!("a turn");
        };
        let interrupted = LedgerEntry::TurnInterrupted {
            turn: *turn,
            reason: "lost".to_owned(),
            partial: String::new(),
            cursor: LedgerCursor::default(),
        };

        let mut consumed = ConsumedDispatches::default();
        let copy = of(vec![dropped(DropReason::Duplicate)]);
        assert_eq!(consumed.take_record(&copy), [], "it waits, or its turn runs");
        assert_eq!(consumed.take_record(&of(begun)), []);
        let lost = of(vec![interrupted, dropped(DropReason::Lost)]);
        assert_eq!(consumed.take_record(&lost), []);

        // It came in the end, and was held or run.
        let held = of(vec![dropped(DropReason::Held)]);
        assert_eq!(consumed.take_record(&held), [dispatch.id]);
    }
}
