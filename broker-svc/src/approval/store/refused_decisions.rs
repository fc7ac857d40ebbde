//! Refused decisions in `AUDIT`: the first ones of each approval.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use shared::bus::OutgoingMessage;
use shared::model::approval::{ApprovalRecord, ConfirmationTerms};
use shared::wire::subject;
use shared::wire::topology::streams::AUDIT;

use super::super::machine::{DecisionInput, DecisionRejection};
use super::audit_records::record;
use super::{ApprovalStore, KeepApprovalError};

/// Maximum number of refusals of one approval in `AUDIT`; without it, a person who knows its code could fill the
/// stream. Two brokers that refuse at once may keep a few more.
const MAX_REFUSALS: u32 = 16;
/// Maximum number of approvals whose refusals are remembered; beyond that they are counted in `AUDIT` again.
const MAX_KNOWN: usize = 1_024;

/// Number of refusals in `AUDIT`, by approval id.
#[derive(Debug, Default)]
pub(super) struct RefusalCounts(Mutex<HashMap<String, u32>>);

impl RefusalCounts {
    fn known_count(&self, id: &str) -> Option<u32> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(id).copied()
    }

    fn remember_count(&self, id: &str, count: u32) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN && !known.contains_key(id) {
            known.clear();
        }
        known.insert(id.to_owned(), count);
    }
}

impl ApprovalStore {
    /// Records that the decision of `by` on `standing` does not count, and why: in `AUDIT` for the first ones, after
    /// that only in a metric.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if `AUDIT` cannot be read or written.
    pub(super) async fn record_refusal(
        &self,
        standing: &ConfirmationTerms,
        by: &str,
        word: &DecisionInput,
        why: &DecisionRejection,
    ) -> Result<(), KeepApprovalError> {
        let id = &standing.request.id;
        metrics::counter!("nexus_broker_refused_words_total").increment(1);

        // Bounded, because a person who may not decide could fill `AUDIT` with attempts.
        let before = match self.refusals.known_count(id) {
            Some(count) => count,
            None => self.refusals_in_audit(id).await?,
        };
        if before >= MAX_REFUSALS {
            self.refusals.remember_count(id, before);
            tracing::debug!(approval = id, by, via = word.via, reason = %why, "decision on an approval refused (repeated)");
            return Ok(());
        }

        tracing::info!(approval = id, by, via = word.via, reason = %why, "decision on an approval refused");
        let record = ApprovalRecord {
            response: Some(why.to_string()),
            at: self.clock.now(),
            ..record(standing, "refused", Some(by), Some(&word.via))
        };

        let out = OutgoingMessage::new(subject::approval_audit(id), &record);
        self.bus.publish(out).await?;
        self.refusals.remember_count(id, before + 1);

        Ok(())
    }

    /// Returns the number of refusals of the approval `id` in `AUDIT`, counted up to the bound.
    async fn refusals_in_audit(&self, id: &str) -> Result<u32, KeepApprovalError> {
        let subject = subject::approval_audit(id);
        let (mut count, mut from) = (0, 1);
        while count < MAX_REFUSALS
            && let Some(stored) = self.bus.next_on_subject(AUDIT, &subject, from).await?
        {
            from = stored.sequence + 1;
            let is_refusal = stored
                .decode::<ApprovalRecord>()
                .is_ok_and(|known| known.what == "refused");
            count += u32::from(is_refusal);
        }

        Ok(count)
    }
}
