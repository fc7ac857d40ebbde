//! Circuit breakers of hooks: one state for all replicas, in KV `breakers`, changed only by compare-and-set.
//!
//! Events skip hooks based on the watched state, but every change is decided on the leader's value. So a hook that
//! never fails costs neither a read nor a write, and an evaluation while all breakers are at rest reads one counter.
//! While a breaker is not closed, its hook's status in KV `hook_state` is `paused`: every replica that sees a change
//! writes the status, so that a replica that dies in between leaves no wrong one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{counter, gauge};
use shared::breaker::{Breaker, BreakerAdmission, BreakerPolicy, BreakerState, TURN_PREFIX};
use shared::bus::{Bus, CasError, Kv, KvEvent};
use shared::clock::SharedClock;
use shared::model::hook::{HookState, HookStatus};
use shared::model::time::UnixMillis;
use shared::wire::subject::token;
use shared::wire::topology::buckets::{BREAKERS, HOOK_STATE};
use tokio::sync::watch;

use crate::registry::change_state;
use crate::registry::one_shot;
use crate::runner::{HookSet, HookSource};

/// Time in milliseconds beyond a hook's time-out for which its probe is held before another evaluation may claim it.
const CLAIM_GRACE_MS: u64 = 5_000;

/// All breakers in the view of this replica; cheap to clone.
#[derive(Debug, Clone)]
pub struct HookBreakers {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kv: Kv<Breaker>,
    states: Kv<HookState>,
    clock: SharedClock,
    policy: BreakerPolicy,
    /// Breakers that are not at rest, by KV key.
    restless: Mutex<HashMap<String, Known>>,
    /// Number of breakers in `restless`.
    count: AtomicUsize,
    /// Notifies that a breaker has opened, closed, or is probed.
    changed: watch::Sender<()>,
}

#[derive(Debug, Clone)]
struct Known {
    breaker: Breaker,
    revision: u64,
    /// Number of errors outside of evaluations that no success has offset.
    strays: u32,
    /// Number of evaluations on this replica that were not yet reported with a failure.
    untold: u32,
}

/// Change that a breaker needs before an event is shown to its hook.
enum Want {
    Claim,
    /// The source has changed, so the breaker of the former one must be reset.
    Renew,
}

impl HookBreakers {
    /// Creates the breakers on `bus`, unknown until [`HookBreakers::follow_bucket`] has read them.
    #[must_use]
    pub fn new(bus: &Bus, clock: SharedClock, policy: BreakerPolicy) -> Self {
        let inner = Inner {
            kv: bus.kv(BREAKERS),
            states: bus.kv(HOOK_STATE),
            clock,
            policy,
            restless: Mutex::default(),
            count: AtomicUsize::new(0),
            changed: watch::Sender::default(),
        };

        Self { inner: Arc::new(inner) }
    }

    /// Follows the bucket; never returns.
    pub async fn follow_bucket(&self) {
        let mut watch = self.inner.kv.watch_all();
        loop {
            match watch.next().await {
                // Hooks inside turns belong to the brokers.
                KvEvent::Put { value, .. } if value.hook_id.starts_with(TURN_PREFIX) => {}
                KvEvent::Put { value, revision, .. } => {
                    self.inner.learn_breaker(&value, revision);
                    self.inner.show(&value).await;
                }
                KvEvent::Gone { key, .. } => self.inner.forget_breaker(&key),
                KvEvent::Bad { key, error, .. } => tracing::error!(key, error, "failed to read a circuit breaker"),
                KvEvent::Anew => self.inner.count_anew(),
                KvEvent::Current => {}
            }
        }
    }

    /// Returns the hooks of `set` that must not be shown an event that `me` evaluates; `called` are those it would be
    /// shown to (`None` = all). Claims the probe of each whose cool-down is over; if that fails, the hook is skipped.
    pub async fn paused_hooks(&self, set: &HookSet, called: Option<&[u32]>, me: &str) -> Vec<u32> {
        // No hook has failed lately: the common case costs one load.
        if self.inner.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }

        let (mut refused, wants) = self.inner.sort_out(set, called, me);
        for (index, want) in wants {
            let hook = &set.hooks()[index as usize];
            let now = self.inner.clock.now();
            let claim =
                |breaker: &Breaker| breaker.claim_probe(me, hook.timeout_ms.saturating_add(CLAIM_GRACE_MS), now);
            let decided = match want {
                Want::Claim => self.inner.change_breaker(hook, claim).await,
                // The state that another version of the hook left is removed first.
                Want::Renew => self.inner.change_breaker(hook, Breaker::at_rest).await,
            };

            match decided.map(|breaker| breaker.admit_operation(me, now)) {
                Ok(BreakerAdmission::Pass) => {}
                Ok(BreakerAdmission::Probe) => {
                    tracing::info!(hook_id = hook.id, event_id = me, "probing a paused hook");
                }
                Ok(BreakerAdmission::Claim | BreakerAdmission::Refuse { .. }) => refused.push(index),
                Err(error) => {
                    tracing::warn!(hook_id = hook.id, %error, "failed to claim the probe of a hook");
                    refused.push(index);
                }
            }
        }

