//! Wake-ups of intents, and approval requests ahead of the due time.

use std::sync::Arc;

use shared::bus::KvEntry;
use shared::model::approval::{ApprovalStatus, ConfirmationTerms};
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::intent::{ApprovalRequirement, Intent, IntentCode, IntentStatus};
use shared::model::time::UnixMillis;

use super::approvals::ASK_AHEAD_MS;
use super::error::HandleIntentError;
use super::executor::{IntentExecutor, RUNTIME, occurrence_after};
use super::machine::{self, StepCause};
use super::timers;

/// Least time between now and the request to an approver, milliseconds.
const SOON_MS: i64 = 2_000;

impl IntentExecutor {
    /// Stores the timer that wakes `intent` for its occurrence `due`, and the timer that requests its approval ahead of
    /// it.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]. A repeated call changes nothing.
    pub async fn set_wakeups(&self, intent: &Intent, due: UnixMillis) -> Result<(), HandleIntentError> {
        timers::set_timer(&self.bus, &timers::new_timer(intent, TimerPurpose::Fire, due), due).await?;
        if intent.intent.approval == ApprovalRequirement::BeforeFire {
            // A timer that fired at once would find the old state: the new one is stored after it.
            let ahead = due.plus(-ASK_AHEAD_MS).max(self.clock.now().plus(SOON_MS));
            timers::set_timer(
                &self.bus,
                &timers::new_timer(intent, TimerPurpose::Approval, due),
                ahead,
            )
            .await?;
        }
        Ok(())
    }

    /// Requests the approval of the occurrence that `timer` names, shortly before it is due.
    pub(super) async fn ask_ahead(self: &Arc<Self>, timer: &IntentTimer) -> Result<(), HandleIntentError> {
        let Some(entry) = self.store.get(Some(&timer.agent), timer.intent).await? else {
            return Ok(());
        };
        let intent = &entry.value;
        if intent.status == IntentStatus::Pending && intent.due == Some(timer.nominal) {
            // If `AUDIT` says that the occurrence is over, no approver must be asked about it.
            self.store.check(intent).await?;
            self.approvals.ask_approval(intent, self.clock.now()).await?;
        }
        Ok(())
    }

    /// Returns the approval of `entry`'s occurrence, or `None` if it is not approved (yet). If it is denied or expired,
    /// skips the occurrence; if there is no later occurrence, cancels the intent.
    pub(super) async fn find_approval(
        &self,
        entry: &KvEntry<Intent>,
        now: UnixMillis,
    ) -> Result<Option<ConfirmationTerms>, HandleIntentError> {
        let confirmation = self.approvals.ask_approval(&entry.value, now).await?;
        let code = match confirmation.status {
            ApprovalStatus::Approved | ApprovalStatus::Consumed => return Ok(Some(confirmation)),
            ApprovalStatus::Pending => return Ok(None),
            ApprovalStatus::Denied => IntentCode::Denied,
            ApprovalStatus::Expired | ApprovalStatus::Canceled | ApprovalStatus::Superseded => {
                IntentCode::ApprovalExpired
            }
        };

        let by = confirmation.decided_by.as_deref().unwrap_or(RUNTIME);
        let why = confirmation.response.as_deref().unwrap_or_default();
        let intent = &entry.value;

        // The denied occurrence was the last one: without it the intent has nothing to wait for.
        let Some(due) = intent.due.and_then(|due| occurrence_after(intent, due.max(now))) else {
            return self
                .cancel_entry(entry, code, false, StepCause { by, why, at: now })
                .await
                .map(|_| None);
        };

        // The wake-up of the next occurrence is stored before the state that relies on it.
        self.set_wakeups(intent, due).await?;
        let mut next = machine::next_value(intent);
        machine::skip_occurrence(&mut next, due, code, StepCause { by, why, at: now })?;

        self.store.advance_intent(entry, next).await.map(|_| None)
    }
}
