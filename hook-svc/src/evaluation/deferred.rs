//! Evaluations that are made later, because their hooks' authors had no place when the event came, or because they read
//! the read model and its copies are away or far behind.
//!
//! The event's record says so (`deferred`) before any other state depends on it, and the event stays open at its
//! partition's floor, so the owner of the partition finds it again. Once there is a place for an author, that author's
//! hooks are called, and a further record holds their outcomes and all outcomes of the former one. No author waits for
//! another's place. After a crash in between, the same evaluation is repeated with the same ids. Source:
//! `docs/design/trust.md` §5.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shared::bus::PublishError;
use shared::bus::dead_letter::MessageVerdict;
use shared::clock::pause;
use shared::model::invocation::{EventInvocations, HookInvocation, HookOutcome};
use shared::model::time::UnixMillis;
use shared::wire::headers::TraceCarrier;

use crate::error::HandleEventError;
use crate::evaluation::evaluator::{AnsweredEvent, EventEvaluator, EventOutcome};
use crate::evaluation::fire::HookAction;
use crate::evaluation::partition_consumer::SERVICE;
use crate::evaluation::progress::EvaluationProgress;
use crate::evaluation::record::{
    DEFERRED_TOO_LONG, EvaluationSummary, HOOK_DISABLED, HOOK_REPLACED, completed_record, new_invocation,
};
use crate::evaluation::task::{DeferredHooks, EvaluationRound, EventTask};
use crate::health::metrics::{DeferredOutcome, count_owed_end};
use crate::registry::active_hooks::ActiveHooks;
use crate::routing::bindings;
use crate::runner::{HeldSlots, HookSet, InForce};

/// Multiple of the hooks' time-out after which an evaluation without a place is given up.
const MOST_TIMEOUTS: u32 = 3;

/// Shortest time for which an evaluation is not given up after its author's process has waited for a place: it takes that long to
/// begin.
const LEAST_AFTER_WAIT: Duration = Duration::from_secs(3);

impl EventEvaluator {
    /// Returns the time for which the evaluation of `hooks`, owed since `since`, may still wait for a place. If hooks that read
    /// the read model have waited for its copies meanwhile, themselves or behind earlier events, it begins now: otherwise all that
    /// came during an outage would be given up as soon as there are no places for all at once. For the same reason it begins once
    /// a process of an author among them has a place that had to wait for one meanwhile.
    pub(crate) fn time_left(&self, hooks: &[String], since: Instant) -> Duration {
        let patience = self.patience_of(hooks);
        let in_force = self.pool.current_hooks();
        let reads = hooks.iter().any(|id| reads_model(in_force.set(), id));
        if reads && self.model.were_away_since(since) {
            return patience;
        }

        let now = self.clock.monotonic();
        let after_wait = self.left_after_wait(hooks, since, now).map(|(_, left)| left);
        after_wait.unwrap_or_else(|| (since + patience).saturating_duration_since(now))
    }

    /// Returns the last time after `since` when the process of an author of `hooks` waited for a place, and how long their
    /// evaluation may wait on; `None` if none has waited.
    fn left_after_wait(&self, hooks: &[String], since: Instant, now: Instant) -> Option<(Instant, Duration)> {
        let in_force = self.pool.current_hooks();
        let indices = hook_indices(in_force.set(), hooks);
        let waited = in_force.last_wait_for_process(&indices, since, now)?;
        let patience = self.patience_of(hooks).max(LEAST_AFTER_WAIT);
        Some((waited, (waited + patience).saturating_duration_since(now)))
    }

    /// Waits until the evaluation of `hooks` is to be given up: for `left`, and on if the process of one of their authors waits
    /// for a place meanwhile.
    async fn wait_too_long(&self, hooks: &[String], left: Duration) {
        let (mut since, mut left) = (self.clock.monotonic(), left);
        loop {
            pause(left).await;
            let now = self.clock.monotonic();
            let Some((waited, after_wait)) = self.left_after_wait(hooks, since, now) else {
                return;
            };
            (since, left) = (waited, after_wait);
        }
    }

    /// Returns the time for which the evaluation of `hooks` may wait for a place.
    fn patience_of(&self, hooks: &[String]) -> Duration {
        let in_force = self.pool.current_hooks();
        let set = in_force.set();
        let called = hook_indices(set, hooks).into_iter();
        let longest = called.map(|index| set.hooks()[index as usize].timeout_ms).max();
        MOST_TIMEOUTS * Duration::from_millis(longest.unwrap_or(0))
    }