        refused
    }

    /// Records that `hook` failed when `me` showed it an event. Any change is stored before this returns.
    pub async fn record_failure(&self, hook: &HookSource, me: &str) {
        self.count_failure(hook, me).await;
    }

    /// Records that `hook` threw outside of its evaluations, in a process of `me`. Such a failure also cancels one
    /// later success here, so that a hook that answers each event well, and throws afterwards, fails each time.
    pub async fn record_stray_error(&self, hook: &HookSource, me: &str) {
        if self.count_failure(hook, me).await {
            self.inner.note_stray(hook);
        }
    }

    /// Counts a failure of `hook`. Returns whether it was counted.
    async fn count_failure(&self, hook: &HookSource, me: &str) -> bool {
        let now = self.inner.clock.now();
        // The breaker is known to be open: another failure adds no information.
        if self.inner.is_refusing(hook, me, now) {
            return false;
        }

        let policy = self.inner.policy;
        // The evaluations since the last write are counted with this one: successes alone are not worth a write.
        let evaluations = self.inner.take_untold(hook).saturating_add(1);
        let mut opened = false;
        let change = |breaker: &Breaker| {
            let next = breaker
                .with_operations(evaluations, now)
                .after_failure(&policy, me, now);
            opened = next.as_ref().is_some_and(|next| !next.is_closed());
            next
        };

        match self.inner.change_breaker(hook, change).await {
            Ok(breaker) if opened => {
                counter!("nexus_hook_breaker_transitions_total", "to" => "open").increment(1);
                tracing::error!(
                    hook_id = hook.id,
                    failures = breaker.failures,
                    recent = breaker
                        .recent
                        .map(|recent| format!("{} of {}", recent.failed, recent.operations)),
                    "hook paused after repeated errors"
                );

                // The hook's status in the registry follows, so that `nexus hook list` shows the pause.
                self.inner.show(&breaker).await;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(hook_id = hook.id, %error, "failed to count an error of a hook");
                return false;
            }
        }

        true
    }

    /// Records that the hooks of `set` for which `was_called` is true did not fail when `me` showed them an event.
    pub async fn record_successes(&self, set: &HookSet, me: &str, was_called: impl Fn(u32) -> bool) {
        // Called for every event, and nearly always no hook has failed lately.
        if self.inner.count.load(Ordering::Relaxed) == 0 {
            return;
        }

        let now = self.inner.clock.now();
        for index in self.inner.relieved_hooks(set, me, was_called, now) {
            let hook = &set.hooks()[index as usize];
            let mut closed = false;
            let change = |breaker: &Breaker| {
                closed = !breaker.is_closed();
                breaker.after_success(me).or_else(|| breaker.without_past_hour(now))
            };
            match self.inner.change_breaker(hook, change).await {
                Ok(breaker) if closed && breaker.is_closed() => {
                    counter!("nexus_hook_breaker_transitions_total", "to" => "closed").increment(1);
                    tracing::info!(hook_id = hook.id, "hook resumed");
                    self.inner.show(&breaker).await;
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(hook_id = hook.id, %error, "failed to count a success of a hook"),
            }
        }
    }

    /// Returns a receiver that is notified when a breaker has opened, closed, or is probed.
    #[must_use]
    pub fn subscribe_changes(&self) -> watch::Receiver<()> {
        self.inner.changed.subscribe()
    }

    /// Returns the breaker of the hook `id`, if it is not at rest.
    #[must_use]
    pub fn breaker_of(&self, id: &str) -> Option<Breaker> {
        let known = self
            .inner
            .lock_restless()
            .get(&token(id))
            .map(|known| known.breaker.clone());
        known.filter(|breaker| !breaker.is_at_rest())
    }
}

