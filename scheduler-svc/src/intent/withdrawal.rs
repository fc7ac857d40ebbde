//! Withdrawing intents, and what is cleared away once one is over.
//!
//! Each step may be cut off, and is taken again by whoever comes by next: a repeated question, a timer that rings for
//! what is over, the reconciler. So an intent that takes the place of another never fires while that one stands.

use shared::bus::Entry;
use shared::model::intent::timer::TimerPurpose;
use shared::model::intent::{Intent, IntentCode, IntentStatus};
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::clerk::Clerk;
use super::error::HandleIntentError;
use super::machine::{self, Cause};
use super::{conditions, timers};

/// Tries of one withdrawal while others take steps on the same intent.
const MAX_TRIES: u32 = 16;

impl Clerk {
    /// Withdraws what `value` takes the place of, once it is admitted; what is over already, or gone, stays as it is.
    ///
    /// # Errors
    /// [`HandleIntentError`]: to be tried again.
    pub async fn supersede(&self, value: &Intent) -> Result<(), HandleIntentError> {
        let admitted = match value.status {
            IntentStatus::Pending
            | IntentStatus::Rescheduled
            | IntentStatus::Running
            | IntentStatus::Completed
            | IntentStatus::Failed => true,
            IntentStatus::Proposed | IntentStatus::Rejected | IntentStatus::Canceled => false,
        };
        let record = &value.intent;
        let Some(old) = record.supersedes.filter(|old| admitted && *old != record.id) else {
            return Ok(());
        };
        let (why, by) = (format!("by {}", record.id), format!("agent:{}", record.agent));
        let withdrawn = self.withdraw(Some(&record.agent), old, IntentCode::Superseded, &why, &by);
        match withdrawn.await {
            Ok(_) | Err(HandleIntentError::Unknown(_) | HandleIntentError::Step(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Withdraws intent `id`, of `agent` where one is named.
    ///
    /// # Errors
    /// [`HandleIntentError`]: unknown, or over.
    pub async fn withdraw(
        &self,
        agent: Option<&str>,
        id: Ulid,
        code: IntentCode,
        why: &str,
        by: &str,
    ) -> Result<Entry<Intent>, HandleIntentError> {
        for _ in 0..MAX_TRIES {
            let entry = self.store.find(agent, id).await?;
            match self.cancel(&entry, code, why, by).await {
                Err(HandleIntentError::Conflict(_)) => {}
                Err(HandleIntentError::Step(error)) => {
                    self.settle(&entry.value, self.clock.now()).await?;
                    return Err(error.into());
                }
                other => return other,
            }
        }
        Err(HandleIntentError::Conflict(id))
    }

    /// Withdraws `entry`.
    ///
    /// # Errors
    /// [`HandleIntentError`]; a conflict where somebody else has written.
    pub async fn cancel(
        &self,
        entry: &Entry<Intent>,
        code: IntentCode,
        why: &str,
        by: &str,
    ) -> Result<Entry<Intent>, HandleIntentError> {
        let intent = &entry.value;
        let now = self.clock.now();
        let mut next = machine::fresh(intent);
        machine::cancel(&mut next, code, Cause { by, why, at: now })?;
        let canceled = self.store.advance(entry, next).await?;
        if let Some(due) = intent.due {
            timers::stop(&self.bus, &timers::timer(intent, TimerPurpose::Fire, due)).await;
        }
        self.settle(&canceled.value, now).await?;
        Ok(canceled)
    }

    /// Clears away what `intent`, which is over, leaves behind: a reservation that no day settles, a mark. Where it is
    /// not over, or nothing is left, nothing happens.
    ///
    /// # Errors
    /// [`HandleIntentError`]: to be tried again.
    pub async fn settle(&self, intent: &Intent, now: UnixMillis) -> Result<(), HandleIntentError> {
        let record = &intent.intent;
        if !intent.status.is_final() {
            return Ok(());
        }
        if intent.deadline.is_some() {
            conditions::forget(&self.bus, intent).await;
        }
        let fired = intent.fired > 0;
        let of_one_day = !record.schedule.recurs() && intent.deadline.is_none() && intent.lineage.is_empty();
        // One with a day of its own is spent on that day, by its time alone: a million of them need no look.
        if fired && of_one_day {
            return Ok(());
        }
        let writer = || self.store.writer();
        self.books.settle(&record.agent, record.id, fired, now, &writer).await
    }
}
