//! Members and leases of one group as this replica knows them, from two watches. A lease is named by what it is for: the
//! number of a partition, or an account.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::str::FromStr;
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
use super::{SESSION, SILENCE};

/// State of a lease according to the watch.
#[derive(Debug, Clone)]
struct LeaseView {
    /// Revision of the lease's key.
    revision: u64,
    held: bool,
    /// Session of the holder; empty if the record cannot be read.
    session: String,
    told_at: Instant,
}

/// A lease that this replica wants, and that is free as far as the watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::bus) struct FreeLease<K> {
    /// The partition or account.
    pub(in crate::bus) key: K,
    /// Revision at which it can be taken.
    pub(in crate::bus) revision: u64,
    /// Session that the lease names, if it was not given back: the leader must confirm that it has ended.
    pub(in crate::bus) former: Option<String>,
}

/// News of a bucket. `key` is without the group's prefix.
enum Told<'a, T> {
    Put {
        key: &'a str,
        revision: u64,
        value: &'a T,
    },
    Gone {
        key: &'a str,
        revision: u64,
    },
    /// Every entry that existed has been told.
    Current,
}

#[derive(Debug)]
struct ViewState<K> {
    /// Tokens of the instances that take part, each with the time of its last announcement.
    members: BTreeMap<String, Instant>,
    leases: HashMap<K, LeaseView>,
    /// Sessions of holders, each with the time of its last refresh.
    sessions: HashMap<String, Instant>,
    /// Whether each of the two watches (members, leases) has sent every entry that existed.
    settled: [bool; 2],
}

impl<K> Default for ViewState<K> {
    fn default() -> Self {
        Self {
            members: BTreeMap::new(),
            leases: HashMap::new(),
            sessions: HashMap::new(),
            settled: [true, true],
        }
    }
}

impl<K: Clone + Eq + Hash + FromStr> ViewState<K> {
    /// Applies news of the bucket of leases. Returns whether a lease or a session came or went.
    fn note_lease(&mut self, told: &Told<'_, LeaseRecord>, now: Instant) -> bool {
        let (key, revision, value) = match *told {
            Told::Put { key, revision, value } => (key, revision, Some(value)),
            Told::Gone { key, revision } => (key, revision, None),
            Told::Current => {
                self.settled[1] = true;
                return true;
            }
        };

        if let Some(session) = key.strip_prefix(SESSION) {
            return match value {
                Some(_) => self.sessions.insert(session.to_owned(), now).is_none(),
                None => self.sessions.remove(session).is_some(),
            };
        }

        let Ok(key) = key.parse() else { return false };
        let lease = LeaseView {
            revision,
            held: value.is_some(),
            session: value.map_or_else(String::new, |value| value.session.clone()),
            told_at: now,
        };
        let session = lease.session.clone();
        let before = self.leases.insert(key, lease);
        before.is_none_or(|before| before.held != value.is_some() || before.session != session)
    }

    fn live_members(&self, now: Instant) -> Vec<String> {
        let heard = self.members.iter().filter(|(_, told_at)| !is_silent(**told_at, now));
        heard.map(|(token, _)| token.clone()).collect()
    }

    fn free_lease(&self, key: &K, (own_session, now): (Option<&str>, Instant)) -> Option<FreeLease<K>> {
        let lease = self.leases.get(key);
        let former = match lease {
            Some(lease) if lease.held => self.former_session(lease, own_session, now)?,
            Some(_) | None => None,
        };
        Some(FreeLease {
            key: key.clone(),
            revision: lease.map_or(0, |lease| lease.revision),
            former,
        })
    }

    /// Returns the session that has held `lease` if it is to be asked for, or `None` within if that need not be; `None` if
    /// the lease is held.
    #[expect(clippy::option_option, reason = "held, free, or free if the leader says so")]
    fn former_session(&self, lease: &LeaseView, own_session: Option<&str>, now: Instant) -> Option<Option<String>> {
        let session = lease.session.as_str();
        // A record that names no session is of another release or broken: it is free once it is left alone.
        if session.is_empty() {
            return is_silent(lease.told_at, now).then_some(None);
        }

        // Taken by this replica, which was not told so.
        if own_session == Some(session) {
            return Some(None);
        }

        let heard = self.sessions.get(session);
        let is_live = heard.is_some_and(|told_at| !is_silent(*told_at, now));
        (!is_live).then(|| Some(session.to_owned()))
    }
}

