//! Executes the steps of existing intents that timers, approvals and ends of turns cause.
//!
//! Two replicas may run each function at once, run it twice, or be killed at any line: state is changed by
//! compare-and-set, published messages have ids that follow from the state, and timers are stored before the state that
//! depends on them. A timer that fires twice, or for a time that is over, changes nothing.

use std::sync::Arc;

use shared::bus::{Bus, KvEntry, OutgoingMessage, claim};
use shared::clock::SharedClock;
use shared::model::event::Event;
use shared::model::intent::timer::{IntentTimer, TimerPurpose};
use shared::model::intent::{ApprovalRequirement, Intent, IntentCode, IntentStatus};
use shared::model::time::UnixMillis;
use shared::process::trace::{carrier_of, root_span};
use shared::wire::headers::{CAUSATION, HOPS, TraceCarrier};
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use tracing::Instrument as _;
use ulid::Ulid;

use super::approvals::IntentApprovals;
use super::budget_ledger::BudgetLedger;
use super::error::HandleIntentError;
use super::idle_check;
use super::idle_check::IdleVerdict;
use super::machine::{self, FiringEnd, StepCause};
use super::registry::KindRegistry;
use super::store::IntentStore;
use super::turn_listener::TurnListener;
use super::{firing, hooks, lost_firings, plan, sending, timers};

/// Attempts at one step while other writers change the same intent.
const MAX_TRIES: u32 = 16;
/// Delay of a firing, in milliseconds, above which it may be a copy of an earlier one of which KV and `AUDIT` have no
/// trace: the server refuses copies only for 120 s.
const LATE_MS: i64 = 60_000;
/// Name of the runtime as the author of a step.
pub const RUNTIME: &str = "runtime";

/// Whether a firing was published before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Publication {
    /// It was never published.
    First,
    /// It may have been published.
    Again,
    /// It was published, and its queue has lost it.
    Lost,
}

/// Executes steps of existing intents.
#[derive(Debug)]
pub struct IntentExecutor {
    /// Connection to the server.
    pub bus: Bus,
    /// Clock of the process.
    pub clock: SharedClock,
    /// Declared kinds and budgets.
    pub registry: KindRegistry,
    /// Store of the intents.
    pub store: IntentStore,
    /// Store of the agents' budget books.
    pub books: BudgetLedger,
    /// Store of the approvals.
    pub approvals: IntentApprovals,
    /// Listener for the ends of turns.
    pub bell: TurnListener,
}

impl IntentExecutor {
    /// Does the work that `timer` fires for, if it is still to be done.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]; the timer must fire again.
    pub async fn handle_timer(self: &Arc<Self>, timer: &IntentTimer) -> Result<(), HandleIntentError> {
        match timer.purpose {
            TimerPurpose::Fire => self.handle_due(&timer.agent, timer.intent, timer.nominal, None).await,
            // An approver is asked only after the condition is met.
            TimerPurpose::Approval => {
                if self.clock.now() < timer.nominal {
                    return self.ask_ahead(timer).await;
                }
                let met = Some(IntentCode::ConditionMet);
                self.handle_due(&timer.agent, timer.intent, timer.nominal, met).await
            }
            TimerPurpose::Outcome => Box::pin(self.check_outcome(timer)).await,
        }
    }

    /// Handles the firing `nominal` of intent `id`, or checks its condition. `met` is the code of a condition that is
    /// known to be met.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]; the call must be repeated.
    pub async fn handle_due(
        self: &Arc<Self>,
        agent: &str,
        id: Ulid,
        nominal: UnixMillis,
        met: Option<IntentCode>,
    ) -> Result<(), HandleIntentError> {
        for _ in 0..MAX_TRIES {
            let Some(entry) = self.store.get(Some(agent), id).await? else {
                return Ok(());
            };

            let now = self.clock.now();
            let done = match entry.value.status {
                IntentStatus::Proposed => Box::pin(self.decide_proposed(&entry)).await,
                IntentStatus::Pending => Box::pin(self.fire_pending(&entry, nominal, met)).await,
                IntentStatus::Running => self.fire_again(&entry, nominal).await,
                // The process that ended the intent may have died before the cleanup.
                IntentStatus::Completed | IntentStatus::Failed | IntentStatus::Canceled | IntentStatus::Rejected => {
                    self.settle_intent(&entry.value, now).await
                }
                IntentStatus::Rescheduled => Ok(()),
            };

            match done {
                Err(HandleIntentError::Conflict(_)) => {}
                other => return other,
            }
        }

        Err(HandleIntentError::Conflict(id))
    }

