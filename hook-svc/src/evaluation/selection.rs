//! Selects the hooks that see an event, and reports their health from their answers.

use std::sync::{Arc, PoisonError};

use shared::model::event::Event;
use shared::model::invocation::{HookInvocation, HookOutcome, HookPasses};
use shared::model::time::UnixMillis;

use crate::evaluation::evaluator::EventEvaluator;
use crate::evaluation::fire::HookAction;
use crate::evaluation::record::{BREAKER_OPEN, new_invocation};
use crate::registry::active_hooks::{HookAuthor, HookTraits};
use crate::routing::bindings;
use crate::runner::{CallUsage, HookSet, HookSource};

/// Selection of the hooks of a set that see an event.
#[derive(Debug, Default)]
pub(crate) struct HookSelection {
    /// Indices of the hooks called now, ascending; `None` means all.
    pub(crate) only: Option<Vec<u32>>,
    /// Indices of the hooks that their breakers refuse.
    refused: Vec<u32>,
    /// Indices of the hooks that are called later, ascending.
    pub(crate) deferred: Vec<u32>,
    /// Whether the bindings are evaluated later: they count only if no hook routes the event.
    pub(crate) defers_bindings: bool,
}

/// Health signals from the answers to one event.
#[derive(Debug, Default)]
pub(crate) struct HealthSignals {
    /// Ids of the hooks that did anything but pass.
    pub(crate) told: Vec<String>,
    /// Ids of the hooks that failed.
    pub(crate) failed: Vec<String>,
    /// Ids of the hooks that fired, unless the fire is already counted.
    pub(crate) fired: Vec<String>,
    /// Microseconds by index, 0 if a hook was not called; empty if unknown.
    pub(crate) latencies_us: Vec<u32>,
}

impl HookSelection {
    fn is_called(&self, index: u32) -> bool {
        self.only.as_ref().is_none_or(|only| only.binary_search(&index).is_ok())
    }

    /// Returns the ids of hooks of `set` that did not fire now but might another time: they are volatile, they
    /// `failed`, or their breakers refused them.
    pub(crate) fn uncertain_hooks<'a>(
        &'a self,
        set: &'a HookSet,
        failed: &'a [String],
    ) -> impl Iterator<Item = &'a str> {
        let might = |(index, hook): &(u32, &'a Arc<HookSource>)| {
            let is_volatile = || hook.is_volatile() || failed.contains(&hook.id);
            self.refused.contains(index) || (self.is_called(*index) && is_volatile())
        };
        (0_u32..)
            .zip(set.hooks())
            .filter(might)
            .map(|(_, hook)| hook.id.as_str())
    }

    /// Returns the indices of the called hooks of `set` that query the read model.
    pub(crate) fn model_readers(&self, set: &HookSet) -> Vec<u32> {
        let readers = set.model_readers().iter().copied();
        readers.filter(|index| self.is_called(*index)).collect()
    }

    /// Defers the called hooks of `set` that query the read model.
    pub(crate) fn defer_readers(&mut self, set: &HookSet) {
        let readers = self.model_readers(set);
        self.defer_hooks(set, |id| {
            set.index(id).is_some_and(|index| readers.binary_search(&index).is_ok())
        });
    }

    /// Defers the called hooks of `set` for whose ids `is_deferred` is true.
    pub(crate) fn defer_hooks(&mut self, set: &HookSet, is_deferred: impl Fn(&str) -> bool) {
        let called = |(index, _): &(u32, _)| self.is_called(*index);
        let hooks = (0_u32..).zip(set.hooks()).filter(called);
        let deferred: Vec<u32> = hooks
            .filter(|(_, hook)| is_deferred(&hook.id))
            .map(|(index, _)| index)
            .collect();
        leave_out(&mut self.only, set, &deferred);
        self.deferred.extend(deferred);
        self.deferred.sort_unstable();
    }

    /// Returns the ids of the hooks that are called later.
    pub(crate) fn deferred_ids(&self, set: &HookSet) -> Vec<String> {
        let hooks = self
            .deferred
            .iter()
            .filter_map(|index| set.hooks().get(*index as usize));
        let bindings = self.defers_bindings.then(|| bindings::HOOK_ID.to_owned());
        hooks.map(|hook| hook.id.clone()).chain(bindings).collect()
    }

    /// Returns the records of hooks that are not called, or not yet.
    pub(crate) fn left_out(&self, set: &HookSet) -> Vec<HookInvocation> {
        let refused = self.refused.iter().map(|&index| {
            let reason = BREAKER_OPEN.to_owned();
            new_invocation(&set.hooks()[index as usize].id, 0, HookOutcome::Skipped { reason })
        });
        let deferred = self.deferred_ids(set).into_iter();
        refused
            .chain(deferred.map(|id| new_invocation(&id, 0, HookOutcome::Deferred)))
            .collect()
    }
}

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
        leave_out(&mut only, set, &refused);

        HookSelection {
            only,
            refused,
            ..HookSelection::default()
        }
    }

    /// Returns the action that the bindings file requests for `event`, if any.
    pub(crate) fn bound_action(&self, event: &Event) -> Option<HookAction> {
        let table = self.bindings.current_table();
        let begun = self.clock.monotonic();
        let result = table.decide_route(event)?;
        let took = self.clock.monotonic().saturating_duration_since(begun);

        Some(HookAction {
            hook_id: bindings::HOOK_ID.to_owned(),
            latency_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            traits: HookTraits {
                priority: table.priority(),
                fallback: table.is_fallback(),
                author: Arc::new(HookAuthor::Operator),
                ..HookTraits::default()
            },
            result: Box::new(result),
            decided: false,
            volatile: false,
            spent: CallUsage::default(),
        })
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

/// Removes `left_out` from `only`.
fn leave_out(only: &mut Option<Vec<u32>>, set: &HookSet, left_out: &[u32]) {
    if left_out.is_empty() {
        return;
    }
    let all = || (0..u32::try_from(set.hooks().len()).unwrap_or(u32::MAX)).collect();
    only.get_or_insert_with(all).retain(|index| !left_out.contains(index));
}
