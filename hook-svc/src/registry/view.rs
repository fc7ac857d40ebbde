//! Watched content of the buckets, and whether it is complete enough to be put in force.

use std::collections::BTreeMap;

use shared::bus::{Kv, KvEvent};
use shared::model::channel::ConfiguredChannels;
use shared::model::hook::{HookRecord, HookState};
use shared::wire::envelope::WireMessage;
use tokio::sync::{mpsc, watch};

use crate::runner::{HookCounters, WorkerPools};

/// Position in the bucket `hooks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegistryPosition {
    /// Number of times that this process found the bucket replaced; revisions of different eras do not compare.
    pub era: u64,
    /// Revision of the newest entry.
    pub revision: u64,
}

impl RegistryPosition {
    /// Returns whether workers that have loaded up to this position hold the entry at `from`. From a replaced bucket
    /// they load nothing before it holds the directory, so workers of a former era hold the directory's content of that
    /// time.
    pub(crate) const fn covers(self, from: Self) -> bool {
        self.era < from.era || self.is_behind(from)
    }

    /// Returns whether this is `from` or a later position in the same bucket.
    const fn is_behind(self, from: Self) -> bool {
        self.era == from.era && self.revision >= from.revision
    }
}

/// A change in one of the buckets.
pub(super) enum RegistryChange {
    Hook(KvEvent<HookRecord>),
    State(KvEvent<HookState>),
    Channels(KvEvent<ConfiguredChannels>),
}

/// Watched content of the buckets, by KV key.
#[derive(Debug, Default)]
pub(super) struct RegistryView {
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

pub(super) async fn forward_changes<T: WireMessage + 'static>(
    bucket: Kv<T>,
    change: fn(KvEvent<T>) -> RegistryChange,
    changes: mpsc::Sender<RegistryChange>,
) {
    let mut watch = bucket.watch_all();
    while changes.send(change(watch.next().await)).await.is_ok() {}
}

/// Waits until the directory is synced into a replaced bucket.
pub(super) async fn synced_again(synced: &mut Option<watch::Receiver<Option<RegistryPosition>>>) {
    if let Some(synced) = synced
        && synced.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl RegistryView {
    /// Returns whether everything that must be in force was reported.
    pub(super) fn is_whole(&self, synced: Option<&watch::Receiver<Option<RegistryPosition>>>) -> bool {
        let holds_directory = self.era == 0
            || synced.is_none_or(|synced| {
                synced
                    .borrow()
                    .is_some_and(|from| self.reached_revision().is_behind(from))
            });
        self.hooks_current && self.states_current && self.channels_current && holds_directory
    }

    pub(super) const fn reached_revision(&self) -> RegistryPosition {
        RegistryPosition {
            era: self.era,
            revision: self.revision,
        }
    }

    pub(super) fn take(&mut self, change: RegistryChange, pool: &WorkerPools) {
        match change {
            RegistryChange::Hook(KvEvent::Put { key, value, revision }) => {
                self.revision = self.revision.max(revision);
                self.records.insert(key.clone(), value);
                if let Some(state) = self.states.get(&key) {
                    self.count(&key, state, pool);
                }
            }
            RegistryChange::Hook(KvEvent::Gone { key, revision }) => {
                self.revision = self.revision.max(revision);
                self.records.remove(&key);
            }
            // Nothing is loaded before the new bucket is fully reported: the former hooks stay in force until then.
            RegistryChange::Hook(KvEvent::Anew) => {
                self.revision = 0;
                self.era += 1;
                self.hooks_current = false;
            }
            RegistryChange::Hook(KvEvent::Current) => self.hooks_current = true,
            RegistryChange::State(KvEvent::Anew) => self.states_current = false,
            RegistryChange::State(KvEvent::Put { key, value, .. }) => {
                self.count(&key, &value, pool);
                self.states.insert(key, value);
            }
            RegistryChange::State(KvEvent::Gone { key, .. }) => {
                self.states.remove(&key);
            }
            RegistryChange::State(KvEvent::Current) => {
                self.states_current = true;
                for (key, state) in &self.states {
                    self.count(key, state, pool);
                }
            }
            RegistryChange::Channels(KvEvent::Put { value, .. }) => self.channels = value,
            // delivery-svc writes an empty entry if it has no accounts, and soon rewrites a lost one.
            RegistryChange::Channels(KvEvent::Gone { .. }) => {}
            // The former channels stay in force until the new bucket is fully reported.
            RegistryChange::Channels(KvEvent::Anew) => self.channels_current = false,
            RegistryChange::Channels(KvEvent::Current) => self.channels_current = true,
            RegistryChange::Hook(KvEvent::Bad { key, error, .. })
            | RegistryChange::State(KvEvent::Bad { key, error, .. })
            | RegistryChange::Channels(KvEvent::Bad { key, error, .. }) => {
                tracing::error!(key, error, "failed to read a registry entry; keeping the former one");
            }
        }
    }

    /// Sends the counters of the hook with `key`, which scripts read as `ctx.hook.trigger_count` and `.last_triggered`.
    pub(super) fn count(&self, key: &str, state: &HookState, pool: &WorkerPools) {
        if let Some(record) = self.records.get(key) {
            pool.count(&record.id, HookCounters::from(state));
        }
    }
}
