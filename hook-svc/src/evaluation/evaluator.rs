//! Evaluation of one event, step by step: check whether it is done or a duplicate (`done_markers`), give the orders of a
//! change (`changed_items`), choose the hooks (`hook_choice`), show them the event, publish each fire as soon as it is
//! known, decide the fallbacks, store the record, ack.
//!
//! The record is the event's done-marker and is stored before the ack. The owner of a redelivered event reads the
//! marker first, unless the read model shows that there is none (`redelivery_check`). Steps that a crash interrupted are
//! repeated with the same ids, which changes nothing.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use shared::bus::{OutgoingMessage, PublishError};
use shared::clock::SharedClock;
use shared::model::event::Event;
use shared::model::hook::{HookResult, StoredAnswer};
use shared::model::invocation::EventInvocations;
use shared::model::time::UnixMillis;
use shared::wire::headers::{EVENT_SUBJECT, THROUGH, TraceCarrier};
use shared::wire::subject;

use crate::error::HandleEventError;
use crate::evaluation::fire::{FireExecutor, HookAction};
use crate::evaluation::pass_counts::PassCounts;
use crate::evaluation::progress::{EvaluationProgress, HookOutcomes};
use crate::evaluation::record::{EvaluationSummary, record, slim_record};
use crate::evaluation::redelivery_check::RedeliveryCheck;
use crate::evaluation::selection::{HealthSignals, HookSelection};
use crate::evaluation::task::{EvaluationRound, EventTask};
use crate::health::breakers::HookBreakers;
use crate::read_model::access::ModelAccess;
use crate::registry::active_hooks::{ActiveHooks, HookTraits};
use crate::routing::bindings::LiveBindings;
use crate::runner::{
    CallUsage, Evaluation, EvaluationJob, EvaluationStep, HeldSlots, HookSet, InForce, RunOutcome, WorkerPools,
};

/// Evaluator of events, shared by all partitions of this replica.
#[derive(Debug)]
pub(crate) struct EventEvaluator {
    pub(crate) performer: FireExecutor,
    pub(crate) pool: WorkerPools,
    pub(crate) breakers: HookBreakers,
    pub(crate) bindings: LiveBindings,
    pub(crate) passes: Mutex<PassCounts>,
    pub(crate) model: ModelAccess,
    /// Most events of one conversation that wait for the read model at once. Fewer than fit into memory, so that the hooks that
    /// read nothing see the next ones.
    pub(crate) most_waiting: usize,
    pub(crate) clock: SharedClock,
    pub(crate) instance: String,
    /// Number of events that were settled without evaluation because their records may be gone.
    pub(crate) beyond_records: AtomicU64,
}

/// An event that every hook has answered, before its record is stored.
pub(crate) struct AnsweredEvent {
    pub(crate) outcomes: HookOutcomes,
    pub(crate) choice: HookSelection,
    pub(crate) set: Arc<HookSet>,
    pub(crate) signs: HealthSignals,
}

/// State of an event after handling.
#[derive(Debug)]
pub(crate) enum EventOutcome {
    /// The event is done and may be acked.
    Done,
    /// Its record is stored, but these hooks are called later; it is not settled before.
    Deferred(Vec<String>),
}

/// Stored state of an event.
#[derive(Debug)]
pub(crate) enum StoredMarker {
    /// No record of the event is stored.
    None,
    /// Every hook has answered.
    Done,
    /// These hooks are still to be called.
    Owes(Vec<String>),
}

impl EventEvaluator {
    /// Completes `task`'s event, except for hooks without a place. `again`: an earlier attempt failed half-way.
    pub(crate) async fn handle(
        &self,
        task: &EventTask,
        again: bool,
        carrier: &TraceCarrier,
    ) -> Result<EventOutcome, HandleEventError> {
        match &task.pass {
            EvaluationRound::First => self.handle_first(task, again, carrier).await,
            EvaluationRound::Deferred(deferred) => self.make_deferred(task, deferred, carrier).await,
        }
    }

