//! What this replica knows of members and leases, from two watches.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::wire::envelope::Wire;
use crate::wire::session_mark::{LeaseRecord, Member};
use crate::wire::topology::buckets;

use super::super::connect::Bus;
use super::super::kv::{Kv, KvEvent};

#[derive(Debug, Default)]
struct State {
    /// Tokens of the instances that are there.
    members: BTreeSet<String>,
    /// Partition → revision of its key, and whether it is held.
    leases: HashMap<u16, (u64, bool)>,
    /// Which of the two watches have told everything.
    settled: [bool; 2],
}

/// Shared with the tasks that watch; dropping it ends them.
#[derive(Debug)]
pub(super) struct View {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    tasks: [JoinHandle<()>; 2],
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn follow<T: Wire + Send + 'static>(
    kv: &Kv<T>,
    prefix: String,
    changed: Arc<Notify>,
    apply: impl Fn(Option<(&str, u64, bool)>) + Send + 'static,
) -> JoinHandle<()> {
    let mut watch = kv.watch_all();
    tokio::spawn(async move {
        loop {
            match watch.next().await {
                KvEvent::Put { key, revision, .. } => {
                    let Some(key) = key.strip_prefix(&prefix) else { continue };
                    apply(Some((key, revision, true)));
                }
                KvEvent::Gone { key, revision } => {
                    let Some(key) = key.strip_prefix(&prefix) else { continue };
                    apply(Some((key, revision, false)));
                }
                KvEvent::Bad { key, error } => tracing::warn!(key, error, "a coordination record cannot be read"),
                KvEvent::Current => apply(None),
            }
            changed.notify_one();
        }
    })
}

impl View {
    /// Begins to watch members and leases of `group`.
    pub(super) fn watch(bus: &Bus, group: &'static str) -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let changed: Arc<Notify> = Arc::default();
        let prefix = format!("{group}.");
        let members = {
            let state = Arc::clone(&state);
            follow(
                &bus.kv::<Member>(buckets::MEMBERS),
                prefix.clone(),
                Arc::clone(&changed),
                move |told| {
                    let mut state = lock(&state);
                    match told {
                        Some((key, _, true)) => drop(state.members.insert(key.to_owned())),
                        Some((key, _, false)) => drop(state.members.remove(key)),
                        None => state.settled[0] = true,
                    }
                },
            )
        };
        let leases = {
            let state = Arc::clone(&state);
            follow(
                &bus.kv::<LeaseRecord>(buckets::LEASES),
                prefix,
                Arc::clone(&changed),
                move |told| {
                    let mut state = lock(&state);
                    match told {
                        Some((key, revision, held)) => {
                            if let Ok(partition) = key.parse() {
                                state.leases.insert(partition, (revision, held));
                            }
                        }
                        None => state.settled[1] = true,
                    }
                },
            )
        };
        Self {
            state,
            changed,
            tasks: [members, leases],
        }
    }

    /// Waits until both watches have told everything that was there.
    pub(super) async fn settled(&self) {
        while lock(&self.state).settled != [true, true] {
            self.changed.notified().await;
        }
    }

    /// Waits for a change.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Tokens of the instances that are there.
    pub(super) fn members(&self) -> Vec<String> {
        lock(&self.state).members.iter().cloned().collect()
    }

    /// Wanted partitions that nobody holds, each with the revision to take it at.
    pub(super) fn free(&self, wanted: &[bool], mine: impl Fn(u16) -> bool) -> Vec<(u16, u64)> {
        let state = lock(&self.state);
        (0_u16..)
            .zip(wanted)
            .filter(|(partition, wanted)| **wanted && !mine(*partition))
            .filter_map(|(partition, _)| match state.leases.get(&partition) {
                None => Some((partition, 0)),
                Some((revision, false)) => Some((partition, *revision)),
                Some((_, true)) => None,
            })
            .collect()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
