//! Approvals of calls that an agent runs itself: announced to the session's ledger, and given out once.

use shared::bus::{OutgoingMessage, claim};
use shared::model::approval::{ApprovalStatus, ConfirmationTerms, SessionDecision};
use shared::wire::headers::TraceCarrier;
use shared::wire::subject;

use super::{ApprovalStore, KeepApprovalError, MAX_TRIES};
use crate::approval::machine::advance_status;

/// Name in `AUDIT` of the way by which an agent takes an approved call.
const GATE: &str = "gate";

impl ApprovalStore {
    /// Notifies the session of a question that its turn's agent has asked by itself.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; a broker that finds the question missing in the ledger repeats the notice.
    pub async fn announce_question(&self, asked: &ConfirmationTerms) -> Result<(), KeepApprovalError> {
        let Some(asked_in) = asked.request.asked_in.as_deref() else {
            return Ok(());
        };

        let told = SessionDecision {
            target: asked_in.session.clone(),
            approval: asked.request.id.clone(),
            at: asked.requested_at,
        };
        let id = format!("{}:asked", asked.request.id);
        let out = OutgoingMessage::new(subject::dispatch(&asked_in.session), &told).msg_id(id);
        self.bus.publish(out).await?;
        claim::publish(&self.bus, &asked_in.session, &TraceCarrier::default()).await?;

        Ok(())
    }

    /// Gives out the approved call `id` to `attempt`. Returns true if this is the one time, or if the same attempt
    /// asks again because the response was lost.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; asking again with the same attempt completes the missing steps.
    pub async fn consume_approval(&self, id: &str, attempt: Option<&str>) -> Result<bool, KeepApprovalError> {
        for _ in 0..MAX_TRIES {
            let Some(before) = self.read_entry(id).await? else {
                return Ok(false);
            };
            let Some(mut next) = advance_status(&before.value, ApprovalStatus::Consumed, self.clock.now()) else {
                self.ensure_audited(&before.value).await?;
                let used_by = before.value.trail.used_by.as_deref();
                let is_used = before.value.status == ApprovalStatus::Consumed;
                return Ok(is_used && attempt.is_some() && attempt == used_by);
            };

            // KV was restored to a state before the call was given out; the call must not be given out a second time.
            let is_given = self.newest_record(id, before.value.trail.audited).await?.is_used;
            next.trail.used_by = attempt.filter(|_| !is_given).map(str::to_owned);
            let by = next.requested_by.clone();

            let what = ApprovalStatus::Consumed.name();
            if self
                .change_entry(&before, next, what, (Some(&by), Some(GATE)))
                .await?
                .is_some()
            {
                return Ok(!is_given);
            }
        }

        Err(KeepApprovalError::Contended(id.to_owned()))
    }
}