    async fn handle_first(
        &self,
        task: &EventTask,
        again: bool,
        carrier: &TraceCarrier,
    ) -> Result<EventOutcome, HandleEventError> {
        if let Some(ended) = self.ended_before(task, again).await? {
            return Ok(ended);
        }

        let started_at = self.clock.now();
        let me = format!("{}/{}", self.instance, task.event.id);
        let evaluating = pin!(self.evaluate_task(task, again, &me, started_at, carrier));
        // The orders are stored before the record, which says that the event is done.
        let AnsweredEvent {
            outcomes,
            choice,
            set,
            signs,
        } = self.order_beside(task, carrier, evaluating).await?;

        let evaluated = EvaluationSummary {
            event_id: task.event.id.clone(),
            event_seq: task.sequence,
            evaluated_by: self.instance.clone(),
            started_at,
            finished_at: self.clock.now(),
            passed: outcomes.passed,
            hooks: outcomes.hooks,
            passes: self.passes_due(),
        };

        self.store_record(task, record(evaluated), carrier).await?;
        // Settles after storing, so that an event that is tried several times counts once.
        self.settle_outcomes(&choice, &set, &signs, &me, started_at).await;
        self.performer.meters.evaluated.increment(1);

        let deferred = choice.deferred_ids(&set);
        if deferred.is_empty() {
            return Ok(EventOutcome::Done);
        }

        self.performer.meters.deferred.increment(1);
        Ok(EventOutcome::Deferred(deferred))
    }

    /// Returns the longest time-out among the hooks that see `event`.
    pub(crate) fn longest_timeout(&self, event: &Event) -> Duration {
        let in_force = self.pool.current_hooks();
        let set = in_force.set();
        let seen_by = set.hooks_seeing(event);
        let of = |index: u32| set.hooks().get(index as usize).map_or(0, |hook| hook.timeout_ms);
        let longest = match &seen_by {
            Some(some) => some.iter().map(|index| of(*index)).max(),
            None => set.hooks().iter().map(|hook| hook.timeout_ms).max(),
        };
        Duration::from_millis(longest.unwrap_or(0))
    }

    /// Shows the event to every hook that has a place and performs their actions; `me` names this evaluation.
    async fn evaluate_task(
        &self,
        task: &EventTask,
        again: bool,
        me: &str,
        now: UnixMillis,
        carrier: &TraceCarrier,
    ) -> Result<AnsweredEvent, HandleEventError> {
        // One version of the hooks for the whole evaluation, even if hooks are saved meanwhile.
        let in_force = self.pool.current_hooks();
        let roster = self.performer.registry.roster_of(in_force.set());
        // Decisions of an earlier attempt hold: those hooks are not asked again.
        let (stored, decided) = self.decided_before(task, again, &roster).await?;
        let mut choice = self.choose_hooks(in_force.set(), &task.event, &decided, me).await;
        let bound = self.bound_action(&task.event);
        let binds_as_fallback = bound.as_ref().is_some_and(|wish| wish.traits.fallback);
        let seats = self
            .seat_hooks(task, &in_force, &roster, (&mut choice, binds_as_fallback))
            .await;
        let evaluation = self.show(task, &in_force, &choice, now, &seats).await;

        // The places are free for the next event as soon as the scripts have answered.
        drop(seats);

        let mut course = EvaluationProgress::new(&roster, task, false);
        course.outcomes.hooks.extend(choice.left_out(evaluation.set()));
        let mut wishes: Vec<HookAction> = stored.into_iter().chain(heartbeat_action(task)).collect();
        wishes.iter().for_each(|wish| course.note_under_way(wish));

        // Bindings that are fallbacks must wait for the deferred hooks.
        if let Some(wish) = bound.filter(|_| !choice.defers_bindings) {
            wishes.extend(course.admit_action(wish));
        }

        self.bring_to_end(task, (evaluation, choice), (course, wishes), (now, carrier))
            .await
    }

