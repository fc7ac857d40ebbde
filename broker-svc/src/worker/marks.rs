//! What KV `approvals` is to say of a turn's questions once its ledger has said it. The ledger decides: people read KV,
//! and an approval that led to nothing must not look as if it had.

use shared::model::approval::ApprovalStatus;

use super::Worker;
use super::approve::ended;
use crate::turn::journal::{Asked, Running};

/// Most questions that are remembered because nobody in the ledger waits for them.
const MAX_STRAYS: usize = 64;

/// What KV is to say of `asked`, a question of `running`, now that the ledger has taken it.
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

impl Worker<'_> {
    /// Writes into KV what the ledger says of approvals. What is not written here is made good by whoever takes the
    /// session next, or when the approval is told again.
    pub(super) async fn mark_approvals(&mut self) {
        for (approval, status) in std::mem::take(&mut self.marks) {
            if let Err(error) = self.broker.desk().bring(&approval, status).await {
                let session = &self.claimed.session;
                tracing::warn!(%session, approval, status = status.name(), %error, "approval is not marked");
            }
        }
    }

    /// What a former owner wrote down of its turn's questions, and perhaps not into KV.
    pub(super) async fn mark_again(&mut self) {
        let running = self.owner.fold().running.as_ref();
        let marks: Vec<(String, ApprovalStatus)> = running.map_or_else(Vec::new, |running| {
            let marks = running
                .asked
                .iter()
                .filter_map(|asked| Some((asked.approval.clone(), over(running, asked)?)));
            marks.collect()
        });

        self.marks.extend(marks);
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
        let Some(running) = self.owner.fold().running.as_ref() else {
            self.strays.clear();
            return;
        };

        let mut unused = Vec::new();
        let mut marks = Vec::new();
        for asked in &running.asked {
            match over(running, asked) {
                Some(status) => marks.push((asked.approval.clone(), status)),
                None if asked.status == ApprovalStatus::Approved => unused.push(asked.approval.clone()),
                None => {}
            }
        }

        let known = |id: &String| running.asked.iter().any(|asked| asked.approval == *id);
        let strays = self.strays.iter().filter(|id| !known(id)).cloned();
        marks.extend(strays.map(|id| (id, ApprovalStatus::Cancelled)));
        self.strays.clear();
        self.marks.extend(marks);

        for approval in unused {
            self.cancel(approval, "its turn is over");
        }
    }

    /// The approval `id` was decided, and no ledger entry asks for it: its turn may be about to ask this very question
    /// again; where it does not, nobody ever will.
    pub(super) fn stray(&mut self, id: String) {
        if self.strays.len() < MAX_STRAYS {
            self.strays.push(id);
        }
    }

    fn cancel(&mut self, approval: String, why: &str) {
        self.stage_decision(ended(&approval, ApprovalStatus::Cancelled, Some(why)));
        self.marks.push((approval, ApprovalStatus::Cancelled));
    }
}
