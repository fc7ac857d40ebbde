//! Deadlines of the events handed to a process, even if it looks lively. *Pure.*
//!
//! Times are the process's own (`progress_watch.rs`): those in which it could run. Events are called in the order in which they
//! were handed over, so the term of one begins when those before it have been called; an answer about a later one
//! prolongs nothing.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Time beyond the hooks' time-outs, because the process reports those itself.
const GRACE: Duration = Duration::from_secs(1);

/// Deadlines of the events in one process; see the module.
#[derive(Debug, Default)]
pub(super) struct EvaluationTerms {
    /// Slots whose hooks have not been called, in order, and the longest time-out of each.
    uncalled: VecDeque<(u32, Duration)>,
    /// Time since which the first of them has been the first.
    first_since: Duration,
    /// Deadline of each event whose hooks wait, by slot.
    waiting: HashMap<u32, Duration>,
}

impl EvaluationTerms {
    /// Records that the event of `slot` is handed over at `age`; no hook of it may take longer than `longest`.
    pub(super) fn note_handed(&mut self, slot: u32, longest: Duration, age: Duration) {
        if self.uncalled.is_empty() {
            self.first_since = age;
        }
        self.uncalled.push_back((slot, longest));
    }

    /// Records an answer about the event of `slot` at `age`: it is over, or hooks of it wait for at most `longest`.
    pub(super) fn note_answered(&mut self, slot: u32, longest: Option<Duration>, age: Duration) {
        let at = self.uncalled.iter().position(|(other, _)| *other == slot);
        if let Some(at) = at {
            self.uncalled.remove(at);
            if at == 0 {
                self.first_since = age;
            }
        }

        match longest {
            None => {
                self.waiting.remove(&slot);
            }
            // The first answer sets the deadline; further ones do not change it.
            Some(longest) => {
                self.waiting.entry(slot).or_insert(age + longest + GRACE);
            }
        }
    }

    /// Returns the slot of the most overdue event at `age` and the time by which it is overdue.
    pub(super) fn find_overdue(&self, age: Duration) -> Option<(u32, Duration)> {
        let first = self.uncalled.front();
        let first = first.map(|(slot, longest)| (*slot, self.first_since + *longest + GRACE));
        let waiting = self.waiting.iter().map(|(slot, until)| (*slot, *until));
        let (slot, until) = first.into_iter().chain(waiting).min_by_key(|(_, until)| *until)?;
        (age > until).then(|| (slot, age.saturating_sub(until)))
    }

    /// Returns the slot of the event whose hooks are being called, if any.
    pub(super) fn first_slot(&self) -> Option<u32> {
        self.uncalled.front().map(|(slot, _)| *slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_term_of_an_event_begins_when_those_before_it_were_called() {
        let mut terms = EvaluationTerms::default();
        terms.note_handed(1, s(5), s(0));
        terms.note_handed(2, s(5), s(0));
        assert_eq!((terms.find_overdue(s(6)), terms.first_slot()), (None, Some(1)));
        assert_eq!(terms.find_overdue(s(7)), Some((1, s(1))));
        terms.note_answered(1, None, s(6));
        assert_eq!(terms.find_overdue(s(12)), None);
        assert_eq!(terms.find_overdue(s(13)), Some((2, s(1))));
    }

    #[test]
    fn answers_about_others_prolong_nothing() {
        let mut terms = EvaluationTerms::default();
        for slot in 0..10 {
            terms.note_handed(slot, s(1), s(0));
        }
        for slot in 1..10 {
            terms.note_answered(slot, None, s(2));
        }
        assert_eq!(terms.find_overdue(s(3)), Some((0, s(1))));
    }

    #[test]
    fn who_waits_has_its_time_out_and_no_answer_prolongs_it() {
        let mut terms = EvaluationTerms::default();
        terms.note_handed(1, s(30), s(0));
        terms.note_answered(1, Some(s(4)), s(1));
        terms.note_answered(1, Some(s(4)), s(5));
        assert_eq!(terms.find_overdue(s(6)), None);
        assert_eq!(terms.find_overdue(s(8)), Some((1, s(2))));
        terms.note_answered(1, None, s(8));
        assert_eq!(terms.find_overdue(s(99)), None);
    }
}
