//! The gate behind a restore: what may have been delivered before waits until the operator has decided.

use shared::bus::{Bus, Kv, ReadStreamError};
use shared::model::restore::{HOLD_KEY, HeldDelivery, HoldDecision, RestoreHold};
use shared::wire::topology::buckets;

use crate::job::Job;

/// The hold that was in force when this process began; a restore needs the services to be stopped, so none comes later.
#[derive(Debug)]
pub struct RestoreGate {
    holds: Kv<RestoreHold>,
    hold: RestoreHold,
}

impl RestoreGate {
    /// The gate, if something was restored.
    ///
    /// # Errors
    /// [`ReadStreamError`] if the leader cannot be asked.
    pub async fn open(bus: &Bus) -> Result<Option<Self>, ReadStreamError> {
        let holds: Kv<RestoreHold> = bus.kv(buckets::RESTORE);
        let Some(found) = holds.get(HOLD_KEY).await? else {
            return Ok(None);
        };
        let hold = found.value;
        if hold.decision == HoldDecision::Waiting {
            tracing::warn!(
                backup = hold.backup,
                "deliveries as old as the restored backup wait: `nexus restore --list`, then --send or --drop"
            );
        }
        Ok(Some(Self { holds, hold }))
    }

    /// What becomes of `job`, which is not settled.
    ///
    /// # Errors
    /// [`ReadStreamError`] if the leader cannot be asked whether the operator has decided.
    pub async fn decision(&self, job: &Job) -> Result<HeldDelivery, ReadStreamError> {
        if !self.hold.concerns(job.made_at()) {
            return Ok(HeldDelivery::Leaves);
        }
        // The operator may have decided since; a hold that is gone holds nothing.
        let now = self.holds.get(HOLD_KEY).await?;
        Ok(now.map_or(HeldDelivery::Leaves, |entry| {
            entry.value.decide(job.made_at(), job.sequence)
        }))
    }
}
