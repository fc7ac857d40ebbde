//! Members and leases of one group as this replica knows them, from two watches.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::clock::SharedClock;
use crate::wire::envelope::WireMessage;
use crate::wire::session_mark::{GroupMember, LeaseRecord};
use crate::wire::topology::buckets;

use super::super::connect::Bus;
use super::super::kv::{Kv, KvEvent};
use super::SILENCE;

/// State of a lease according to the watch.
#[derive(Debug, Clone, Copy)]
struct LeaseView {
    /// Revision of the lease's key.
    revision: u64,
    held: bool,
    told_at: Instant,
}

#[derive(Debug, Default)]
struct ViewState {
    /// Tokens of the instances that take part, each with the time of its last announcement.
    members: BTreeMap<String, Instant>,
    leases: HashMap<u16, LeaseView>,
    /// Whether each of the two watches (members, leases) has sent every entry that existed.
    settled: [bool; 2],
}

impl ViewState {
    fn live_members(&self, now: Instant) -> Vec<String> {
        let heard = self.members.iter().filter(|(_, told_at)| !is_silent(**told_at, now));
        heard.map(|(token, _)| token.clone()).collect()
    }

    fn free_partitions(&self, wanted: &[bool], mine: impl Fn(u16) -> bool, now: Instant) -> Vec<(u16, u64)> {
        (0_u16..)
            .zip(wanted)
            .filter(|(partition, wanted)| **wanted && !mine(*partition))
            .filter_map(|(partition, _)| match self.leases.get(&partition) {
                None => Some((partition, 0)),
                Some(lease) if lease.held && !is_silent(lease.told_at, now) => None,
                Some(lease) => Some((partition, lease.revision)),
            })
            .collect()
    }
}

fn is_silent(told_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(told_at) > SILENCE
}

/// State shared with the watching tasks; dropping it ends them.
#[derive(Debug)]
pub(super) struct GroupView {
    state: Arc<Mutex<ViewState>>,
    changed: Arc<Notify>,
    clock: SharedClock,
    tasks: Vec<JoinHandle<()>>,
}

fn lock(state: &Mutex<ViewState>) -> MutexGuard<'_, ViewState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Follows one group's records. `apply` returns whether an event is news. A lease that is merely refreshed is not,
/// because otherwise every refresh would wake all replicas, and each of them would refresh its own. `bad` receives
/// records that cannot be decoded.
fn follow_records<T: WireMessage + Send + 'static>(
    kv: &Kv<T>,
    prefix: String,
    changed: Arc<Notify>,
    apply: impl Fn(Option<(&str, u64, bool)>) -> bool + Send + 'static,
    bad: impl Fn(&str, u64) -> bool + Send + 'static,
) -> JoinHandle<()> {
    let mut watch = kv.watch(&prefix);
    tokio::spawn(async move {
        loop {
            let is_news = match watch.next().await {
                KvEvent::Put { key, revision, .. } => {
                    let Some(key) = key.strip_prefix(&prefix) else { continue };
                    apply(Some((key, revision, true)))
                }
                KvEvent::Gone { key, revision } => {
                    let Some(key) = key.strip_prefix(&prefix) else { continue };
                    apply(Some((key, revision, false)))
                }
                KvEvent::Bad { key, revision, error } => {
                    tracing::warn!(key, error, "failed to read a coordination record");
                    let Some(key) = key.strip_prefix(&prefix) else { continue };
                    bad(key, revision)
                }
                // Keys that no longer exist are reported as gone afterwards.
                KvEvent::Anew => continue,
                KvEvent::Current => apply(None),
            };

            // Woken only for news, because each wake-up costs a look at all partitions.
            if is_news {
                changed.notify_one();
            }
        }
    })
}

