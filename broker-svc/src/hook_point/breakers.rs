//! Breakers of the hooks that can fail, in this broker's memory: a hook that fails five times in a row is not asked for
//! five minutes, then once. Meanwhile its gate denies at once instead of after its time-out.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use shared::breaker::{Admission, Breaker, BreakerPolicy};
use shared::model::time::UnixMillis;

use super::declared::Hook;
use super::outcome::RunHookError;

/// Who claims probes: there is one of us in one memory.
const ME: &str = "me";
/// How long beyond a hook's time-out its probe is held, milliseconds.
const CLAIM_GRACE_MS: u64 = 5_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Breakers {
    restless: Mutex<HashMap<String, Breaker>>,
    policy: BreakerPolicy,
}

impl Breakers {
    /// Whether `hook` may be asked at `now`.
    ///
    /// # Errors
    /// [`RunHookError::Paused`] where it may not.
    pub fn admit(&self, hook: &Hook, now: UnixMillis) -> Result<(), RunHookError> {
        let mut restless = self.restless.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(breaker) = restless.get_mut(&hook.key()) else {
            return Ok(());
        };
        match breaker.admit(ME, now) {
            Admission::Pass => Ok(()),
            Admission::Refuse { until } => Err(RunHookError::Paused(until)),
            // Another turn probes it already.
            Admission::Probe => Err(RunHookError::Paused(now)),
            Admission::Claim => {
                let held = hook.timeout_ms.saturating_add(CLAIM_GRACE_MS);
                if let Some(claimed) = breaker.claimed(ME, held, now) {
                    *breaker = claimed;
                }
                Ok(())
            }
        }
    }

    /// Takes in how asking `hook` went.
    pub fn record(&self, hook: &Hook, failed: bool, now: UnixMillis) {
        let mut restless = self.restless.lock().unwrap_or_else(PoisonError::into_inner);
        let key = hook.key();
        if !failed {
            restless.remove(&key);
            return;
        }
        let breaker = restless.entry(key).or_insert_with_key(|key| Breaker::of(key, ""));
        if let Some(next) = breaker.failed(&self.policy, ME, now) {
            if !next.is_closed() && breaker.is_closed() {
                tracing::error!(
                    hook = hook.name,
                    failures = next.failures,
                    "hook is paused: it keeps failing"
                );
            }
            *breaker = next;
        }
    }
}
