//! What the answers to a probe mean (pure).
//!
//! Source: <https://kubernetes.io/docs/concepts/workloads/pods/probes/>.

use std::time::Duration;

use crate::manifests::kinds::Probe;

/// What is known of a container by one of its probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Not enough answers in a row.
    Unknown,
    /// It does what the probe asks for.
    Passing,
    /// It does not.
    Failing,
}

/// The answers so far.
#[derive(Debug)]
pub struct ProbeRecord {
    verdict: Verdict,
    row: u64,
    was_good: bool,
}

impl Default for ProbeRecord {
    fn default() -> Self {
        Self {
            verdict: Verdict::Unknown,
            row: 0,
            was_good: false,
        }
    }
}

impl ProbeRecord {
    /// Adds an answer, and returns what is known then: it changes after a number of equal answers in a row.
    pub fn add(&mut self, is_good: bool, probe: &Probe) -> Verdict {
        self.row = if self.was_good == is_good { self.row + 1 } else { 1 };
        self.was_good = is_good;

        let (needed, verdict) = if is_good {
            (probe.success_threshold.unwrap_or(1), Verdict::Passing)
        } else {
            (probe.failure_threshold.unwrap_or(3), Verdict::Failing)
        };
        if self.row >= needed {
            self.verdict = verdict;
        }
        self.verdict
    }
}

/// Returns the time between two questions.
#[must_use]
pub fn period(probe: &Probe) -> Duration {
    Duration::from_secs(probe.period_seconds.unwrap_or(10))
}

/// Returns the time until a question has failed.
#[must_use]
pub fn patience(probe: &Probe) -> Duration {
    Duration::from_secs(probe.timeout_seconds.unwrap_or(1))
}

/// Returns how long a container that has ended `times` times waits for its next start.
#[must_use]
pub fn back_off(times: u32) -> Duration {
    match times {
        0 | 1 => Duration::ZERO,
        _ => Duration::from_secs((10 << (times - 2).min(5)).min(300)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::kinds::Handler;

    #[test]
    fn a_verdict_changes_after_answers_in_a_row() {
        let probe = Probe {
            handler: Handler::Sleep { seconds: 0 },
            initial_delay_seconds: 0,
            period_seconds: None,
            timeout_seconds: None,
            failure_threshold: None,
            success_threshold: Some(2),
        };
        let mut record = ProbeRecord::default();
        let answers = [true, true, false, false, true, false, false, false, true, true];
        let verdicts = answers.map(|is_good| record.add(is_good, &probe));
        let (unknown, passing, failing) = (Verdict::Unknown, Verdict::Passing, Verdict::Failing);
        let expected = [
            unknown, passing, passing, passing, passing, passing, passing, failing, failing, passing,
        ];
        assert_eq!(verdicts, expected);
    }

    #[test]
    fn restarts_wait_longer_and_longer() {
        let seconds: Vec<u64> = (0..9).map(|times| back_off(times).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 10, 20, 40, 80, 160, 300, 300]);
    }
}
