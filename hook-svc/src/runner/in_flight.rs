//! One event under way: the answers of its workers become verdicts for its caller.

mod open_hooks;

use std::sync::Arc;
use std::time::Duration;

use self::open_hooks::OpenHooks;
use super::author_slots::{EvaluationSlot, WaitingEvaluation};
use super::calls::PendingCalls;
use super::host::HostCall;
use super::parts::StepSender;
use super::protocol::{self, EventAnswer};
use super::result;
use super::sources::LoadedHooks;
use super::{EvaluationEnd, EvaluationJob, EvaluationStep, HookSource, HookVerdict, RunOutcome};

/// Number of workers that an event may lose without a hook to blame, before the hooks that have not answered are
/// failed: the event must end at some time.
const MAX_DEATHS: u32 = 6;

/// Number of workers that an event may lose in total: a hook that writes the note can blame others.
const MAX_DEATHS_BLAMED: u32 = 32;

/// Progress of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlightStage {
    /// Some of its open hooks have not answered.
    UnderWay,
    /// All hooks have answered except those that must be called apart; the event is open for them now.
    Apart,
    /// Every hook has answered; the holder drops the event.
    Over,
}

/// Result that a worker had noted for one hook before it died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CrashNote {
    /// Slot of the event in the worker.
    pub(super) slot: u32,
    /// Index of the hook in the set.
    pub(super) index: u32,
    /// Evaluation time in microseconds.
    pub(super) latency_us: u32,
    /// Outcome of the evaluation.
    pub(super) what: NotedOutcome,
}

/// Outcome in a [`CrashNote`] result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotedOutcome {
    /// The hook answered `fire: false`.
    Passed,
    /// The hook returned a result, as JSON.
    Result(String),
    /// The hook failed with this message.
    Failed(String),
}

/// One event under way. Even if workers die, every hook of it gets exactly one verdict or is counted as passed, and
/// [`EvaluationStep::Done`] ends it.
#[derive(Debug)]
pub(super) struct InFlightEvent {
    job: EvaluationJob,
    loaded: Arc<LoadedHooks>,
    steps: StepSender,
    seat: EvaluationSlot,
    /// Present while its hooks were called and some of them wait.
    waits: Option<WaitingEvaluation>,
    /// The hooks that have not answered.
    hooks: OpenHooks,
    answered: bool,
    disturbance: Disturbance,
    told_waiting: bool,
    /// Number of lost workers without a hook to blame.
    deaths: u32,
    /// Number of all lost workers.
    all_deaths: u32,
    verdicts: usize,
    calls: Arc<PendingCalls>,
    done: EvaluationEnd,
}

/// The worst that has happened to an event while its hooks were called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Disturbance {
    None,
    /// It has lost a worker.
    LostWorker,
    /// It was moved to a newer set than its caller knows.
    NewerSet,
}

/// Error for a worker's message about an event that the shim never sends: a script has written to the pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ImpossibleAnswer {
    /// The message is about a hook that the event is not open for.
    #[error("answer for hook {index}, which has no open evaluation")]
    Hook {
        /// Index of the hook.
        index: u32,
    },
    /// The message has more answers than hooks were called, or inconsistent lists.
    #[error("inconsistent worker response")]
    Sum,
    /// The process sent a query before the previous one was answered.
    #[error("query before the previous one was answered")]
    Query,
}

impl InFlightEvent {
    /// Creates the flight of `job` against `loaded`, without answers. `steps` must have room for each hook called and
    /// two more.
    pub(super) fn new(job: EvaluationJob, loaded: Arc<LoadedHooks>, steps: StepSender, seat: EvaluationSlot) -> Self {
        let hooks = OpenHooks::new(loaded.set().hooks().len(), job.only.clone());
        Self {
            job,
            loaded,
            steps,
            seat,
            waits: None,
            hooks,
            answered: false,
            disturbance: Disturbance::None,
            told_waiting: false,
            deaths: 0,
            all_deaths: 0,
            verdicts: 0,
            calls: Arc::default(),
            done: EvaluationEnd::default(),
        }
    }

    /// Returns the event to evaluate.
    pub(super) const fn job(&self) -> &EvaluationJob {
        &self.job
    }

    /// Returns the set of hooks against which the event is evaluated.
    pub(super) const fn loaded(&self) -> &Arc<LoadedHooks> {
        &self.loaded
    }

