//! The `AUDIT` records of approvals: reading them, and writing those that are missing.

use shared::bus::{KvWatch, OutgoingMessage, PublishError};
use shared::model::approval::{ApprovalRecord, ApprovalStatus, ConfirmationTerms};
use shared::wire::subject;
use shared::wire::topology::streams::AUDIT;

use super::{ASKED, ApprovalStore, KeepApprovalError, MAX_TRIES};

/// The newest record of an approval in `AUDIT`; both numbers are 0 if there is none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AuditPosition {
    /// Sequence of the record in `AUDIT`, or of a refusal behind it.
    pub(super) sequence: u64,
    /// Number of the change, counted from the first.
    pub(super) n: u64,
    /// Whether the approved call was begun, by this or an earlier record.
    pub(super) is_used: bool,
    /// End that the turn caused, by this or an earlier record.
    pub(super) ended: Option<ApprovalStatus>,
}

/// Returns the end of an approval that a record with `what` names, if a turn causes that end.
fn ended_by_turn(what: &str) -> Option<ApprovalStatus> {
    let ends = [
        ApprovalStatus::Consumed,
        ApprovalStatus::Canceled,
        ApprovalStatus::Superseded,
    ];
    ends.into_iter().find(|end| end.name() == what)
}

impl ApprovalStore {
    /// Returns `next` with the `AUDIT` record of its change: `what`, by whom and how, numbered after the last record.
    pub(super) fn with_record(
        &self,
        next: ConfirmationTerms,
        newest: AuditPosition,
        what: &str,
        by_via: (Option<&str>, Option<&str>),
    ) -> ConfirmationTerms {
        let mut next = next;
        let audited = newest.sequence;
        let n = next.trail.record.as_ref().map_or(0, |before| before.n).max(newest.n) + 1;
        let record = ApprovalRecord {
            at: self.clock.now(),
            n,
            ..record(&next, what, by_via.0, by_via.1)
        };

        next.trail.record = Some(Box::new(record));
        next.trail.audited = audited;

        next
    }

    /// Returns the newest record of the approval `id` in `AUDIT`, searched from behind the sequence `after`.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if `AUDIT` cannot be read.
    pub(super) async fn newest_record(&self, id: &str, after: u64) -> Result<AuditPosition, KeepApprovalError> {
        let subject = subject::approval_audit(id);
        let mut newest = AuditPosition {
            sequence: after,
            ..AuditPosition::default()
        };
        while let Some(stored) = self.bus.next_on_subject(AUDIT, &subject, newest.sequence + 1).await? {
            newest.sequence = stored.sequence;
            if let Ok(known) = stored.decode::<ApprovalRecord>() {
                newest.n = newest.n.max(known.n);
                newest.is_used |= known.what == ApprovalStatus::Consumed.name();
                newest.ended = ended_by_turn(&known.what).or(newest.ended);
            }
        }

        Ok(newest)
    }

    /// Returns whether `AUDIT` has changes of `standing` that KV does not have, because KV was restored to an older
    /// state.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if `AUDIT` cannot be read.
    pub async fn is_behind_audit(&self, standing: &ConfirmationTerms) -> Result<bool, KeepApprovalError> {
        let newest = self.newest_record(&standing.request.id, standing.trail.audited).await?;
        let n = standing.trail.record.as_ref().map_or(0, |record| record.n);
        Ok(newest.n > n)
    }

    /// Returns the end of `standing` that `AUDIT` has and KV does not, because KV was restored to an older state. Only
    /// ends that a turn causes count: a decision that the session has not taken is lost with its value.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if `AUDIT` cannot be read.
    pub async fn end_in_audit(
        &self,
        standing: &ConfirmationTerms,
    ) -> Result<Option<ApprovalStatus>, KeepApprovalError> {
        let newest = self.newest_record(&standing.request.id, standing.trail.audited).await?;
        Ok(newest.ended.filter(|end| *end != standing.status))
    }

    /// Returns whether the approval `id` was used for its call, according to KV or, if KV was restored to an older
    /// state, according to `AUDIT`.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if one of them cannot be read.
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

    /// Watches the approvals of turns, and every change of them.
    #[must_use]
    pub fn watch_approvals(&self) -> KvWatch<ConfirmationTerms> {
        self.values.watch(ASKED)
    }

    /// Returns the id of the newest approval of a turn whose card has the code `code`. Any number of calls cost at
    /// most one scan of the bucket a second.
    pub async fn id_of(&self, code: &str) -> Option<String> {
        self.codes.id_of(code, &self.clock, || self.watch_approvals()).await
    }

    /// Makes sure that the record of `confirmation`, which may be an old value, is in `AUDIT`.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if this cannot be done now.
    pub async fn see_to_audit(&self, confirmation: &ConfirmationTerms) -> Result<(), KeepApprovalError> {
        let Some(record) = &confirmation.trail.record else {
            return Ok(());
        };
        let subject = subject::approval_audit(&record.approval);
        let last = self.bus.last_on_subject(AUDIT, &subject).await?;
        let known = last.and_then(|stored| stored.decode::<ApprovalRecord>().ok());

        // The last record may be a refusal, which changes nothing; then the record is searched for.
        if known.is_some_and(|known| known.n >= record.n) {
            return Ok(());
        }

        self.ensure_audited(confirmation).await?;
        Ok(())
    }

    /// Makes sure that the record of `confirmation` is in `AUDIT`, once, and returns its sequence there. Refusals,
    /// which change nothing, may be in between.
    pub(super) async fn ensure_audited(&self, confirmation: &ConfirmationTerms) -> Result<u64, KeepApprovalError> {
        let Some(record) = &confirmation.trail.record else {
            return Ok(confirmation.trail.audited);
        };
        let subject = subject::approval_audit(&record.approval);

        let mut last = confirmation.trail.audited;
        for _ in 0..MAX_TRIES {
            let out = OutgoingMessage::new(subject.clone(), record.as_ref()).expect_last(last);
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
                // The expected record is not the last and no record follows it: `AUDIT` was emptied, or restored to
                // an older state.
                let newest = self.bus.last_on_subject(AUDIT, &subject).await?;
                last = newest.map_or(0, |newest| newest.sequence);
            }
        }

        Err(KeepApprovalError::Contended(record.approval.clone()))
    }
}

/// Returns the record of the change `what` of `confirmation`, by whom and how, without its number.
pub(super) fn record(
    confirmation: &ConfirmationTerms,
    what: &str,
    by: Option<&str>,
    via: Option<&str>,
) -> ApprovalRecord {
    let request = &confirmation.request;
    ApprovalRecord {
        approval: request.id.clone(),
        what: what.to_owned(),
        n: 0,
        at: confirmation.requested_at,
        by: by.map(str::to_owned),
        via: via.map(str::to_owned),
        response: confirmation.response.clone(),
        before_hash: request.arguments_hash.clone(),
        after_hash: confirmation.standing_hash().to_owned(),
        session: request.asked_in.as_deref().map(|asked| asked.session.clone()),
        tool: request.tool.clone(),
    }
}
