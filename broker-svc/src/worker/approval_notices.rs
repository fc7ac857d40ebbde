//! Notices that the state of an approval changed, and the state itself in KV.
//!
//! A notice only wakes the session's owner, because anybody who may publish on the session's subject can send one.
//! The state of the approval is read from KV, from the leader, until the ledger has recorded it. Source:
//! `docs/design/trust.md` §1.

use shared::model::approval::{ApprovalRequest, ApprovalStatus};
use shared::model::ledger::{DropReason, LedgerEntry};
use ulid::Ulid;

use super::Worker;
use super::approval_sync::over;
use super::approve::{ApprovalPoll, ended_decision};
use crate::approval::external_tool::is_outside;
use crate::approval::store::decision_of;
use crate::approval::store::lost::{asked_for, restored_question};
use crate::error::RunSessionError;
use crate::session::{ApprovalNotification, InboxItem};

impl Worker<'_> {
    /// Returns whether `approval`, which the ledger waits for, is still undecided according to KV, read from the
    /// leader. If its value is gone, or older than the records in `AUDIT`, the same question is asked again, with a
    /// new card.
    pub(super) async fn still_waits(&mut self, approval: &str) -> Result<bool, RunSessionError> {
        let standing = self.broker.desk().get(approval).await?;
        let standing = standing.filter(|standing| standing.is_of(&self.claimed.session));
        match standing {
            Some(standing) if standing.status == ApprovalStatus::Pending => {
                if self.broker.desk().is_behind_audit(&standing).await? {
                    self.owner.ensure_owned().await?;
                    self.broker.desk().ask_anew(&standing).await?;
                } else {
                    // The broker that asked may have been killed between the value and the card.
                    self.broker.desk().tell_asked(&standing).await?;
                }

                Ok(true)
            }
            Some(standing) => {
                self.stage_decision(decision_of(&standing));
                Ok(false)
            }
            None => {
                let request = asked_for(self.broker, &self.claimed.session, approval).await?;
                let Some(request) = request else {
                    // The question is lost everywhere, so the call must not run.
                    let why = Some("the approval request is lost");
                    self.stage_decision(ended_decision(approval, ApprovalStatus::Canceled, why));
                    return Ok(false);
                };

                self.owner.ensure_owned().await?;
                let standing = self
                    .broker
                    .desk()
                    .request_approval(&restored_question(request, self.broker.clock.now()))
                    .await?;

                let waits = standing.status == ApprovalStatus::Pending;
                if !waits {
                    self.stage_decision(decision_of(&standing));
                }

                Ok(waits)
            }
        }
    }

    /// Stages the decision that KV has for an approval. An approval that no turn waits for leads to nothing and is
    /// ended, so that it cannot lead to anything later.
    pub(super) fn take_decision(&mut self, told: ApprovalNotification) {
        let ApprovalNotification {
            sequence,
            approval,
            decision,
        } = told;
        // KV has no news of the approval: the notice is done.
        let Some(decision) = decision else {
            self.drop_told(sequence, &approval);
            return;
        };

        let running = self.owner.fold().running.as_ref();
        if running.is_some_and(|running| running.is_open(&decision.id)) {
            let cursor = Some(self.cursor_after(&[sequence]));
            tracing::info!(
                session = %self.claimed.session, approval = decision.id, status = decision.status.name(), "approval decided"
            );
            self.approvals.mark_taken(&decision);
            self.owner.stage_entry(LedgerEntry::ApprovalDecided {
                decision,
                sequence: Some(sequence),
                cursor,
            });

            return;
        }

        // The ledger does not wait for this decision: KV gets the status that the ledger implies.
        let known = running.and_then(|running| running.asked.iter().find(|asked| asked.approval == decision.id));
        match (running, known) {
            (Some(running), Some(asked)) => {
                if let Some(status) = over(running, asked) {
                    self.approvals.mark(decision.id.clone(), status);
                }
            }
            (Some(_), None) => self.approvals.add_orphan(decision.id.clone()),
            (None, _) => self.approvals.mark(decision.id.clone(), ApprovalStatus::Canceled),
        }

        let id = decision.id.parse().unwrap_or(Ulid::nil());
        self.drop_named("approval", id, sequence, DropReason::ApprovalNotAwaited);
    }

    /// Stages a question that the turn's agent has asked by itself, so that the ledger knows it and it ends with the
    /// turn.
    pub(super) fn take_question(&mut self, sequence: u64, request: ApprovalRequest) {
        let running = self.owner.fold().running.as_ref();
        let asked_in = request.asked_in.as_deref();
        let id = request.id.parse().unwrap_or(Ulid::nil());
        match running.filter(|running| asked_in.is_some_and(|asked| asked.turn == running.turn)) {
            Some(running) if running.has_asked(&request.id) => {}
            Some(_) => self.owner.stage_entry(LedgerEntry::ApprovalRequested { request }),
            None => self.approvals.mark(request.id, ApprovalStatus::Canceled),
        }
        self.drop_named("approval", id, sequence, DropReason::ApprovalAsked);
    }

    /// Stages that a notice about `approval`, which KV has no news of, is done.
    pub(super) fn drop_told(&mut self, sequence: u64, approval: &str) {
        let id = approval.parse().unwrap_or(Ulid::nil());
        self.drop_named("approval", id, sequence, DropReason::ApprovalUnchanged);
    }

    /// Looks up in KV the state of the approval that a notice names; the notice itself decides nothing.
    pub(super) async fn look_up_told(
        &mut self,
        told: ApprovalNotification,
        listened: &mut ApprovalPoll,
    ) -> Result<(), RunSessionError> {
        let standing = self.broker.desk().get(&told.approval).await?;
        // A notice is a plain message, so it may name an approval of another session, or one that never was.
        let Some(standing) = standing.filter(|standing| standing.is_of(&self.claimed.session)) else {
            listened.empty.push((told.sequence, told.approval));
            return Ok(());
        };

        let running = self.owner.fold().running.as_ref();
        let is_known = running.is_some_and(|running| running.has_asked(&told.approval));
        let is_new = !is_known && is_outside(standing.request.asked_in.as_deref());
        let decision = decision_of(&standing);

        if is_new {
            listened.questions.push((told.sequence, standing.request));
        }

        if decision.status != ApprovalStatus::Pending {
            let decision = Some(decision);
            listened
                .others
                .push(InboxItem::Decision(ApprovalNotification { decision, ..told }));
        } else if !is_new {
            listened.empty.push((told.sequence, told.approval));
        }

        Ok(())
    }
}
