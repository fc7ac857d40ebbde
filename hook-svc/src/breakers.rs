//! The hooks' breakers: one state for all replicas, in KV `breakers`, changed by compare-and-set alone.
//!
//! What a watch has told is the ground on which events skip hooks; every change is decided on the leader's value. So a
//! hook that never fails costs neither a read nor a write, and an evaluation while all breakers are at rest looks at one
//! counter. While a breaker is not closed, its hook's status in KV `hook_state` is `paused`: every replica that hears
//! of a change sees to that, so that a replica that dies in between leaves nothing behind.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{counter, gauge};
use shared::breaker::{Admission, Breaker, BreakerPolicy, Circuit};
use shared::bus::{Bus, CasError, Kv, KvEvent};
use shared::clock::SharedClock;
use shared::model::hook::HookState;
use shared::model::time::UnixMillis;
use shared::wire::subject::token;
use shared::wire::topology::buckets::{BREAKERS, HOOK_STATE};

use crate::once;
use crate::registry::change_state;
use crate::runner::{HookSet, HookSource};

/// How long beyond a hook's time-out its probe is held before another may claim it, in milliseconds.
const CLAIM_GRACE_MS: u64 = 5_000;

/// How often a compare-and-set is tried again after a conflict.
const MAX_TRIES: u32 = 20;

/// All breakers as this replica sees them; cheap to clone.
#[derive(Debug, Clone)]
pub struct Breakers {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kv: Kv<Breaker>,
    states: Kv<HookState>,
    clock: SharedClock,
    policy: BreakerPolicy,
    /// By KV key: breakers that are not at rest.
    restless: Mutex<HashMap<String, Known>>,
    /// How many.
    count: AtomicUsize,
}

#[derive(Debug, Clone)]
struct Known {
    breaker: Breaker,
    revision: u64,
}

/// What is to be done about one hook before an event is shown to it.
enum Want {
    Claim,
    /// Its source has changed: the breaker of the former one is over.
    Renew,
}

