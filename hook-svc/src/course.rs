//! How far the evaluation of one event has come: who has answered, who is to be performed, who waits as a fallback.

use std::sync::Arc;

use shared::model::hook::HookResult;
use shared::model::invocation::{HookInvocation, HookOutcome};

use crate::choice::Signs;
use crate::fire::{Performer, Wish};
use crate::invocation::{ROUTED_BY_ANOTHER, billed, failure, invocation};
use crate::roster::Roster;
use crate::runner::{Done, Evaluation, Outcome, Step, Verdict};
use crate::task::Task;

/// What the hooks did with an event.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    /// How many passed and are not among `hooks`.
    pub(crate) passed: u32,
    /// What the others did.
    pub(crate) hooks: Vec<HookInvocation>,
}

/// How far the evaluation of one event has come.
pub(crate) struct Course<'a> {
    roster: &'a Arc<Roster>,
    task: &'a Task,
    /// What they did so far.
    pub(crate) outcomes: Outcomes,
    /// Every hook has answered.
    pub(crate) all_answered: bool,
    /// Some hook's dispatch is stored.
    routed: bool,
    /// `@fallback` hooks that want to fire.
    waiting: Vec<Wish>,
    /// Hooks whose wishes were taken up.
    underway: Vec<String>,
    /// What the answers say about the hooks.
    pub(crate) signs: Signs,
}

impl<'a> Course<'a> {
    /// Nothing has been answered yet. `routed`: some hook's dispatch is stored already.
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

    /// `wish` is performed, whoever else routes the event.
    pub(crate) fn underway(&mut self, wish: &Wish) {
        self.underway.push(wish.hook_id.clone());
    }

    /// Whether the hook `id` has fired: its wish was taken up and did not fail.
    pub(crate) fn has_fired(&self, id: &str) -> bool {
        self.underway.iter().any(|taken| taken == id) && !self.signs.failed.iter().any(|failed| failed == id)
    }

    /// Takes one step in; answers a wish to be performed now.
    pub(crate) fn take(&mut self, step: Step, evaluation: &Evaluation, performer: &Performer) -> Option<Wish> {
        match step {
            Step::Verdict(verdict) => self.verdict(*verdict, performer),
            Step::Waiting(indices) => {
                let hooks = evaluation.set().hooks();
                let slow = indices
                    .iter()
                    .filter_map(|&index| hooks.get(index as usize))
                    .map(|hook| hook.id.clone());

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

    /// The event is open for `slow` hooks and for those whose wishes are not performed.
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

        self.signs.told.push(hook.id.clone());
        let result = match outcome {
            Outcome::Fired(result) => result,
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

    /// Answers `wish` where it is to be performed now; a fallback's fire waits for what the others do.
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

    /// One wish was performed.
    pub(crate) fn performed(&mut self, invocation: HookInvocation) {
        match invocation.outcome {
            HookOutcome::Passed if invocation.search_calls == 0 && invocation.llm_calls == 0 => {
                self.outcomes.passed += 1;
            }
            HookOutcome::Passed => self.outcomes.hooks.push(invocation),
            HookOutcome::Fired { ref result, .. } => {
                self.routed = true;
                let traits = self.roster.traits(&invocation.hook_id);
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

    /// All others have answered and are performed: the fallbacks fire where nobody routed the event.
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