    /// Returns the host calls of its hooks.
    pub(super) const fn calls(&self) -> &Arc<PendingCalls> {
        &self.calls
    }

    /// Returns the call `number` of the hook `index`, with `args` still null.
    pub(super) fn call(&self, index: u32, number: u32, name: String) -> Result<HostCall, ImpossibleAnswer> {
        let hook = self.hook_at(index)?;
        Ok(HostCall {
            event_id: self.job.event_id.clone(),
            event_json: self.job.event_json.clone(),
            sequence: self.job.sequence,
            now: self.job.now,
            hook: Arc::clone(hook),
            number,
            name,
            args: serde_json::Value::Null,
        })
    }

    /// Returns the indices of the open hooks; `None` means all of the set.
    pub(super) fn remaining_hooks(&self) -> Option<&[u32]> {
        self.hooks.listed()
    }

    /// Returns the longest time-out of the open hooks.
    pub(super) fn longest_timeout(&self) -> Duration {
        let Some(open) = self.hooks.listed() else {
            return self.loaded.set().longest_timeout();
        };
        let hooks = self.loaded.set().hooks();
        let open = open.iter().filter_map(|index| hooks.get(*index as usize));
        Duration::from_millis(open.map(|hook| hook.timeout_ms).max().unwrap_or_default())
    }

    /// Returns whether a worker has called its hooks; some may still be waiting.
    pub(super) const fn is_answered(&self) -> bool {
        self.answered
    }

    fn hook_at(&self, index: u32) -> Result<&Arc<HookSource>, ImpossibleAnswer> {
        let hooks = self.loaded.set().hooks();
        hooks.get(index as usize).ok_or(ImpossibleAnswer::Hook { index })
    }

    /// Rejects an inconsistent answer: a script may write anything to the pipe, and the event must end.
    fn check(&self, answer: &EventAnswer<'_>) -> Result<(), ImpossibleAnswer> {
        let results = answer.results.iter().map(|(index, ..)| *index);
        let failures = answer.failures.iter().map(|(index, ..)| *index);
        let late = answer.late.iter().step_by(2).copied();

        let told = answer
            .waiting
            .iter()
            .copied()
            .chain(results)
            .chain(failures)
            .chain(late);

        let mut told: Vec<u32> = told.collect();
        if let Some(&index) = told.iter().find(|index| !self.hooks.is_open(**index)) {
            return Err(ImpossibleAnswer::Hook { index });
        }

        // Each hook may be named once, and all together must be at most the open ones.
        told.sort_unstable();
        let open = self.hooks.open_count();
        let answered = [answer.results.len(), answer.failures.len(), answer.waiting.len()];
        let sum = answered.into_iter().fold(answer.passed as usize, usize::saturating_add);

        let adds_up = sum <= open
            && answer.latencies_us.len() <= open
            && answer.late.len().is_multiple_of(2)
            && answer.late.len() / 2 <= answer.passed as usize
            && answer.waiting.is_sorted()
            && told.is_sorted_by(|one, next| one < next);

        if adds_up { Ok(()) } else { Err(ImpossibleAnswer::Sum) }
    }

    /// Applies a worker's answer. A rejected answer changes nothing.
    pub(super) fn absorb_answer(&mut self, answer: EventAnswer<'_>) -> Result<FlightStage, ImpossibleAnswer> {
        self.check(&answer)?;
        // Only the first answer of a worker has the latencies of the hooks that passed.
        let is_first = !self.answered;
        if is_first {
            self.done.latencies_us = self.spread_latencies(answer.latencies_us);
            self.answered = true;
        }

        self.done.passed = self.done.passed.saturating_add(answer.passed);

        for pair in answer.late.chunks_exact(2) {
            if let Some(latency) = self.done.latencies_us.get_mut(pair[0] as usize) {
                *latency = pair[1];
            }
            self.bill_passed(pair[0], pair[1])?;
        }

        for (index, us, text) in answer.results {
            self.take_result(index, us, &text)?;
        }

        // A script chooses the text of its error, so it is cut before it is kept.
        for (index, us, error, stack) in answer.failures {
            let (error, stack) = (protocol::cut(error), stack.map(protocol::cut));
            self.decide_hook(index, us, RunOutcome::Failed { error, stack })?;
        }

        if is_first {
            self.tell_waiting(&answer.waiting);
        }

        // The hooks that wait for the host are still open: the flight goes on with them alone.
        let stage = self.go_on_with(answer.waiting);
        self.waits = (stage == FlightStage::UnderWay).then(|| self.seat.note_waiting());

        Ok(stage)
    }

