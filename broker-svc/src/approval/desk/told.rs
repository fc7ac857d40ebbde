//! What `AUDIT` is to say of approvals.

use shared::bus::{KvWatch, Outgoing, PublishError};
use shared::model::approval::{ApprovalRecord, ApprovalStatus, Confirmation};
use shared::wire::subject;
use shared::wire::topology::streams::AUDIT;

use super::{ASKED, Desk, KeepApprovalError, MAX_TRIES};

/// The newest record that `AUDIT` has of an approval; both 0 where it has none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Recorded {
    /// Its sequence in `AUDIT`, or that of a refusal behind it.
    pub(super) sequence: u64,
    /// The how-manyth change it is.
    pub(super) n: u64,
    /// Whether the approved call was begun, by this or an earlier record.
    pub(super) is_used: bool,
}

impl Desk {
    /// The newest record of the approval `id` in `AUDIT`, looked for behind the sequence `after`.
    ///
    /// # Errors
    /// [`KeepApprovalError`] where `AUDIT` cannot be asked.
    pub(super) async fn newest_record(&self, id: &str, after: u64) -> Result<Recorded, KeepApprovalError> {
        let subject = subject::approval_audit(id);
        let mut newest = Recorded {
            sequence: after,
            ..Recorded::default()
        };
        while let Some(stored) = self.bus.next_on_subject(AUDIT, &subject, newest.sequence + 1).await? {
            newest.sequence = stored.sequence;
            if let Ok(known) = stored.decode::<ApprovalRecord>() {
                newest.n = newest.n.max(known.n);
                newest.is_used |= known.what == ApprovalStatus::Consumed.name();
            }
        }

        Ok(newest)
    }

    /// Whether `AUDIT` has changes of `standing` that KV does not have: KV was put back to an older state.
    ///
    /// # Errors
    /// [`KeepApprovalError`] where `AUDIT` cannot be asked.
    pub async fn is_behind_audit(&self, standing: &Confirmation) -> Result<bool, KeepApprovalError> {
        let newest = self.newest_record(&standing.request.id, standing.trail.audited).await?;
        let n = standing.trail.record.as_ref().map_or(0, |record| record.n);
        Ok(newest.n > n)
    }

    /// Whether the approval `id` was used for its call: KV says so or, where that was put back to an older state, `AUDIT`.
    ///
    /// # Errors
    /// [`KeepApprovalError`] where one of them cannot be asked.
    pub async fn was_used(&self, id: &str) -> Result<bool, KeepApprovalError> {
        let standing = self.get(id).await?;
        if standing
            .as_ref()
            .is_some_and(|one| one.status == ApprovalStatus::Consumed)
        {
            return Ok(true);
        }
        let audited = standing.map_or(0, |one| one.trail.audited);
        Ok(self.newest_record(id, audited).await?.is_used)
    }

    /// The approvals of turns, and every change of them.
    #[must_use]
    pub fn watch(&self) -> KvWatch<Confirmation> {
        self.values.watch(ASKED)
    }

    /// The id of the newest approval of a turn whose card has the letters `code`. Many who ask at once, and again and again, cost
    /// one look at the bucket a second.
    pub async fn id_of(&self, code: &str) -> Option<String> {
        self.codes.id_of(code, &self.clock, || self.watch()).await
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

            let expected = last;

            while let Some(stored) = self.bus.next_on_subject(AUDIT, &subject, last + 1).await? {
                last = stored.sequence;
                let known = stored.decode::<ApprovalRecord>();
                if known.is_ok_and(|known| known.n == record.n) {
                    return Ok(last);
                }
            }

            if last == expected {
                // Nothing came behind it, and it is not the last: `AUDIT` was emptied, or put back to an older state.
                let newest = self.bus.last_on_subject(AUDIT, &subject).await?;
                last = newest.map_or(0, |newest| newest.sequence);
            }
        }

        Err(KeepApprovalError::Contended(record.approval.clone()))
    }
}
