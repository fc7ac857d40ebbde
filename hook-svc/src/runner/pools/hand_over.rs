//! Hands the parts of an evaluation to the pools of their authors.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::super::author_slots::{EvaluationSlot, HeldSlots};
use super::super::parts::{JoinedParts, StepSender};
use super::super::{
    CallUsage, Evaluation, EvaluationEnd, EvaluationJob, EvaluationStep, HookSet, HookVerdict, RunOutcome,
};
use super::{Part, Runs};

/// Steps of one part beside its verdicts: waiting for a place, hooks that wait, the end.
const MOST_OTHER_STEPS: usize = 3;

/// An evaluation whose parts are being handed over.
pub(super) struct Begun {
    pub(super) evaluation: Evaluation,
    sender: mpsc::Sender<(usize, EvaluationStep)>,
}

impl Begun {
    /// Begins the evaluation of `job` in `parts` parts; without parts it is done.
    pub(super) fn new(set: &Arc<HookSet>, job: &EvaluationJob, parts: usize) -> Self {
        let verdicts = job.only.as_ref().map_or(set.hooks().len(), Vec::len);
        let (sender, steps) = mpsc::channel(verdicts + MOST_OTHER_STEPS * parts.max(1));
        if parts == 0 {
            let _ = sender.try_send((0, EvaluationStep::Done(EvaluationEnd::default())));
        }

        let joined = (parts > 1).then(|| JoinedParts::of_parts(parts));
        Self {
            evaluation: Evaluation::of_set(Arc::clone(set), steps, joined),
            sender,
        }
    }

    /// Hands part `number` to its pool. If there is no place, reports its hooks as waiting and waits: that may take any
    /// time, so the event must hold nothing that others need.
    pub(super) fn hand_over(
        &mut self,
        number: usize,
        part: &Part,
        only: Option<Vec<u32>>,
        job: &EvaluationJob,
        seats: &HeldSlots,
    ) {
        let Some(handed) = self.prepare_part(number, part, only, job, seats) else {
            return;
        };
        if let Some(waiting) = handed.over_now() {
            self.tell_waiting(number, part, waiting.job.only.as_deref());
            self.evaluation.later.spawn(waiting.hand_over());
        }
    }

    /// Returns the work for the pool of part `number`. If its hooks are not run, sends their errors and returns `None`.
    pub(super) fn prepare_part(
        &self,
        number: usize,
        part: &Part,
        only: Option<Vec<u32>>,
        job: &EvaluationJob,
        seats: &HeldSlots,
    ) -> Option<Handed> {
        let set = self.evaluation.set();
        let hooks = set.hooks().len();
        // With one author the indices are those of the whole set, and need no translation.
        let steps = if self.evaluation.joined.is_none() && part.to_whole.len() == hooks {
            StepSender::for_only_part(self.sender.clone())
        } else {
            StepSender::for_part(self.sender.clone(), number, Arc::clone(&part.to_whole), hooks)
        };

        // The hooks of an author without workers fail: an event must not wait for them.
        match &part.runs {
            Ok(runs) => Some(Handed {
                runs: runs.clone(),
                job: EvaluationJob { only, ..job.clone() },
                steps,
                seat: seats.seat_of(&part.author),
            }),
            Err(error) => {
                let called = (0..).zip(part.to_whole.iter());
                let is_called = |index: u32| only.as_ref().is_none_or(|only| only.contains(&index));
                for (_, &whole) in called.filter(|(index, _)| is_called(*index)) {
                    steps.send(EvaluationStep::Verdict(Box::new(HookVerdict {
                        hook: Arc::clone(&set.hooks()[whole as usize]),
                        latency_us: 0,
                        outcome: RunOutcome::Failed {
                            error: error.clone(),
                            stack: None,
                        },
                        spent: CallUsage::default(),
                    })));
                }

                let latencies_us = vec![0; part.to_whole.len()];
                steps.send(EvaluationStep::Done(EvaluationEnd {
                    passed: 0,
                    latencies_us,
                }));

                None
            }
        }
    }

    /// Reports the hooks `only` of `part` (`None` = all) as still running.
    pub(super) fn tell_waiting(&self, number: usize, part: &Part, only: Option<&[u32]>) {
        let hooks = self.evaluation.set().hooks().len();
        let steps = StepSender::for_part(self.sender.clone(), number, Arc::clone(&part.to_whole), hooks);
        let all = || (0..).zip(part.to_whole.iter()).map(|(index, _)| index).collect();
        steps.send(EvaluationStep::Waiting(only.map_or_else(all, <[u32]>::to_vec)));
    }
}

/// Work to hand to one pool.
pub(super) struct Handed {
    runs: Runs,
    job: EvaluationJob,
    steps: StepSender,
    /// Place of the evaluation; `None` if it waits for one.
    seat: Option<EvaluationSlot>,
}

impl Handed {
    /// Hands the work over if there is a place for it; otherwise returns it.
    pub(super) fn over_now(self) -> Option<Self> {
        let Self { runs, job, steps, seat } = self;
        match seat.or_else(|| runs.pool.seating().free_seat()) {
            Some(seat) => {
                runs.pool.hand_over(runs.loaded, job, steps, seat);
                None
            }
            None => Some(Self {
                runs,
                job,
                steps,
                seat: None,
            }),
        }
    }

    /// Hands the work over once there is a place for it.
    pub(super) async fn hand_over(self) {
        if let Some(Self { runs, job, steps, .. }) = self.over_now()
            && let Ok(seat) = runs.pool.seating().wait().await
        {
            runs.pool.hand_over(runs.loaded, job, steps, seat);
        }
    }
}
