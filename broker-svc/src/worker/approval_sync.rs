//! What KV `approvals` is to say of a turn's questions once its ledger has said it. The ledger decides: people read KV,
//! and an approval that led to nothing must not look as if it had.

use shared::model::approval::{ApprovalDecision, ApprovalStatus};
use shared::model::session::SessionRef;

use super::Worker;
use super::approve::ended;
use crate::approval::desk::Desk;
use crate::turn::journal::{Asked, Running};

/// Most questions that are remembered because nobody in the ledger waits for them.
const MAX_STRAYS: usize = 64;

/// Returns the status to write to KV for `asked`, a question of `running`, now that the ledger has taken it; none if a
/// human or a timer still decides.
pub(super) fn over(running: &Running, asked: &Asked) -> Option<ApprovalStatus> {
    match asked.status {
        // The approved call was begun.
        ApprovalStatus::Approved => running.was_begun(&asked.call).then_some(ApprovalStatus::Consumed),
        ApprovalStatus::Cancelled
        | ApprovalStatus::Superseded
        | ApprovalStatus::Consumed
        | ApprovalStatus::Rejected
        | ApprovalStatus::Expired => Some(asked.status),
        ApprovalStatus::Pending => None,
    }
}

/// Approvals of which KV does not say yet what the ledger says.
#[derive(Debug, Default)]
pub(super) struct ApprovalSync {
    /// What KV is to say once what is staged is appended.
    marks: Vec<(String, ApprovalStatus)>,
    /// Approvals that were decided and that no ledger entry asks for: their turn may ask yet.
    orphans: Vec<String>,
}

impl ApprovalSync {
    /// KV is to say that `approval` is `status`, once what is staged is appended.
    pub(super) fn mark(&mut self, approval: String, status: ApprovalStatus) {
        self.marks.push((approval, status));
    }

    /// The ledger has `decision`: KV need not keep it.
    pub(super) fn mark_taken(&mut self, decision: &ApprovalDecision) {
        if let ApprovalStatus::Rejected | ApprovalStatus::Expired = decision.status {
            self.mark(decision.id.clone(), decision.status);
        }
    }

    /// KV is to say once more what the ledger says of the questions of `running`.
    pub(super) fn mark_all(&mut self, running: &Running) {
        let marks = running
            .asked
            .iter()
            .filter_map(|asked| Some((asked.approval.clone(), over(running, asked)?)));
        self.marks.extend(marks);
    }

    /// The approval `id` was decided, and no ledger entry asks for it: its turn may be about to ask this very question
    /// again; if it does not, nobody ever will.
    pub(super) fn add_orphan(&mut self, id: String) {
        if self.orphans.len() < MAX_STRAYS {
            self.orphans.push(id);
        }
    }

    /// Ends the questions of the turn `running`, and those outside of its ledger. Returns the approvals that were given
    /// and not used, which the ledger is to cancel.
    pub(super) fn end_turn(&mut self, running: Option<&Running>) -> Vec<String> {
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

        let is_known = |id: &String| running.asked.iter().any(|asked| asked.approval == *id);
        let orphans = orphans.into_iter().filter(|id| !is_known(id));
        self.marks.extend(orphans.map(|id| (id, ApprovalStatus::Cancelled)));

        unused
    }

    /// Writes into KV what the ledger says. What is not written here is made good by whoever takes the session next, or
    /// when the approval is told again.
    pub(super) async fn write(&mut self, desk: &Desk, session: &SessionRef) {
        for (approval, status) in std::mem::take(&mut self.marks) {
            if let Err(error) = desk.bring(&approval, status).await {
                tracing::warn!(%session, approval, status = status.name(), %error, "failed to update an approval's status");
            }
        }
    }
}

impl Worker<'_> {
    /// Writes into KV what the ledger says of approvals.
    pub(super) async fn mark_approvals(&mut self) {
        self.approvals.write(self.broker.desk(), &self.claimed.session).await;
    }

    /// Writes into KV what a former owner wrote down of its turn's questions, and perhaps not into KV.
    pub(super) async fn mark_again(&mut self) {
        if let Some(running) = self.owner.fold().running.as_ref() {
            self.approvals.mark_all(running);
        }
        self.mark_approvals().await;
    }

    /// The approval of `call`, which does not run, is nobody's any more.
    pub(super) fn not_used(&mut self, call: &str, why: &str) {
        let running = self.owner.fold().running.as_ref();
        let asked = running.and_then(|running| running.last_asked(call));
        let unused = asked.filter(|asked| asked.status == ApprovalStatus::Approved);
        if let Some(approval) = unused.map(|asked| asked.approval.clone()) {
            self.cancel(approval, why);
        }
    }

    /// The turn is over: what was approved and not begun never will be, nor is what was asked outside of its ledger.
    pub(super) fn give_up_approvals(&mut self) {
        let unused = self.approvals.end_turn(self.owner.fold().running.as_ref());
        for approval in unused {
            self.cancel(approval, "its turn is over");
        }
    }

    fn cancel(&mut self, approval: String, why: &str) {
        self.stage_decision(ended(&approval, ApprovalStatus::Cancelled, Some(why)));
        self.approvals.mark(approval, ApprovalStatus::Cancelled);
    }
}
