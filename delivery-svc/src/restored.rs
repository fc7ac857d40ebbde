//! The gate behind a restore: what may have been delivered before waits until the operator has decided.

use shared::bus::{Bus, CasError, Kv, ReadStreamError};
use shared::model::restore::{HOLD_KEY, HeldDelivery, HoldDecision, RestoreHold};
use shared::model::time::UnixMillis;
use shared::wire::topology::{buckets, streams};

use crate::job::Job;

/// The hold that was in force when this process began; a restore needs the services to be stopped, so none comes later.
#[derive(Debug)]
pub struct RestoreGate {
    holds: Kv<RestoreHold>,
    hold: RestoreHold,
}

impl RestoreGate {
    /// The gate, if something was restored; `now` is what holds until where the record of that is gone.
    ///
    /// # Errors
    /// [`ReadStreamError`] if the leader cannot be asked.
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

                hold_again(&holds, &lost).await;
                lost
            }
            None => return Ok(None),
        };

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

        // The operator may have decided since. A record that is gone is no decision.
        let hold = match self.holds.get(HOLD_KEY).await? {
            Some(entry) => entry.value,
            None => {
                hold_again(&self.holds, &self.hold).await;
                self.hold.clone()
            }
        };

        Ok(hold.decide(job.made_at(), job.place))
    }
}

/// What stands for the name of a backup that nobody knows any more.
const LOST: &str = "unknown: its record in KV restore is gone";

/// Whether a stream that says what was made and delivered comes from a backup: restored ones name their former lives.
async fn is_restored(bus: &Bus) -> Result<bool, ReadStreamError> {
    for stream in [streams::RECEIPTS, streams::LEDGER, streams::DELIVERIES] {
        if !bus.stream_info(stream).await?.lineage.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes `hold` where there is none any more, so that the operator can decide.
async fn hold_again(holds: &Kv<RestoreHold>, hold: &RestoreHold) {
    tracing::error!(
        backup = hold.backup,
        "the record of a restore is gone from KV restore; what may have been delivered before waits again"
    );
    match holds.create(HOLD_KEY, hold).await {
        // Another replica was faster.
        Ok(_) | Err(CasError::Conflict { .. }) => {}
        Err(error) => tracing::warn!(%error, "the record of the restore is not written again yet"),
    }
}
