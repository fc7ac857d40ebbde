//! Breakers of the hooks that can fail, one state for all brokers in KV `breakers`. A hook that fails five times in a
//! row is not asked for five minutes, then once, by one broker. Meanwhile its gate denies at once instead of after
//! its time-out.
//!
//! Hooks are refused by the state that a watch has reported; every change is decided on the leader's value. A hook
//! that does not fail costs neither a read nor a write. While the server cannot be reached, each broker counts for
//! itself.

use sha2::{Digest as _, Sha256};
use shared::breaker::{Breaker, BreakerAdmission, BreakerPolicy, TURN_PREFIX, key_of, probe_claim_ms};
use shared::bus::{BreakerScope, BreakerView, Bus};
use shared::clock::SharedClock;
use shared::model::time::UnixMillis;

use super::declared::DeclaredHook;
use super::outcome::RunHookError;

/// The breakers of hooks inside turns; see the module.
#[derive(Debug)]
pub struct TurnBreakers {
    view: BreakerView,
    clock: SharedClock,
    /// Name of this broker, which claims probes.
    me: String,
    policy: BreakerPolicy,
}

impl TurnBreakers {
    /// Creates the breakers on `bus` for the broker `me`; states are unknown until [`TurnBreakers::follow_bucket`] has read
    /// them.
    #[must_use]
    pub fn new(bus: &Bus, clock: SharedClock, me: &str) -> Self {
        Self {
            view: BreakerView::new(bus, BreakerScope::Turns),
            clock,
            me: me.to_owned(),
            policy: BreakerPolicy::default(),
        }
    }

    /// Follows the bucket forever.
    pub async fn follow_bucket(&self) {
        let mut watch = self.view.watch();
        loop {
            self.view.apply(watch.next().await);
        }
    }

    /// Checks whether `hook` may be asked.
    ///
    /// # Errors
    /// Returns [`RunHookError::Paused`] if it may not.
    pub async fn admit_hook(&self, hook: &DeclaredHook) -> Result<(), RunHookError> {
        let now = self.clock.now();
        // The breaker is at rest, or it belongs to another declaration of the hook, which must not stop this one.
        let Some(breaker) = self.known_breaker(hook) else {
            self.clear_outdated(hook, now).await;
            return Ok(());
        };

        match breaker.admit_operation(&self.me, now) {
            BreakerAdmission::Pass => return Ok(()),
            BreakerAdmission::Refuse { until } => return Err(RunHookError::Paused(until)),
            // Another turn is probing the hook already.
            BreakerAdmission::Probe => return Err(RunHookError::Paused(now)),
            BreakerAdmission::Claim => {}
        }

        // The claim of a probe must outlive the probe itself, or a second one would start.
        let held = probe_claim_ms(hook.timeout_ms);
        let mut claimed = false;
        let breaker = self
            .change_breaker(hook, |breaker| {
                let next = breaker.claim_probe(&self.me, held, now);
                claimed = next.is_some();
                next
            })
            .await;

        // Judged by the stored state: another broker may have claimed the probe first.
        match breaker.admit_operation(&self.me, now) {
            BreakerAdmission::Pass => Ok(()),
            BreakerAdmission::Probe if claimed => Ok(()),
            BreakerAdmission::Refuse { until } => Err(RunHookError::Paused(until)),
            BreakerAdmission::Probe | BreakerAdmission::Claim => Err(RunHookError::Paused(now)),
        }
    }

    /// Removes the state that another declaration of `hook` left, once its time is over: until then, brokers that
    /// still have that declaration may be asking by it.
    async fn clear_outdated(&self, hook: &DeclaredHook, now: UnixMillis) {
        let key = key_of(&id_of(hook));
        let is_over = {
            let known = self.view.known();
            known
                .get(&key)
                .is_some_and(|other| other.breaker.admit_operation(&self.me, now) == BreakerAdmission::Claim)
        };
        if is_over {
            self.change_breaker(hook, Breaker::at_rest).await;
        }
    }

    /// Records whether asking `hook` failed. A change is stored before this returns.
    pub async fn record(&self, hook: &DeclaredHook, failed: bool) {
        let now = self.clock.now();
        let known = self.known_breaker(hook);
        if !failed {
            if known.is_some_and(|known| known.after_success(&self.me).is_some()) {
                self.change_breaker(hook, |breaker| breaker.after_success(&self.me))
                    .await;
            }
            return;
        }

        // The breaker would not change, so nothing is written.
        if known.is_some_and(|known| known.after_failure(&self.policy, &self.me, now).is_none()) {
            return;
        }

        let mut opened = false;
        let breaker = self
            .change_breaker(hook, |breaker| {
                let next = breaker.after_failure(&self.policy, &self.me, now);
                opened = next.as_ref().is_some_and(|next| !next.is_closed());
                next
            })
            .await;

        if opened {
            tracing::error!(
                hook_id = hook.name,
                failures = breaker.failures,
                "hook paused after repeated errors"
            );
        }
    }

    /// Returns the breaker of `hook` as it is declared now, if it is not at rest.
    fn known_breaker(&self, hook: &DeclaredHook) -> Option<Breaker> {
        if self.view.is_empty() {
            return None;
        }
        self.view.breaker_of_source(&id_of(hook), &hash_of(hook))
    }

    /// Applies `next` to the breaker of `hook`, for all brokers; if the server cannot be reached, for this one alone.
    async fn change_breaker(&self, hook: &DeclaredHook, mut next: impl FnMut(&Breaker) -> Option<Breaker>) -> Breaker {
        let (id, hash) = (id_of(hook), hash_of(hook));
        match self.view.change(&id, &hash, &mut next).await {
            Ok((breaker, _)) => breaker,
            Err(error) => {
                tracing::warn!(hook_id = hook.name, %error, "failed to share a hook's circuit breaker; using a local one");
                self.view.change_alone(&id, &hash, next)
            }
        }
    }
}

/// Returns the name of `hook`'s breaker for people.
fn id_of(hook: &DeclaredHook) -> String {
    format!("{TURN_PREFIX}{}", hook.key())
}

/// Returns the SHA-256 of the declaration of `hook`, in hex.
fn hash_of(hook: &DeclaredHook) -> String {
    hex::encode(Sha256::digest(format!("{hook:?}")))
}
