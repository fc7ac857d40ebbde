//! Waking an intent in time, and having an approver asked before it is due.

use std::sync::Arc;

use shared::bus::Entry;
use shared::model::approval::{ApprovalStatus, Confirmation};
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::intent::{ApprovalRequirement, Intent, IntentCode, IntentStatus};
use shared::model::time::UnixMillis;

use super::approvals::ASK_AHEAD_MS;
use super::clerk::{IntentExecutor, RUNTIME, occurrence_after};
use super::error::HandleIntentError;
use super::machine::{self, StepCause};
use super::timers;

/// How much later than now an approver is asked at the earliest, ms.
const SOON_MS: i64 = 2_000;

impl IntentExecutor {
    /// Stores what wakes `intent` for its occurrence `due`, and what has its approver asked ahead of it.
    ///
    /// # Errors
    /// [`HandleIntentError`]; doing it again changes nothing.
    pub async fn set_wakeups(&self, intent: &Intent, due: UnixMillis) -> Result<(), HandleIntentError> {
        timers::set_timer(&self.bus, &timers::new_timer(intent, TimerPurpose::Fire, due), due).await?;
        if intent.intent.approval == ApprovalRequirement::BeforeFire {
            // Not at once: the state that counts on it is stored after it.
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

    /// The occurrence that `timer` is about is near: whoever has to agree is asked.
    pub(super) async fn ask_ahead(self: &Arc<Self>, timer: &IntentTimer) -> Result<(), HandleIntentError> {
        let Some(entry) = self.store.get(Some(&timer.agent), timer.intent).await? else {
            return Ok(());
        };
        let intent = &entry.value;
        if intent.status == IntentStatus::Pending && intent.due == Some(timer.nominal) {
            // Nobody is asked about an occurrence of which `AUDIT` says that it is over.
            self.store.check(intent).await?;
            self.approvals.ask_approval(intent, self.clock.now()).await?;
        }
        Ok(())
    }

    /// The yes of an approver; none where nobody has decided yet. Where one has said no, or nothing in time, this
    /// occurrence is let be, and with the last one the intent.
    pub(super) async fn find_approval(
        &self,
        entry: &Entry<Intent>,
        now: UnixMillis,
    ) -> Result<Option<Confirmation>, HandleIntentError> {
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

        let Some(due) = intent.due.and_then(|due| occurrence_after(intent, due.max(now))) else {
            return self
                .cancel_entry(entry, code, false, StepCause { by, why, at: now })
                .await
                .map(|_| None);
        };

        self.set_wakeups(intent, due).await?;
        let mut next = machine::next_value(intent);
        machine::skip_occurrence(&mut next, due, code, StepCause { by, why, at: now })?;

        self.store.advance_intent(entry, next).await.map(|_| None)
    }
}
