//! Statuses to write to KV `approvals` once the ledger has recorded how a turn's questions ended. The ledger decides:
//! people read KV, and an approval that led to nothing must not look as if it had led to a call.

use shared::model::approval::{ApprovalDecision, ApprovalStatus};
use shared::model::session::SessionRef;

use super::Worker;
use super::approve::ended_decision;
use crate::approval::store::ApprovalStore;
use crate::turn::journal::{AskedApproval, RunningTurn};

/// Maximum number of remembered approvals that no ledger entry asks for.
const MAX_STRAYS: usize = 64;

/// Returns the status to write to KV for `asked`, a question of `running`, now that the ledger has recorded it.
/// Returns `None` if a human or a timer still decides.
pub(super) fn over(running: &RunningTurn, asked: &AskedApproval) -> Option<ApprovalStatus> {
    match asked.status {
        // An approval is consumed only once its call was begun.
        ApprovalStatus::Approved => running.was_begun(&asked.call).then_some(ApprovalStatus::Consumed),
        ApprovalStatus::Canceled
        | ApprovalStatus::Superseded
        | ApprovalStatus::Consumed
        | ApprovalStatus::Denied
        | ApprovalStatus::Expired => Some(asked.status),
        ApprovalStatus::Pending => None,
    }
}

/// Approvals whose status in KV is behind the ledger.
#[derive(Debug, Default)]
pub(super) struct ApprovalSync {
    /// Approval ids and the statuses to write to KV once the staged entries are appended.
    marks: Vec<(String, ApprovalStatus)>,
    /// Ids of decided approvals that no ledger entry asks for; their turn may still ask for them.
    orphans: Vec<String>,
}

impl ApprovalSync {
    /// Schedules `status` to be written to KV for `approval` once the staged entries are appended.
    pub(super) fn mark(&mut self, approval: String, status: ApprovalStatus) {
        self.marks.push((approval, status));
    }

    /// Marks `decision` as recorded in the ledger, so that KV need not keep it.
    pub(super) fn mark_taken(&mut self, decision: &ApprovalDecision) {
        if let ApprovalStatus::Denied | ApprovalStatus::Expired = decision.status {
            self.mark(decision.id.clone(), decision.status);
        }
    }

    /// Schedules the statuses of all questions of `running` to be written to KV again.
    pub(super) fn mark_all(&mut self, running: &RunningTurn) {
        let marks = running
            .asked
            .iter()
            .filter_map(|asked| Some((asked.approval.clone(), over(running, asked)?)));
        self.marks.extend(marks);
    }

    /// Remembers the decided approval `id`, which no ledger entry asks for. Its turn may be about to ask this very
    /// question again; if the turn does not, no other turn ever will.
    pub(super) fn add_orphan(&mut self, id: String) {
        if self.orphans.len() < MAX_STRAYS {
            self.orphans.push(id);
        }
    }

    /// Ends the questions of the turn `running` and those outside its ledger. Returns the approvals that were given
    /// and not used; the ledger must cancel them.
    pub(super) fn end_turn(&mut self, running: Option<&RunningTurn>) -> Vec<String> {
        let orphans = std::mem::take(&mut self.orphans);
        let Some(running) = running else {
            return Vec::new();
        };

        let mut unused = Vec::new();
        for asked in &running.asked {
            match over(running, asked) {
                Some(status) => self.mark(asked.approval.clone(), status),
                None if asked.status == ApprovalStatus::Approved => unused.push(asked.approval.clone()),
                None => {}
            }
        }

        // No turn knows the others, so nothing would ever use a decision about them.
        let is_known = |id: &String| running.asked.iter().any(|asked| asked.approval == *id);
        let orphans = orphans.into_iter().filter(|id| !is_known(id));
        self.marks.extend(orphans.map(|id| (id, ApprovalStatus::Canceled)));

        unused
    }

    /// Writes the scheduled statuses to KV. A status that cannot be written is corrected by the session's next owner,
    /// or when the session is notified of the approval again.
    pub(super) async fn write(&mut self, desk: &ApprovalStore, session: &SessionRef) {
        for (approval, status) in std::mem::take(&mut self.marks) {
            if let Err(error) = desk.write_ledger_status(&approval, status).await {
                tracing::warn!(%session, approval, status = status.name(), %error, "failed to update an approval's status");
            }
        }
    }
}

impl Worker<'_> {
    /// Writes the statuses of approvals that the ledger has recorded to KV.
    pub(super) async fn mark_approvals(&mut self) {
        self.approvals.write(self.broker.desk(), &self.claimed.session).await;
    }

    /// Writes the statuses that a former owner recorded in the ledger, and perhaps not in KV, to KV again.
    pub(super) async fn mark_again(&mut self) {
        if let Some(running) = self.owner.fold().running.as_ref() {
            self.approvals.mark_all(running);
        }
        self.mark_approvals().await;
    }

    /// Cancels the unused approval of `call`, which does not run, for the reason `why`.
    pub(super) fn not_used(&mut self, call: &str, why: &str) {
        let running = self.owner.fold().running.as_ref();
        let asked = running.and_then(|running| running.last_asked(call));
        let unused = asked.filter(|asked| asked.status == ApprovalStatus::Approved);
        if let Some(approval) = unused.map(|asked| asked.approval.clone()) {
            self.cancel(approval, why);
        }
    }

    /// Cancels the approvals that the finished turn did not use, and those that were asked outside its ledger.
    pub(super) fn give_up_approvals(&mut self) {
        let unused = self.approvals.end_turn(self.owner.fold().running.as_ref());
        for approval in unused {
            self.cancel(approval, "its turn is over");
        }
    }

    fn cancel(&mut self, approval: String, why: &str) {
        self.stage_decision(ended_decision(&approval, ApprovalStatus::Canceled, Some(why)));
        self.approvals.mark(approval, ApprovalStatus::Canceled);
    }
}
