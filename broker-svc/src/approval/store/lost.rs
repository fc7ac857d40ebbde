//! Asks again, under the same id, for approvals whose value is gone from KV or older than its records.
//!
//! A decision that the ledger had not taken is lost with the value, and nothing runs on it. The question is in the
//! session's ledger, whole.

use shared::bus::KvEntry;
use shared::clock::{IdSource as _, SystemIds};
use shared::model::approval::{ApprovalRequest, ApprovalStatus, ApprovalTrail, CardReason, ConfirmationTerms};
use shared::model::ledger::LedgerEntry;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;

use super::{ApprovalStore, CasError, KEPT, KeepApprovalError, key};
use crate::approval::card::{mint_code, plan_cards};
use crate::broker::BrokerContext;
use crate::error::RunSessionError;
use crate::ledger::writer::read_stretch;

/// Maximum number of stretches of a ledger that are read for one question.
const MAX_STRETCHES: u32 = 64;

/// Returns the question `approval` from the ledger of `session`; `None` if the ledger does not have it.
///
/// # Errors
/// Returns [`RunSessionError`] if the ledger cannot be read.
pub async fn asked_for(
    broker: &BrokerContext,
    session: &SessionRef,
    approval: &str,
) -> Result<Option<ApprovalRequest>, RunSessionError> {
    find_entry(broker, session, |entry| {
        let LedgerEntry::ApprovalRequested { request } = entry else {
            return None;
        };
        (request.id == approval).then_some(request)
    })
    .await
}

/// Returns the result of `find` for the newest entry in the ledger of `session` that it has one for.
async fn find_entry<T>(
    broker: &BrokerContext,
    session: &SessionRef,
    find: impl Fn(LedgerEntry) -> Option<T>,
) -> Result<Option<T>, RunSessionError> {
    let mut through = None;
    for _ in 0..MAX_STRETCHES {
        let stretch = read_stretch(broker, session, through).await?;
        // Backwards, because the question is usually near the end.
        let mut entries = stretch.records.into_iter().rev().flat_map(|(_, record)| record.entries);
        if let Some(found) = entries.find_map(&find) {
            return Ok(Some(found));
        }

        match stretch.upon {
            Some(upon) if upon > 0 => through = Some(upon),
            Some(_) | None => break,
        }
    }

    Ok(None)
}

/// Returns `standing` as its records say that it ended. If KV was restored to an older state, an approval that was
/// decided or used looks open there: `AUDIT` has the ends that turns cause, and the session's ledger has the decisions
/// that it has taken.
///
/// # Errors
/// Returns [`RunSessionError`] if the records cannot be read.
pub async fn by_records(
    broker: &BrokerContext,
    standing: ConfirmationTerms,
) -> Result<ConfirmationTerms, RunSessionError> {
    let is_open = matches!(standing.status, ApprovalStatus::Pending | ApprovalStatus::Approved);
    let Some(asked) = standing.request.asked_in.as_deref().filter(|_| is_open) else {
        return Ok(standing);
    };

    let desk = broker.desk();
    let status = match desk.end_in_audit(&standing).await? {
        Some(end) => Some(end),
        None if desk.is_behind_audit(&standing).await? => {
            decided_in_ledger(broker, &asked.session, &standing.request.id).await?
        }
        None => None,
    };

    Ok(match status {
        Some(status) => ConfirmationTerms { status, ..standing },
        None => standing,
    })
}

/// Returns the decision on `approval` that the ledger of `session` has taken, if it has one.
async fn decided_in_ledger(
    broker: &BrokerContext,
    session: &SessionRef,
    approval: &str,
) -> Result<Option<ApprovalStatus>, RunSessionError> {
    find_entry(broker, session, |entry| {
        let LedgerEntry::ApprovalDecided { decision, .. } = entry else {
            return None;
        };
        (decision.id == approval).then_some(decision.status)
    })
    .await
}

/// Returns the question `request`, asked again at `now`: it has no votes, and a new card.
#[must_use]
pub fn restored_question(request: ApprovalRequest, now: UnixMillis) -> ConfirmationTerms {
    let persona = request.asked_in.as_deref().map(|asked| asked.session.persona.clone());
    ConfirmationTerms {
        request,
        status: ApprovalStatus::Pending,
        requested_by: format!("agent:{}", persona.unwrap_or_default()),
        requested_at: now,
        decided_at: None,
        decided_by: None,
        response: None,
        trail: ApprovalTrail::default(),
    }
}

impl ApprovalStore {
    /// Asks `standing` again after its value was restored to an older state: its votes are void, and it gets a new
    /// card.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; asking again completes the missing steps.
    pub async fn ask_anew(&self, standing: &ConfirmationTerms) -> Result<(), KeepApprovalError> {
        let id = &standing.request.id;
        let Some(before) = self.read_entry(id).await? else {
            return Ok(());
        };

        // Another broker was faster, or a person has decided.
        if before.value != *standing {
            return Ok(());
        }

        let next = restored_question(standing.request.clone(), self.clock.now());
        let newest = self.newest_record(id, 0).await?;
        let asker = next.requested_by.clone();
        let mut next = self.with_record(next, newest, "asked", (Some(&asker), None));
        // A new code: the old card must not decide the new question.
        next.trail.code = Some(mint_code(SystemIds.ulid()));
        // The old card shows the decision too, once there is one.
        let planned = plan_cards(&next, CardReason::Asked, &self.identities(), &self.config);
        next.trail.cards = [standing.trail.cards.clone(), planned].concat();

        match self.values.update(&key(id), &next, before.revision).await {
            Ok(_) => {}
            Err(CasError::Conflict { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }

        tracing::warn!(
            approval = id,
            "KV was restored to a state before the ledger: requesting the approval again"
        );
        self.ensure_audited(&next).await?;

        self.send(&next, CardReason::Asked).await
    }

    /// Sends the cards of `standing` again if it is open; a card that was sent before is delivered once.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`]; asking again completes the missing steps.
    pub async fn send_again(&self, standing: &ConfirmationTerms) -> Result<(), KeepApprovalError> {
        if standing.status != ApprovalStatus::Pending {
            return Ok(());
        }
        self.send(standing, CardReason::Asked).await?;
        if standing.trail.escalated_at.is_some() {
            self.send(standing, CardReason::Escalated).await?;
        }
        Ok(())
    }

    /// Makes sure that the question `standing` is in `AUDIT` and that its cards are sent; a card that was sent before
    /// is delivered once.
    ///
    /// # Errors
    /// Returns [`KeepApprovalError`] if the server cannot be reached; asking again completes the missing steps.
    pub async fn tell_asked(&self, standing: &ConfirmationTerms) -> Result<(), KeepApprovalError> {
        self.ensure_audited(standing).await?;
        self.send(standing, CardReason::Asked).await
    }

    /// Notes that the session's ledger has taken the state `before`, which may expire from now on. Returns false if
    /// another process wrote first.
    pub(super) async fn take(&self, before: &KvEntry<ConfirmationTerms>) -> Result<bool, KeepApprovalError> {
        self.ensure_audited(&before.value).await?;
        // The session may have read the decision before any process sent it.
        self.send_decision(&before.value).await?;
        let mut next = before.value.clone();
        next.trail.taken = true;
        let key = key(&next.request.id);
        match self.values.update_ttl(&key, &next, before.revision, KEPT).await {
            Ok(_) => Ok(true),
            Err(CasError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