impl Breakers {
    /// The breakers on `bus`, unknown until [`Breakers::follow`] has heard of them.
    #[must_use]
    pub fn new(bus: &Bus, clock: SharedClock, policy: BreakerPolicy) -> Self {
        let inner = Inner {
            kv: bus.kv(BREAKERS),
            states: bus.kv(HOOK_STATE),
            clock,
            policy,
            restless: Mutex::default(),
            count: AtomicUsize::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Follows the bucket for ever.
    pub async fn follow(&self) {
        let mut watch = self.inner.kv.watch_all();
        loop {
            match watch.next().await {
                KvEvent::Put { value, revision, .. } => {
                    self.inner.learn(&value, revision);
                    self.inner.show(&value).await;
                }
                KvEvent::Gone { key, .. } => self.inner.forget(&key),
                KvEvent::Bad { key, error, .. } => tracing::error!(key, error, "breaker cannot be read"),
                KvEvent::Current => {}
            }
        }
    }

    /// Which hooks of `set` are not shown an event that `me` evaluates, `called` being those it would be shown to
    /// (`None` = all). Claims the probe of each whose cool-down is over; where that cannot be decided now, the hook is
    /// skipped.
    pub async fn admit(&self, set: &HookSet, called: Option<&[u32]>, me: &str) -> Vec<u32> {
        if self.inner.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let (mut refused, wants) = self.inner.look(set, called, me);
        for (index, want) in wants {
            let hook = &set.hooks()[index as usize];
            let now = self.inner.clock.now();
            let claim = |breaker: &Breaker| breaker.claimed(me, hook.timeout_ms.saturating_add(CLAIM_GRACE_MS), now);
            let decided = match want {
                Want::Claim => self.inner.change(hook, claim).await,
                Want::Renew => self.inner.change(hook, |_| None).await,
            };
            match decided.map(|breaker| breaker.admit(me, now)) {
                Ok(Admission::Pass) => {}
                Ok(Admission::Probe) => tracing::info!(hook_id = hook.id, event_id = me, "paused hook is probed"),
                Ok(Admission::Claim | Admission::Refuse { .. }) => refused.push(index),
                Err(error) => {
                    tracing::warn!(hook_id = hook.id, %error, "probe of the hook is not claimed");
                    refused.push(index);
                }
            }
        }
        refused
    }

    /// `hook` failed when `me` showed it an event. Stored, where it changes anything, before this returns.
    pub async fn failed(&self, hook: &HookSource, me: &str) {
        let now = self.inner.clock.now();
        if self.inner.is_refusing(hook, me, now) {
            return;
        }
        let policy = self.inner.policy;
        let mut opened = false;
        let change = |breaker: &Breaker| {
            let next = breaker.failed(&policy, me, now);
            opened = next.as_ref().is_some_and(|next| !next.is_closed());
            next
        };
        match self.inner.change(hook, change).await {
            Ok(breaker) if opened => {
                counter!("nexus_hook_breaker_transitions_total", "to" => "open").increment(1);
                tracing::error!(
                    hook_id = hook.id,
                    failures = breaker.failures,
                    "hook is paused: it keeps failing"
                );
                self.inner.show(&breaker).await;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(hook_id = hook.id, %error, "failure of the hook is not counted"),
        }
    }

    /// The hooks of `set` at which `was_called` holds did not fail when `me` showed them an event.
    pub async fn succeeded(&self, set: &HookSet, me: &str, was_called: impl Fn(u32) -> bool) {
        if self.inner.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for index in self.inner.relieved(set, me, was_called) {
            let hook = &set.hooks()[index as usize];
            let mut closed = false;
            let change = |breaker: &Breaker| {
                closed = !breaker.is_closed();
                breaker.succeeded(me)
            };
            match self.inner.change(hook, change).await {
                Ok(breaker) if closed && breaker.is_closed() => {
                    counter!("nexus_hook_breaker_transitions_total", "to" => "closed").increment(1);
                    tracing::info!(hook_id = hook.id, "hook runs again");
                    self.inner.show(&breaker).await;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(hook_id = hook.id, %error, "success of the hook is not counted"),
            }
        }
    }

    /// The breaker of the hook `id`, where it is not at rest.
    #[must_use]
    pub fn of(&self, id: &str) -> Option<Breaker> {
        self.inner.restless().get(&token(id)).map(|known| known.breaker.clone())
    }
}

impl Inner {
    fn restless(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.restless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, set: &HookSet, called: Option<&[u32]>, me: &str) -> (Vec<u32>, Vec<(u32, Want)>) {
        let now = self.clock.now();
        let (mut refused, mut wants) = (Vec::new(), Vec::new());
        for known in self.restless().values() {
            let Some(index) = set.index(&known.breaker.hook_id) else {
                continue;
            };
            if called.is_some_and(|called| called.binary_search(&index).is_err()) {
                continue;
            }
            if known.breaker.content_hash != set.hooks()[index as usize].content_hash {
                wants.push((index, Want::Renew));
                continue;
            }
            match known.breaker.admit(me, now) {
                Admission::Pass | Admission::Probe => {}
                Admission::Refuse { .. } => refused.push(index),
                Admission::Claim => wants.push((index, Want::Claim)),
            }
        }
        (refused, wants)
    }

    /// Whether `hook`'s breaker is known to be open, so that one more failure of `me` says nothing.
    fn is_refusing(&self, hook: &HookSource, me: &str, now: UnixMillis) -> bool {
        let restless = self.restless();
        let known = restless
            .get(&token(&hook.id))
            .filter(|known| known.breaker.content_hash == hook.content_hash);
        known.is_some_and(|known| matches!(known.breaker.admit(me, now), Admission::Refuse { .. }))
    }

    /// Hooks whose breakers a success changes.
    fn relieved(&self, set: &HookSet, me: &str, was_called: impl Fn(u32) -> bool) -> Vec<u32> {
        let restless = self.restless();
        let relieved = restless
            .values()
            .filter(|known| known.breaker.succeeded(me).is_some())
            .filter_map(|known| set.index(&known.breaker.hook_id));
        relieved.filter(|index| was_called(*index)).collect()
    }

    /// Compare-and-set of `hook`'s breaker until it succeeds or `next` wants nothing changed; what then stands. The
    /// breaker of a former source counts as one that never failed.
    async fn change(
        &self,
        hook: &HookSource,
        mut next: impl FnMut(&Breaker) -> Option<Breaker>,
    ) -> Result<Breaker, CasError> {
        let key = token(&hook.id);
        let mut tries = 0;
        loop {
            let entry = self.kv.get(&key).await?;
            let is_same = entry
                .as_ref()
                .is_some_and(|entry| entry.value.content_hash == hook.content_hash);
            let fresh = Breaker::of(&hook.id, &hook.content_hash);
            let current = match &entry {
                Some(entry) if is_same => &entry.value,
                Some(_) | None => &fresh,
            };
            let wanted = match (next(current), &entry) {
                (Some(wanted), _) => wanted,
                (None, Some(entry)) if !is_same && !entry.value.is_at_rest() => fresh,
                (None, entry) => {
                    if let Some(entry) = entry {
                        self.learn(&entry.value, entry.revision);
                    }
                    return Ok(current.clone());
                }
            };
            let written = match &entry {
                None => self.kv.create(&key, &wanted).await,
                Some(entry) => self.kv.update(&key, &wanted, entry.revision).await,
            };
            match written {
                Ok(revision) => {
                    self.learn(&wanted, revision);
                    return Ok(wanted);
                }
                Err(CasError::Conflict { .. }) if tries < MAX_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn learn(&self, breaker: &Breaker, revision: u64) {
        let key = token(&breaker.hook_id);
        let mut restless = self.restless();
        if restless.get(&key).is_some_and(|known| known.revision > revision) {
            return;
        }
        if breaker.is_at_rest() {
            restless.remove(&key);
        } else {
            let known = Known {
                breaker: breaker.clone(),
                revision,
            };
            restless.insert(key, known);
        }
        self.tally(&restless);
    }

    fn forget(&self, key: &str) {
        let mut restless = self.restless();
        restless.remove(key);
        self.tally(&restless);
    }

    fn tally(&self, restless: &HashMap<String, Known>) {
        self.count.store(restless.len(), Ordering::Relaxed);
        let open = restless.values().filter(|known| !known.breaker.is_closed()).count();
        gauge!("nexus_hook_breakers_open").set(open as f64);
    }

    /// Sees to it that the hook's status says what its breaker is.
    async fn show(&self, breaker: &Breaker) {
        let paused = match breaker.circuit {
            Circuit::Closed => false,
            Circuit::Open { .. } | Circuit::HalfOpen { .. } => true,
        };
        let shown = change_state(&self.states, &breaker.hook_id, |state| once::paused(state, paused)).await;
        if let Err(error) = shown {
            tracing::warn!(hook_id = breaker.hook_id, %error, "status of the hook does not say what its breaker is");
        }
    }
}
