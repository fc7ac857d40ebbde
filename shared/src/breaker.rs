//! A circuit breaker as a value. *Pure.*
//!
//! Closed, everything passes; after enough failures in a row it opens and refuses; after a cool-down one probe passes:
//! its success closes the breaker, its failure opens it for longer. A probe whose outcome is never recorded (its
//! process died) is forgotten after another cool-down. The value is small and serialisable: replicas share it in the
//! KV bucket `breakers` by compare-and-set.
//!
//! Source: `003_b33e857b632aa7dc.txt` §8.5 (hook health).

use serde::{Deserialize, Serialize};

use crate::model::time::UnixMillis;

/// When a breaker opens, and for how long. By default five failures and five minutes, as the seed says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerPolicy {
    /// Failures in a row that open it; at least 1.
    pub failures_to_open: u32,
    /// The first cool-down, in milliseconds.
    pub cool_down_ms: u64,
    /// The longest cool-down, in milliseconds: each failed probe doubles it up to here.
    pub max_cool_down_ms: u64,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures_to_open: 5,
            cool_down_ms: 300_000,
            max_cool_down_ms: 300_000,
        }
    }
}

/// How one admitted operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It worked.
    Success,
    /// It failed in the way that the breaker guards against.
    Failure,
}

/// What a breaker says to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Go ahead.
    Pass,
    /// Go ahead, alone: the outcome decides whether the breaker closes.
    Probe,
    /// Do not try before this instant.
    Refuse {
        /// When a probe may pass at the earliest.
        until: UnixMillis,
    },
}

/// The breaker of one thing that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Breaker {
    /// Failures since the last success.
    failures: u32,
    /// Times it opened since it last was closed.
    openings: u32,
    /// While open: when a probe may pass. Absent while closed.
    probe_at: Option<UnixMillis>,
    /// Whether a probe was let through whose outcome is not known: other outcomes while open are stragglers.
    probing: bool,
}

impl Breaker {
    /// Whether operations are refused or probed rather than passed.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.probe_at.is_some()
    }

    /// Whether an operation may run at `now`; a probe takes the only place until its outcome, or a cool-down, is over.
    #[must_use]
    pub fn admit(&mut self, policy: &BreakerPolicy, now: UnixMillis) -> Admission {
        match self.probe_at {
            None => Admission::Pass,
            Some(until) if now < until => Admission::Refuse { until },
            Some(_) => {
                self.probing = true;
                self.probe_at = Some(now.plus(self.cool_down(policy)));
                Admission::Probe
            }
        }
    }

    /// Takes in how an admitted operation ended at `now`.
    pub fn record(&mut self, policy: &BreakerPolicy, outcome: Outcome, now: UnixMillis) {
        match outcome {
            Outcome::Success => *self = Self::default(),
            Outcome::Failure => {
                self.failures = self.failures.saturating_add(1);
                let enough = !self.is_open() && self.failures >= policy.failures_to_open.max(1);
                if self.probing || enough {
                    self.probing = false;
                    self.openings = self.openings.saturating_add(1);
                    self.probe_at = Some(now.plus(self.cool_down(policy)));
                }
            }
        }
    }

    fn cool_down(&self, policy: &BreakerPolicy) -> i64 {
        let doublings = self.openings.saturating_sub(1).min(u64::BITS - 1);
        let grown = policy
            .cool_down_ms
            .saturating_mul(1 << doublings)
            .min(policy.max_cool_down_ms);
        i64::try_from(grown).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BreakerPolicy = BreakerPolicy {
        failures_to_open: 3,
        cool_down_ms: 100,
        max_cool_down_ms: 350,
    };

    /// Runs a script of steps: `+` success, `-` failure, `?` admission, `>n` time moves on by n ms.
    fn check(script: &str, expected: &[Admission]) {
        let (mut breaker, mut now, mut answers) = (Breaker::default(), UnixMillis(0), Vec::new());
        for step in script.split(' ') {
            match step.split_at(1) {
                ("+", _) => breaker.record(&POLICY, Outcome::Success, now),
                ("-", _) => breaker.record(&POLICY, Outcome::Failure, now),
                ("?", _) => answers.push(breaker.admit(&POLICY, now)),
                (_, millis) => now = now.plus(millis.parse().expect("a number")),
            }
        }
        assert_eq!(answers, expected, "{script}");
    }

    const fn refuse(until: i64) -> Admission {
        Admission::Refuse {
            until: UnixMillis(until),
        }
    }

    #[test]
    fn it_opens_after_failures_in_a_row_only() {
        check("- - ? + - - ?", &[Admission::Pass, Admission::Pass]);
        check("- - - ?", &[refuse(100)]);
    }

    #[test]
    fn one_probe_passes_after_the_cool_down_and_its_success_closes() {
        check("- - - >100 ? ? + ?", &[Admission::Probe, refuse(200), Admission::Pass]);
    }

    #[test]
    fn a_failed_probe_doubles_the_cool_down_up_to_its_bound() {
        check(
            "- - - >100 ? - ? >200 ? - ?",
            &[Admission::Probe, refuse(300), Admission::Probe, refuse(650)],
        );
    }

    #[test]
    fn stragglers_that_fail_while_it_is_open_change_nothing() {
        check("- - - - - ? >100 ?", &[refuse(100), Admission::Probe]);
    }

    #[test]
    fn a_lost_probe_is_forgotten() {
        check("- - - >100 ? >100 ?", &[Admission::Probe, Admission::Probe]);
    }

    #[test]
    fn after_closing_the_cool_down_starts_small_again() {
        check(
            "- - - >100 ? - >200 ? + - - - ?",
            &[Admission::Probe, Admission::Probe, refuse(400)],
        );
    }

    #[test]
    fn it_survives_a_round_trip() {
        let mut breaker = Breaker::default();
        (0..5).for_each(|_| breaker.record(&POLICY, Outcome::Failure, UnixMillis(7)));
        let text = serde_json::to_string(&breaker).expect("it serialises");
        assert_eq!(serde_json::from_str::<Breaker>(&text).expect("it reads back"), breaker);
    }
}
