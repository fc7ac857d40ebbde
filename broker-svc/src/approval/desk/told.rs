//! What `AUDIT` is to say of approvals.

use shared::bus::{KvWatch, Outgoing, PublishError};
use shared::model::approval::{ApprovalRecord, Confirmation};
use shared::wire::subject;
use shared::wire::topology::streams::AUDIT;

use super::{Desk, KeepApprovalError, MAX_TRIES};

/// What the keys of turns' approvals begin with; the others are intents'.
const ASKED: &str = "ask.";

impl Desk {
    /// The approvals of turns, and every change of them.
    #[must_use]
    pub fn watch(&self) -> KvWatch<Confirmation> {
        self.values.watch(ASKED)
    }

    /// Makes sure that what led to `confirmation`, which may be an old value, is in `AUDIT`.
    ///
    /// # Errors
    /// [`KeepApprovalError`] where that cannot be done now.
    pub async fn see_to_audit(&self, confirmation: &Confirmation) -> Result<(), KeepApprovalError> {
        let Some(record) = &confirmation.trail.record else {
            return Ok(());
        };
        let subject = subject::approval_audit(&record.approval);
        let last = self.bus.last_on_subject(AUDIT, &subject).await?;
        let known = last.and_then(|stored| stored.decode::<ApprovalRecord>().ok());
        // A refusal, which changes nothing, may be the last; then it is looked for.
        if known.is_some_and(|known| known.n >= record.n) {
            return Ok(());
        }
        self.audit(confirmation).await?;
        Ok(())
    }

    /// Makes sure that what led to `confirmation` is in `AUDIT`, once; answers its sequence there. Refusals, which change
    /// nothing, may stand between.
    pub(super) async fn audit(&self, confirmation: &Confirmation) -> Result<u64, KeepApprovalError> {
        let Some(record) = &confirmation.trail.record else {
            return Ok(confirmation.trail.audited);
        };
        let subject = subject::approval_audit(&record.approval);
        let mut last = confirmation.trail.audited;
        for _ in 0..MAX_TRIES {
            let out = Outgoing::new(subject.clone(), record.as_ref()).expect_last(last);
            match self.bus.publish(out).await {
                Ok(published) => return Ok(published.sequence),
                Err(PublishError::WrongLastSequence { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            while let Some(stored) = self.bus.next_on_subject(AUDIT, &subject, last + 1).await? {
                last = stored.sequence;
                let known = stored.decode::<ApprovalRecord>();
                if known.is_ok_and(|known| known.n == record.n) {
                    return Ok(last);
                }
            }
        }
        Err(KeepApprovalError::Contended(record.approval.clone()))
    }
}