fn is_silent(told_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(told_at) > SILENCE
}

/// State shared with the watching tasks; dropping it ends them.
#[derive(Debug)]
pub(in crate::bus) struct GroupView<K = u16> {
    state: Arc<Mutex<ViewState<K>>>,
    changed: Arc<Notify>,
    clock: SharedClock,
    tasks: Vec<JoinHandle<()>>,
}

fn lock<K>(state: &Mutex<ViewState<K>>) -> MutexGuard<'_, ViewState<K>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Follows one group's records. `apply` returns whether an event is news. A lease that is merely refreshed is not,
/// because otherwise every refresh would wake all replicas, and each of them would refresh its own. `bad` receives
/// records that cannot be decoded.
fn follow_records<T: WireMessage + Send + 'static>(
    kv: &Kv<T>,
    prefix: String,
    changed: Arc<Notify>,
    apply: impl Fn(Told<'_, T>) -> bool + Send + 'static,
    bad: impl Fn(&str, u64) -> bool + Send + 'static,
) -> JoinHandle<()> {
    let mut watch = kv.watch(&prefix);
    tokio::spawn(async move {
        loop {
            let is_news = match watch.next().await {
                KvEvent::Put { key, revision, value } => {
                    let Some(key) = key.strip_prefix(&prefix) else { continue };
                    let value = &value;
                    apply(Told::Put { key, revision, value })
                }
                KvEvent::Gone { key, revision } => {
                    let Some(key) = key.strip_prefix(&prefix) else { continue };
                    apply(Told::Gone { key, revision })
                }
                KvEvent::Bad { key, revision, error } => {
                    tracing::warn!(key, error, "failed to read a coordination record");
                    let Some(key) = key.strip_prefix(&prefix) else { continue };
                    bad(key, revision)
                }
                // Keys that no longer exist are reported as gone afterwards.
                KvEvent::Anew => continue,
                KvEvent::Current => apply(Told::Current),
            };

            // Woken only for news, because each wake-up costs a look at all partitions.
            if is_news {
                changed.notify_one();
            }
        }
    })
}

