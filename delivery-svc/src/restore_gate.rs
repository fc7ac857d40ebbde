//! The gate after a restore: deliveries that may have been made before wait until the operator decides.

use shared::bus::{Bus, CasError, Kv, ReadStreamError};
use shared::model::restore::{HOLD_KEY, HeldDelivery, HoldDecision, RestoreHold};
use shared::model::time::UnixMillis;
use shared::wire::topology::{buckets, streams};

use crate::job::DeliveryJob;

/// The hold that was in force when this process started. A restore requires stopped services, so none appears later.
#[derive(Debug)]
pub struct RestoreGate {
    holds: Kv<RestoreHold>,
    hold: RestoreHold,
}

impl RestoreGate {
    /// Returns the gate, if there was a restore. If its record is lost, deliveries up to `now` are held.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be reached.
    pub async fn open(bus: &Bus, now: UnixMillis) -> Result<Option<Self>, ReadStreamError> {
        let holds: Kv<RestoreHold> = bus.kv(buckets::RESTORE);
        let hold = match holds.get(HOLD_KEY).await? {
            Some(found) => found.value,
            None if is_restored(bus).await? => {
                let lost = RestoreHold {
                    backup: LOST.to_owned(),
                    until: now,
                    at: None,
                    decision: HoldDecision::Waiting,
                };

                // Written at once, so that all replicas hold the same deliveries.
                hold_again(&holds, &lost).await;
                lost
            }
            None => return Ok(None),
        };

        if hold.decision == HoldDecision::Waiting {
            tracing::warn!(
                backup = hold.backup,
                "deliveries from before the restore are held: run `nexus restore --list`, then --send or --drop"
            );
        }

        Ok(Some(Self { holds, hold }))
    }

    /// Returns the outcome of the hold for `job`, which is not settled.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the leader cannot be reached to read the operator's decision.
    pub async fn read_decision(&self, job: &DeliveryJob) -> Result<HeldDelivery, ReadStreamError> {
        if !self.hold.concerns(job.made_at()) {
            return Ok(HeldDelivery::Leaves);
        }

        // The operator may have decided in the meantime. A lost record is not a decision.
        let hold = match self.holds.get(HOLD_KEY).await? {
            Some(entry) => entry.value,
            None => {
                hold_again(&self.holds, &self.hold).await;
                self.hold.clone()
            }
        };

        Ok(hold.decide_delivery(job.made_at(), job.place))
    }
}

/// Name of a backup whose record is lost.
const LOST: &str = "unknown: its record in KV restore is gone";

/// Returns whether a stream with replies or receipts comes from a backup: restored streams have former lives.
async fn is_restored(bus: &Bus) -> Result<bool, ReadStreamError> {
    for stream in [streams::RECEIPTS, streams::LEDGER, streams::DELIVERIES] {
        if !bus.stream_info(stream).await?.lineage.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes `hold` again if it is gone, so that the operator can decide.
async fn hold_again(holds: &Kv<RestoreHold>, hold: &RestoreHold) {
    tracing::error!(
        backup = hold.backup,
        "the restore record is missing from KV restore; holding deliveries that may have been sent before"
    );
    match holds.create(HOLD_KEY, hold).await {
        // Another replica has already written it.
        Ok(_) | Err(CasError::Conflict { .. }) => {}
        Err(error) => tracing::warn!(%error, "failed to rewrite the restore record; retrying"),
    }
}