    /// Waits for a place for any author of `hooks` whose hooks may be called for the event `sequence`, for at most `left`.
    /// Returns it and the hooks to call in it: the author's, and if no others are left, also those that depend on the
    /// other hooks' outcomes (`@fallback` hooks, the bindings). If no hook is left to call, no place is needed. Without a
    /// place, the hooks are those that have waited too long. The time until a copy of the read model has the event does
    /// not count for hooks that read it, and not for any hook the time for which its author's process waits for a place.
    pub(crate) async fn place_for(
        &self,
        hooks: &[String],
        left: Duration,
        sequence: u64,
    ) -> (Option<HeldSlots>, Vec<String>) {
        let mut left = left;
        loop {
            let has_event = self.model.has_reached(sequence);
            if !has_event && self.all_read(hooks) {
                self.model.wait_for_event(sequence).await;
                // They could not be called until now.
                left = self.patience_of(hooks);
                continue;
            }

            // Which hooks may be called changes with the copies.
            let changed = async {
                if has_event {
                    self.model.wait_lost().await;
                } else {
                    self.model.wait_for_event(sequence).await;
                }
            };
            // `biased`: a place that is free at the last moment is still used.
            tokio::select! {
                biased;
                (seats, called) = self.place_now_or_later(hooks, has_event) => return (Some(seats), called),
                () = changed => {}
                () = self.wait_too_long(hooks, left) => return (None, self.callable_of(hooks, has_event)),
            }
        }
    }

    /// Returns those of `hooks` that have waited for nothing but a place. `has_event`: whether the read model has the
    /// event. Hooks that read wait for that, and those that depend on others' outcomes wait for them.
    fn callable_of(&self, hooks: &[String], has_event: bool) -> Vec<String> {
        let in_force = self.pool.current_hooks();
        let set = in_force.set();
        let roster = self.performer.registry.roster_of(set);
        let reads = |id: &String| reads_model(set, id);
        if has_event || !hooks.iter().any(reads) {
            return hooks.to_vec();
        }

        let depends = |id: &String| id == bindings::HOOK_ID || roster.hook_traits(id).fallback;
        let callable = hooks.iter().filter(|id| !reads(id) && !depends(id));
        callable.cloned().collect()
    }

    /// Returns whether each of `hooks` that would be called next reads the read model.
    fn all_read(&self, hooks: &[String]) -> bool {
        let in_force = self.pool.current_hooks();
        let set = in_force.set();
        let roster = self.performer.registry.roster_of(set);
        let readers = set.model_readers();
        // Fallbacks wait for the others.
        let is_reader = |index: &u32| {
            let is_fallback = roster.hook_traits(&set.hooks()[*index as usize].id).fallback;
            is_fallback || readers.binary_search(index).is_ok()
        };
        let all = hook_indices(set, hooks);
        all.iter().any(|index| readers.binary_search(index).is_ok()) && all.iter().all(is_reader)
    }

    /// Waits without limit for a place for any author of `hooks`, see [`Self::place_for`]. `has_event`: whether those that
    /// read the read model may be called.
    async fn place_now_or_later(&self, hooks: &[String], has_event: bool) -> (HeldSlots, Vec<String>) {
        let in_force = self.pool.current_hooks();
        let set = in_force.set();
        let roster = self.performer.registry.roster_of(set);
        let all = hook_indices(set, hooks);
        if all.is_empty() {
            return (HeldSlots::default(), hooks.to_vec());
        }

        // Fallbacks come last: whether they may fire is known only after the others.
        let is_fallback = |index: &u32| roster.hook_traits(&set.hooks()[*index as usize].id).fallback;
        let (fallbacks, others): (Vec<u32>, Vec<u32>) = all.iter().partition(|index| is_fallback(index));
        let can_run = |index: &u32| has_event || set.model_readers().binary_search(index).is_err();
        let callable: Vec<u32> = others.iter().copied().filter(can_run).collect();

        if others.is_empty() {
            let (seats, _) = self.pool.first_seat(&in_force, &fallbacks).await;
            return (seats, hooks.to_vec());
        }
        if callable.is_empty() {
            // The caller waits for a copy of the read model.
            return std::future::pending().await;
        }

        let (seats, seated) = self.pool.first_seat(&in_force, &callable).await;
        let author = |index: &u32| &set.hooks()[*index as usize].created_by;
        // One author holds all that is left, so the fallbacks can follow at once.
        let is_seated = |index: &u32| seated.first().is_some_and(|seated| author(seated) == author(index));
        if callable.len() == others.len() && all.iter().all(is_seated) {
            return (seats, hooks.to_vec());
        }

        let seated = seated.iter().map(|index| set.hooks()[*index as usize].id.clone());
        (seats, seated.collect())
    }