    fn take_result(&mut self, index: u32, latency_us: u32, text: &str) -> Result<(), ImpossibleAnswer> {
        let outcome = match result::validate(text) {
            Ok(answered) if answered.fire => RunOutcome::Fired(Box::new(answered)),
            Ok(answered) if answered.disable_hook => RunOutcome::DisableSelf,
            Ok(_) => {
                self.done.passed = self.done.passed.saturating_add(1);
                return Ok(());
            }
            Err(invalid) => RunOutcome::Failed {
                error: invalid.to_string(),
                stack: None,
            },
        };

        self.decide_hook(index, latency_us, outcome)
    }

    /// Sends once which hooks are still running, if there are any and the caller knows the same set.
    fn tell_waiting(&mut self, waiting: &[u32]) {
        let all = self.hooks.with_apart(waiting);
        if self.told_waiting || self.disturbance == Disturbance::NewerSet || all.is_empty() {
            return;
        }
        self.told_waiting = true;
        self.steps.send(EvaluationStep::Waiting(all));
    }

    /// Opens the event for `remaining`; if that is empty, for the hooks to be called apart.
    fn go_on_with(&mut self, remaining: Vec<u32>) -> FlightStage {
        let stage = self.hooks.go_on_with(remaining);
        match stage {
            FlightStage::UnderWay => {}
            FlightStage::Apart => {
                self.answered = false;
                self.waits = None;
            }
            FlightStage::Over => self.finish_flight(),
        }

        stage
    }

    /// Keeps back those of `suspects` (ascending) that the event is open for, to be called apart. Returns
    /// [`FlightStage::Apart`] if no other hook is open.
    pub(super) fn set_apart(&mut self, suspects: &[u32]) -> FlightStage {
        match self.hooks.set_apart(suspects) {
            Some(others) => self.go_on_with(others),
            None => FlightStage::UnderWay,
        }
    }

    /// Opens the event for `index` alone; all its open hooks must be called apart.
    pub(super) fn open_for(&mut self, index: u32) {
        self.hooks.open_for(index);
    }

    /// Opens the event for all hooks that have not answered, including those to be called apart.
    pub(super) fn open_for_all(&mut self) -> FlightStage {
        let all = self.hooks.take_unanswered();
        self.go_on_with(all)
    }

    /// Returns whether the event is open for the hook `id`, or will be.
    pub(super) fn awaits_hook(&self, id: &str) -> bool {
        let index = self.loaded.set().index(id);
        index.is_some_and(|index| self.hooks.awaits(index))
    }

    /// Returns the indices of the open hooks, ascending.
    pub(super) fn open(&self) -> Vec<u32> {
        self.hooks.to_vec()
    }

    /// Applies the results that its dead worker had noted but not sent, so that those hooks do not run again. Skips
    /// invalid entries.
    pub(super) fn salvage_noted(&mut self, noted: impl IntoIterator<Item = CrashNote>) -> FlightStage {
        let mut open = self.open();
        for CrashNote {
            index,
            latency_us,
            what,
            ..
        } in noted
        {
            let Ok(at) = open.binary_search(&index) else { continue };
            let taken = match what {
                NotedOutcome::Passed => {
                    self.done.passed = self.done.passed.saturating_add(1);
                    self.bill_passed(index, latency_us)
                }
                NotedOutcome::Result(text) => self.take_result(index, latency_us, &text),
                NotedOutcome::Failed(error) => {
                    self.decide_hook(index, latency_us, RunOutcome::Failed { error, stack: None })
                }
            };

            // After a result that cannot be taken, the hook stays open and runs again.
            if taken.is_ok() {
                open.remove(at);
            }
        }

        self.go_on_with(open)
    }

    /// Fails the open hooks among `indexes` with `error`.
    pub(super) fn fail_hooks(&mut self, indexes: &[u32], error: &str) -> FlightStage {
        let mut remaining = self.open();
        remaining.retain(|index| {
            let condemned = indexes.contains(index);
            if condemned {
                // An index of the set itself is always valid.
                let _ = self.decide_hook(
                    *index,
                    0,
                    RunOutcome::Failed {
                        error: error.to_owned(),
                        stack: None,
                    },
                );
            }

            !condemned
        });

        self.go_on_with(remaining)
    }

