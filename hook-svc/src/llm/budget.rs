//! What hooks may spend on the model in a day (UTC), each and all together, counted in KV `hook_spend`.

use std::time::Duration;

use shared::bus::{Bus, CasError, Kv};
use shared::clock::SharedClock;
use shared::model::hook::HookSpend;
use shared::wire::subject::token;
use shared::wire::topology::buckets::HOOK_SPEND;

use crate::error::chain;
use crate::runner::{Call, CallError, Spent};

/// Milliseconds in a day.
const DAY_MS: i64 = 86_400_000;

/// How long a day's counts are kept.
const KEPT: Duration = Duration::from_secs(40 * 86_400);

/// How often a compare-and-set is tried again after a conflict.
const MAX_TRIES: u32 = 20;

/// Key of what all hooks together spend; no hook's token is empty.
const ALL: &str = "all";

/// US dollars a day.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Of one hook.
    pub hook_usd: f64,
    /// Of all hooks.
    pub all_usd: f64,
}

/// See the module; cheap to clone.
#[derive(Debug, Clone)]
pub struct Budget {
    spends: Kv<HookSpend>,
    limits: Limits,
    clock: SharedClock,
}

impl Budget {
    /// The budget that all replicas on `bus` share.
    #[must_use]
    pub fn new(bus: &Bus, limits: Limits, clock: SharedClock) -> Self {
        Self {
            spends: bus.kv(HOOK_SPEND),
            limits,
            clock,
        }
    }

    fn key(&self, whose: &str) -> String {
        format!("{}.{whose}", self.clock.now().0.div_euclid(DAY_MS))
    }

    /// Whether `hook_id` may ask the model now.
    pub(super) async fn admit(&self, hook_id: &str) -> Result<(), CallError> {
        let own = (format!("hook.{}", token(hook_id)), self.limits.hook_usd, "the hook");
        let all = (ALL.to_owned(), self.limits.all_usd, "all hooks together");
        for (whose, limit, who) in [own, all] {
            let spent = self.spends.get(&self.key(&whose)).await.map_err(|error| {
                let text = format!("what was spent today cannot be read: {}", chain(&error));
                CallError::new("budget_unknown", text)
            })?;
            let spent = spent.map_or(0.0, |entry| dollars(entry.value.micro_usd));
            if spent >= limit {
                let text = format!("{who} spent ${spent:.4} today, ${limit:.4} are allowed");
                return Err(CallError::new("over_budget", text));
            }
        }
        Ok(())
    }

    /// Counts what `call` took. Where it cannot be counted, that is logged: the answer is paid for.
    pub(super) async fn charge(&self, call: &Call, spent: Spent) {
        let hook_id = call.hook.id.as_str();
        for whose in [format!("hook.{}", token(hook_id)), ALL.to_owned()] {
            if let Err(error) = self.add(&self.key(&whose), spent).await {
                tracing::warn!(event_id = %call.event_id, hook_id, error = chain(&error), "what a model call cost is not counted");
            }
        }
    }

    async fn add(&self, key: &str, spent: Spent) -> Result<(), CasError> {
        let mut tries = 0;
        loop {
            let entry = self.spends.get(key).await?;
            let before = entry.as_ref().map(|entry| entry.value).unwrap_or_default();
            let after = plus(before, spent);
            let written = match &entry {
                None => self.spends.create_ttl(key, &after, KEPT).await,
                Some(entry) => self.spends.update_ttl(key, &after, entry.revision, KEPT).await,
            };
            match written {
                Ok(_) => return Ok(()),
                Err(CasError::Conflict { .. }) if tries < MAX_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

fn plus(before: HookSpend, spent: Spent) -> HookSpend {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cost is neither negative nor billions"
    )]
    let micro = (spent.llm_cost_usd * 1_000_000.0).ceil() as u64;
    HookSpend {
        calls: before.calls + u64::from(spent.llm_calls),
        tokens_in: before.tokens_in + spent.llm_tokens_in,
        tokens_out: before.tokens_out + spent.llm_tokens_out,
        micro_usd: before.micro_usd + micro,
    }
}

fn dollars(micro_usd: u64) -> f64 {
    shared::llm::MicroDollars(micro_usd).dollars()
}
