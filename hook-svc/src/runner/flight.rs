//! One event under way: which hooks have not answered, and to whom the verdicts go.

use std::sync::Arc;
use std::time::Duration;

use super::calls::Calls;
use super::host::Call;
use super::parts::Steps;
use super::protocol::{self, Answer};
use super::seats::{Seat, Waits};
use super::sources::Loaded;
use super::{Done, HookSource, Job, Outcome, Step, Verdict};
use crate::result;

/// How often an event may lose its worker without anybody to blame before the hooks that have not answered are
/// failed: it must end some time.
const MAX_DEATHS: u32 = 6;

/// How often an event may lose its worker at all, whoever is blamed: a hook that writes the note can blame others.
const MAX_DEATHS_BLAMED: u32 = 32;

/// How far an event has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Hooks of it have not answered.
    UnderWay,
    /// All have answered but those that are to be called apart; the event is open for them now.
    Apart,
    /// Every hook has answered; whoever holds it drops it.
    Over,
}

/// What a worker had noted of one hook before it died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Noted {
    /// The event's slot in the worker.
    pub(super) slot: u32,
    /// The hook's index in the set.
    pub(super) index: u32,
    /// How long it took.
    pub(super) latency_us: u32,
    /// What it did.
    pub(super) what: NotedOutcome,
}

/// See [`Noted`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotedOutcome {
    /// It answered `fire: false`.
    Passed,
    /// It answered more, as JSON.
    Result(String),
    /// It failed with this message.
    Failed(String),
}

/// One event under way. Whatever happens to workers, every hook of it gets exactly one verdict or is counted as
/// passed, and [`Step::Done`] ends it.
#[derive(Debug)]
pub(super) struct Flight {
    job: Job,
    loaded: Arc<Loaded>,
    steps: Steps,
    seat: Seat,
    /// While its hooks were called and some of them wait.
    waits: Option<Waits>,
    /// By index, ascending; none = all of the set.
    remaining: Option<Vec<u32>>,
    /// Those that have not answered and are to be called apart from these, ascending.
    apart: Vec<u32>,
    answered: bool,
    /// It has lost a worker, or has another set than its caller knows.
    moved: bool,
    switched: bool,
    told_waiting: bool,
    /// Without anybody to blame.
    deaths: u32,
    /// All of them.
    all_deaths: u32,
    verdicts: usize,
    calls: Arc<Calls>,
    done: Done,
}

/// A worker said something about an event that none of ours says: some script has written to its pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ImpossibleAnswer {
    /// About a hook that the event is not open for.
    #[error("answer for hook {index}, which has no open evaluation")]
    Hook {
        /// Which index.
        index: u32,
    },
    /// More answers than hooks were called, or lists that cannot be.
    #[error("inconsistent worker response")]
    Sum,
    /// A query while it is owed the answer to another.
    #[error("query before the previous one was answered")]
    Query,
}

impl Flight {
    /// `job` against `loaded`, nothing answered yet. `steps` has a place for each hook called and two more.
    pub(super) fn new(job: Job, loaded: Arc<Loaded>, steps: Steps, seat: Seat) -> Self {
        let remaining = job.only.clone();
        Self {
            job,
            loaded,
            steps,
            seat,
            waits: None,
            remaining,
            apart: Vec::new(),
            answered: false,
            moved: false,
            switched: false,
            told_waiting: false,
            deaths: 0,
            all_deaths: 0,
            verdicts: 0,
            calls: Arc::default(),
            done: Done::default(),
        }
    }

    /// The event.
    pub(super) const fn job(&self) -> &Job {
        &self.job
    }

    /// The hooks against which it is evaluated.
    pub(super) const fn loaded(&self) -> &Arc<Loaded> {
        &self.loaded
    }

    /// What its hooks have asked the host.
    pub(super) const fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    /// The call `number` of the hook `index`, its arguments not yet in it.
    pub(super) fn call(&self, index: u32, number: u32, name: String) -> Result<Call, ImpossibleAnswer> {
        let hook = self.hook(index)?;
        Ok(Call {
            event_id: self.job.event_id.clone(),
            now: self.job.now,
            hook: Arc::clone(hook),
            number,
            name,
            args: serde_json::Value::Null,
        })
    }

    /// The hooks that have not answered; `None` = all of the set.
    pub(super) fn remaining(&self) -> Option<&[u32]> {
        self.remaining.as_deref()
    }

    /// The longest time-out of the hooks that have not answered.
    pub(super) fn longest_timeout(&self) -> Duration {
        let Some(remaining) = &self.remaining else {
            return self.loaded.set().longest_timeout();
        };
        let hooks = self.loaded.set().hooks();
        let open = remaining.iter().filter_map(|index| hooks.get(*index as usize));
        Duration::from_millis(open.map(|hook| hook.timeout_ms).max().unwrap_or_default())
    }

    /// Whether a worker has called its hooks, and some may still be waiting.
    pub(super) const fn is_answered(&self) -> bool {
        self.answered
    }

