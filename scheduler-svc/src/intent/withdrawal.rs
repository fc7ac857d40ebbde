//! Cancels intents, and cleans up after intents that have ended.
//!
//! Each step may be interrupted, and is repeated by the next caller: a repeated request, a timer of the ended intent,
//! or the reconciler. An intent that supersedes another never fires before the other is canceled.

use shared::bus::{KvEntry, OutgoingMessage, claim};
use shared::model::dispatch::derived_ulid;
use shared::model::intent::timer::TimerPurpose;
use shared::model::intent::{Intent, IntentCode, IntentStatus};
use shared::model::order::{OrderKind, SessionOrder};
use shared::model::time::UnixMillis;
use shared::wire::headers::TraceCarrier;
use shared::wire::subject;
use ulid::Ulid;

use super::error::HandleIntentError;
use super::executor::IntentExecutor;
use super::machine::{self, StepCause};
use super::{conditions, timers};

/// Attempts at one cancellation while other writers change the same intent.
const MAX_TRIES: u32 = 16;
/// Time after the cancellation of an intent in which its dispatch is withdrawn, milliseconds. The timer that polls for
/// the end of the firing has fired by then, even after a crash.
const TAKEN_BACK_MS: i64 = 3_600_000;

impl IntentExecutor {
    /// Cancels the intent that `value` supersedes, if `value` is admitted. An intent that has ended or does not exist
    /// is ignored.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]; the call must be repeated.
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

    /// Cancels intent `id`, of `agent` if one is given. `asking` is the turn that requests it: that turn goes on even
    /// if it is the turn of the intent's own firing. The ledger decides whether it is: that turn started before its
    /// request, so a turn that the ledger does not know yet is another one.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`] if the intent does not exist or has ended.
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
            // Read from the ledger in each attempt, because the turn may have started meanwhile.
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
                    // The intent has ended before: an interrupted cleanup is completed.
                    self.settle_intent(&entry.value, self.clock.now()).await?;
                    return Err(error.into());
                }
                other => return other,
            }
        }

        Err(HandleIntentError::Conflict(id))
    }

    /// Cancels `entry`, and withdraws the dispatch of a firing under way. `spares_turn` says that the firing's own turn
    /// requested it and goes on.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]; a conflict if another writer has changed the intent.
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

        // The timer is stopped last, because it repeats the steps before if the process dies.
        if let Some(running) = &intent.running {
            let look = timers::new_timer(intent, TimerPurpose::Outcome, running.nominal);
            timers::stop(&self.bus, &look).await;
        }

        Ok(canceled)
    }

    /// Orders the session to withdraw the dispatch of the firing that was under way when `intent` was canceled.
    async fn take_back(&self, intent: &Intent, now: UnixMillis) -> Result<(), HandleIntentError> {
        let (Some(withdrawn), Some(record)) = (&intent.withdrawn, intent.records.last()) else {
            return Ok(());
        };
        if now.since(record.at) > TAKEN_BACK_MS {
            return Ok(());
        }

        // The id follows from the intent and the dispatch, so a repetition is recognized as one order.
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

    /// Cleans up after `intent`, if it has ended: a dispatch that is no longer wanted, a reservation that does not
    /// lapse with a day, a mark. Does nothing if the intent goes on.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]; the call must be repeated.
    pub async fn settle_intent(&self, intent: &Intent, now: UnixMillis) -> Result<(), HandleIntentError> {
        let record = &intent.intent;

        // Called for values in any state, so that callers need no check of their own.
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

        // A booking with a day lapses with that day: a million of them need no read of the book.
        if fired && of_one_day {
            return Ok(());
        }

        self.books.settle_booking(&record.agent, record.id, fired, now).await
    }
}
