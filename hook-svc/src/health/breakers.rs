//! Circuit breakers of hooks: one state for all replicas, in KV `breakers`, changed only by compare-and-set.
//!
//! Events skip hooks based on the watched state, but every change is decided on the leader's value. So a hook that
//! never fails costs neither a read nor a write, and an evaluation while all breakers are at rest reads one counter.
//! While a breaker is not closed, its hook's status in KV `hook_state` is `paused`: every replica that sees a change
//! writes the status, so that a replica that dies in between leaves no wrong one.

use std::sync::Arc;

use metrics::{counter, gauge};
use shared::breaker::{Breaker, BreakerAdmission, BreakerPolicy, key_of, probe_claim_ms};
use shared::bus::{BreakerNotes, BreakerScope, BreakerView, Bus, CasError, Kv};
use shared::clock::SharedClock;
use shared::model::hook::HookState;
use shared::model::time::UnixMillis;
use shared::wire::topology::buckets::HOOK_STATE;
use tokio::sync::watch;

use crate::registry::{authored, change_state, one_shot};
use crate::runner::{HookSet, HookSource};

/// All breakers in the view of this replica; cheap to clone.
#[derive(Debug, Clone)]
pub struct HookBreakers {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    view: BreakerView<Counts>,
    states: Kv<HookState>,
    clock: SharedClock,
    policy: BreakerPolicy,
    /// Notifies that a breaker has opened, closed, or is probed.
    changed: watch::Sender<()>,
}

/// Counters of this replica for a hook whose breaker is not at rest.
#[derive(Debug, Default)]
struct Counts {
    /// Number of errors outside of evaluations that no success has offset.
    strays: u32,
    /// Number of evaluations on this replica that were not yet reported with a failure.
    untold: u32,
}

impl BreakerNotes for Counts {
    fn carried(self, former: &Breaker, next: &Breaker) -> Self {
        let is_same = former.content_hash == next.content_hash && next.is_closed();
        Self {
            strays: if is_same { self.strays } else { 0 },
            untold: self.untold,
        }
    }
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
            view: BreakerView::new(bus, BreakerScope::Events),
            states: bus.kv(HOOK_STATE),
            clock,
            policy,
            changed: watch::Sender::default(),
        };

        Self { inner: Arc::new(inner) }
    }

    /// Follows the bucket; never returns.
    pub async fn follow_bucket(&self) {
        let mut watch = self.inner.view.watch();
        loop {
            let Some(change) = self.inner.view.apply(watch.next().await) else {
                continue;
            };
            self.inner.report_change(change.has_turned);

            if let Some(breaker) = &change.breaker {
                self.inner.show(breaker).await;
            }
        }
    }

    /// Returns the hooks of `set` that must not be shown an event that `me` evaluates; `called` are those it would be
    /// shown to (`None` = all). Claims the probe of each whose cool-down is over; if that fails, the hook is skipped.
    pub async fn paused_hooks(&self, set: &HookSet, called: Option<&[u32]>, me: &str) -> Vec<u32> {
        // No hook has failed lately: the common case costs one load.
        if self.inner.view.is_empty() {
            return Vec::new();
        }

        let (mut refused, wants) = self.inner.sort_out(set, called, me);
        for (index, want) in wants {
            let hook = &set.hooks()[index as usize];
            let now = self.inner.clock.now();
            let claim = |breaker: &Breaker| breaker.claim_probe(me, probe_claim_ms(hook.timeout_ms), now);
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
        if self.inner.view.is_empty() {
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
            .view
            .known()
            .get(&key_of(id))
            .map(|known| known.breaker.clone());
        known.filter(|breaker| !breaker.is_at_rest())
    }
}

impl Inner {
    fn sort_out(&self, set: &HookSet, called: Option<&[u32]>, me: &str) -> (Vec<u32>, Vec<(u32, Want)>) {
        let now = self.clock.now();
        let (mut refused, mut wants) = (Vec::new(), Vec::new());
        // Only hooks that failed lately are listed, so this is short.
        for known in self.view.known().values() {
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
        let known = self.view.breaker_of_source(&hook.id, &hook.content_hash);
        known.is_some_and(|breaker| matches!(breaker.admit_operation(me, now), BreakerAdmission::Refuse { .. }))
    }

    /// Returns the number of evaluations of `hook` that were not yet reported, and resets it.
    fn take_untold(&self, hook: &HookSource) -> u32 {
        let mut known = self.view.known();
        let known = known.get_mut(&key_of(&hook.id));
        known.map_or(0, |known| std::mem::take(&mut known.notes.untold))
    }

    /// Returns the hooks whose breakers a success at `now` changes, and counts the success for all that failed
    /// recently.
    fn relieved_hooks(&self, set: &HookSet, me: &str, was_called: impl Fn(u32) -> bool, now: UnixMillis) -> Vec<u32> {
        let mut all = self.view.known();
        let mut relieved = Vec::new();
        for known in all.values_mut() {
            let index = set.index(&known.breaker.hook_id).filter(|index| was_called(*index));
            let Some(index) = index else { continue };
            known.notes.untold = known.notes.untold.saturating_add(1);

            // The hour in which its errors were counted is over.
            if known.breaker.without_past_hour(now).is_some() {
                relieved.push(index);
                continue;
            }

            if known.breaker.after_success(me).is_none() {
                continue;
            }

            match known.notes.strays.checked_sub(1) {
                Some(left) => known.notes.strays = left,
                None => relieved.push(index),
            }
        }

        relieved
    }

    /// Cancels one later success of `hook`, unless its breaker has opened.
    fn note_stray(&self, hook: &HookSource) {
        let mut known = self.view.known();
        let known = known.get_mut(&key_of(&hook.id));
        if let Some(known) = known.filter(|known| known.breaker.is_closed()) {
            known.notes.strays = known.notes.strays.saturating_add(1);
        }
    }

    /// Changes `hook`'s breaker by `next`, if that returns a change. Returns the resulting breaker.
    async fn change_breaker(
        &self,
        hook: &HookSource,
        next: impl FnMut(&Breaker) -> Option<Breaker>,
    ) -> Result<Breaker, CasError> {
        let (breaker, has_turned) = self.view.change(&hook.id, &hook.content_hash, next).await?;
        self.report_change(has_turned);
        Ok(breaker)
    }

    /// Updates the gauges after a change, and notifies of one that `has_turned` a breaker.
    fn report_change(&self, has_turned: bool) {
        let now = self.clock.now();
        let (open, degraded) = {
            let known = self.view.known();
            let open = known.values().filter(|known| !known.breaker.is_closed()).count();
            let degraded = known.values().filter(|known| known.breaker.is_degraded(now)).count();
            (open, degraded)
        };
        gauge!("nexus_hook_breakers_open").set(open as f64);
        gauge!("nexus_hooks_degraded").set(degraded as f64);

        if has_turned {
            self.changed.send_replace(());
        }
    }

    /// Updates the hook's status to match its breaker.
    async fn show(&self, breaker: &Breaker) {
        let status = authored::breaker_status(breaker, self.clock.now());
        let shown = change_state(&self.states, &breaker.hook_id, |state| {
            one_shot::shown_state(state, status)
        })
        .await;
        if let Err(error) = shown {
            tracing::warn!(hook_id = breaker.hook_id, %error, "failed to update a hook's status from its circuit breaker");
        }
    }
}
