//! The hooks that are called for an event, and the health signals from their answers.

use std::sync::Arc;

use shared::model::invocation::{HookInvocation, HookOutcome};

use crate::evaluation::record::{BREAKER_OPEN, new_invocation};
use crate::routing::bindings;
use crate::runner::{HookSet, HookSource};

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
    /// Selects the hooks of `set` among `only`, without those that their breakers refuse.
    pub(super) fn without_refused(mut only: Option<Vec<u32>>, refused: Vec<u32>, set: &HookSet) -> Self {
        leave_out(&mut only, set, &refused);
        Self {
            only,
            refused,
            ..Self::default()
        }
    }

    /// Returns whether the hook at `index` is called now.
    pub(super) fn is_called(&self, index: u32) -> bool {
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

/// Removes `left_out` from `only`.
pub(super) fn leave_out(only: &mut Option<Vec<u32>>, set: &HookSet, left_out: &[u32]) {
    if left_out.is_empty() {
        return;
    }
    let all = || (0..u32::try_from(set.hooks().len()).unwrap_or(u32::MAX)).collect();
    only.get_or_insert_with(all).retain(|index| !left_out.contains(index));
}