    async fn decide_proposed(&self, entry: &KvEntry<Intent>) -> Result<(), HandleIntentError> {
        // If `AUDIT` has a decision already, no approver must be asked.
        self.store.check(&entry.value).await?;
        self.decide_admission(entry).await
    }

    async fn fire_again(
        self: &Arc<Self>,
        entry: &KvEntry<Intent>,
        nominal: UnixMillis,
    ) -> Result<(), HandleIntentError> {
        let running = entry.value.running.as_ref();
        if running.is_some_and(|running| running.nominal == nominal) {
            self.store.check(&entry.value).await?;
            Box::pin(self.publish_firing(entry, Publication::Again)).await?;
        }
        Ok(())
    }

    async fn fire_pending(
        self: &Arc<Self>,
        entry: &KvEntry<Intent>,
        nominal: UnixMillis,
        met: Option<IntentCode>,
    ) -> Result<(), HandleIntentError> {
        let intent = &entry.value;
        let now = self.clock.now();

        // A timer for another time belongs to an earlier schedule of the intent.
        let mut code = IntentCode::Due;
        match intent.due {
            Some(due) if due != nominal => return Ok(()),
            Some(_) => {}
            None => match self.check_condition(intent, met, now).await? {
                Condition::Holds => code = IntentCode::ConditionMet,
                Condition::Waits => return Ok(()),
                Condition::Over => return self.withdraw_waiting(entry, IntentCode::DeadlinePassed, now).await,
            },
        }

        // Before the firing: two intents of which one replaces the other must never fire both.
        self.supersede_intent(intent).await?;

        // The checks below are made at the last moment, because the intent may have waited for months.
        if intent.intent.expires_at.is_some_and(|expires| now > expires) {
            return self.withdraw_waiting(entry, IntentCode::Expired, now).await;
        }

        if intent.intent.cancel_on_user_turn && idle_check::user_spoke(&self.bus, intent).await? {
            return self.withdraw_waiting(entry, IntentCode::UserTurn, now).await;
        }

        let runtime = StepCause {
            by: RUNTIME,
            why: "",
            at: now,
        };

        if intent.intent.approval != ApprovalRequirement::BeforeFire {
            return self.fire_intent(entry, nominal, code, runtime).await;
        }

        // `AUDIT` may know a later step: then no approver must be asked.
        self.store.check(intent).await?;
        let Some(yes) = self.find_approval(entry, now).await? else {
            return Ok(());
        };
        let by = yes.decided_by.as_deref().unwrap_or(RUNTIME);
        let why = yes.response.as_deref().unwrap_or_default();

        self.fire_intent(entry, nominal, code, StepCause { by, why, at: now })
            .await
    }

    /// Cancels `entry`, which is pending, because of `code`.
    async fn withdraw_waiting(
        &self,
        entry: &KvEntry<Intent>,
        code: IntentCode,
        at: UnixMillis,
    ) -> Result<(), HandleIntentError> {
        let (by, why) = (RUNTIME, "");
        self.cancel_entry(entry, code, false, StepCause { by, why, at })
            .await
            .map(drop)
    }