    /// Makes the due evaluations that `task`'s event owes, or gives them up. The others stay owed.
    pub(crate) async fn make_deferred(
        &self,
        task: &EventTask,
        deferred: &DeferredHooks,
        carrier: &TraceCarrier,
    ) -> Result<EventOutcome, HandleEventError> {
        let started_at = self.clock.now();
        let former = match self.record_of(task).await? {
            Some(former) => former,
            // Without the record, the outcomes of the other hooks are unknown, but they have answered.
            None => self.lost_record(task, &deferred.hooks, started_at),
        };

        let owing = former.deferred_hooks().map(str::to_owned);
        let (owes, left): (Vec<String>, Vec<String>) = owing.partition(|id| deferred.called.contains(id));
        if owes.is_empty() {
            return Ok(owes_on(left, DeferredOutcome::DoneBefore));
        }

        let in_force = self.pool.current_hooks();
        let roster = self.performer.registry.roster_of(in_force.set());
        let (stands, gone) = still_owed(&owes, in_force.set(), &roster, &former);
        if deferred.is_too_late {
            self.dead_letter_deferred(task, &stands).await?;
            let late = stands.iter().map(|id| skipped_invocation(id, DEFERRED_TOO_LONG));
            let hooks = gone.into_iter().chain(late).collect();
            self.complete_record(task, former, (0, hooks), (&left, carrier)).await?;
            owes.iter().for_each(|id| task.place.mark_done(id));
            return Ok(owes_on(left, DeferredOutcome::GivenUp));
        }

        let me = format!("{}/{}", self.instance, task.event.id);
        let routed = former.hooks.iter().any(has_fired);
        let answered = self
            .call(
                task,
                (&in_force, &roster),
                (&stands, routed),
                (&me, started_at, carrier),
            )
            .await?;

        let AnsweredEvent {
            mut outcomes,
            choice,
            set,
            signs,
        } = answered;

        outcomes.hooks.extend(gone);
        self.complete_record(task, former, (outcomes.passed, outcomes.hooks), (&left, carrier))
            .await?;

        // Other hooks may still be owed, but later events need not wait for these.
        owes.iter().for_each(|id| task.place.mark_done(id));
        self.settle_outcomes(&choice, &set, &signs, &me, started_at).await;

        Ok(owes_on(left, DeferredOutcome::Made))
    }

    /// Shows the event to `hooks` alone, and performs their actions. `routed`: another hook has routed it.
    async fn call(
        &self,
        task: &EventTask,
        (in_force, roster): (&InForce, &Arc<ActiveHooks>),
        (hooks, routed): (&[String], bool),
        (me, now, carrier): (&str, UnixMillis, &TraceCarrier),
    ) -> Result<AnsweredEvent, HandleEventError> {
        // One-shot fires and stored answers of these hooks come from the first pass: they are not called again.
        let (mut stored, mut decided) = self.decided_before(task, true, roster).await?;
        stored.retain(|wish| hooks.contains(&wish.hook_id));
        decided.retain(|id| hooks.contains(id));
        let only = hook_indices(in_force.set(), hooks);
        let choice = self.choose_of(in_force.set(), Some(only), &decided, me).await;
        let seats = match &task.pass {
            EvaluationRound::Deferred(deferred) => deferred.take_seats(),
            EvaluationRound::First => HeldSlots::default(),
        };

        let evaluation = self.show(task, in_force, &choice, now, &seats).await;
        // The places are free for the next event as soon as the scripts have answered.
        drop(seats);

        let mut course = EvaluationProgress::new(roster, task, routed);
        course.outcomes.hooks.extend(choice.left_out(evaluation.set()));
        stored.iter().for_each(|wish| course.note_under_way(wish));

        let mut wishes: Vec<HookAction> = stored;
        if hooks.iter().any(|id| id == bindings::HOOK_ID)
            && let Some(wish) = self.bound_action(&task.event)
        {
            wishes.extend(course.admit_action(wish));
        }

        self.bring_to_end(task, (evaluation, choice), (course, wishes), (now, carrier))
            .await
    }

