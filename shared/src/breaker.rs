//! A hook's circuit breaker as a value, shared by all replicas in the KV bucket `breakers`. *Pure.*
//!
//! Closed, everything passes; after enough failures in a row, or where half of the last hour's operations failed, it opens
//! and refuses; after a cool-down exactly one probe
//! passes, which somebody claims: its success closes the breaker, its failure opens it again for as long. A claim whose
//! outcome never comes (its process died) expires, and another may claim. Outcomes of operations that were admitted
//! before the breaker opened change nothing while it is open.
//!
//! Every change is a new value, to be stored by compare-and-set; `None` means that nothing is to be written. A claim
//! names its holder, so that equal bytes in the bucket mean the same writer.
//!
//! Source: seed 003 §8.5; `docs/design/hooks.md` §7.1.

use serde::{Deserialize, Serialize};

use crate::model::time::UnixMillis;
use crate::wire::subject::token;

/// What the names of breakers of hooks inside turns begin with; those of hooks upon events have no prefix.
pub const TURN_PREFIX: &str = "turn:";

/// The key in KV `breakers` of the breaker that people name `hook_id`.
#[must_use]
pub fn key_of(hook_id: &str) -> String {
    match hook_id.strip_prefix(TURN_PREFIX) {
        Some(hook) => format!("turn.{}", token(hook)),
        None => token(hook_id),
    }
}

/// When a breaker opens, and for how long. By default five failures and five minutes, as the seed says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerPolicy {
    /// Failures in a row that open it; at least 1.
    pub failures_to_open: u32,
    /// How long it stays open before a probe, in milliseconds.
    pub cool_down_ms: u64,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures_to_open: 5,
            cool_down_ms: 300_000,
        }
    }
}

/// Where a breaker stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Circuit {
    /// Everything passes.
    #[default]
    Closed,
    /// Nothing passes before `until`.
    Open {
        /// When a probe may be claimed.
        until: UnixMillis,
    },
    /// One probe is under way.
    HalfOpen {
        /// Who claimed it.
        by: String,
        /// When another may claim it.
        until: UnixMillis,
    },
}

/// What a breaker says to one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Go ahead.
    Pass,
    /// Nobody holds the probe: claim it first.
    Claim,
    /// The probe is yours already.
    Probe,
    /// Do not try before this instant.
    Refuse {
        /// When a probe may be claimed at the earliest.
        until: UnixMillis,
    },
}

/// How long operations are counted together, in milliseconds.
const COUNTED_MS: u64 = 3_600_000;

/// Fewer operations say nothing about how many fail.
const FEWEST: u32 = 20;

/// How many operations failed, from a failure on and for an hour. Those before it are not known: whoever never fails is
/// not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    /// The failure with which the hour began.
    pub since: UnixMillis,
    /// Operations of the hour, as far as they were told: with the next failure at the latest.
    pub operations: u32,
    /// How many of them failed.
    pub failed: u32,
}

impl Recent {
    const fn is_over(&self, now: UnixMillis) -> bool {
        now.0.saturating_sub(self.since.0) >= COUNTED_MS.cast_signed()
    }

    /// Whether one of `parts` operations failed, or more.
    const fn fails_one_of(&self, parts: u32) -> bool {
        self.operations >= FEWEST && self.failed.saturating_mul(parts) >= self.operations
    }
}

/// The breaker of one hook: a value of KV `breakers`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Breaker {
    /// Which hook; its key may be shortened.
    pub hook_id: String,
    /// The source that failed, by its SHA-256: a changed source begins anew.
    pub content_hash: String,
    /// Failures since the last success.
    pub failures: u32,
    /// Where it stands.
    #[serde(default)]
    pub circuit: Circuit,
    /// The last failure that counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error_at: Option<UnixMillis>,
    /// How many operations failed of late, where anybody counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<Recent>,
}

impl Breaker {
    /// The breaker of a hook that never failed.
    #[must_use]
    pub fn of(hook_id: &str, content_hash: &str) -> Self {
        Self {
            hook_id: hook_id.to_owned(),
            content_hash: content_hash.to_owned(),
            ..Self::default()
        }
    }

    /// Whether nothing of it matters: closed, and no failure since the last success.
    #[must_use]
    pub const fn is_at_rest(&self) -> bool {
        self.failures == 0 && self.is_closed()
    }

