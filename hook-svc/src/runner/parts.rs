//! One event evaluated in several processes of different owners: joins their answers into one evaluation.
//!
//! Every part numbers its own hooks; indices are renumbered on the way to the caller, which sees one set.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{EvaluationEnd, EvaluationStep};

/// Sender of the steps of one flight.
#[derive(Debug)]
pub(super) struct StepSender {
    sender: mpsc::Sender<(usize, EvaluationStep)>,
    part: usize,
    /// Index in the whole, by index in the part, and the number of hooks in the whole; `None` if the part is the whole.
    whole: Option<(Arc<[u32]>, usize)>,
}

impl StepSender {
    /// Creates the sender of the only part.
    pub(super) const fn for_only_part(sender: mpsc::Sender<(usize, EvaluationStep)>) -> Self {
        Self {
            sender,
            part: 0,
            whole: None,
        }
    }

    /// Creates the sender of `part`, whose hooks have the indices `to_whole` in a whole of `hooks` hooks.
    pub(super) const fn for_part(
        sender: mpsc::Sender<(usize, EvaluationStep)>,
        part: usize,
        to_whole: Arc<[u32]>,
        hooks: usize,
    ) -> Self {
        Self {
            sender,
            part,
            whole: Some((to_whole, hooks)),
        }
    }

    /// Sends `step`. The step is dropped if the caller has dropped its evaluation; the event still runs to its end.
    pub(super) fn send(&self, step: EvaluationStep) {
        let step = match (&self.whole, step) {
            (None, step) | (Some(_), step @ EvaluationStep::Verdict(_)) => step,
            (Some((to_whole, _)), EvaluationStep::Waiting(indices)) => {
                let renumbered = indices
                    .iter()
                    .filter_map(|&index| to_whole.get(index as usize).copied());
                EvaluationStep::Waiting(renumbered.collect())
            }
            (Some((to_whole, hooks)), EvaluationStep::Done(done)) => {
                EvaluationStep::Done(spread_done(&done, to_whole, *hooks))
            }
        };

        let _ = self.sender.try_send((self.part, step));
    }
}

fn spread_done(done: &EvaluationEnd, to_whole: &[u32], hooks: usize) -> EvaluationEnd {
    let mut latencies_us = Vec::new();
    if !done.latencies_us.is_empty() {
        latencies_us.resize(hooks, 0);
        for (&index, &us) in to_whole.iter().zip(&done.latencies_us) {
            if let Some(latency) = latencies_us.get_mut(index as usize) {
                *latency = us;
            }
        }
    }

    EvaluationEnd {
        passed: done.passed,
        latencies_us,
    }
}

/// Joined state of the parts of one evaluation.
#[derive(Debug, Default)]
pub(super) struct JoinedParts {
    parts: Vec<Heard>,
    waiting: Vec<u32>,
    told_waiting: bool,
    lost: bool,
    done: EvaluationEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    Waiting,
    Done,
}

impl JoinedParts {
    /// Creates the state for `parts` parts.
    pub(super) fn of_parts(parts: usize) -> Self {
        Self {
            parts: vec![Heard::Nothing; parts],
            ..Self::default()
        }
    }

    /// Applies `step` of `part`; returns the step that follows for the whole, if any.
    pub(super) fn take(&mut self, part: usize, step: EvaluationStep) -> Option<EvaluationStep> {
        let heard = match step {
            EvaluationStep::Verdict(_) => return Some(step),
            EvaluationStep::Waiting(indices) => {
                self.waiting.extend(indices);
                Heard::Waiting
            }
            EvaluationStep::Done(done) => {
                self.add(&done);
                Heard::Done
            }
        };

        if let Some(known) = self.parts.get_mut(part) {
            *known = heard;
        }

        if self.parts.iter().all(|part| *part == Heard::Done) {
            return Some(EvaluationStep::Done(std::mem::take(&mut self.done)));
        }

        if self.told_waiting || self.parts.contains(&Heard::Nothing) {
            return None;
        }

        self.told_waiting = true;
        Some(EvaluationStep::Waiting(std::mem::take(&mut self.waiting)))
    }

    fn add(&mut self, done: &EvaluationEnd) {
        self.done.passed = self.done.passed.saturating_add(done.passed);
        self.lost |= done.latencies_us.is_empty();

        if self.lost {
            self.done.latencies_us.clear();
            return;
        }

        if self.done.latencies_us.is_empty() {
            self.done.latencies_us.clone_from(&done.latencies_us);
            return;
        }

        for (sum, us) in self.done.latencies_us.iter_mut().zip(&done.latencies_us) {
            *sum = sum.saturating_add(*us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(passed: u32, latencies_us: &[u32]) -> EvaluationStep {
        EvaluationStep::Done(EvaluationEnd {
            passed,
            latencies_us: latencies_us.to_vec(),
        })
    }

    #[test]
    fn the_whole_waits_when_every_part_has_said_something_and_ends_with_the_last() {
        let mut joined = JoinedParts::of_parts(2);
        assert_eq!(joined.take(0, EvaluationStep::Waiting(vec![3])), None);
        assert_eq!(
            joined.take(1, done(2, &[5, 0, 6, 0])),
            Some(EvaluationStep::Waiting(vec![3]))
        );
        assert_eq!(joined.take(0, done(1, &[0, 7, 0, 0])), Some(done(3, &[5, 7, 6, 0])));
    }

    #[test]
    fn latencies_of_a_part_that_lost_its_worker_are_not_known() {
        let mut joined = JoinedParts::of_parts(2);
        assert_eq!(joined.take(0, done(1, &[])), None);
        assert_eq!(joined.take(1, done(1, &[1, 2])), Some(done(2, &[])));
    }

    #[test]
    fn a_part_is_renumbered() {
        let (sender, mut steps) = mpsc::channel(4);
        let part = StepSender::for_part(sender, 1, Arc::from([1, 3]), 4);
        part.send(EvaluationStep::Waiting(vec![1]));
        part.send(done(1, &[8, 9]));
        assert_eq!(steps.try_recv().ok(), Some((1, EvaluationStep::Waiting(vec![3]))));
        assert_eq!(steps.try_recv().ok(), Some((1, done(1, &[0, 8, 0, 9]))));
    }
}
