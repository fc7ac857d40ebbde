//! Dispatches that need not be made again, by the records of the ledger. *Pure.*

use std::collections::HashMap;

use shared::model::ledger::{LedgerEntry, LedgerRecord};
use ulid::Ulid;

/// Reader of the ledger's records, oldest first.
#[derive(Debug, Default)]
pub(super) struct ConsumedDispatches {
    /// Dispatches of the turns that have begun and are not over, by turn.
    open: HashMap<Ulid, Vec<Ulid>>,
}

impl ConsumedDispatches {
    /// Takes `record`, and returns the dispatches that are no longer needed after it. A turn's dispatches are needed
    /// until it is over, because its next owner reads them.
    pub(super) fn take_record(&mut self, record: &LedgerRecord) -> Vec<Ulid> {
        let mut consumed = record.consumed_ids();
        for entry in &record.entries {
            if let LedgerEntry::TurnStarted { turn, dispatches, .. } = entry {
                let ids = dispatches.iter().map(|dispatch| dispatch.id).collect();
                self.open.insert(*turn, ids);
            }
            if let LedgerEntry::TurnCompleted { turn, .. }
            | LedgerEntry::TurnFailed { turn, .. }
            | LedgerEntry::TurnInterrupted { turn, .. } = entry
            {
                consumed.extend(self.open.remove(turn).unwrap_or_default());
            }
        }

        // A record seldom consumes anything while turns are open, and there are few of these.
        consumed.retain(|id| !self.open.values().any(|ids| ids.contains(id)));
        consumed.sort_unstable();
        consumed.dedup();
        consumed
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
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
}