    /// Stores the record `former` with the outcomes of the deferred hooks, of which `passed` passed. Those in `left`
    /// stay deferred.
    async fn complete_record(
        &self,
        task: &EventTask,
        former: EventInvocations,
        (passed, mut hooks): (u32, Vec<HookInvocation>),
        (left, carrier): (&[String], &TraceCarrier),
    ) -> Result<(), HandleEventError> {
        hooks.extend(left.iter().map(|id| new_invocation(id, 0, HookOutcome::Deferred)));
        let made = EvaluationSummary {
            event_id: former.event_id.clone(),
            event_seq: former.event_seq,
            evaluated_by: self.instance.clone(),
            started_at: former.started_at,
            finished_at: self.clock.now(),
            passed,
            hooks,
            passes: self.passes_due(),
        };

        // The number of hooks left decreases with each record, so each record has its own id.
        let name = format!("inv:{}:{}:deferred:{}", task.key, task.sequence, left.len());
        self.store_as(&name, task, completed_record(former, made), carrier)
            .await
    }

    /// Publishes the whole message as a dead letter, because `hooks` were not called in time.
    async fn dead_letter_deferred(&self, task: &EventTask, hooks: &[String]) -> Result<(), HandleEventError> {
        if hooks.is_empty() {
            return Ok(());
        }

        let detail = format!(
            "event {}: {} not called within {MOST_TIMEOUTS} times their time-out, because all slots were busy",
            task.event.id,
            hooks.join(", ")
        );
        let verdict = MessageVerdict::new(DEFERRED_TOO_LONG, detail);
        let letter = self
            .performer
            .bus
            .dead_letter(SERVICE, &task.incoming, &verdict, self.clock.now());
        match letter.await {
            // The event itself stays in its stream.
            Err(error @ PublishError::TooLarge { .. }) => {
                tracing::error!(event_id = %task.event.id, %error, "dead letter is too large to store");
                Ok(())
            }
            buried => Ok(buried?),
        }
    }

    /// Returns a substitute for a record that is gone.
    fn lost_record(&self, task: &EventTask, hooks: &[String], now: UnixMillis) -> EventInvocations {
        EventInvocations {
            event_id: task.event.id.clone(),
            event_seq: task.sequence,
            evaluated_by: self.instance.clone(),
            started_at: now,
            finished_at: now,
            passed: 0,
            hooks: hooks
                .iter()
                .map(|id| new_invocation(id, 0, HookOutcome::Deferred))
                .collect(),
            passes: Vec::new(),
            is_slim: false,
        }
    }
}

/// Returns the state of an event whose deferred hooks `left` remain; the others ended with `end`.
fn owes_on(left: Vec<String>, end: DeferredOutcome) -> EventOutcome {
    if left.is_empty() {
        count_owed_end(end);
        return EventOutcome::Done;
    }
    EventOutcome::Deferred(left)
}

/// Returns the indices of `hooks` in `set`, ascending; hooks that are gone are left out.
fn hook_indices(set: &HookSet, hooks: &[String]) -> Vec<u32> {
    let mut indices: Vec<u32> = hooks.iter().filter_map(|id| set.index(id)).collect();
    indices.sort_unstable();
    indices
}

/// Returns whether the hook `id` of `set` reads the read model.
fn reads_model(set: &HookSet, id: &str) -> bool {
    let index = set.index(id);
    index.is_some_and(|index| set.model_readers().binary_search(&index).is_ok())
}

fn skipped_invocation(id: &str, reason: &str) -> HookInvocation {
    let reason = reason.to_owned();
    new_invocation(id, 0, HookOutcome::Skipped { reason })
}

fn has_fired(hook: &HookInvocation) -> bool {
    match hook.outcome {
        HookOutcome::Fired { .. } => true,
        HookOutcome::Passed
        | HookOutcome::Suppressed { .. }
        | HookOutcome::Skipped { .. }
        | HookOutcome::Deferred
        | HookOutcome::Failed { .. } => false,
    }
}

/// Returns which of the hooks `owes` must still be called, and the records of the others: they were deleted or disabled
/// meanwhile, or another hook was created under the name after the event came (`former`). A hook that was changed is
/// called in its current version.
fn still_owed(
    owes: &[String],
    set: &HookSet,
    roster: &ActiveHooks,
    former: &EventInvocations,
) -> (Vec<String>, Vec<HookInvocation>) {
    let (mut stands, mut gone) = (Vec::new(), Vec::new());
    for id in owes {
        let is_called = id == bindings::HOOK_ID || set.index(id).is_some();
        let is_another = roster.hook_traits(id).made_at > former.finished_at;
        match (is_called, is_another) {
            (false, _) => gone.push(skipped_invocation(id, HOOK_DISABLED)),
            (true, true) => gone.push(skipped_invocation(id, HOOK_REPLACED)),
            (true, false) => stands.push(id.clone()),
        }
    }

    (stands, gone)
}