impl Inner {
    fn lock_restless(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.restless.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sort_out(&self, set: &HookSet, called: Option<&[u32]>, me: &str) -> (Vec<u32>, Vec<(u32, Want)>) {
        let now = self.clock.now();
        let (mut refused, mut wants) = (Vec::new(), Vec::new());
        // Only hooks that failed lately are listed, so this is short.
        for known in self.lock_restless().values() {
            let Some(index) = set.index(&known.breaker.hook_id) else {
                continue;
            };
            if called.is_some_and(|called| called.binary_search(&index).is_err()) {
                continue;
            }

            // The breaker counts errors of a version that is no longer in force.
            if known.breaker.content_hash != set.hooks()[index as usize].content_hash {
                wants.push((index, Want::Renew));
                continue;
            }

            match known.breaker.admit_operation(me, now) {
                BreakerAdmission::Pass | BreakerAdmission::Probe => {}
                BreakerAdmission::Refuse { .. } => refused.push(index),
                BreakerAdmission::Claim => wants.push((index, Want::Claim)),
            }
        }

        (refused, wants)
    }

    /// Returns whether `hook`'s breaker is known to be open, so that another failure of `me` adds no information.
    fn is_refusing(&self, hook: &HookSource, me: &str, now: UnixMillis) -> bool {
        let restless = self.lock_restless();
        let known = restless
            .get(&token(&hook.id))
            .filter(|known| known.breaker.content_hash == hook.content_hash);
        known.is_some_and(|known| matches!(known.breaker.admit_operation(me, now), BreakerAdmission::Refuse { .. }))
    }

    /// Returns the number of evaluations of `hook` that were not yet reported, and resets it.
    fn take_untold(&self, hook: &HookSource) -> u32 {
        let mut restless = self.lock_restless();
        let known = restless.get_mut(&token(&hook.id));
        known.map_or(0, |known| std::mem::take(&mut known.untold))
    }

    /// Returns the hooks whose breakers a success at `now` changes, and counts the success for all that failed
    /// recently.
    fn relieved_hooks(&self, set: &HookSet, me: &str, was_called: impl Fn(u32) -> bool, now: UnixMillis) -> Vec<u32> {
        let mut restless = self.lock_restless();
        let mut relieved = Vec::new();
        for known in restless.values_mut() {
            let index = set.index(&known.breaker.hook_id).filter(|index| was_called(*index));
            let Some(index) = index else { continue };
            known.untold = known.untold.saturating_add(1);

            // The hour in which its errors were counted is over.
            if known.breaker.without_past_hour(now).is_some() {
                relieved.push(index);
                continue;
            }

            if known.breaker.after_success(me).is_none() {
                continue;
            }

            match known.strays.checked_sub(1) {
                Some(left) => known.strays = left,
                None => relieved.push(index),
            }
        }

        relieved
    }

    /// Cancels one later success of `hook`, unless its breaker has opened.
    fn note_stray(&self, hook: &HookSource) {
        let mut restless = self.lock_restless();
        let known = restless.get_mut(&token(&hook.id));
        if let Some(known) = known.filter(|known| known.breaker.is_closed()) {
            known.strays = known.strays.saturating_add(1);
        }
    }

    /// Changes `hook`'s breaker by `next`, if that returns a change. Returns the resulting breaker.
    async fn change_breaker(
        &self,
        hook: &HookSource,
        next: impl FnMut(&Breaker) -> Option<Breaker>,
    ) -> Result<Breaker, CasError> {
        let (stands, entry) = self.kv.change_breaker(&hook.id, &hook.content_hash, next).await?;
        if let Some(entry) = entry {
            self.learn_breaker(&entry.value, entry.revision);
        }
        Ok(stands)
    }

    fn learn_breaker(&self, breaker: &Breaker, revision: u64) {
        let key = token(&breaker.hook_id);
        let mut restless = self.lock_restless();
        // Writes of other replicas may arrive out of order.
        if restless.get(&key).is_some_and(|known| known.revision > revision) {
            return;
        }

        let former = restless.remove(&key);
        let stood = former
            .as_ref()
            .map_or(BreakerState::Closed, |known| known.breaker.circuit.clone());

        if !breaker.is_at_rest() || breaker.recent.is_some() {
            let is_same = |former: &&Known| former.breaker.content_hash == breaker.content_hash && breaker.is_closed();
            let known = Known {
                breaker: breaker.clone(),
                revision,
                // What was counted locally and not yet written must not be lost.
                strays: former.as_ref().filter(is_same).map_or(0, |former| former.strays),
                untold: former.map_or(0, |former| former.untold),
            };

            restless.insert(key, known);
        }

        self.update_gauges(&restless);

        if stood != breaker.circuit {
            self.changed.send_replace(());
        }
    }

    /// Resets the known revisions, because the bucket was replaced: its values count with any revision.
    fn count_anew(&self) {
        for known in self.lock_restless().values_mut() {
            known.revision = 0;
        }
    }

    fn forget_breaker(&self, key: &str) {
        let mut restless = self.lock_restless();
        let former = restless.remove(key);
        self.update_gauges(&restless);
        if former.is_some_and(|known| !known.breaker.is_closed()) {
            self.changed.send_replace(());
        }
    }

    fn update_gauges(&self, restless: &HashMap<String, Known>) {
        self.count.store(restless.len(), Ordering::Relaxed);
        let open = restless.values().filter(|known| !known.breaker.is_closed()).count();
        gauge!("nexus_hook_breakers_open").set(open as f64);
        let now = self.clock.now();
        let degraded = restless.values().filter(|known| known.breaker.is_degraded(now)).count();
        gauge!("nexus_hooks_degraded").set(degraded as f64);
    }

    /// Updates the hook's status to match its breaker.
    async fn show(&self, breaker: &Breaker) {
        let status = match breaker.circuit {
            BreakerState::Closed if breaker.is_degraded(self.clock.now()) => HookStatus::Degraded,
            BreakerState::Closed => HookStatus::Active,
            BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => HookStatus::Paused,
        };
        let shown = change_state(&self.states, &breaker.hook_id, |state| {
            one_shot::shown_state(state, status)
        })
        .await;
        if let Err(error) = shown {
            tracing::warn!(hook_id = breaker.hook_id, %error, "failed to update a hook's status from its circuit breaker");
        }
    }
}
