//! The breakers that are not at rest, as one replica knows them: from a watch, and from its own changes.
//!
//! Operations are admitted by this view without a read. Every change is decided on the leader's value, so a hook that
//! never fails costs neither a read nor a write.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::breaker::{Breaker, BreakerState, TURN_PREFIX, key_of};
use crate::bus::Bus;
use crate::bus::error::CasError;
use crate::bus::kv::{Kv, KvEvent, KvWatch};
use crate::wire::topology::buckets::BREAKERS;

/// The hooks whose breakers a service answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerScope {
    /// Hooks that events are shown to.
    Events,
    /// Hooks inside turns.
    Turns,
}

/// Notes that a replica keeps beside a breaker, for itself alone.
pub trait BreakerNotes: Default {
    /// Returns the notes once `former` has become `next`.
    #[must_use]
    fn carried(self, former: &Breaker, next: &Breaker) -> Self;
}

impl BreakerNotes for () {
    fn carried(self, _: &Breaker, _: &Breaker) -> Self {}
}

/// A breaker that is not at rest, or whose operations are counted.
#[derive(Debug, Clone)]
pub struct KnownBreaker<N = ()> {
    /// The breaker.
    pub breaker: Breaker,
    /// Notes of this replica.
    pub notes: N,
    revision: u64,
}

/// A change of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerChange {
    /// The breaker; `None` if its entry is gone.
    pub breaker: Option<Breaker>,
    /// Whether it has opened, closed, or is probed.
    pub has_turned: bool,
}

/// The breakers of one scope in the view of this replica.
#[derive(Debug)]
pub struct BreakerView<N = ()> {
    kv: Kv<Breaker>,
    scope: BreakerScope,
    /// By KV key.
    known: Mutex<HashMap<String, KnownBreaker<N>>>,
    /// Number of breakers in `known`.
    count: AtomicUsize,
}

impl<N: BreakerNotes> BreakerView<N> {
    /// Creates the view of the breakers in `scope` on `bus`; none is known until the first changes that
    /// [`BreakerView::watch`] yields are applied.
    #[must_use]
    pub fn new(bus: &Bus, scope: BreakerScope) -> Self {
        Self {
            kv: bus.kv(BREAKERS),
            scope,
            known: Mutex::default(),
            count: AtomicUsize::new(0),
        }
    }

    /// Watches the bucket, for [`BreakerView::apply`].
    #[must_use]
    pub fn watch(&self) -> KvWatch<Breaker> {
        match self.scope {
            BreakerScope::Events => self.kv.watch_all(),
            BreakerScope::Turns => self.kv.watch(&format!("{}.", TURN_PREFIX.trim_end_matches(':'))),
        }
    }

    /// Applies `event` of the bucket. Returns the change of the view; `None` if the event is of the other scope, or
    /// changes nothing.
    pub fn apply(&self, event: KvEvent<Breaker>) -> Option<BreakerChange> {
        match event {
            KvEvent::Put { value, revision, .. } if self.covers(&value) => {
                let has_turned = self.learn(&value, revision);
                Some(BreakerChange {
                    breaker: Some(value),
                    has_turned,
                })
            }
            KvEvent::Put { .. } | KvEvent::Current => None,
            KvEvent::Gone { key, .. } => Some(BreakerChange {
                breaker: None,
                has_turned: self.forget(&key),
            }),
            KvEvent::Bad { key, error, .. } => {
                tracing::error!(key, error, "failed to read a circuit breaker");
                None
            }
            // The bucket was replaced: its values count with any revision.
            KvEvent::Anew => {
                self.known().values_mut().for_each(|known| known.revision = 0);
                None
            }
        }
    }

    /// Returns whether every breaker is at rest, without a lock.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Returns the known breakers by KV key, locked.
    pub fn known(&self) -> MutexGuard<'_, HashMap<String, KnownBreaker<N>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the known breaker that people name `hook_id`, of the source with `content_hash`.
    #[must_use]
    pub fn breaker_of_source(&self, hook_id: &str, content_hash: &str) -> Option<Breaker> {
        if self.is_empty() {
            return None;
        }
        let known = self.known();
        let breaker = &known.get(&key_of(hook_id))?.breaker;
        (breaker.content_hash == content_hash).then(|| breaker.clone())
    }

    /// Changes the breaker for all replicas, as [`Kv::change_breaker`], and the view with it. Returns the resulting breaker, and
    /// whether it has opened, closed, or is probed in the view.
    ///
    /// # Errors
    /// As [`Kv::change_breaker`].
    pub async fn change(
        &self,
        hook_id: &str,
        content_hash: &str,
        next: impl FnMut(&Breaker) -> Option<Breaker>,
    ) -> Result<(Breaker, bool), CasError> {
        let (breaker, entry) = self.kv.change_breaker(hook_id, content_hash, next).await?;
        let has_turned = entry.is_some_and(|entry| self.learn(&entry.value, entry.revision));
        Ok((breaker, has_turned))
    }

