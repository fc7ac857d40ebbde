//! Breakers of the hooks that can fail, one state for all brokers in KV `breakers`. A hook that fails five times in a
//! row is not asked for five minutes, then once, by one broker. Meanwhile its gate denies at once instead of after
//! its time-out.
//!
//! Hooks are refused by the state that a watch has reported; every change is decided on the leader's value. A hook
//! that does not fail costs neither a read nor a write. While the server cannot be reached, each broker counts for
//! itself.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use shared::breaker::{Admission, Breaker, BreakerPolicy, TURN_PREFIX, key_of, probe_claim_ms};
use shared::bus::{BreakerScope, BreakerView, Bus};
use shared::clock::SharedClock;
use shared::model::time::UnixMillis;

use super::declared::Hook;
use super::outcome::RunHookError;
use crate::broker::Broker;

/// Follows the breakers that other brokers change, until shutdown is requested.
pub async fn serve(broker: Arc<Broker>) {
    tokio::select! {
        () = broker.hooks().follow() => {}
        () = broker.shutdown.requested() => {}
    }
}

/// The breakers of hooks inside turns; see the module.
#[derive(Debug)]
pub struct Breakers {
    view: BreakerView,
    clock: SharedClock,
    /// Name of this broker, which claims probes.
    me: String,
    policy: BreakerPolicy,
}

impl Breakers {
    /// Creates the breakers on `bus` for the broker `me`; states are unknown until [`Breakers::follow`] has read
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
    pub async fn follow(&self) {
        let mut watch = self.view.watch();
        loop {
            self.view.apply(watch.next().await);
        }
    }

    /// Checks whether `hook` may be asked.
    ///
    /// # Errors
    /// Returns [`RunHookError::Paused`] if it may not.
    pub async fn admit(&self, hook: &Hook) -> Result<(), RunHookError> {
        let now = self.clock.now();
        let Some(breaker) = self.known(hook) else {
            self.renew(hook, now).await;
            return Ok(());
        };

        match breaker.admit(&self.me, now) {
            Admission::Pass => return Ok(()),
            Admission::Refuse { until } => return Err(RunHookError::Paused(until)),
            // Another turn is probing the hook already.
            Admission::Probe => return Err(RunHookError::Paused(now)),
            Admission::Claim => {}
        }

        let held = probe_claim_ms(hook.timeout_ms);
        let mut claimed = false;
        let breaker = self
            .change(hook, |breaker| {
                let next = breaker.claimed(&self.me, held, now);
                claimed = next.is_some();
                next
            })
            .await;

        match breaker.admit(&self.me, now) {
            Admission::Pass => Ok(()),
            Admission::Probe if claimed => Ok(()),
            Admission::Refuse { until } => Err(RunHookError::Paused(until)),
            Admission::Probe | Admission::Claim => Err(RunHookError::Paused(now)),
        }
    }

    /// Removes the state that another declaration of `hook` left, once its time is over: until then, brokers that
    /// still have that declaration may be asking by it.
    async fn renew(&self, hook: &Hook, now: UnixMillis) {
        let key = key_of(&id_of(hook));
        let is_over = {
            let known = self.view.known();
            known
                .get(&key)
                .is_some_and(|other| other.breaker.admit(&self.me, now) == Admission::Claim)
        };
        if is_over {
            self.change(hook, Breaker::at_rest).await;
        }
    }

    /// Records whether asking `hook` failed. A change is stored before this returns.
    pub async fn record(&self, hook: &Hook, failed: bool) {
        let now = self.clock.now();
        let known = self.known(hook);
        if !failed {
            if known.is_some_and(|known| known.succeeded(&self.me).is_some()) {
                self.change(hook, |breaker| breaker.succeeded(&self.me)).await;
            }
            return;
        }

        if known.is_some_and(|known| known.failed(&self.policy, &self.me, now).is_none()) {
            return;
        }

        let mut opened = false;
        let breaker = self
            .change(hook, |breaker| {
                let next = breaker.failed(&self.policy, &self.me, now);
                opened = next.as_ref().is_some_and(|next| !next.is_closed());
                next
            })
            .await;

        if opened {
            tracing::error!(
                hook = hook.name,
                failures = breaker.failures,
                "hook paused after repeated errors"
            );
        }
    }

    /// Returns the breaker of `hook` as it is declared now, if it is not at rest.
    fn known(&self, hook: &Hook) -> Option<Breaker> {
        if self.view.is_empty() {
            return None;
        }
        self.view.breaker_of_source(&id_of(hook), &hash_of(hook))
    }

    /// Applies `next` to the breaker of `hook`, for all brokers; if the server cannot be reached, for this one alone.
    async fn change(&self, hook: &Hook, mut next: impl FnMut(&Breaker) -> Option<Breaker>) -> Breaker {
        let (id, hash) = (id_of(hook), hash_of(hook));
        match self.view.change(&id, &hash, &mut next).await {
            Ok((breaker, _)) => breaker,
            Err(error) => {
                tracing::warn!(hook = hook.name, %error, "failed to share a hook's circuit breaker; using a local one");
                self.view.change_alone(&id, &hash, next)
            }
        }
    }
}

/// Returns the name of `hook`'s breaker for people.
fn id_of(hook: &Hook) -> String {
    format!("{TURN_PREFIX}{}", hook.key())
}

/// Returns the SHA-256 of the declaration of `hook`, in hex.
fn hash_of(hook: &Hook) -> String {
    hex::encode(Sha256::digest(format!("{hook:?}")))
}
