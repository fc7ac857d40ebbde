//! Watched content of the buckets, and whether it is complete enough to be put in force.

use std::collections::BTreeMap;

use shared::bus::{Kv, KvEvent};
use shared::model::channel::ConfiguredChannels;
use shared::model::hook::{HookRecord, HookState};
use shared::wire::envelope::Wire;
use tokio::sync::{mpsc, watch};

use crate::runner::{Counters, Pools};

/// Position in the bucket `hooks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// Number of times that this process found the bucket replaced; revisions of different eras do not compare.
    pub era: u64,
    /// Revision of the newest entry.
    pub revision: u64,
}

impl Reached {
    /// Returns whether workers that have loaded up to this position hold the entry at `from`. From a replaced bucket
    /// they load nothing before it holds the directory, so workers of a former era hold the directory's content of that
    /// time.
    pub(crate) const fn holds(self, from: Self) -> bool {
        self.era < from.era || self.is_behind(from)
    }

    /// Returns whether this is `from` or a later position in the same bucket.
    const fn is_behind(self, from: Self) -> bool {
        self.era == from.era && self.revision >= from.revision
    }
}

/// A change in one of the buckets.
pub(super) enum Change {
    Hook(KvEvent<HookRecord>),
    State(KvEvent<HookState>),
    Channels(KvEvent<ConfiguredChannels>),
}

/// Watched content of the buckets, by KV key.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) records: BTreeMap<String, HookRecord>,
    pub(super) states: BTreeMap<String, HookState>,
    /// Channels to which replies can be delivered.
    pub(super) channels: ConfiguredChannels,
    /// Newest revision of `hooks` that was reported.
    revision: u64,
    /// Number of times that the bucket `hooks` was replaced.
    pub(super) era: u64,
    hooks_current: bool,
    states_current: bool,
    channels_current: bool,
}

pub(super) async fn forward<T: Wire + 'static>(
    bucket: Kv<T>,
    change: fn(KvEvent<T>) -> Change,
    changes: mpsc::Sender<Change>,
) {
    let mut watch = bucket.watch_all();
    while changes.send(change(watch.next().await)).await.is_ok() {}
}

/// Waits until the directory is synced into a replaced bucket.
pub(super) async fn synced_again(synced: &mut Option<watch::Receiver<Option<Reached>>>) {
    if let Some(synced) = synced
        && synced.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl View {
    /// Returns whether everything that must be in force was reported.
    pub(super) fn is_whole(&self, synced: Option<&watch::Receiver<Option<Reached>>>) -> bool {
        let holds_directory = self.era == 0
            || synced.is_none_or(|synced| synced.borrow().is_some_and(|from| self.reached().is_behind(from)));
        self.hooks_current && self.states_current && self.channels_current && holds_directory
    }

    pub(super) const fn reached(&self) -> Reached {
        Reached {
            era: self.era,
            revision: self.revision,
        }
    }

    pub(super) fn take(&mut self, change: Change, pool: &Pools) {
        match change {
            Change::Hook(KvEvent::Put { key, value, revision }) => {
                self.revision = self.revision.max(revision);
                self.records.insert(key.clone(), value);
                if let Some(state) = self.states.get(&key) {
                    self.count(&key, state, pool);
                }
            }
            Change::Hook(KvEvent::Gone { key, revision }) => {
                self.revision = self.revision.max(revision);
                self.records.remove(&key);
            }
            // Nothing is loaded before the new bucket is fully reported: the former hooks stay in force until then.
            Change::Hook(KvEvent::Anew) => {
                self.revision = 0;
                self.era += 1;
                self.hooks_current = false;
            }
            Change::Hook(KvEvent::Current) => self.hooks_current = true,
            Change::State(KvEvent::Anew) => self.states_current = false,
            Change::State(KvEvent::Put { key, value, .. }) => {
                self.count(&key, &value, pool);
                self.states.insert(key, value);
            }
            Change::State(KvEvent::Gone { key, .. }) => {
                self.states.remove(&key);
            }
            Change::State(KvEvent::Current) => {
                self.states_current = true;
                for (key, state) in &self.states {
                    self.count(key, state, pool);
                }
            }
            Change::Channels(KvEvent::Put { value, .. }) => self.channels = value,
            // delivery-svc writes an empty entry if it has no accounts, and soon rewrites a lost one.
            Change::Channels(KvEvent::Gone { .. }) => {}
            // The former channels stay in force until the new bucket is fully reported.
            Change::Channels(KvEvent::Anew) => self.channels_current = false,
            Change::Channels(KvEvent::Current) => self.channels_current = true,
            Change::Hook(KvEvent::Bad { key, error, .. })
            | Change::State(KvEvent::Bad { key, error, .. })
            | Change::Channels(KvEvent::Bad { key, error, .. }) => {
                tracing::error!(key, error, "failed to read a registry entry; keeping the former one");
            }
        }
    }

    /// Sends the counters of the hook with `key`, which scripts read as `ctx.hook.trigger_count` and `.last_triggered`.
    pub(super) fn count(&self, key: &str, state: &HookState, pool: &Pools) {
        if let Some(record) = self.records.get(key) {
            pool.count(&record.id, Counters::from(state));
        }
    }
}