    /// Changes the breaker in this view alone, because the bucket cannot be reached. Returns the resulting breaker.
    pub fn change_alone(
        &self,
        hook_id: &str,
        content_hash: &str,
        next: impl FnOnce(&Breaker) -> Option<Breaker>,
    ) -> Breaker {
        let stored = {
            let known = self.known();
            known
                .get(&key_of(hook_id))
                .map(|known| (known.breaker.clone(), known.revision))
        };
        let (former, revision) = stored.unwrap_or_else(|| (Breaker::for_hook(hook_id, content_hash), 0));
        let breaker = next(&former).unwrap_or(former);
        self.learn(&breaker, revision);
        breaker
    }

    fn covers(&self, breaker: &Breaker) -> bool {
        breaker.hook_id.starts_with(TURN_PREFIX) == (self.scope == BreakerScope::Turns)
    }

    /// Takes over `breaker`, unless a later one is known. Returns whether it has opened, closed, or is probed.
    fn learn(&self, breaker: &Breaker, revision: u64) -> bool {
        let key = key_of(&breaker.hook_id);
        let mut known = self.known();
        if known.get(&key).is_some_and(|known| known.revision > revision) {
            return false;
        }

        let former = known.remove(&key);
        let stood = former
            .as_ref()
            .map_or(BreakerState::Closed, |former| former.breaker.circuit.clone());

        if !breaker.is_at_rest() || breaker.recent.is_some() {
            let notes = former.map_or_else(N::default, |former| former.notes.carried(&former.breaker, breaker));
            let stored = KnownBreaker {
                breaker: breaker.clone(),
                notes,
                revision,
            };
            known.insert(key, stored);
        }

        self.count.store(known.len(), Ordering::Relaxed);
        stood != breaker.circuit
    }

    /// Removes the breaker at `key`. Returns whether it was open.
    fn forget(&self, key: &str) -> bool {
        let mut known = self.known();
        let former = known.remove(key);
        self.count.store(known.len(), Ordering::Relaxed);
        former.is_some_and(|former| !former.breaker.is_closed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breaker::BreakerPolicy;
    use crate::model::time::UnixMillis;
    use crate::testing::world;

    /// The number of changes of the breaker since it is known.
    #[derive(Debug, Default)]
    struct Changes(u32);

    impl BreakerNotes for Changes {
        fn carried(self, _: &Breaker, _: &Breaker) -> Self {
            Self(self.0 + 1)
        }
    }

    fn put(breaker: &Breaker, revision: u64) -> KvEvent<Breaker> {
        KvEvent::Put {
            key: key_of(&breaker.hook_id),
            value: breaker.clone(),
            revision,
        }
    }

    fn failed(hook_id: &str, failures_to_open: u32) -> Breaker {
        let policy = BreakerPolicy {
            failures_to_open,
            ..BreakerPolicy::default()
        };
        let failed = Breaker::for_hook(hook_id, "1").after_failure(&policy, "a", UnixMillis(1));
        failed.expect("it counts")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_latest_breaker_of_the_own_scope_is_known() {
        let (_server, bus) = world().await;
        let view = BreakerView::<Changes>::new(&bus, BreakerScope::Events);
        let (open, closed) = (failed("h", 1), failed("h", 5));
        let turned = |event| view.apply(event).map(|change| change.has_turned);
        let circuit = || view.breaker_of_source("h", "1").map(|breaker| breaker.circuit);

        assert_eq!(turned(put(&failed("turn:h", 1), 1)), None, "of the other scope");
        assert!(view.is_empty());

        assert_eq!(turned(put(&open, 5)), Some(true));
        assert_eq!(turned(put(&closed, 4)), Some(false), "an earlier one");
        assert_eq!(circuit(), Some(open.circuit.clone()));
        assert_eq!(view.breaker_of_source("h", "2"), None, "of another source");

        // After the bucket was replaced, its values count.
        assert_eq!(turned(KvEvent::Anew), None);
        assert_eq!(turned(put(&closed, 1)), Some(true));
        assert_eq!(circuit(), Some(BreakerState::Closed));
        assert_eq!(
            view.known().values().map(|known| known.notes.0).collect::<Vec<_>>(),
            [1]
        );

        assert_eq!(turned(put(&closed.reset(), 2)), Some(false));
        assert!(view.is_empty(), "at rest");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_change_is_known_at_once_and_by_watchers() {
        let (_server, bus) = world().await;
        let view = BreakerView::<()>::new(&bus, BreakerScope::Turns);
        let (breaker, has_turned) = view
            .change("turn:h", "1", |_| Some(failed("turn:h", 1)))
            .await
            .expect("stored");
        assert!(has_turned && !breaker.is_closed());
        assert_eq!(view.breaker_of_source("turn:h", "1"), Some(breaker.clone()));

        let other = BreakerView::<()>::new(&bus, BreakerScope::Turns);
        let mut watch = other.watch();
        while other.is_empty() {
            other.apply(watch.next().await);
        }
        assert_eq!(other.breaker_of_source("turn:h", "1"), Some(breaker));

        let alone = other.change_alone("turn:x", "1", |_| Some(failed("turn:x", 5)));
        assert_eq!(other.breaker_of_source("turn:x", "1"), Some(alone));
        assert_eq!(view.breaker_of_source("turn:x", "1"), None);
    }
}
