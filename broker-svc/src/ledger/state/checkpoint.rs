//! Checkpoints: the fold in an entry of the ledger, so that a later reader folds only the records behind it. *Pure.*

use serde_json::Value;
use shared::model::ledger::{LedgerEntry, LedgerRecord};

use super::SessionState;

/// Number of entries between two checkpoints.
pub const CHECKPOINT_EVERY: u32 = 256;
/// Largest fold in a checkpoint, bytes of JSON; the record's own entries need the rest of the room. A larger fold
/// waits until the turn with the long journal is over.
pub const MAX_CHECKPOINT_BYTES: usize = 1_024 * 1_024;

impl SessionState {
    /// Returns the entry that lets a later reader begin here; it is due every [`CHECKPOINT_EVERY`] entries. The entry
    /// must be the first of its record, because it covers the records before it.
    #[must_use]
    pub fn due_checkpoint(&self) -> Option<LedgerEntry> {
        if self.since_checkpoint < CHECKPOINT_EVERY {
            return None;
        }

        let fold = serde_json::to_value(self).ok()?;
        if fold.to_string().len() > MAX_CHECKPOINT_BYTES {
            return None;
        }

        Some(LedgerEntry::Checkpoint {
            fold,
            cursor: self.cursor.clone(),
            through: self.last_sequence,
        })
    }
}

/// Returns the fold of a session's records, which begin with the session or with a record whose first entry is a
/// checkpoint. Returns `None` if they begin with any other record (the hint that led there is wrong) or the
/// checkpoint's fold is not readable.
#[must_use]
pub fn fold_records(records: &[(u64, LedgerRecord)]) -> Option<SessionState> {
    let mut state = match records.first().and_then(|(_, record)| record.entries.first()) {
        Some(LedgerEntry::Checkpoint { fold, .. }) => restore_fold(fold)?,
        Some(LedgerEntry::SessionOpened { .. }) | None => SessionState::default(),
        Some(_) => return None,
    };
    for (sequence, record) in records {
        state.apply(*sequence, record);
    }
    Some(state)
}

/// Returns whether `value` is a fold that this release reads, so that folding can begin at a checkpoint with it.
#[must_use]
pub fn is_fold(value: &Value) -> bool {
    restore_fold(value).is_some()
}

/// Returns the fold that a checkpoint holds; `None` if this release cannot read it.
#[must_use]
pub fn restore_fold(value: &Value) -> Option<SessionState> {
    serde_json::from_value(value.clone()).ok()
}

#[cfg(test)]
mod tests;