    /// Checks the condition of `intent`. Sets the timer of the next check if it is not met yet.
    async fn check_condition(
        &self,
        intent: &Intent,
        met: Option<IntentCode>,
        now: UnixMillis,
    ) -> Result<Condition, HandleIntentError> {
        if met.is_some() {
            return Ok(Condition::Holds);
        }

        // A deadline ends every condition, also one that is checked seldom.
        let over = intent.deadline.is_some_and(|deadline| now >= deadline);
        if intent.intent.schedule.quiet_seconds().is_none() {
            return Ok(if over { Condition::Over } else { Condition::Waits });
        }

        match idle_check::check_quiet(&self.bus, intent, now).await? {
            IdleVerdict::Holds => Ok(Condition::Holds),
            IdleVerdict::LookAgain(_) if over => Ok(Condition::Over),
            IdleVerdict::LookAgain(at) => {
                let at = intent.deadline.map_or(at, |deadline| at.min(deadline));
                timers::set_timer(&self.bus, &timers::new_timer(intent, TimerPurpose::Fire, at), at).await?;
                Ok(Condition::Waits)
            }
        }
    }

    async fn fire_intent(
        self: &Arc<Self>,
        entry: &KvEntry<Intent>,
        nominal: UnixMillis,
        code: IntentCode,
        cause: StepCause<'_>,
    ) -> Result<(), HandleIntentError> {
        let now = cause.at;
        // The timer for the end is stored before the firing, so that a crash cannot lose the end.
        let look = timers::new_timer(&entry.value, TimerPurpose::Outcome, nominal);
        let looked_for = async {
            timers::set_timer(&self.bus, &look, now.plus(timers::FIRST_LOOK_MS)).await?;
            Ok::<(), HandleIntentError>(())
        };

        let mut next = machine::next_value(&entry.value);
        // The dispatch's id is part of the value, so that a repetition publishes the same one.
        let dispatch = firing::dispatch_of(&next, nominal)?;
        machine::fire_intent(&mut next, nominal, dispatch, code, cause)?;
        let fired = self.store.advance_after(entry, next, looked_for).await?;
        metrics::histogram!("nexus_scheduler_intent_lateness_seconds").record(now.since(nominal) as f64 / 1_000.0);

        // The server refuses copies only for a while: a late firing must look for its earlier messages.
        let publication = if now.since(nominal) < LATE_MS {
            Publication::First
        } else {
            Publication::Again
        };

        Box::pin(self.publish_firing(&fired, publication)).await
    }

    /// Publishes the firing under way: its event, its dispatch and the claim. For the other kinds, runs the hook or
    /// sends the text.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]; the call must be repeated.
    pub(super) async fn publish_firing(
        self: &Arc<Self>,
        entry: &KvEntry<Intent>,
        publication: Publication,
    ) -> Result<(), HandleIntentError> {
        let intent = &entry.value;
        let Some(running) = intent.running.clone() else {
            return Ok(());
        };

        let span = root_span("scheduler.intent");
        let carrier = carrier_of(&span, &TraceCarrier::default());

        async {
            let event = firing::firing_event(intent, running.nominal, running.at)?;
            span.record("event_id", tracing::field::display(&event.id));
            let target = intent.target();
            // Listening starts before the dispatch is published, because a fast turn ends at once.
            let ear = self.bell.listen(&target).await;
            let (event_seq, is_copy) = self.publish_event(&event, publication, &carrier).await?;

            // Kinds without a turn end here: a text is sent, or a hook runs.
            let Some(dispatch) = firing::firing_dispatch(intent, running.nominal, running.at, event_seq)? else {
                let ended = match firing::firing_reply(intent, running.nominal)? {
                    Some(reply) => sending::send_and_wait(&self.bus, &reply, &carrier).await?,
                    None => hooks::await_hook(&self.bus, intent, &event).await?,
                };

                return match ended {
                    Some(ending) => self.finish_firing(entry, &ending).await,
                    None => Ok(()),
                };
            };

            let mut out = OutgoingMessage::new(subject::dispatch(&target), &dispatch)
                .msg_id(self.message_id(dispatch.id, publication).await?)
                .header(HOPS, dispatch.causation.hops.to_string())
                .header(CAUSATION, dispatch.event_id.as_str())
                .carrier(&carrier);

            // A possible copy is marked, so that the session looks for the first one.
            if is_copy {
                out = out.repeated();
            }

            // The claim comes last: a broker that takes it must find the dispatch.
            self.bus.publish(out).await?;
            claim::publish(&self.bus, &target, &carrier).await?;
            tracing::info!(
                event_id = %event.id, dispatch_id = %dispatch.id, session = %target, intent = %intent.intent.id,
                "intent fired"
            );

            if let Some(ear) = ear {
                let (clerk, agent, id) = (Arc::clone(self), intent.intent.agent.clone(), intent.intent.id);
                self.bell.await_end(ear, move || {
                    let (clerk, agent) = (Arc::clone(&clerk), agent.clone());
                    async move { matches!(clerk.look_for_end(&agent, id, running.nominal).await, Ok(true)) }
                });
            }

            Ok(())
        }
        .instrument(span.clone())
        .await
    }