    /// Whether operations pass.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.circuit, Circuit::Closed)
    }

    /// Whether a quarter of what was tried in the last hour failed, though operations pass.
    #[must_use]
    pub fn is_degraded(&self, now: UnixMillis) -> bool {
        let recent = self.recent.filter(|recent| !recent.is_over(now));
        self.is_closed() && recent.is_some_and(|recent| recent.fails_one_of(4))
    }

    /// This breaker, told of `operations` at `now`, the last of which failed.
    #[must_use]
    pub fn counted(&self, operations: u32, now: UnixMillis) -> Self {
        let former = self.recent.filter(|recent| !recent.is_over(now));
        let recent = former.map_or(
            Recent {
                since: now,
                operations: 1,
                failed: 1,
            },
            |former| Recent {
                operations: former.operations.saturating_add(operations),
                failed: former.failed.saturating_add(1),
                ..former
            },
        );

        Self {
            recent: Some(recent),
            ..self.clone()
        }
    }

    /// This breaker without the hour that is over at `now`; `None` where none is.
    #[must_use]
    pub fn recovered(&self, now: UnixMillis) -> Option<Self> {
        let is_over = self.recent.is_some_and(|recent| recent.is_over(now));
        is_over.then(|| Self {
            recent: None,
            ..self.clone()
        })
    }

    /// Whether `me` may run an operation at `now`.
    #[must_use]
    pub fn admit(&self, me: &str, now: UnixMillis) -> Admission {
        match &self.circuit {
            Circuit::Closed => Admission::Pass,
            // Whose claim has run out may have lost its probe, with the turn or the process that made it.
            Circuit::HalfOpen { by, until } if by == me && now < *until => Admission::Probe,
            Circuit::Open { until } | Circuit::HalfOpen { until, .. } if now < *until => {
                Admission::Refuse { until: *until }
            }
            Circuit::Open { .. } | Circuit::HalfOpen { .. } => Admission::Claim,
        }
    }

    /// The breaker once `me` holds the probe until `now` plus `claim_ms`; `None` where it is not to be had.
    #[must_use]
    pub fn claimed(&self, me: &str, claim_ms: u64, now: UnixMillis) -> Option<Self> {
        (self.admit(me, now) == Admission::Claim).then(|| Self {
            circuit: Circuit::HalfOpen {
                by: me.to_owned(),
                until: later(now, claim_ms),
            },
            ..self.clone()
        })
    }

    /// The breaker once an operation of `me` failed at `now`; `None` where that changes nothing.
    #[must_use]
    pub fn failed(&self, policy: &BreakerPolicy, me: &str, now: UnixMillis) -> Option<Self> {
        let failures = self.failures.saturating_add(1);
        let opens = match &self.circuit {
            Circuit::Closed => {
                let is_half = self.recent.is_some_and(|recent| recent.fails_one_of(2));
                is_half || failures >= policy.failures_to_open.max(1)
            }
            Circuit::HalfOpen { by, .. } if by == me => true,
            Circuit::Open { .. } | Circuit::HalfOpen { .. } => return None,
        };

        let circuit = if opens {
            Circuit::Open {
                until: later(now, policy.cool_down_ms),
            }
        } else {
            Circuit::Closed
        };

        Some(Self {
            failures,
            circuit,
            last_error_at: Some(now),
            ..self.clone()
        })
    }

    /// The breaker once an operation of `me` succeeded; `None` where that changes nothing.
    #[must_use]
    pub fn succeeded(&self, me: &str) -> Option<Self> {
        let counts = match &self.circuit {
            Circuit::Closed => self.failures > 0,
            Circuit::HalfOpen { by, .. } => by == me,
            Circuit::Open { .. } => false,
        };

        counts.then(|| Self {
            // A probe that succeeds is a new beginning.
            recent: self.recent.filter(|_| self.is_closed()),
            ..self.reset()
        })
    }

    /// This breaker where it is at rest: to be written in the place of one of another source.
    #[must_use]
    pub fn at_rest(&self) -> Option<Self> {
        self.is_at_rest().then(|| self.clone())
    }

    /// The breaker closed, its failures forgotten.
    #[must_use]
    pub fn reset(&self) -> Self {
        Self {
            failures: 0,
            circuit: Circuit::Closed,
            recent: None,
            ..self.clone()
        }
    }
}

