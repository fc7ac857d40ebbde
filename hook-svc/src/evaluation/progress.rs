//! Progress of one event's evaluation: the hooks that have answered, the actions to perform, the fallbacks that wait.

use std::sync::Arc;

use shared::model::hook::HookResult;
use shared::model::invocation::{HookInvocation, HookOutcome};

use crate::evaluation::fire::{FireExecutor, HookAction};
use crate::evaluation::record::{ROUTED_BY_ANOTHER, billed_invocation, failed_outcome, new_invocation};
use crate::evaluation::selection::HealthSignals;
use crate::evaluation::task::EventTask;
use crate::registry::active_hooks::ActiveHooks;
use crate::runner::{Evaluation, EvaluationEnd, EvaluationStep, HookVerdict, RunOutcome};

/// Outcomes of the hooks for an event.
#[derive(Debug, Default)]
pub(crate) struct HookOutcomes {
    /// Number of hooks that passed and are not in `hooks`.
    pub(crate) passed: u32,
    /// Records of the other hooks.
    pub(crate) hooks: Vec<HookInvocation>,
}

/// Progress of one event's evaluation.
pub(crate) struct EvaluationProgress<'a> {
    roster: &'a Arc<ActiveHooks>,
    task: &'a EventTask,
    /// Outcomes of the hooks so far.
    pub(crate) outcomes: HookOutcomes,
    /// Whether every hook has answered.
    pub(crate) all_answered: bool,
    /// Whether the dispatch of some hook is stored.
    routed: bool,
    /// Actions of `@fallback` hooks that want to fire.
    waiting: Vec<HookAction>,
    /// Ids of the hooks whose actions were started.
    underway: Vec<String>,
    /// Health signals from the answers.
    pub(crate) signs: HealthSignals,
}

impl<'a> EvaluationProgress<'a> {
    /// Creates the progress of an evaluation without answers. `routed`: the dispatch of some hook is stored already.
    pub(crate) fn new(roster: &'a Arc<ActiveHooks>, task: &'a EventTask, routed: bool) -> Self {
        Self {
            roster,
            task,
            outcomes: HookOutcomes::default(),
            all_answered: false,
            routed,
            waiting: Vec::new(),
            underway: Vec::new(),
            signs: HealthSignals::default(),
        }
    }

    /// Records that `wish` is performed, even if another hook routes the event.
    pub(crate) fn note_under_way(&mut self, wish: &HookAction) {
        self.underway.push(wish.hook_id.clone());
    }

    /// Returns whether the hook `id` has fired: its action was started and did not fail.
    pub(crate) fn has_fired(&self, id: &str) -> bool {
        self.underway.iter().any(|taken| taken == id) && !self.signs.failed.iter().any(|failed| failed == id)
    }

    /// Applies one step. Returns an action to perform now, if there is one.
    pub(crate) fn take(
        &mut self,
        step: EvaluationStep,
        evaluation: &Evaluation,
        performer: &FireExecutor,
    ) -> Option<HookAction> {
        match step {
            EvaluationStep::Verdict(verdict) => self.judge_verdict(*verdict, performer),
            EvaluationStep::Waiting(indices) => {
                let hooks = evaluation.set().hooks();
                let slow = indices
                    .iter()
                    .filter_map(|&index| hooks.get(index as usize))
                    .map(|hook| hook.id.clone());

                // Hooks that are waited for keep their place in the conversation; the others are done with the event.
                self.narrow_to(slow.collect());
                None
            }
            EvaluationStep::Done(EvaluationEnd { passed, latencies_us }) => {
                self.all_answered = true;
                self.signs.latencies_us = latencies_us;
                self.outcomes.passed += passed;
                self.narrow_to(Vec::new());
                None
            }
        }
    }

    /// Keeps the event open only for `slow` hooks and for those whose actions are not yet performed.
    fn narrow_to(&self, slow: Vec<String>) {
        let waiting = self.waiting.iter().map(|wish| wish.hook_id.clone());
        self.task
            .place
            .narrow_to(slow.into_iter().chain(waiting).chain(self.underway.iter().cloned()));
    }

    fn judge_verdict(&mut self, verdict: HookVerdict, performer: &FireExecutor) -> Option<HookAction> {
        let HookVerdict {
            hook,
            latency_us,
            outcome,
            spent,
        } = verdict;

        // Noted for every outcome: health counts answers, not only fires.
        self.signs.told.push(hook.id.clone());
        let result = match outcome {
            RunOutcome::Fired(result) => result,
            // A hook that disables itself asks for an action, so it takes the way of a fire.
            RunOutcome::DisableSelf => Box::new(HookResult {
                disable_hook: true,
                ..HookResult::default()
            }),
            RunOutcome::Passed => {
                self.outcomes.hooks.push(billed_invocation(
                    new_invocation(&hook.id, latency_us, HookOutcome::Passed),
                    spent,
                ));
                return None;
            }
            RunOutcome::Failed { error, stack } => {
                self.note_failure(&hook.id, latency_us, &error, stack.as_deref(), performer);
                if let Some(failed) = self.outcomes.hooks.last_mut() {
                    *failed = billed_invocation(failed.clone(), spent);
                }
                self.signs.failed.push(hook.id.clone());
                return None;
            }
        };

        let traits = self.roster.hook_traits(&hook.id);
        let wish = HookAction {
            hook_id: hook.id.clone(),
            latency_us,
            traits,
            result,
            decided: false,
            volatile: hook.is_volatile(),
            spent,
        };

        self.admit_action(wish)
    }

    /// Returns `wish` if it must be performed now; a fallback's fire waits until the other hooks have answered.
    pub(crate) fn admit_action(&mut self, wish: HookAction) -> Option<HookAction> {
        if wish.traits.fallback && wish.result.fire {
            self.waiting.push(wish);
            return None;
        }
        self.note_under_way(&wish);
        Some(wish)
    }

    fn note_failure(
        &mut self,
        hook_id: &str,
        latency_us: u64,
        error: &str,
        stack: Option<&str>,
        performer: &FireExecutor,
    ) {
        tracing::warn!(event_id = %self.task.event.id, hook_id, error, "hook failed");
        performer.meters.failures.increment(1);
        performer.registry.count_failure(hook_id, error);
        self.task.place.mark_done(hook_id);
        self.outcomes
            .hooks
            .push(new_invocation(hook_id, latency_us, failed_outcome(error, stack)));
    }

    /// Records the result of a performed action.
    pub(crate) fn note_performed(&mut self, invocation: HookInvocation) {
        match invocation.outcome {
            HookOutcome::Passed if invocation.search_calls == 0 && invocation.llm_calls == 0 => {
                self.outcomes.passed += 1;
            }
            HookOutcome::Passed => self.outcomes.hooks.push(invocation),
            HookOutcome::Fired { ref result, .. } => {
                self.routed = true;
                let traits = self.roster.hook_traits(&invocation.hook_id);
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
    pub(crate) fn due_fallbacks(&mut self) -> Vec<HookAction> {
        let waiting = std::mem::take(&mut self.waiting);
        if !self.routed {
            self.underway.extend(waiting.iter().map(|wish| wish.hook_id.clone()));
            return waiting;
        }

        for wish in waiting {
            let outcome = HookOutcome::Suppressed {
                reason: ROUTED_BY_ANOTHER.to_owned(),
            };
            self.task.place.mark_done(&wish.hook_id);
            let suppressed = new_invocation(&wish.hook_id, wish.latency_us, outcome);
            self.outcomes.hooks.push(billed_invocation(suppressed, wish.spent));
        }

        Vec::new()
    }
}
