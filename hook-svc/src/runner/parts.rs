//! One event evaluated in several processes of different owners: joins their answers into one evaluation.
//!
//! Every part numbers its own hooks; indices are renumbered on the way to the caller, which sees one set.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Done, Step};

/// Sender of the steps of one flight.
#[derive(Debug)]
pub(super) struct Steps {
    sender: mpsc::Sender<(usize, Step)>,
    part: usize,
    /// Index in the whole, by index in the part, and the number of hooks in the whole; `None` if the part is the whole.
    whole: Option<(Arc<[u32]>, usize)>,
}

impl Steps {
    /// Creates the sender of the only part.
    pub(super) const fn only(sender: mpsc::Sender<(usize, Step)>) -> Self {
        Self {
            sender,
            part: 0,
            whole: None,
        }
    }

    /// Creates the sender of `part`, whose hooks have the indices `to_whole` in a whole of `hooks` hooks.
    pub(super) const fn of(
        sender: mpsc::Sender<(usize, Step)>,
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
    pub(super) fn send(&self, step: Step) {
        let step = match (&self.whole, step) {
            (None, step) | (Some(_), step @ Step::Verdict(_)) => step,
            (Some((to_whole, _)), Step::Waiting(indices)) => {
                let renumbered = indices
                    .iter()
                    .filter_map(|&index| to_whole.get(index as usize).copied());
                Step::Waiting(renumbered.collect())
            }
            (Some((to_whole, hooks)), Step::Done(done)) => Step::Done(spread(&done, to_whole, *hooks)),
        };

        let _ = self.sender.try_send((self.part, step));
    }
}

fn spread(done: &Done, to_whole: &[u32], hooks: usize) -> Done {
    let mut latencies_us = Vec::new();
    if !done.latencies_us.is_empty() {
        latencies_us.resize(hooks, 0);
        for (&index, &us) in to_whole.iter().zip(&done.latencies_us) {
            if let Some(latency) = latencies_us.get_mut(index as usize) {
                *latency = us;
            }
        }
    }

    Done {
        passed: done.passed,
        latencies_us,
    }
}

/// Joined state of the parts of one evaluation.
#[derive(Debug, Default)]
pub(super) struct Joined {
    parts: Vec<Heard>,
    waiting: Vec<u32>,
    told_waiting: bool,
    lost: bool,
    done: Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    Waiting,
    Done,
}

impl Joined {
    /// Creates the state for `parts` parts.
    pub(super) fn of(parts: usize) -> Self {
        Self {
            parts: vec![Heard::Nothing; parts],
            ..Self::default()
        }
    }

    /// Applies `step` of `part`; returns the step that follows for the whole, if any.
    pub(super) fn take(&mut self, part: usize, step: Step) -> Option<Step> {
        let heard = match step {
            Step::Verdict(_) => return Some(step),
            Step::Waiting(indices) => {
                self.waiting.extend(indices);
                Heard::Waiting
            }
            Step::Done(done) => {
                self.add(&done);
                Heard::Done
            }
        };

        if let Some(known) = self.parts.get_mut(part) {
            *known = heard;
        }

        if self.parts.iter().all(|part| *part == Heard::Done) {
            return Some(Step::Done(std::mem::take(&mut self.done)));
        }

        if self.told_waiting || self.parts.contains(&Heard::Nothing) {
            return None;
        }

        self.told_waiting = true;
        Some(Step::Waiting(std::mem::take(&mut self.waiting)))
    }

    fn add(&mut self, done: &Done) {
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

    fn done(passed: u32, latencies_us: &[u32]) -> Step {
        Step::Done(Done {
            passed,
            latencies_us: latencies_us.to_vec(),
        })
    }

    #[test]
    fn the_whole_waits_when_every_part_has_said_something_and_ends_with_the_last() {
        let mut joined = Joined::of(2);
        assert_eq!(joined.take(0, Step::Waiting(vec![3])), None);
        assert_eq!(joined.take(1, done(2, &[5, 0, 6, 0])), Some(Step::Waiting(vec![3])));
        assert_eq!(joined.take(0, done(1, &[0, 7, 0, 0])), Some(done(3, &[5, 7, 6, 0])));
    }

    #[test]
    fn latencies_of_a_part_that_lost_its_worker_are_not_known() {
        let mut joined = Joined::of(2);
        assert_eq!(joined.take(0, done(1, &[])), None);
        assert_eq!(joined.take(1, done(1, &[1, 2])), Some(done(2, &[])));
    }

    #[test]
    fn a_part_is_renumbered() {
        let (sender, mut steps) = mpsc::channel(4);
        let part = Steps::of(sender, 1, Arc::from([1, 3]), 4);
        part.send(Step::Waiting(vec![1]));
        part.send(done(1, &[8, 9]));
        assert_eq!(steps.try_recv().ok(), Some((1, Step::Waiting(vec![3]))));
        assert_eq!(steps.try_recv().ok(), Some((1, done(1, &[0, 8, 0, 9]))));
    }
}