impl<K: Clone + Eq + Hash + FromStr + Send + 'static> GroupView<K> {
    /// Starts to watch members and leases of `group`.
    pub(super) fn watch_group(bus: &Bus, group: &'static str, clock: &SharedClock) -> Self {
        let mut view = Self::watch_members(bus, group, clock);
        view.follow_leases(bus, group);
        view
    }

    /// Starts to watch the members of `group`, which has no leases.
    pub(super) fn watch_members(bus: &Bus, group: &'static str, clock: &SharedClock) -> Self {
        let mut view = Self::new(clock);
        view.follow_members(bus, group);
        view
    }

    /// Starts to watch the leases of `group`, which has no members.
    pub(in crate::bus) fn watch_leases(bus: &Bus, group: &'static str, clock: &SharedClock) -> Self {
        let mut view = Self::new(clock);
        view.follow_leases(bus, group);
        view
    }

    fn new(clock: &SharedClock) -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::default(),
            clock: Arc::clone(clock),
            tasks: Vec::new(),
        }
    }

    fn follow_leases(&mut self, bus: &Bus, group: &'static str) {
        lock(&self.state).settled[1] = false;
        let (state, clock) = (Arc::clone(&self.state), Arc::clone(&self.clock));
        let (seen, now) = (Arc::clone(&self.state), Arc::clone(&self.clock));

        self.tasks.push(follow_records(
            &bus.kv::<LeaseRecord>(buckets::LEASES),
            format!("{group}."),
            Arc::clone(&self.changed),
            move |told| lock(&state).note_lease(&told, clock.monotonic()),
            move |key, revision| {
                // Its writer may live (a newer release): the lease is free once it was not written for [`SILENCE`].
                if let Ok(key) = key.parse() {
                    let lease = LeaseView {
                        revision,
                        held: true,
                        session: String::new(),
                        told_at: now.monotonic(),
                    };
                    lock(&seen).leases.insert(key, lease);
                }

                false
            },
        ));
    }

    fn follow_members(&mut self, bus: &Bus, group: &'static str) {
        lock(&self.state).settled[0] = false;
        let (state, clock) = (Arc::clone(&self.state), Arc::clone(&self.clock));

        self.tasks.push(follow_records(
            &bus.kv::<GroupMember>(buckets::MEMBERS),
            format!("{group}."),
            Arc::clone(&self.changed),
            move |told| {
                let mut state = lock(&state);
                match told {
                    Told::Put { key, .. } => state.members.insert(key.to_owned(), clock.monotonic()).is_none(),
                    Told::Gone { key, .. } => state.members.remove(key).is_some(),
                    Told::Current => {
                        state.settled[0] = true;
                        true
                    }
                }
            },
            |_, _| false,
        ));
    }

    /// Waits until all watches have sent every entry that existed.
    pub(super) async fn wait_settled(&self) {
        while !self.is_settled() {
            self.changed.notified().await;
        }
    }

    /// Returns whether all watches have sent every entry that existed.
    pub(in crate::bus) fn is_settled(&self) -> bool {
        lock(&self.state).settled == [true, true]
    }

    /// Waits for the next change of members or leases.
    pub(super) async fn wait_changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the tokens of the instances that take part and announced themselves within [`SILENCE`].
    pub(super) fn live_members(&self) -> Vec<String> {
        lock(&self.state).live_members(self.clock.monotonic())
    }

    /// Returns the lease for `key`, if no replica holds it, or its holder is silent. One that `own_session` holds was
    /// taken without an answer.
    pub(in crate::bus) fn free_lease(&self, key: &K, own_session: Option<&str>) -> Option<FreeLease<K>> {
        lock(&self.state).free_lease(key, (own_session, self.clock.monotonic()))
    }

    /// Returns whether the lease for `key`, which this replica wrote at `revision`, was written or removed since.
    pub(in crate::bus) fn is_lost(&self, key: &K, revision: u64) -> bool {
        let state = lock(&self.state);
        state.leases.get(key).is_some_and(|lease| lease.revision > revision)
    }
}

impl GroupView {
    /// Returns the leases of the `wanted` partitions that are free and not `mine`.
    pub(super) fn free_partitions(
        &self,
        wanted: &[bool],
        mine: impl Fn(u16) -> bool,
        own_session: Option<&str>,
    ) -> Vec<FreeLease<u16>> {
        let numbered = (0_u16..).zip(wanted);
        numbered
            .filter(|(partition, wanted)| **wanted && !mine(*partition))
            .filter_map(|(partition, _)| self.free_lease(&partition, own_session))
            .collect()
    }
}

impl<K> Drop for GroupView<K> {
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
        let lease = |revision, held, session: &str| LeaseView {
            revision,
            held,
            session: session.to_owned(),
            told_at: then,
        };

        let state = ViewState {
            members: BTreeMap::from([("ghost".to_owned(), then)]),
            leases: HashMap::from([
                (0, lease(7, true, "live")),
                (1, lease(8, false, "")),
                (3, lease(9, true, "dead")),
                (4, lease(10, true, "own")),
                (5, lease(11, true, "")),
            ]),
            sessions: HashMap::from([("live".to_owned(), then), ("own".to_owned(), then)]),
            settled: [true, true],
        };
        let (soon, late) = (then + SILENCE, then + SILENCE + Duration::from_millis(1));
        let free = |now| {
            let free = (0..6).filter_map(|partition| state.free_lease(&partition, (Some("own"), now)));
            free.map(|free| format!("{}@{} {}", free.key, free.revision, free.former.unwrap_or_default()))
                .collect::<Vec<_>>()
        };

        assert_eq!((state.live_members(soon).len(), state.live_members(late).len()), (1, 0));
        assert_eq!(free(soon), ["1@8 ", "2@0 ", "3@9 dead", "4@10 "]);
        assert_eq!(free(late), ["0@7 live", "1@8 ", "2@0 ", "3@9 dead", "4@10 ", "5@11 "]);
    }
}