    /// Records that its worker died. The open hooks run again, unless the event has lost too many workers: fewer are
    /// allowed without a hook to blame.
    pub(super) fn lost_worker(&mut self, somebody_blamed: bool, cause: &str) -> FlightStage {
        self.answered = false;
        self.waits = None;
        self.disturbance = self.disturbance.max(Disturbance::LostWorker);
        self.all_deaths += 1;
        self.deaths += u32::from(!somebody_blamed);

        let lasts = self.all_deaths < MAX_DEATHS_BLAMED && (somebody_blamed || self.deaths < MAX_DEATHS);
        if lasts {
            return FlightStage::UnderWay;
        }

        self.open_for_all();
        let deaths = if somebody_blamed { self.all_deaths } else { self.deaths };

        self.fail_hooks(
            &self.hooks.all_in_set(),
            &format!("its worker died {deaths} times: {cause}"),
        )
    }

    /// Moves the event to `loaded`, because its worker died and the next one holds newer hooks. Hooks that are gone
    /// count as passed.
    pub(super) fn move_to(&mut self, loaded: &Arc<LoadedHooks>) -> FlightStage {
        let old = Arc::clone(&self.loaded);
        let new_index = |index: u32| {
            let hook = old.set().hooks().get(index as usize)?;
            loaded.set().index(&hook.id)
        };

        let gone = self.hooks.move_to(loaded.set().hooks().len(), new_index);
        let gone = u32::try_from(gone).unwrap_or(u32::MAX);
        self.done.passed = self.done.passed.saturating_add(gone);

        self.loaded = Arc::clone(loaded);
        self.disturbance = Disturbance::NewerSet;

        let remaining = self.hooks.to_vec();
        self.go_on_with(remaining)
    }

    // Spreads the latencies of a first answer, which lists the hooks called, over all hooks of the set, as `Done` lists
    // them. Hooks called apart are added later.
    fn spread_latencies(&mut self, latencies_us: Vec<u32>) -> Vec<u32> {
        let Some(called) = self.hooks.listed() else {
            return latencies_us;
        };

        let mut all = std::mem::take(&mut self.done.latencies_us);
        all.resize(self.loaded.set().hooks().len(), 0);

        for (index, us) in called.iter().zip(latencies_us) {
            if let Some(latency) = all.get_mut(*index as usize) {
                *latency = us;
            }
        }

        all
    }

    /// Adds a verdict for a hook that passed late, if its host calls must be billed; other hooks that pass are only
    /// counted.
    fn bill_passed(&mut self, index: u32, latency_us: u32) -> Result<(), ImpossibleAnswer> {
        let spent = self.calls.spent_by(&self.hook_at(index)?.id);
        if !spent.is_nothing() {
            self.done.passed = self.done.passed.saturating_sub(1);
            self.decide_hook(index, latency_us, RunOutcome::Passed)?;
        }
        Ok(())
    }

    fn decide_hook(&mut self, index: u32, latency_us: u32, outcome: RunOutcome) -> Result<(), ImpossibleAnswer> {
        let hook = Arc::clone(self.hook_at(index)?);
        let called = self.job.only.as_ref().map_or(self.hooks.set_size(), Vec::len);
        if self.verdicts >= called {
            // Only a forged answer can bring more verdicts than hooks. The last places are for `Waiting` and `Done`.
            return Ok(());
        }

        self.verdicts += 1;

        if let Some(latency) = self.done.latencies_us.get_mut(index as usize) {
            *latency = latency_us.max(*latency);
        }

        let verdict = HookVerdict {
            latency_us: u64::from(latency_us),
            outcome,
            spent: self.calls.spent_by(&hook.id),
            hook,
        };

        // The step is dropped if the caller has dropped its evaluation; the event still runs to its end.
        self.steps.send(EvaluationStep::Verdict(Box::new(verdict)));
        Ok(())
    }

    fn finish_flight(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        // The latencies are of several workers then, or of several sets.
        if self.disturbance != Disturbance::None {
            done.latencies_us.clear();
        }
        self.steps.send(EvaluationStep::Done(done));
    }
}

#[cfg(test)]
mod tests;
