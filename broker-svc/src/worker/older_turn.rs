//! Turns that a ledger put back to an older state has as running.
//!
//! The records of such a turn after its last record there are lost: it may have called tools, asked models and
//! answered. It does not go on. Its dispatches are held until an operator decides; those that `DISPATCHES` has lost, and
//! that hook-svc neither makes again nor holds, become dead letters. Its hooks do not run. Source:
//! `docs/design/trust.md` §2.4.

use shared::model::approval::ApprovalStatus;
use shared::model::ledger::{DispatchRef, DropReason, LedgerEntry};
use shared::model::time::UnixMillis;

use super::Worker;
use super::own_dispatches::WhileWaiting;
use crate::error::RunSessionError;
use crate::queue::doubt::hold_dispatch;
use crate::turn::Turn;
use crate::turn::journal::RunningTurn;

impl Worker<'_> {
    /// Holds the dispatches of `running` and ends it if the ledger was put back to an older state and the turn may have
    /// gone on since its last record. Returns whether it did. Nothing of this owner may be appended before: its records
    /// are newer than the loss.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if it cannot be found out, a dispatch can neither be held nor dead-lettered, or the
    /// session has another owner.
    pub(super) async fn end_older_turn(&mut self, running: &RunningTurn) -> Result<bool, RunSessionError> {
        let Some(until) = self.inbox.doubt_until() else {
            return Ok(false);
        };
        // An owner that died after it had held them, or noted them as lost, may have appended a record of its own.
        let (broker, session) = (self.broker, &self.claimed.session);
        let noted = self.inbox.known_lost(broker, session, &running.dispatches).await?;
        let was_begun = !noted.is_empty() || self.is_any_held(running).await?;
        if !was_begun && !self.may_have_gone_on(running, until).await? {
            return Ok(false);
        }

        // hook-svc may not have compared a stream yet that was put back as well.
        let wanted = running.dispatches.clone();
        let search = self.find_dispatches(wanted, WhileWaiting::AppendNothing).await?;
        let session = &self.claimed.session;
        let turn = running.turn;
        let why =
            format!("the ledger of {session} was restored to a state before turn {turn}, which may have continued");
        for pending in search.found() {
            hold_dispatch(self.broker, &pending, &why).await?;
        }

        let mut lost = Vec::new();
        for dispatch in search.missing() {
            if !self.is_held(&dispatch).await? {
                lost.push(dispatch);
            }
        }
        // One that is noted has its dead letter.
        let is_new = |dispatch: &&DispatchRef| !noted.contains(&dispatch.id);
        let new: Vec<DispatchRef> = lost.iter().filter(is_new).cloned().collect();
        self.dead_letter_lost(turn, &new).await?;

        let (lost_count, all) = (lost.len(), running.dispatches.len());
        tracing::error!(
            %session, %turn, lost = lost_count, held = all - lost_count,
            "turn held: the ledger was restored to an earlier state, and the turn may have continued after it; decide with `nexus recover`"
        );
        self.record_older_end(running, &lost).await?;
        Ok(true)
    }

    /// Returns whether a dispatch of `running` is held, or was and is decided.
    async fn is_any_held(&self, running: &RunningTurn) -> Result<bool, RunSessionError> {
        for dispatch in &running.dispatches {
            if self.is_held(dispatch).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether `running` may have done more than the ledger has, which lacks records from before `until`.
    async fn may_have_gone_on(&self, running: &RunningTurn, until: UnixMillis) -> Result<bool, RunSessionError> {
        if running.used.recorded_at() > until {
            return Ok(false);
        }
        // Nothing happens in a turn that waits for a human, until KV says that its wait is over.
        match &running.awaits {
            Some(awaited) => Ok(!self.still_stands(&awaited.approval).await?),
            None => Ok(true),
        }
    }

    /// Returns whether nothing can have followed from `approval`: it is open, or given and not used.
    async fn still_stands(&self, approval: &str) -> Result<bool, RunSessionError> {
        let desk = self.broker.desk();
        let standing = desk.get(approval).await?;
        let Some(standing) = standing.filter(|standing| standing.is_of(&self.claimed.session)) else {
            return Ok(false);
        };

        match standing.status {
            ApprovalStatus::Pending => Ok(!desk.is_behind_audit(&standing).await?),
            ApprovalStatus::Approved => Ok(!desk.was_used(approval).await?),
            ApprovalStatus::Denied
            | ApprovalStatus::Expired
            | ApprovalStatus::Canceled
            | ApprovalStatus::Superseded
            | ApprovalStatus::Consumed => Ok(false),
        }
    }

    /// Appends the end of `running`, whose dispatches are held but for those that are `lost`. The cursor does not pass the
    /// dispatches, which are not read yet; the ledger knows them when they are.
    async fn record_older_end(&mut self, running: &RunningTurn, lost: &[DispatchRef]) -> Result<(), RunSessionError> {
        // Approvals of outside are settled behind an append of their own. It is newer than the loss: a broker that goes
        // on after a kill knows by it alone that the turn must not, if none of its dispatches is held.
        if running.open_outside().next().is_some() {
            for dispatch in lost {
                let entry = self.dropped_entry(dispatch.clone(), DropReason::Lost);
                self.owner.stage_entry(entry);
            }
        }
        self.settle_outside().await?;
        self.canceled = None;
        let why = "the ledger was restored to a state before its turn, which may have continued";
        self.stop_awaiting(why);
        self.give_up_approvals();

        let turn = Turn::from_running(&self.claimed.session, self.owner.fold(), running, &[]);
        for dispatch in running.dispatches.iter().filter(|known| !lost.contains(known)) {
            self.stage_dropped(dispatch.clone(), DropReason::Held);
        }

        let cursor = self.owner.fold().cursor.clone();
        self.owner
            .stage_entry(turn.interrupted_entry(why.to_owned(), String::new(), cursor));
        self.stage_lost_dispatches(lost);
        metrics::counter!("nexus_broker_turns_total", "outcome" => "held").increment(1);
        self.flush().await?;

        self.inbox.forget_standings();
        Ok(())
    }

    /// Stages that the post-turn hooks that an older ledger has as due do not run: they may have run.
    pub(super) fn drop_older_hooks(&mut self) {
        let recorded_at = self.owner.fold().at;
        if self.inbox.doubt_until().is_none_or(|until| recorded_at > until) {
            return;
        }

        let due: Vec<_> = self.owner.fold().post_hooks.turns().collect();
        for turn in due {
            tracing::error!(
                session = %self.claimed.session, %turn,
                "post-turn hooks skipped: the ledger was restored to an earlier state, and they may have run"
            );
            self.owner.stage_entry(LedgerEntry::PostHooksSettled { turn });
        }
    }
}
