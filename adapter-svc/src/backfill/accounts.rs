//! The accounts of this process, and whether their platforms let histories be read.

use std::collections::BTreeMap;
use std::sync::Arc;

use shared::wire::operator::backfill::backfill_key;

use crate::source::port::history::AccountHistory;

/// How the histories of an account can be read.
#[derive(Clone)]
pub enum HistoryAccess {
    /// By this.
    Readable(Arc<dyn AccountHistory>),
    /// Not at all, for this reason.
    Absent(&'static str),
}

/// The accounts of this process. Clones share it.
#[derive(Clone, Default)]
pub struct BackfillAccounts(Arc<BTreeMap<String, HistoryAccess>>);

// By hand: histories have no `Debug`.
impl std::fmt::Debug for BackfillAccounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl BackfillAccounts {
    /// Returns the accounts with `histories`, and those of `absent`: channel and account, each with the reason why it has none.
    pub fn new(
        histories: impl IntoIterator<Item = Arc<dyn AccountHistory>>,
        absent: impl IntoIterator<Item = (&'static str, String, &'static str)>,
    ) -> Self {
        let readable = histories.into_iter().map(|history| {
            let key = backfill_key(history.channel(), history.account());
            (key, HistoryAccess::Readable(history))
        });
        let absent = absent
            .into_iter()
            .map(|(channel, account, why)| (backfill_key(channel, &account), HistoryAccess::Absent(why)));
        Self(Arc::new(readable.chain(absent).collect()))
    }

    /// Returns how the account with the key `key` in KV `backfills` is read; `None` if this process does not have it.
    #[must_use]
    pub fn access(&self, key: &str) -> Option<&HistoryAccess> {
        self.0.get(key)
    }

    /// Returns the histories of the account with the key `key`; `None` if they cannot be read here.
    #[must_use]
    pub fn history(&self, key: &str) -> Option<Arc<dyn AccountHistory>> {
        match self.access(key)? {
            HistoryAccess::Readable(history) => Some(Arc::clone(history)),
            HistoryAccess::Absent(_) => None,
        }
    }
}
