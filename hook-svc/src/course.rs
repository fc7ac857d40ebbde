//! Progress of one event's evaluation: the hooks that have answered, the actions to perform, the fallbacks that wait.

use std::sync::Arc;

use shared::model::hook::HookResult;
use shared::model::invocation::{HookInvocation, HookOutcome};

use crate::choice::Signs;
use crate::fire::{Performer, Wish};
use crate::invocation::{ROUTED_BY_ANOTHER, billed, failure, invocation};
use crate::roster::Roster;
use crate::runner::{Done, Evaluation, Outcome, Step, Verdict};
use crate::task::Task;

/// Outcomes of the hooks for an event.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// Number of hooks that passed and are not in `hooks`.
    pub(crate) passed: u32,
    /// Records of the other hooks.
    pub(crate) hooks: Vec<HookInvocation>,
}

/// Progress of one event's evaluation.
pub(crate) struct Course<'a> {
    roster: &'a Arc<Roster>,
    task: &'a Task,
    /// Outcomes of the hooks so far.
    pub(crate) outcomes: Outcomes,
    /// Whether every hook has answered.
    pub(crate) all_answered: bool,
    /// Whether the dispatch of some hook is stored.
    routed: bool,
    /// Actions of `@fallback` hooks that want to fire.
    waiting: Vec<Wish>,
    /// Ids of the hooks whose actions were started.
    underway: Vec<String>,
    /// Health signals from the answers.
    pub(crate) signs: Signs,
}

impl<'a> Course<'a> {
    /// Creates the progress of an evaluation without answers. `routed`: the dispatch of some hook is stored already.
    pub(crate) fn new(roster: &'a Arc<Roster>, task: &'a Task, routed: bool) -> Self {
        Self {
            roster,
            task,
            outcomes: Outcomes::default(),
            all_answered: false,
            routed,
            waiting: Vec::new(),
            underway: Vec::new(),
            signs: Signs::default(),
        }
    }

    /// Records that `wish` is performed, even if another hook routes the event.
    pub(crate) fn underway(&mut self, wish: &Wish) {
        self.underway.push(wish.hook_id.clone());
    }

    /// Returns whether the hook `id` has fired: its action was started and did not fail.
    pub(crate) fn has_fired(&self, id: &str) -> bool {
        self.underway.iter().any(|taken| taken == id) && !self.signs.failed.iter().any(|failed| failed == id)
    }

    /// Applies one step. Returns an action to perform now, if there is one.
    pub(crate) fn take(&mut self, step: Step, evaluation: &Evaluation, performer: &Performer) -> Option<Wish> {
        match step {
            Step::Verdict(verdict) => self.verdict(*verdict, performer),
            Step::Waiting(indices) => {
                let hooks = evaluation.set().hooks();
                let slow = indices
                    .iter()
                    .filter_map(|&index| hooks.get(index as usize))
                    .map(|hook| hook.id.clone());

                // Hooks that are waited for keep their place in the conversation; the others are done with the event.
                self.narrow(slow.collect());
                None
            }
            Step::Done(Done { passed, latencies_us }) => {
                self.all_answered = true;
                self.signs.latencies_us = latencies_us;
                self.outcomes.passed += passed;
                self.narrow(Vec::new());
                None
            }
        }
    }

    /// Keeps the event open only for `slow` hooks and for those whose actions are not yet performed.
    fn narrow(&self, slow: Vec<String>) {
        let waiting = self.waiting.iter().map(|wish| wish.hook_id.clone());
        self.task
            .place
            .narrow(slow.into_iter().chain(waiting).chain(self.underway.iter().cloned()));
    }

    fn verdict(&mut self, verdict: Verdict, performer: &Performer) -> Option<Wish> {
        let Verdict {
            hook,
            latency_us,
            outcome,
            spent,
        } = verdict;

        // Noted for every outcome: health counts answers, not only fires.
        self.signs.told.push(hook.id.clone());
        let result = match outcome {
            Outcome::Fired(result) => result,
            // A hook that disables itself asks for an action, so it takes the way of a fire.
            Outcome::DisableSelf => Box::new(HookResult {
                disable_hook: true,
                ..HookResult::default()
            }),
            Outcome::Passed => {
                self.outcomes
                    .hooks
                    .push(billed(invocation(&hook.id, latency_us, HookOutcome::Passed), spent));
                return None;
            }
            Outcome::Failed { error, stack } => {
                self.failed(&hook.id, latency_us, &error, stack.as_deref(), performer);
                if let Some(failed) = self.outcomes.hooks.last_mut() {
                    *failed = billed(failed.clone(), spent);
                }
                self.signs.failed.push(hook.id.clone());
                return None;
            }
        };

        let traits = self.roster.traits(&hook.id);
        let wish = Wish {
            hook_id: hook.id.clone(),
            latency_us,
            traits,
            result,
            decided: false,
            volatile: hook.is_volatile(),
            spent,
        };

        self.wants(wish)
    }

    /// Returns `wish` if it must be performed now; a fallback's fire waits until the other hooks have answered.
    pub(crate) fn wants(&mut self, wish: Wish) -> Option<Wish> {
        if wish.traits.fallback && wish.result.fire {
            self.waiting.push(wish);
            return None;
        }
        self.underway(&wish);
        Some(wish)
    }

    fn failed(&mut self, hook_id: &str, latency_us: u64, error: &str, stack: Option<&str>, performer: &Performer) {
        tracing::warn!(event_id = %self.task.event.id, hook_id, error, "hook failed");
        performer.meters.failures.increment(1);
        performer.registry.failed(hook_id, error);
        self.task.place.done(hook_id);
        self.outcomes
            .hooks
            .push(invocation(hook_id, latency_us, failure(error, stack)));
    }

    /// Records the result of a performed action.
    pub(crate) fn performed(&mut self, invocation: HookInvocation) {
        match invocation.outcome {
            HookOutcome::Passed if invocation.search_calls == 0 && invocation.llm_calls == 0 => {
                self.outcomes.passed += 1;
            }
            HookOutcome::Passed => self.outcomes.hooks.push(invocation),
            HookOutcome::Fired { ref result, .. } => {
                self.routed = true;
                let traits = self.roster.traits(&invocation.hook_id);
                // These fires are counted by the decision about them.
                if !traits.one_shot && !traits.reads_counters && !result.disable_hook {
                    self.signs.fired.push(invocation.hook_id.clone());
                }
                self.outcomes.hooks.push(invocation);
            }
            HookOutcome::Failed { .. } => {
                self.signs.failed.push(invocation.hook_id.clone());
                self.outcomes.hooks.push(invocation);
            }
            HookOutcome::Suppressed { .. } | HookOutcome::Skipped { .. } | HookOutcome::Deferred => {
                self.outcomes.hooks.push(invocation);
            }
        }
    }

    /// Returns the fallbacks to perform, once all other hooks have answered: they fire only if no hook routed the
    /// event.
    pub(crate) fn fallbacks(&mut self) -> Vec<Wish> {
        let waiting = std::mem::take(&mut self.waiting);
        if !self.routed {
            self.underway.extend(waiting.iter().map(|wish| wish.hook_id.clone()));
            return waiting;
        }

        for wish in waiting {
            let outcome = HookOutcome::Suppressed {
                reason: ROUTED_BY_ANOTHER.to_owned(),
            };
            self.task.place.done(&wish.hook_id);
            let suppressed = invocation(&wish.hook_id, wish.latency_us, outcome);
            self.outcomes.hooks.push(billed(suppressed, wish.spent));
        }

        Vec::new()
    }
}
