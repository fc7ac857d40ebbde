//! The evaluator's choice of the hooks that see an event, now or later, and the report of their health once they have
//! answered.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use shared::model::event::Event;
use shared::model::invocation::HookPasses;
use shared::model::time::UnixMillis;

use crate::evaluation::evaluator::EventEvaluator;
use crate::evaluation::fire::HookAction;
use crate::evaluation::selection::{HealthSignals, HookSelection, leave_out};
use crate::evaluation::task::EventTask;
use crate::registry::active_hooks::{ActiveHooks, HookTraits};
use crate::routing::bindings;
use crate::runner::{HeldSlots, HookSet, InForce};

/// Time for which an event waits for the read model to have it before its hooks that read are deferred for the sake of the
/// others of its conversation.
const MOMENT: Duration = Duration::from_millis(250);

impl EventEvaluator {
    /// Selects the hooks of `set` that see `event`, without those of `decided`, which have answered before; `me` names
    /// this evaluation.
    pub(crate) async fn choose_hooks(
        &self,
        set: &HookSet,
        event: &Event,
        decided: &[String],
        me: &str,
    ) -> HookSelection {
        self.choose_of(set, set.hooks_seeing(event), decided, me).await
    }

    /// Selects the hooks among `only` of `set` that are called, without those of `decided`, which have answered before;
    /// `me` names this evaluation.
    pub(crate) async fn choose_of(
        &self,
        set: &HookSet,
        mut only: Option<Vec<u32>>,
        decided: &[String],
        me: &str,
    ) -> HookSelection {
        if !decided.is_empty() {
            let decided: Vec<u32> = decided.iter().filter_map(|id| set.index(id)).collect();
            leave_out(&mut only, set, &decided);
        }

        let refused = self.breakers.paused_hooks(set, only.as_deref(), me).await;
        HookSelection::without_refused(only, refused, set)
    }

    /// Returns the action that the bindings file requests for `event`, if any.
    pub(crate) fn bound_action(&self, event: &Event) -> Option<HookAction> {
        let table = self.bindings.current_table();
        let begun = self.clock.monotonic();
        let result = table.decide_route(event)?;
        let took = self.clock.monotonic().saturating_duration_since(begun);

        let traits = HookTraits {
            priority: table.priority(),
            fallback: table.is_fallback(),
            ..HookTraits::default()
        };
        let latency_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);

        Some(HookAction::of_operator(bindings::HOOK_ID, latency_us, traits, result))
    }

    /// Decides, in the order of the conversation, which of the hooks in `choice` are called now, and returns places for
    /// them. Deferred are hooks of authors without a place, hooks that read the read model while no copy of it answers, all
    /// are far behind, or many events of the conversation wait for one, and hooks that an earlier event of the conversation
    /// waits for. If there are any, `@fallback` hooks are deferred too, and the bindings if they are a fallback
    /// (`binds_as_fallback`), because they depend on the other hooks' outcomes.
    pub(crate) async fn seat_hooks(
        &self,
        task: &EventTask,
        in_force: &InForce,
        roster: &ActiveHooks,
        (choice, binds_as_fallback): (&mut HookSelection, bool),
    ) -> HeldSlots {
        let set = in_force.set();
        // A retry of the event must defer the same hooks, or one could be called twice.
        let decided = task.deferred.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(deferred) = decided {
            let is_deferred = |id: &str| deferred.iter().any(|known| known == id);
            choice.defer_hooks(set, is_deferred);
            choice.defers_bindings = is_deferred(bindings::HOOK_ID);
            return HeldSlots::default();
        }

        // The places are given out in the order of the conversation: an earlier event chooses first.
        task.place.wait_turn().await;
        // A hook that still owes an earlier event of the conversation must see that one first.
        let owes = task.place.owed_hooks();
        let is_owed = |id: &str| owes.iter().any(|known| known == id);
        choice.defer_hooks(set, is_owed);
        if !self.model.is_worth_waiting() || self.would_hold_up(task, choice, set).await {
            choice.defer_readers(set);
        }

        let (seats, full) = self.pool.seat_hooks(in_force, choice.only.as_deref()).await;
        choice.defer_hooks(set, |id| {
            set.index(id).is_some_and(|index| full.binary_search(&index).is_ok())
        });

        // Whether a fallback may fire is known only after all other hooks, so it waits for the deferred ones.
        let owes_bindings = binds_as_fallback && is_owed(bindings::HOOK_ID);
        if owes_bindings || !choice.deferred.is_empty() {
            choice.defer_hooks(set, |id| roster.hook_traits(id).fallback);
            choice.defers_bindings = binds_as_fallback;
        }

        let deferred = choice.deferred_ids(set);
        task.place.decide_owed(deferred.clone());
        *task.deferred.lock().unwrap_or_else(PoisonError::into_inner) = Some(deferred);

        seats
    }

    /// Returns whether `task` would be one of too many events of its conversation that wait for the read model: their hooks that
    /// read nothing have answered, but they fill the conversation's share of the memory. If so, waits for up to [`MOMENT`] until
    /// the read model has the event.
    async fn would_hold_up(&self, task: &EventTask, choice: &HookSelection, set: &HookSet) -> bool {
        let reads = !choice.model_readers(set).is_empty();
        let is_crowded = || task.place.earlier_under_way(self.most_waiting) >= self.most_waiting;
        if !reads || !is_crowded() {
            return false;
        }

        // In a burst the copies are behind for a moment. Only one event waits here: the hooks of those after one that is deferred
        // are owed.
        let reached = Box::pin(self.model.wait_reached(task.sequence));
        !matches!(tokio::time::timeout(MOMENT, reached).await, Ok(true))
    }

    /// Updates the breakers, and counts fires and passes, once the answers of every hook at `now` are stored.
    pub(crate) async fn settle_outcomes(
        &self,
        choice: &HookSelection,
        set: &Arc<HookSet>,
        signs: &HealthSignals,
        me: &str,
        now: UnixMillis,
    ) {
        for hook_id in &signs.fired {
            self.performer.registry.tally_fire(hook_id, now);
        }

        for hook_id in &signs.failed {
            if let Some(index) = set.index(hook_id) {
                self.breakers.record_failure(&set.hooks()[index as usize], me).await;
            }
        }

        let id = |index: u32| &set.hooks()[index as usize].id;
        // Hooks that failed are not relieved by their neighbours' success.
        let succeeded = |index| choice.is_called(index) && !signs.failed.contains(id(index));
        self.breakers.record_successes(set, me, succeeded).await;
        let told: Vec<u32> = signs.told.iter().filter_map(|hook_id| set.index(hook_id)).collect();

        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, &latency_us) in (0_u32..).zip(&signs.latencies_us) {
            if choice.is_called(index) && !told.contains(&index) {
                passes.count_pass(set, index as usize, latency_us);
            }
        }
    }

    /// Returns the passes to report in the next record.
    pub(crate) fn passes_due(&self) -> Vec<HookPasses> {
        let now = self.clock.monotonic();
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        passes.due_counts(now)
    }
}