    fn hook(&self, index: u32) -> Result<&Arc<HookSource>, ImpossibleAnswer> {
        let hooks = self.loaded.set().hooks();
        hooks.get(index as usize).ok_or(ImpossibleAnswer::Hook { index })
    }

    /// The number of hooks in the set.
    fn hooks(&self) -> u32 {
        u32::try_from(self.loaded.set().hooks().len()).unwrap_or(u32::MAX)
    }

    /// Whether hook `index` has not answered.
    fn is_open(&self, index: u32) -> bool {
        match &self.remaining {
            Some(remaining) => remaining.binary_search(&index).is_ok(),
            None => index < self.hooks(),
        }
    }

    /// Refuses what cannot be so: a script may write to the pipe whatever it likes, and the event has to end.
    fn check(&self, answer: &Answer<'_>) -> Result<(), ImpossibleAnswer> {
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
        if let Some(&index) = told.iter().find(|index| !self.is_open(**index)) {
            return Err(ImpossibleAnswer::Hook { index });
        }

        told.sort_unstable();
        let open = self.remaining.as_ref().map_or(self.hooks() as usize, Vec::len);
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

    /// Takes what a worker says. What is refused has changed nothing.
    pub(super) fn absorb(&mut self, answer: Answer<'_>) -> Result<Stage, ImpossibleAnswer> {
        self.check(&answer)?;
        let is_first = !self.answered;
        if is_first {
            self.done.latencies_us = self.spread(answer.latencies_us);
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

        for (index, us, error, stack) in answer.failures {
            let (error, stack) = (protocol::cut(error), stack.map(protocol::cut));
            self.decide(index, us, Outcome::Failed { error, stack })?;
        }

        if is_first {
            self.tell_waiting(&answer.waiting);
        }

        let stage = self.go_on_with(answer.waiting);
        self.waits = (stage == Stage::UnderWay).then(|| self.seat.waits());

        Ok(stage)
    }

    fn take_result(&mut self, index: u32, latency_us: u32, text: &str) -> Result<(), ImpossibleAnswer> {
        let outcome = match result::validate(text) {
            Ok(answered) if answered.fire => Outcome::Fired(Box::new(answered)),
            Ok(answered) if answered.disable_hook => Outcome::DisableSelf,
            Ok(_) => {
                self.done.passed = self.done.passed.saturating_add(1);
                return Ok(());
            }
            Err(invalid) => Outcome::Failed {
                error: invalid.to_string(),
                stack: None,
            },
        };

        self.decide(index, latency_us, outcome)
    }

    /// Says once who is still at work. To a caller who knows the same set, and where anybody is.
    fn tell_waiting(&mut self, waiting: &[u32]) {
        if self.told_waiting || self.switched || (waiting.is_empty() && self.apart.is_empty()) {
            return;
        }
        self.told_waiting = true;
        let mut all = [waiting, &self.apart].concat();
        all.sort_unstable();
        self.steps.send(Step::Waiting(all));
    }

    /// The event is open for `remaining`; where that is nobody, for those to be called apart.
    fn go_on_with(&mut self, remaining: Vec<u32>) -> Stage {
        let is_open = !remaining.is_empty();
        self.remaining = Some(remaining);

        if is_open {
            return Stage::UnderWay;
        }

        if self.apart.is_empty() {
            self.finish();
            return Stage::Over;
        }

        self.answered = false;
        self.waits = None;
        self.remaining = Some(std::mem::take(&mut self.apart));

        Stage::Apart
    }

    /// Keeps back those of `suspects` (ascending) that it is open for, to be called apart; [`Stage::Apart`] where they
    /// are all that is open.
    pub(super) fn set_apart(&mut self, suspects: &[u32]) -> Stage {
        let is_suspect = |index: &u32| suspects.binary_search(index).is_ok();
        let (apart, others): (Vec<u32>, Vec<u32>) = self.open().into_iter().partition(is_suspect);
        if apart.is_empty() {
            return Stage::UnderWay;
        }
        self.apart.extend(apart);
        self.apart.sort_unstable();
        self.go_on_with(others)
    }

    /// Opens the event, all of whose open hooks are to be called apart, for `index` alone.
    pub(super) fn open_for(&mut self, index: u32) {
        let mut others = self.open();
        others.retain(|open| *open != index);
        self.apart.extend(others);
        self.apart.sort_unstable();
        self.remaining = Some(vec![index]);
    }

    /// Opens it for all that have not answered, those to be called apart among them.
    pub(super) fn open_for_all(&mut self) -> Stage {
        let mut all = self.open();
        all.append(&mut self.apart);
        all.sort_unstable();
        self.go_on_with(all)
    }

    /// Whether it is open for the hook `id`, or will be.
    pub(super) fn awaits(&self, id: &str) -> bool {
        let index = self.loaded.set().index(id);
        index.is_some_and(|index| self.is_open(index) || self.apart.binary_search(&index).is_ok())
    }

    /// The hooks that it is open for.
    pub(super) fn open(&self) -> Vec<u32> {
        match &self.remaining {
            Some(remaining) => remaining.clone(),
            None => (0..self.hooks()).collect(),
        }
    }

    /// Takes what its dead worker had noted of hooks that had answered, though nothing of it was said: they do not
    /// run again. What cannot be is left out.
    pub(super) fn salvage(&mut self, noted: impl IntoIterator<Item = Noted>) -> Stage {
        let mut open = self.open();
        for Noted {
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
                NotedOutcome::Failed(error) => self.decide(index, latency_us, Outcome::Failed { error, stack: None }),
            };

            if taken.is_ok() {
                open.remove(at);
            }
        }

        self.go_on_with(open)
    }

    /// Fails the hooks of `indexes` that have not answered.
    pub(super) fn fail(&mut self, indexes: &[u32], error: &str) -> Stage {
        let mut remaining = self.open();
        remaining.retain(|index| {
            let condemned = indexes.contains(index);
            if condemned {
                // An index of the set itself is always known.
                let _ = self.decide(
                    *index,
                    0,
                    Outcome::Failed {
                        error: error.to_owned(),
                        stack: None,
                    },
                );
            }

            !condemned
        });

        self.go_on_with(remaining)
    }

    /// Its worker died: what has not answered is to run again, unless that has happened too often, above all without
    /// anybody to blame.
    pub(super) fn lost_worker(&mut self, somebody_blamed: bool, cause: &str) -> Stage {
        self.answered = false;
        self.waits = None;
        self.moved = true;
        self.all_deaths += 1;
        self.deaths += u32::from(!somebody_blamed);

        let lasts = self.all_deaths < MAX_DEATHS_BLAMED && (somebody_blamed || self.deaths < MAX_DEATHS);
        if lasts {
            return Stage::UnderWay;
        }

        self.open_for_all();
        let deaths = if somebody_blamed { self.all_deaths } else { self.deaths };

        self.fail(
            &(0..self.hooks()).collect::<Vec<_>>(),
            &format!("its worker died {deaths} times: {cause}"),
        )
    }

    /// Continues against `loaded`: its worker died and the next one holds newer hooks. Hooks that are gone count as
    /// passed.
    pub(super) fn move_to(&mut self, loaded: &Arc<Loaded>) -> Stage {
        let old = Arc::clone(&self.loaded);
        let of_old = |index: u32| old.set().hooks().get(index as usize);
        let all = [self.open(), std::mem::take(&mut self.apart)];

        let [remaining, apart] = all.map(|all| {
            let kept = all.iter().filter_map(|&index| loaded.set().index(&of_old(index)?.id));
            let mut kept: Vec<u32> = kept.collect();
            kept.sort_unstable();
            let gone = u32::try_from(all.len() - kept.len()).unwrap_or(u32::MAX);
            self.done.passed = self.done.passed.saturating_add(gone);
            kept
        });

        self.apart = apart;
        self.loaded = Arc::clone(loaded);
        self.moved = true;
        self.switched = true;

        self.go_on_with(remaining)
    }

    // A first answer lists the hooks called; `Done` lists all hooks of the set. Those called apart come later.
    fn spread(&mut self, latencies_us: Vec<u32>) -> Vec<u32> {
        let Some(called) = &self.remaining else {
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

    /// A hook that passed late is counted; one that has used something is told of as well.
    fn bill_passed(&mut self, index: u32, latency_us: u32) -> Result<(), ImpossibleAnswer> {
        let spent = self.calls.spent(&self.hook(index)?.id);
        if !spent.is_nothing() {
            self.done.passed = self.done.passed.saturating_sub(1);
            self.decide(index, latency_us, Outcome::Passed)?;
        }
        Ok(())
    }

    fn decide(&mut self, index: u32, latency_us: u32, outcome: Outcome) -> Result<(), ImpossibleAnswer> {
        let hook = Arc::clone(self.hook(index)?);
        let called = self.job.only.as_ref().map_or(self.hooks() as usize, Vec::len);
        if self.verdicts >= called {
            // More verdicts than hooks: only a forged answer can do this. The last places are for `Waiting` and `Done`.
            return Ok(());
        }

        self.verdicts += 1;

        if let Some(latency) = self.done.latencies_us.get_mut(index as usize) {
            *latency = latency_us.max(*latency);
        }

        let verdict = Verdict {
            latency_us: u64::from(latency_us),
            outcome,
            spent: self.calls.spent(&hook.id),
            hook,
        };

        // Nobody listens where the caller has dropped its evaluation; the event is then finished all the same.
        self.steps.send(Step::Verdict(Box::new(verdict)));
        Ok(())
    }

    fn finish(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        if self.moved {
            done.latencies_us.clear();
        }
        self.steps.send(Step::Done(done));
    }
}

#[cfg(test)]
mod tests;
