//! Which hooks see an event, and what their answers say about their health.

use std::sync::{Arc, PoisonError};

use shared::model::event::Event;
use shared::model::invocation::{HookInvocation, HookOutcome, HookPasses};

use crate::bindings;
use crate::evaluate::Evaluator;
use crate::fire::Wish;
use crate::invocation::{BREAKER_OPEN, invocation};
use crate::roster::Traits;
use crate::runner::{HookSet, Spent};

/// Which hooks of a set see an event.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// Those that do, by index, ascending; `None` = all.
    pub(crate) only: Option<Vec<u32>>,
    /// Those that would, but for their breakers.
    refused: Vec<u32>,
}

/// What the answers to one event say about the hooks.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// Hooks that said anything but that they pass.
    pub(crate) told: Vec<String>,
    /// Those of them that failed.
    pub(crate) failed: Vec<String>,
    /// By index, 0 where a hook was not called; empty where that is not known.
    pub(crate) latencies_us: Vec<u32>,
}

impl Choice {
    fn is_called(&self, index: u32) -> bool {
        self.only.as_ref().is_none_or(|only| only.binary_search(&index).is_ok())
    }

    /// Hooks of `set` that are called and might answer otherwise another time.
    pub(crate) fn volatile<'a>(&'a self, set: &'a HookSet) -> impl Iterator<Item = &'a str> {
        (0_u32..)
            .zip(set.hooks())
            .filter(|(index, hook)| self.is_called(*index) && hook.calls_host())
            .map(|(_, hook)| hook.id.as_str())
    }

    /// What is recorded of hooks that are not called.
    pub(crate) fn skipped(&self, set: &HookSet) -> impl Iterator<Item = HookInvocation> {
        self.refused.iter().map(|&index| {
            let reason = BREAKER_OPEN.to_owned();
            invocation(&set.hooks()[index as usize].id, 0, HookOutcome::Skipped { reason })
        })
    }
}

impl Evaluator {
    /// Who of `set` sees `event`, upon which the hooks `decided` have answered before; `me` names this evaluation.
    pub(crate) async fn choose(&self, set: &HookSet, event: &Event, decided: &[String], me: &str) -> Choice {
        let mut only = set.seeing(event);
        if !decided.is_empty() {
            let decided: Vec<u32> = decided.iter().filter_map(|id| set.index(id)).collect();
            leave_out(&mut only, set, &decided);
        }
        let refused = self.breakers.admit(set, only.as_deref(), me).await;
        leave_out(&mut only, set, &refused);
        Choice { only, refused }
    }

    /// What the bindings file wants done about `event`.
    pub(crate) fn bound(&self, event: &Event) -> Option<Wish> {
        let table = self.bindings.table();
        let begun = self.clock.monotonic();
        let result = table.decide(event)?;
        let took = self.clock.monotonic().saturating_duration_since(begun);
        Some(Wish {
            hook_id: bindings::HOOK_ID.to_owned(),
            latency_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            traits: Traits {
                priority: table.priority(),
                fallback: table.is_fallback(),
                one_shot: false,
                only_narrows: false,
            },
            result: Box::new(result),
            decided: false,
            volatile: false,
            spent: Spent::default(),
        })
    }

    /// Tells the breakers, and counts the passes, once every hook has answered.
    pub(crate) async fn settle(&self, choice: &Choice, set: &Arc<HookSet>, signs: &Signs, me: &str) {
        for hook_id in &signs.failed {
            if let Some(index) = set.index(hook_id) {
                self.breakers.failed(&set.hooks()[index as usize], me).await;
            }
        }
        let id = |index: u32| &set.hooks()[index as usize].id;
        let succeeded = |index| choice.is_called(index) && !signs.failed.contains(id(index));
        self.breakers.succeeded(set, me, succeeded).await;
        let told: Vec<u32> = signs.told.iter().filter_map(|hook_id| set.index(hook_id)).collect();
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, &latency_us) in (0_u32..).zip(&signs.latencies_us) {
            if choice.is_called(index) && !told.contains(&index) {
                passes.passed(set, index as usize, latency_us);
            }
        }
    }

    /// Passes that the next record is to tell about.
    pub(crate) fn passes_due(&self) -> Vec<HookPasses> {
        let now = self.clock.monotonic();
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        passes.due(now)
    }
}

/// Takes `left_out` from `only`.
fn leave_out(only: &mut Option<Vec<u32>>, set: &HookSet, left_out: &[u32]) {
    if left_out.is_empty() {
        return;
    }
    let all = || (0..u32::try_from(set.hooks().len()).unwrap_or(u32::MAX)).collect();
    only.get_or_insert_with(all).retain(|index| !left_out.contains(index));
}