    /// Publishes `event`, unless `EVENTS` has it. Returns its sequence, and whether the firing may be a copy.
    async fn publish_event(
        &self,
        event: &Event,
        publication: Publication,
        carrier: &TraceCarrier,
    ) -> Result<(u64, bool), HandleIntentError> {
        if publication != Publication::First
            && let Some(sequence) = lost_firings::stored_event(&self.bus, &self.clock, event).await?
        {
            return Ok((sequence, true));
        }

        let out = OutgoingMessage::event(event, self.bus.trust())
            .header(HOPS, event.hops.to_string())
            .carrier(carrier);
        let stored = self.bus.publish(out).await?;

        Ok((stored.sequence, publication != Publication::First || stored.duplicate))
    }

    /// Returns the message id of the dispatch `id` of a firing.
    async fn message_id(&self, id: Ulid, publication: Publication) -> Result<String, HandleIntentError> {
        Ok(match publication {
            Publication::First | Publication::Again => id.to_string(),
            // The server may still remember the id of the lost copy, and would refuse this one.
            Publication::Lost => {
                let last = self.bus.stream_state(DISPATCHES).await?.last;
                format!("lost:{last}:{id}")
            }
        })
    }

    /// Ends the firing under way of `entry`, and plans the next occurrence if there is one.
    ///
    /// # Errors
    /// Returns [`HandleIntentError`]; the call must be repeated.
    pub async fn finish_firing(&self, entry: &KvEntry<Intent>, ending: &FiringEnd) -> Result<(), HandleIntentError> {
        let intent = &entry.value;
        let Some(running) = &intent.running else { return Ok(()) };
        let now = self.clock.now();
        // Counted from now, so that occurrences that were missed during a long turn are not made up for.
        let next_due = occurrence_after(intent, now.max(running.nominal));

        if let Some(due) = next_due {
            self.set_wakeups(intent, due).await?;
        }

        let mut next = machine::next_value(intent);
        machine::end_firing(&mut next, ending, next_due, now)?;
        let ended = self.store.advance_intent(entry, next).await?;
        timers::stop(
            &self.bus,
            &timers::new_timer(intent, TimerPurpose::Outcome, running.nominal),
        )
        .await;

        // Only an intent without a next occurrence has ended.
        if next_due.is_none() {
            self.settle_intent(&ended.value, now).await?;
        }

        Ok(())
    }
}

/// Returns the next occurrence of `intent` after `after`; `None` if it does not recur, has ended, or expires before.
pub(super) fn occurrence_after(intent: &Intent, after: UnixMillis) -> Option<UnixMillis> {
    let expires = intent.intent.expires_at;
    let next = plan::next(&intent.intent.schedule, after);
    next.filter(|due| expires.is_none_or(|expires| *due <= expires))
}

/// State of an intent's condition.
enum Condition {
    Holds,
    Waits,
    Over,
}