    /// Processes the answers of `evaluation` as they come, and performs their actions and `wishes`.
    pub(crate) async fn bring_to_end(
        &self,
        task: &EventTask,
        (mut evaluation, choice): (Evaluation, HookSelection),
        (mut course, wishes): (EvaluationProgress<'_>, Vec<HookAction>),
        (now, carrier): (UnixMillis, &TraceCarrier),
    ) -> Result<AnsweredEvent, HandleEventError> {
        // Actions run while other scripts still work: a slow hook must not delay the dispatch of a fast one.
        let perform = |wish| self.performer.perform_action(task, wish, now, carrier);
        let mut performing: FuturesUnordered<_> = wishes.into_iter().map(perform).collect();

        let unanswered = self.model.peers().unanswered();
        let mut failed = None;
        loop {
            tokio::select! {
                biased;
                step = evaluation.next(), if !course.all_answered && failed.is_none() => {
                    let step = step.ok_or_else(|| self.lost_error())?;
                    if self.count_unread_try(task, &step, unanswered) {
                        failed = Some(HandleEventError::NoCopy);
                        continue;
                    }
                    // A script that waits uses no processor: the permits of its event go to others meanwhile.
                    if matches!(step, EvaluationStep::Waiting(_)) {
                        task.lent.waits_for_script();
                    }
                    if let Some(wish) = course.take(step, &evaluation, &self.performer) {
                        performing.push(perform(wish));
                    }
                }
                Some(performed) = performing.next(), if !performing.is_empty() => match performed {
                    Ok(invocation) => course.note_performed(invocation),
                    // Actions of the other hooks are completed before the event is tried again.
                    Err(error) => failed = failed.or(Some(error)),
                },
                else => break,
            }

            // Fallbacks fire only if no other hook has routed the event, which is known only now.
            if course.all_answered && performing.is_empty() && failed.is_none() {
                let fallbacks = course.due_fallbacks();
                if !fallbacks.is_empty() {
                    // Durable first: after a crash the passes must not be asked again, or a fallback could fire as
                    // well.
                    self.keep_passes(task, &choice, evaluation.set(), &course).await?;
                }

                for wish in fallbacks {
                    performing.push(perform(wish));
                }
            }
        }

        if let Some(error) = failed {
            return Err(error);
        }

        let EvaluationProgress { outcomes, signs, .. } = course;
        let set = Arc::clone(evaluation.set());

        Ok(AnsweredEvent {
            outcomes,
            choice,
            set,
            signs,
        })
    }

    /// Counts a try in which `step` is the failure of a hook that may have asked the read model while no copy of it answered.
    /// Returns whether its event is tried again for that. `unanswered`: number of such questions before the evaluation.
    fn count_unread_try(&self, task: &EventTask, step: &EvaluationStep, unanswered: usize) -> bool {
        let EvaluationStep::Verdict(verdict) = step else {
            return false;
        };
        matches!(verdict.outcome, RunOutcome::Failed { .. })
            && self.model.peers().unanswered() != unanswered
            && verdict.hook.reads_model()
            && task.unread.count_try()
    }

    /// Hands the event to the hooks that see it. A script that queries the read model must find the event itself and
    /// everything before it; the other hooks do not wait for that.
    pub(crate) async fn show(
        &self,
        task: &EventTask,
        in_force: &InForce,
        choice: &HookSelection,
        now: UnixMillis,
        seats: &HeldSlots,
    ) -> Evaluation {
        let job = EvaluationJob {
            event_id: task.key.clone(),
            event_json: Bytes::from(serde_json::to_vec(&task.event).unwrap_or_default()),
            sequence: task.sequence,
            now,
            only: choice.only.clone(),
        };

        let readers = choice.model_readers(in_force.set());
        // Most hooks do not read the read model, and need not wait for it.
        if readers.is_empty() {
            return self.pool.evaluate_event(in_force, &job, seats);
        }

        let (model, sequence) = (self.model.clone(), task.sequence);
        let mut caught_up = Box::pin(async move { model.wait_reached(sequence).await });
        match (&mut caught_up).now_or_never() {
            Some(true) => self.pool.evaluate_event(in_force, &job, seats),
            Some(false) => Evaluation::lost_evaluation(in_force.set()),
            None => {
                let model = self.model.clone();
                let counted = async move {
                    let waiting = model.note_waiting();
                    let has_event = caught_up.await;
                    waiting.get_on();
                    has_event
                };
                self.pool.evaluate_in_two(in_force, &job, (&readers, counted), seats)
            }
        }
    }

    /// Returns whether this replica cannot go on, so that events end without a record.
    pub(super) fn is_stopping(&self) -> bool {
        self.pool.is_stopped() || self.model.is_closed()
    }

    /// Returns the reason why an evaluation ended before every hook had answered.
    fn lost_error(&self) -> HandleEventError {
        if self.is_stopping() {
            HandleEventError::Stopped
        } else {
            HandleEventError::Lost
        }
    }

    /// Returns the decisions of an earlier delivery or attempt: fires of one-shot hooks that this event won, and
    /// answers of hooks that might answer differently now. They are the fires to perform, and the ids of all hooks that
    /// have answered. `roster` must be that of the set about to be called, so that a hook is in exactly one of them.
    pub(crate) async fn decided_before(
        &self,
        task: &EventTask,
        again: bool,
        roster: &ActiveHooks,
    ) -> Result<(Vec<HookAction>, Vec<String>), HandleEventError> {
        let wish = |hook_id: &str, result: &HookResult| HookAction {
            traits: roster.hook_traits(hook_id),
            hook_id: hook_id.to_owned(),
            latency_us: 0,
            result: Box::new(result.clone()),
            decided: true,
            volatile: false,
            spent: CallUsage::default(),
        };

        let key = &task.key;
        let fires = roster.stored_fires(key).iter();
        let mut wishes: Vec<HookAction> = fires.map(|fire| wish(&fire.hook_id, &fire.result)).collect();
        let mut decided: Vec<String> = wishes.iter().map(|wish| wish.hook_id.clone()).collect();

        // An event that is new and has no inherited record cannot have stored answers: the read is saved.
        let may_be_decided = task.inherited.is_some_and(RedeliveryCheck::has_answers);
        if !(again || may_be_decided || task.is_redriven()) {
            return Ok((wishes, decided));
        }

        let answers = self.performer.answers.read_answers(key).await;
        for answer in answers.map_err(HandleEventError::Answers)? {
            // The fire of a one-shot hook is decided by the registry, which comes first.
            if decided.iter().any(|known| known == answer.hook_id()) {
                continue;
            }

            if let StoredAnswer::Fired { hook_id, result } = &answer {
                wishes.push(wish(hook_id, result));
            }
            decided.push(answer.hook_id().to_owned());
        }

        Ok((wishes, decided))
    }

    /// Stores that hooks which might fire another time passed, failed or were not called, before fallbacks fire because
    /// of it.
    async fn keep_passes(
        &self,
        task: &EventTask,
        choice: &HookSelection,
        set: &HookSet,
        course: &EvaluationProgress<'_>,
    ) -> Result<(), HandleEventError> {
        // Only answers that could differ at a repetition have to be stored.
        let uncertain = choice.uncertain_hooks(set, &course.signs.failed);
        let passes: Vec<StoredAnswer> = uncertain
            .filter(|hook_id| !course.has_fired(hook_id))
            .map(|hook_id| StoredAnswer::Passed {
                hook_id: hook_id.to_owned(),
            })
            .collect();

        if !passes.is_empty() {
            let kept = self.performer.answers.store_answers(&task.key, &passes).await;
            kept.map_err(HandleEventError::Answers)?;
        }

        Ok(())
    }

    /// Stores the done-marker. If it is too large, it is stored without details.
    async fn store_record(
        &self,
        task: &EventTask,
        record: EventInvocations,
        carrier: &TraceCarrier,
    ) -> Result<(), HandleEventError> {
        // The server may remember the id of the record before: one that is redriven has a record of its own.
        let name = if task.is_redriven() {
            format!("inv:{}:{}", task.key, task.sequence)
        } else {
            format!("inv:{}", task.key)
        };
        self.store_as(&name, task, record, carrier).await
    }

    /// Stores a record of the event under the message id `name`.
    pub(crate) async fn store_as(
        &self,
        name: &str,
        task: &EventTask,
        record: EventInvocations,
        carrier: &TraceCarrier,
    ) -> Result<(), HandleEventError> {
        let outgoing = |record: &EventInvocations| {
            OutgoingMessage::new(subject::invocation(task.partition, &task.key), record)
                .msg_id(name)
                .header(THROUGH, task.through.load(Ordering::Relaxed).to_string())
                .header(EVENT_SUBJECT, &task.incoming.subject)
                .carrier(carrier)
        };

        match self.performer.bus.publish(outgoing(&record)).await {
            Ok(_) => Ok(()),
            // A record without details still marks the event as done.
            Err(PublishError::TooLarge { size, .. }) => {
                tracing::warn!(event_id = %task.event.id, size, "event record stored without details");
                self.performer.bus.publish(outgoing(&slim_record(record))).await?;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the fire of `task`'s event if it is a persona's heartbeat.
fn heartbeat_action(task: &EventTask) -> Option<HookAction> {
    let result = crate::evaluation::heartbeat::heartbeat_result(&task.event).filter(|_| task.is_shown())?;
    Some(HookAction::of_operator(
        crate::evaluation::heartbeat::HOOK_ID,
        0,
        HookTraits::default(),
        result,
    ))
}