impl GroupView {
    /// Starts to watch members and leases of `group`.
    pub(super) fn watch_group(bus: &Bus, group: &'static str, clock: &SharedClock) -> Self {
        let mut view = Self::watch_members(bus, group, clock);
        lock(&view.state).settled[1] = false;
        let (state, changed) = (Arc::clone(&view.state), Arc::clone(&view.changed));

        let leases = {
            let (state, clock) = (Arc::clone(&state), Arc::clone(clock));
            let (seen, now) = (Arc::clone(&state), Arc::clone(&clock));

            follow_records(
                &bus.kv::<LeaseRecord>(buckets::LEASES),
                format!("{group}."),
                Arc::clone(&changed),
                move |told| {
                    let mut state = lock(&state);
                    match told {
                        Some((key, revision, held)) => {
                            let Ok(partition) = key.parse() else { return false };
                            let lease = LeaseView {
                                revision,
                                held,
                                told_at: clock.monotonic(),
                            };

                            let before = state.leases.insert(partition, lease);
                            before.is_none_or(|before| before.held != held)
                        }
                        None => {
                            state.settled[1] = true;
                            true
                        }
                    }
                },
                move |key, revision| {
                    // Its writer may live (a newer release): the lease is free once it was not written for
                    // [`SILENCE`].
                    if let Ok(partition) = key.parse() {
                        let lease = LeaseView {
                            revision,
                            held: true,
                            told_at: now.monotonic(),
                        };
                        lock(&seen).leases.insert(partition, lease);
                    }

                    false
                },
            )
        };

        view.tasks.push(leases);
        view
    }

    /// Starts to watch the members of `group`, which has no leases.
    pub(super) fn watch_members(bus: &Bus, group: &'static str, clock: &SharedClock) -> Self {
        let state: Arc<Mutex<ViewState>> = Arc::default();
        let changed: Arc<Notify> = Arc::default();
        lock(&state).settled[1] = true;

        let members = {
            let (state, clock) = (Arc::clone(&state), Arc::clone(clock));
            follow_records(
                &bus.kv::<GroupMember>(buckets::MEMBERS),
                format!("{group}."),
                Arc::clone(&changed),
                move |told| {
                    let mut state = lock(&state);
                    match told {
                        Some((key, _, true)) => state.members.insert(key.to_owned(), clock.monotonic()).is_none(),
                        Some((key, _, false)) => state.members.remove(key).is_some(),
                        None => {
                            state.settled[0] = true;
                            true
                        }
                    }
                },
                |_, _| false,
            )
        };

        Self {
            state,
            changed,
            clock: Arc::clone(clock),
            tasks: vec![members],
        }
    }

    /// Waits until all watches have sent every entry that existed.
    pub(super) async fn wait_settled(&self) {
        while lock(&self.state).settled != [true, true] {
            self.changed.notified().await;
        }
    }

    /// Waits for the next change of members or leases.
    pub(super) async fn wait_changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the tokens of the instances that take part and announced themselves within [`SILENCE`].
    pub(super) fn live_members(&self) -> Vec<String> {
        lock(&self.state).live_members(self.clock.monotonic())
    }

    /// Returns the wanted partitions that no replica holds, or whose holder is silent, each with the revision to take
    /// it at.
    pub(super) fn free_partitions(&self, wanted: &[bool], mine: impl Fn(u16) -> bool) -> Vec<(u16, u64)> {
        lock(&self.state).free_partitions(wanted, mine, self.clock.monotonic())
    }
}

impl Drop for GroupView {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock as _;
    use crate::model::time::UnixMillis;
    use crate::testing::ManualClock;

    #[test]
    fn whoever_is_silent_is_gone_although_nobody_said_so() {
        let then = ManualClock::at(UnixMillis(0)).monotonic();
        let lease = |revision, held| LeaseView {
            revision,
            held,
            told_at: then,
        };

        let state = ViewState {
            members: BTreeMap::from([("ghost".to_owned(), then)]),
            leases: HashMap::from([(0, lease(7, true)), (1, lease(8, false))]),
            settled: [true, true],
        };
        let (soon, late) = (then + SILENCE, then + SILENCE + Duration::from_millis(1));
        let free = |now| state.free_partitions(&[true; 3], |_| false, now);

        assert_eq!((state.live_members(soon).len(), state.live_members(late).len()), (1, 0));
        assert_eq!(free(soon), [(1, 8), (2, 0)]);
        assert_eq!(free(late), [(0, 7), (1, 8), (2, 0)]);
    }
}