fn later(now: UnixMillis, millis: u64) -> UnixMillis {
    now.plus(i64::try_from(millis).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BreakerPolicy = BreakerPolicy {
        failures_to_open: 3,
        cool_down_ms: 100,
    };
    const CLAIM_MS: u64 = 20;

    /// Runs a script of steps by two parties `a` and `b`: `a+` success, `a-` failure, `a?` admission with the claim
    /// taken where it is to be had, `>n` time moves on by n ms. Answers what the admissions were.
    fn check(script: &str, expected: &[Admission]) {
        let (mut breaker, mut now, mut answers) = (Breaker::of("h", "1"), UnixMillis(0), Vec::new());
        for step in script.split(' ') {
            let (party, act) = step.split_at(1);
            let next = match act {
                "+" => breaker.succeeded(party),
                "-" => breaker.failed(&POLICY, party, now),
                "?" => {
                    answers.push(breaker.admit(party, now));
                    breaker.claimed(party, CLAIM_MS, now)
                }
                millis => {
                    now = now.plus(millis.parse().expect("a number"));
                    None
                }
            };

            breaker = next.unwrap_or(breaker);
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
        check("a- b- a? a+ a- b- b?", &[Admission::Pass, Admission::Pass]);
        check("a- b- a- b?", &[refuse(100)]);
    }

    #[test]
    fn one_probe_passes_after_the_cool_down_and_its_success_closes() {
        check(
            "a- a- a- >100 a? b? a? a+ b?",
            &[Admission::Claim, refuse(120), Admission::Probe, Admission::Pass],
        );
    }

    #[test]
    fn a_failed_probe_opens_it_for_as_long_again() {
        check(
            "a- a- a- >100 b? >5 b- a? >100 a?",
            &[Admission::Claim, refuse(205), Admission::Claim],
        );
    }

    #[test]
    fn stragglers_change_nothing_while_it_is_open() {
        check("a- a- a- a- b+ b?", &[refuse(100)]);
        check("a- a- a- >100 a? b- b+ b?", &[Admission::Claim, refuse(120)]);
    }

    #[test]
    fn a_lost_probe_expires_and_its_late_outcome_is_nothing() {
        check(
            "a- a- a- >100 a? >20 b? a- a+ a? b+ a?",
            &[Admission::Claim, Admission::Claim, refuse(140), Admission::Pass],
        );
    }

    #[test]
    fn whose_own_probe_was_lost_probes_again() {
        check(
            "a- a- a- >100 a? a? >20 a? a? a+ a?",
            &[
                Admission::Claim,
                Admission::Probe,
                Admission::Claim,
                Admission::Probe,
                Admission::Pass,
            ],
        );
    }

    /// A hook upon which so many events come, of which every `nth` fails; what it is after them, one a second.
    fn after(events: i64, nth: i64) -> Breaker {
        let mut breaker = Breaker::of("h", "1");
        let mut untold = 0;
        for number in 1..=events {
            let now = UnixMillis(number * 1_000);
            untold += 1;

            if number % nth == 0 {
                breaker = breaker
                    .counted(untold, now)
                    .failed(&POLICY, "a", now)
                    .unwrap_or(breaker);
                untold = 0;
            } else {
                breaker = breaker.succeeded("a").unwrap_or(breaker);
            }
        }

        breaker
    }

    #[test]
    fn who_fails_half_of_the_time_is_paused_and_who_fails_a_quarter_is_degraded() {
        assert!(!after(60, 2).is_closed());
        assert!(after(15, 2).is_closed(), "too few to tell");

        let (fourth, now) = (after(60, 4), UnixMillis(60_000));
        assert!(fourth.is_closed() && fourth.is_degraded(now));
        assert!(!after(60, 10).is_degraded(now));

        let later = UnixMillis(60_000 + COUNTED_MS.cast_signed());
        assert!(!fourth.is_degraded(later));
        assert_eq!(fourth.recovered(now), None);
        assert_eq!(fourth.recovered(later).and_then(|breaker| breaker.recent), None);
        assert_eq!(fourth.counted(5, later).recent.map(|recent| recent.operations), Some(1));
    }

    #[test]
    fn whoever_is_probed_well_begins_anew() {
        let paused = after(60, 2);
        let at = UnixMillis(100_000);
        let probed = paused.claimed("a", CLAIM_MS, at).expect("it has cooled down");
        let closed = probed.succeeded("a").expect("it counts");
        assert_eq!((closed.is_closed(), closed.recent), (true, None));
    }

    #[test]
    fn a_success_at_rest_writes_nothing() {
        assert_eq!(Breaker::of("h", "1").succeeded("a"), None);
    }
}
