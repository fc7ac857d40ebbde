//! What the watches of the buckets have told, and when that is all that is to be in force.

use std::collections::BTreeMap;

use shared::bus::{Kv, KvEvent};
use shared::model::channel::ConfiguredChannels;
use shared::model::hook::{HookRecord, HookState};
use shared::wire::envelope::Wire;
use tokio::sync::{mpsc, watch};

use crate::runner::{Counters, Pools};

/// A place in the bucket `hooks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// How often the bucket turned out to be another one before, in this process: revisions of several eras do not
    /// compare.
    pub era: u64,
    /// Revision.
    pub revision: u64,
}

impl Reached {
    /// Whether workers that have come here hold what `from` names. Of another bucket they take nothing before it holds the
    /// directory, so those of a former era hold what the directory held then.
    pub(crate) const fn holds(self, from: Self) -> bool {
        self.era < from.era || self.is_behind(from)
    }

    /// Whether this is `from`, or behind it in the same bucket.
    const fn is_behind(self, from: Self) -> bool {
        self.era == from.era && self.revision >= from.revision
    }
}

/// One change of one of the buckets.
pub(super) enum Change {
    Hook(KvEvent<HookRecord>),
    State(KvEvent<HookState>),
    Channels(KvEvent<ConfiguredChannels>),
}

/// What the watches have told. Keys are KV keys.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) records: BTreeMap<String, HookRecord>,
    pub(super) states: BTreeMap<String, HookState>,
    /// What replies can be delivered to.
    pub(super) channels: ConfiguredChannels,
    /// The newest revision of `hooks` that was told.
    revision: u64,
    /// How often the bucket `hooks` turned out to be another one.
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

/// Waits until the directory is synced into another bucket.
pub(super) async fn synced_again(synced: &mut Option<watch::Receiver<Option<Reached>>>) {
    if let Some(synced) = synced
        && synced.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

impl View {
    /// Whether all that is to be in force is told.
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
            // Nothing is loaded before all of the other bucket is told: what is in force stays until then.
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
            // delivery-svc says so where it has no accounts; an entry that is lost is soon said again.
            Change::Channels(KvEvent::Gone { .. }) => {}
            // What is in force stays until all of the other bucket is told.
            Change::Channels(KvEvent::Anew) => self.channels_current = false,
            Change::Channels(KvEvent::Current) => self.channels_current = true,
            Change::Hook(KvEvent::Bad { key, error, .. })
            | Change::State(KvEvent::Bad { key, error, .. })
            | Change::Channels(KvEvent::Bad { key, error, .. }) => {
                tracing::error!(key, error, "failed to read a registry entry; keeping the former one");
            }
        }
    }

    /// Scripts read these as `ctx.hook.trigger_count` and `.last_triggered`.
    pub(super) fn count(&self, key: &str, state: &HookState, pool: &Pools) {
        if let Some(record) = self.records.get(key) {
            pool.count(&record.id, Counters::from(state));
        }
    }
}
