//! One event under way: which hooks have not answered, and to whom the verdicts go.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::calls::Calls;
use super::host::Call;
use super::parts::Steps;
use super::protocol::Answer;
use super::sources::Loaded;
use super::{Done, Job, Outcome, Step, Verdict};
use crate::result;

/// How often an event may lose its worker without anybody to blame before the hooks that have not answered are
/// failed: it must end some time. Hooks that were waiting are suspects; those not called yet are most likely not.
const MAX_DEATHS_WAITING: u32 = 2;
const MAX_DEATHS: u32 = 6;

/// One event under way. Whatever happens to workers, every hook of it gets exactly one verdict or is counted as
/// passed, and [`Step::Done`] ends it.
#[derive(Debug)]
pub(super) struct Flight {
    job: Job,
    loaded: Arc<Loaded>,
    steps: Steps,
    _place: OwnedSemaphorePermit,
    remaining: Option<Vec<u32>>,
    answered: bool,
    moved: bool,
    deaths: u32,
    verdicts: usize,
    calls: Arc<Calls>,
    done: Done,
}

/// A worker said something impossible about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an answer about hook {index} of {hooks}")]
pub(super) struct UnknownHook {
    index: u32,
    hooks: usize,
}

impl Flight {
    /// `job` against `loaded`, nothing answered yet. `steps` has a place for each hook called and two more.
    pub(super) fn new(job: Job, loaded: Arc<Loaded>, steps: Steps, place: OwnedSemaphorePermit) -> Self {
        let remaining = job.only.clone();
        Self {
            job,
            loaded,
            steps,
            _place: place,
            remaining,
            answered: false,
            moved: false,
            deaths: 0,
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
    pub(super) fn call(&self, index: u32, number: u32, name: String) -> Result<Call, UnknownHook> {
        let hooks = self.loaded.set().hooks();
        let hook = hooks.get(index as usize).ok_or(UnknownHook {
            index,
            hooks: hooks.len(),
        })?;
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

    /// Whether a worker has called its hooks, and some may still be waiting.
    pub(super) const fn is_answered(&self) -> bool {
        self.answered
    }

    /// Takes what a worker says; true when every hook has answered. The caller then drops it.
    pub(super) fn absorb(&mut self, answer: Answer<'_>) -> Result<bool, UnknownHook> {
        let is_first = !self.answered;
        if is_first {
            self.done.latencies_us = self.spread(answer.latencies_us);
            self.answered = true;
        }
        self.done.passed += answer.passed;
        for pair in answer.late.chunks_exact(2) {
            if let Some(latency) = self.done.latencies_us.get_mut(pair[0] as usize) {
                *latency = pair[1];
            }
            self.bill_passed(pair[0], pair[1])?;
        }
        for (index, us, text) in answer.results {
            let outcome = match result::validate(&text) {
                Ok(answered) if answered.fire => Outcome::Fired(Box::new(answered)),
                Ok(answered) if answered.disable_hook => Outcome::DisableSelf,
                Ok(_) => {
                    self.done.passed += 1;
                    continue;
                }
                Err(invalid) => Outcome::Failed {
                    error: invalid.to_string(),
                    stack: None,
                },
            };
            self.decide(index, us, outcome)?;
        }
        for (index, us, error, stack) in answer.failures {
            self.decide(index, us, Outcome::Failed { error, stack })?;
        }
        let ended = answer.waiting.is_empty();
        if is_first && !ended && !self.moved {
            self.steps.send(Step::Waiting(answer.waiting.clone()));
        }
        self.remaining = Some(answer.waiting);
        if ended {
            self.finish();
        }
        Ok(ended)
    }

    /// Fails the hooks of `indexes` that have not answered. True when none is left.
    pub(super) fn fail(&mut self, indexes: &[u32], error: &str) -> bool {
        let hooks = u32::try_from(self.loaded.set().hooks().len()).unwrap_or(u32::MAX);
        let mut remaining = self.remaining.take().unwrap_or_else(|| (0..hooks).collect());
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
        let ended = remaining.is_empty();
        self.remaining = Some(remaining);
        if ended {
            self.finish();
        }
        ended
    }

    /// Its worker died: what has not answered is to run again, unless that has happened too often without anybody to
    /// blame. True when the event is done.
    pub(super) fn lost_worker(&mut self, somebody_blamed: bool, cause: &str) -> bool {
        let limit = if self.answered { MAX_DEATHS_WAITING } else { MAX_DEATHS };
        self.answered = false;
        self.moved = true;
        if somebody_blamed {
            return false;
        }
        self.deaths += 1;
        if self.deaths < limit {
            return false;
        }
        let hooks = u32::try_from(self.loaded.set().hooks().len()).unwrap_or(u32::MAX);
        self.fail(
            &(0..hooks).collect::<Vec<_>>(),
            &format!("its worker died {} times: {cause}", self.deaths),
        )
    }

    /// Continues against `loaded`: its worker died and the next one holds newer hooks. Hooks that are gone count as
    /// passed. True when none is left.
    pub(super) fn move_to(&mut self, loaded: &Arc<Loaded>) -> bool {
        let old = self.loaded.set().hooks();
        let all: Vec<u32> = match self.remaining.take() {
            Some(some) => some,
            None => (0..u32::try_from(old.len()).unwrap_or(u32::MAX)).collect(),
        };
        let kept: Vec<u32> = all
            .iter()
            .filter_map(|&i| loaded.set().index(&old[i as usize].id))
            .collect();
        self.done.passed += u32::try_from(all.len() - kept.len()).unwrap_or(u32::MAX);
        self.loaded = Arc::clone(loaded);
        self.moved = true;
        let ended = kept.is_empty();
        self.remaining = Some(kept);
        if ended {
            self.finish();
        }
        ended
    }

    // A first answer lists the hooks called; `Done` lists all hooks of the set.
    fn spread(&self, latencies_us: Vec<u32>) -> Vec<u32> {
        let Some(called) = &self.remaining else {
            return latencies_us;
        };
        let mut all = vec![0; self.loaded.set().hooks().len()];
        for (index, us) in called.iter().zip(latencies_us) {
            all[*index as usize] = us;
        }
        all
    }

    /// A hook that passed late is counted; one that has used something is told of as well.
    fn bill_passed(&mut self, index: u32, latency_us: u32) -> Result<(), UnknownHook> {
        let hooks = self.loaded.set().hooks();
        let spent = hooks.get(index as usize).map(|hook| self.calls.spent(&hook.id));
        if spent.is_some_and(|spent| !spent.is_nothing()) {
            self.done.passed = self.done.passed.saturating_sub(1);
            self.decide(index, latency_us, Outcome::Passed)?;
        }
        Ok(())
    }

    fn decide(&mut self, index: u32, latency_us: u32, outcome: Outcome) -> Result<(), UnknownHook> {
        let hooks = self.loaded.set().hooks();
        let hook = hooks.get(index as usize).ok_or(UnknownHook {
            index,
            hooks: hooks.len(),
        })?;
        let called = self.job.only.as_ref().map_or(hooks.len(), Vec::len);
        if self.verdicts >= called {
            // More verdicts than hooks: only a forged answer can do this. The last places are for `Waiting` and `Done`.
            return Ok(());
        }
        self.verdicts += 1;
        if let Some(latency) = self.done.latencies_us.get_mut(index as usize) {
            *latency = latency_us.max(*latency);
        }
        let verdict = Verdict {
            hook: Arc::clone(hook),
            latency_us: u64::from(latency_us),
            outcome,
            spent: self.calls.spent(&hook.id),
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
