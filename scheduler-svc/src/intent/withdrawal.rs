//! Withdrawing intents, and what is cleared away once one is over.
//!
//! Each step may be cut off, and is taken again by whoever comes by next: a repeated question, a timer that rings for
//! what is over, the reconciler. So an intent that takes the place of another never fires while that one stands.

use shared::bus::{KvEntry, OutgoingMessage, claim};
use shared::model::dispatch::derived_ulid;
use shared::model::intent::timer::TimerPurpose;
use shared::model::intent::{Intent, IntentCode, IntentStatus};
use shared::model::order::{OrderKind, SessionOrder};
use shared::model::time::UnixMillis;
use shared::wire::headers::TraceCarrier;
use shared::wire::subject;
use ulid::Ulid;

use super::clerk::IntentExecutor;
use super::error::HandleIntentError;
use super::machine::{self, StepCause};
use super::{conditions, timers};

/// Tries of one withdrawal while others take steps on the same intent.
const MAX_TRIES: u32 = 16;
/// A dispatch is taken back within so long after its intent was withdrawn, milliseconds: the timer that looks for the
/// firing's end has rung by then, whatever was cut off.
const TAKEN_BACK_MS: i64 = 3_600_000;

impl IntentExecutor {
    /// Withdraws what `value` takes the place of, once it is admitted; what is over already, or gone, stays as it is.
    ///
    /// # Errors
    /// [`HandleIntentError`]: to be tried again.
    pub async fn supersede_intent(&self, value: &Intent) -> Result<(), HandleIntentError> {
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
        let code = IntentCode::Superseded;
        let withdrawn = self.withdraw_intent(Some(&record.agent), old, code, &why, &by, record.turn);
        match Box::pin(withdrawn).await {
            Ok(_) | Err(HandleIntentError::Unknown(_) | HandleIntentError::Step(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Withdraws intent `id`, of `agent` where one is named. Where a turn wants it (`asking`), that turn goes on although it
    /// be the one of the intent's own firing, as the ledger tells: it began before it asked, so what the ledger does not
    /// know of yet is another's.
    ///
    /// # Errors
    /// [`HandleIntentError`]: unknown, or over.
    pub async fn withdraw_intent(
        &self,
        agent: Option<&str>,
        id: Ulid,
        code: IntentCode,
        why: &str,
        by: &str,
        asking: Option<Ulid>,
    ) -> Result<KvEntry<Intent>, HandleIntentError> {
        for _ in 0..MAX_TRIES {
            let entry = self.store.find(agent, id).await?;
            let spares_turn = match asking {
                Some(turn) => self.runs_in(&entry.value, turn).await?,
                None => false,
            };
            match self
                .cancel_entry(
                    &entry,
                    code,
                    spares_turn,
                    StepCause {
                        by,
                        why,
                        at: self.clock.now(),
                    },
                )
                .await
            {
                Err(HandleIntentError::Conflict(_)) => {}
                Err(HandleIntentError::Step(error)) => {
                    self.settle_intent(&entry.value, self.clock.now()).await?;
                    return Err(error.into());
                }
                other => return other,
            }
        }

        Err(HandleIntentError::Conflict(id))
    }

    /// Withdraws `entry`, and takes the dispatch of a firing under way back; `spares_turn` where its own turn wants that.
    ///
    /// # Errors
    /// [`HandleIntentError`]; a conflict where somebody else has written.
    pub async fn cancel_entry(
        &self,
        entry: &KvEntry<Intent>,
        code: IntentCode,
        spares_turn: bool,
        cause: StepCause<'_>,
    ) -> Result<KvEntry<Intent>, HandleIntentError> {
        let intent = &entry.value;
        let mut next = machine::next_value(intent);
        machine::cancel_intent(&mut next, code, spares_turn, cause)?;
        let canceled = self.store.advance_intent(entry, next).await?;

        if let Some(due) = intent.due {
            timers::stop(&self.bus, &timers::new_timer(intent, TimerPurpose::Fire, due)).await;
        }

        self.settle_intent(&canceled.value, cause.at).await?;

        // Until here it rings for whoever was cut off in between.
        if let Some(running) = &intent.running {
            let look = timers::new_timer(intent, TimerPurpose::Outcome, running.nominal);
            timers::stop(&self.bus, &look).await;
        }

        Ok(canceled)
    }

    /// Tells the session that the dispatch of a firing under way is taken back, where `intent` was withdrawn meanwhile.
    async fn take_back(&self, intent: &Intent, now: UnixMillis) -> Result<(), HandleIntentError> {
        let (Some(withdrawn), Some(record)) = (&intent.withdrawn, intent.records.last()) else {
            return Ok(());
        };
        if now.since(record.at) > TAKEN_BACK_MS {
            return Ok(());
        }

        let named = [
            &intent.intent.id.to_string(),
            "withdraw",
            &withdrawn.dispatch.to_string(),
        ];
        let order = SessionOrder {
            id: derived_ulid(record.at, &named),
            target: intent.target(),
            wanted: OrderKind::Withdraw {
                dispatch: withdrawn.dispatch,
                spares_turn: withdrawn.spares_turn,
            },
            by: record.by.clone(),
            reason: record.why.clone(),
            at: record.at,
        };

        let out = OutgoingMessage::new(subject::dispatch(&order.target), &order).msg_id(order.id.to_string());
        self.bus.publish(out).await?;
        claim::publish(&self.bus, &order.target, &TraceCarrier::default()).await?;
        tracing::info!(
            intent = %intent.intent.id, dispatch_id = %withdrawn.dispatch, session = %order.target,
            "withdrew the dispatch of a canceled intent"
        );

        Ok(())
    }

    /// Clears away what `intent`, which is over, leaves behind: a dispatch that nobody wants any more, a reservation that
    /// no day settles, a mark. Where it is not over, or nothing is left, nothing happens.
    ///
    /// # Errors
    /// [`HandleIntentError`]: to be tried again.
    pub async fn settle_intent(&self, intent: &Intent, now: UnixMillis) -> Result<(), HandleIntentError> {
        let record = &intent.intent;

        if !intent.status.is_final() {
            return Ok(());
        }

        if intent.withdrawn.is_some() {
            Box::pin(self.take_back(intent, now)).await?;
        }

        if intent.deadline.is_some() {
            conditions::remove_mark(&self.bus, intent).await;
        }

        let fired = intent.fired > 0;
        let of_one_day = !record.schedule.recurs() && intent.deadline.is_none() && intent.lineage.is_empty();

        // One with a day of its own is spent on that day, by its time alone: a million of them need no look.
        if fired && of_one_day {
            return Ok(());
        }

        self.books.settle_booking(&record.agent, record.id, fired, now).await
    }
}
