//! Circuit breakers of hooks, as values that all replicas share in the KV bucket `breakers`. *Pure.*
//!
//! A closed breaker admits every operation. It opens after enough failures in a row, or if half of the last hour's
//! operations failed, and then refuses all operations. After a cool-down, one caller may claim a probe: its success
//! closes the breaker, and its failure opens it again for the same time. A claim without an outcome (its process
//! died) expires, and another caller may claim the probe. Outcomes of operations that were admitted before the
//! breaker opened change nothing while it is open.
//!
//! Every change is a new value, which the caller stores by compare-and-set; `None` means that nothing has to be
//! written. A claim names its holder, so that equal bytes in the bucket mean the same writer.
//!
//! Source: seed 003 §8.5; `docs/design/hooks.md` §7.1.

use serde::{Deserialize, Serialize};

use crate::model::time::UnixMillis;
use crate::wire::subject::token;

/// Prefix of the names of breakers of in-turn hooks; breakers of event hooks have no prefix.
pub const TURN_PREFIX: &str = "turn:";

/// Returns the key in KV `breakers` of the breaker with the display name `hook_id`.
#[must_use]
pub fn key_of(hook_id: &str) -> String {
    match hook_id.strip_prefix(TURN_PREFIX) {
        Some(hook) => format!("turn.{}", token(hook)),
        None => token(hook_id),
    }
}

/// Time beyond the time-out of a hook for which its probe is held before another caller may claim it, in milliseconds.
const PROBE_GRACE_MS: u64 = 5_000;

/// Returns for how long the probe of a hook with the time-out `timeout_ms` is claimed, in milliseconds.
#[must_use]
pub const fn probe_claim_ms(timeout_ms: u64) -> u64 {
    timeout_ms.saturating_add(PROBE_GRACE_MS)
}

/// The conditions under which a breaker opens, and its cool-down. The defaults are the seed's five failures and five
/// minutes.
///
/// ```
/// use shared::breaker::{BreakerAdmission, Breaker, BreakerPolicy};
/// use shared::model::time::UnixMillis;
///
/// let policy = BreakerPolicy { failures_to_open: 2, cool_down_ms: 1_000 };
/// let mut breaker = Breaker::for_hook("notify", "hash");
/// for _ in 0..2 {
///     breaker = breaker.after_failure(&policy, "hook-svc-0", UnixMillis(5)).unwrap_or(breaker);
/// }
/// assert_eq!(breaker.admit_operation("hook-svc-0", UnixMillis(6)), BreakerAdmission::Refuse { until: UnixMillis(1_005) });
/// assert_eq!(breaker.admit_operation("hook-svc-0", UnixMillis(1_005)), BreakerAdmission::Claim);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerPolicy {
    /// Number of failures in a row that open it; at least 1.
    pub failures_to_open: u32,
    /// Cool-down before a probe, in milliseconds.
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

/// The state of a breaker's circuit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum BreakerState {
    /// Every operation is admitted.
    #[default]
    Closed,
    /// No operation is admitted before `until`.
    Open {
        /// Time from which a probe may be claimed.
        until: UnixMillis,
    },
    /// One probe is running.
    HalfOpen {
        /// Holder of the probe.
        by: String,
        /// Time from which another caller may claim the probe.
        until: UnixMillis,
    },
}

/// The decision of a breaker about one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerAdmission {
    /// The operation may run.
    Pass,
    /// No caller holds the probe: it must be claimed first.
    Claim,
    /// The caller already holds the probe.
    Probe,
    /// The operation is refused.
    Refuse {
        /// Earliest time at which a probe may be claimed.
        until: UnixMillis,
    },
}

/// Length of the period in which operations are counted, in milliseconds.
const COUNTED_MS: u64 = 3_600_000;

/// Minimum number of operations for which the rate of failures has a meaning.
const FEWEST: u32 = 20;

/// The operations and failures of the hour after a failure. Earlier operations are not known: a hook that never fails
/// is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentOperations {
    /// Time of the failure that started the hour.
    pub since: UnixMillis,
    /// Number of reported operations in the hour. They are reported with the next failure at the latest.
    pub operations: u32,
    /// Number of failed operations.
    pub failed: u32,
}

impl RecentOperations {
    const fn is_over(&self, now: UnixMillis) -> bool {
        now.0.saturating_sub(self.since.0) >= COUNTED_MS.cast_signed()
    }

    /// Returns whether at least one of `parts` operations failed.
    const fn fails_one_of(&self, parts: u32) -> bool {
        self.operations >= FEWEST && self.failed.saturating_mul(parts) >= self.operations
    }
}

/// The breaker of one hook: a value of KV `breakers`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Breaker {
    /// Id of the hook; the key may be a shortened form.
    pub hook_id: String,
    /// SHA-256 of the source that failed. A changed source starts with a new breaker.
    pub content_hash: String,
    /// Number of failures since the last success.
    pub failures: u32,
    /// State of the circuit.
    #[serde(default)]
    pub circuit: BreakerState,
    /// Time of the last failure that counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error_at: Option<UnixMillis>,
    /// Operations and failures of the current hour, if they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recent: Option<RecentOperations>,
}

impl Breaker {
    /// Returns the breaker of a hook that never failed.
    #[must_use]
    pub fn for_hook(hook_id: &str, content_hash: &str) -> Self {
        Self {
            hook_id: hook_id.to_owned(),
            content_hash: content_hash.to_owned(),
            ..Self::default()
        }
    }

    /// Returns whether the breaker is closed without a failure since the last success.
    #[must_use]
    pub const fn is_at_rest(&self) -> bool {
        self.failures == 0 && self.is_closed()
    }

    /// Returns whether operations are admitted.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.circuit, BreakerState::Closed)
    }

    /// Returns whether operations are admitted although a quarter of those in the last hour failed.
    #[must_use]
    pub fn is_degraded(&self, now: UnixMillis) -> bool {
        let recent = self.recent.filter(|recent| !recent.is_over(now));
        self.is_closed() && recent.is_some_and(|recent| recent.fails_one_of(4))
    }

    /// Returns this breaker with `operations` more at `now`, of which the last one failed.
    #[must_use]
    pub fn with_operations(&self, operations: u32, now: UnixMillis) -> Self {
        let former = self.recent.filter(|recent| !recent.is_over(now));
        // A new hour starts with this failure alone, because earlier operations were not counted.
        let recent = former.map_or(
            RecentOperations {
                since: now,
                operations: 1,
                failed: 1,
            },
            |former| RecentOperations {
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

    /// Returns this breaker without an hour that is over at `now`; `None` if there is none.
    #[must_use]
    pub fn without_past_hour(&self, now: UnixMillis) -> Option<Self> {
        let is_over = self.recent.is_some_and(|recent| recent.is_over(now));
        is_over.then(|| Self {
            recent: None,
            ..self.clone()
        })
    }

    /// Decides whether `me` may run an operation at `now`.
    #[must_use]
    pub fn admit_operation(&self, me: &str, now: UnixMillis) -> BreakerAdmission {
        match &self.circuit {
            BreakerState::Closed => BreakerAdmission::Pass,
            // The holder of an expired claim may have lost its probe, with the turn or process that made it.
            BreakerState::HalfOpen { by, until } if by == me && now < *until => BreakerAdmission::Probe,
            BreakerState::Open { until } | BreakerState::HalfOpen { until, .. } if now < *until => {
                BreakerAdmission::Refuse { until: *until }
            }
            BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => BreakerAdmission::Claim,
        }
    }

    /// Returns the breaker with the probe claimed by `me` until `now` plus `claim_ms`; `None` if it cannot be
    /// claimed.
    #[must_use]
    pub fn claim_probe(&self, me: &str, claim_ms: u64, now: UnixMillis) -> Option<Self> {
        (self.admit_operation(me, now) == BreakerAdmission::Claim).then(|| Self {
            circuit: BreakerState::HalfOpen {
                by: me.to_owned(),
                until: plus_millis(now, claim_ms),
            },
            ..self.clone()
        })
    }

    /// Returns the breaker after a failed operation of `me` at `now`; `None` if this changes nothing.
    #[must_use]
    pub fn after_failure(&self, policy: &BreakerPolicy, me: &str, now: UnixMillis) -> Option<Self> {
        let failures = self.failures.saturating_add(1);
        let opens = match &self.circuit {
            BreakerState::Closed => {
                let is_half = self.recent.is_some_and(|recent| recent.fails_one_of(2));
                is_half || failures >= policy.failures_to_open.max(1)
            }
            BreakerState::HalfOpen { by, .. } if by == me => true,
            // The operation was admitted before the breaker opened.
            BreakerState::Open { .. } | BreakerState::HalfOpen { .. } => return None,
        };

        let circuit = if opens {
            BreakerState::Open {
                until: plus_millis(now, policy.cool_down_ms),
            }
        } else {
            BreakerState::Closed
        };

        Some(Self {
            failures,
            circuit,
            last_error_at: Some(now),
            ..self.clone()
        })
    }

    /// Returns the breaker after a successful operation of `me`; `None` if this changes nothing.
    #[must_use]
    pub fn after_success(&self, me: &str) -> Option<Self> {
        let counts = match &self.circuit {
            BreakerState::Closed => self.failures > 0,
            BreakerState::HalfOpen { by, .. } => by == me,
            BreakerState::Open { .. } => false,
        };

        counts.then(|| Self {
            // A successful probe starts a new count.
            recent: self.recent.filter(|_| self.is_closed()),
            ..self.reset()
        })
    }

    /// Returns this breaker if it is at rest, to replace one of another source.
    #[must_use]
    pub fn at_rest(&self) -> Option<Self> {
        self.is_at_rest().then(|| self.clone())
    }

    /// Returns the closed breaker without its failures.
    #[must_use]
    pub fn reset(&self) -> Self {
        Self {
            failures: 0,
            circuit: BreakerState::Closed,
            recent: None,
            ..self.clone()
        }
    }
}

fn plus_millis(now: UnixMillis, millis: u64) -> UnixMillis {
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
    /// taken if it can be had, `>n` time moves on by n ms. Returns the admissions.
    fn check(script: &str, expected: &[BreakerAdmission]) {
        let (mut breaker, mut now, mut answers) = (Breaker::for_hook("h", "1"), UnixMillis(0), Vec::new());
        for step in script.split(' ') {
            let (party, act) = step.split_at(1);
            let next = match act {
                "+" => breaker.after_success(party),
                "-" => breaker.after_failure(&POLICY, party, now),
                "?" => {
                    answers.push(breaker.admit_operation(party, now));
                    breaker.claim_probe(party, CLAIM_MS, now)
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

    const fn refuse(until: i64) -> BreakerAdmission {
        BreakerAdmission::Refuse {
            until: UnixMillis(until),
        }
    }

    #[test]
    fn it_opens_after_failures_in_a_row_only() {
        check(
            "a- b- a? a+ a- b- b?",
            &[BreakerAdmission::Pass, BreakerAdmission::Pass],
        );
        check("a- b- a- b?", &[refuse(100)]);
    }

    #[test]
    fn one_probe_passes_after_the_cool_down_and_its_success_closes() {
        check(
            "a- a- a- >100 a? b? a? a+ b?",
            &[
                BreakerAdmission::Claim,
                refuse(120),
                BreakerAdmission::Probe,
                BreakerAdmission::Pass,
            ],
        );
    }

    #[test]
    fn a_failed_probe_opens_it_for_as_long_again() {
        check(
            "a- a- a- >100 b? >5 b- a? >100 a?",
            &[BreakerAdmission::Claim, refuse(205), BreakerAdmission::Claim],
        );
    }

    #[test]
    fn stragglers_change_nothing_while_it_is_open() {
        check("a- a- a- a- b+ b?", &[refuse(100)]);
        check("a- a- a- >100 a? b- b+ b?", &[BreakerAdmission::Claim, refuse(120)]);
    }

    #[test]
    fn a_lost_probe_expires_and_its_late_outcome_is_nothing() {
        check(
            "a- a- a- >100 a? >20 b? a- a+ a? b+ a?",
            &[
                BreakerAdmission::Claim,
                BreakerAdmission::Claim,
                refuse(140),
                BreakerAdmission::Pass,
            ],
        );
    }

    #[test]
    fn whose_own_probe_was_lost_probes_again() {
        check(
            "a- a- a- >100 a? a? >20 a? a? a+ a?",
            &[
                BreakerAdmission::Claim,
                BreakerAdmission::Probe,
                BreakerAdmission::Claim,
                BreakerAdmission::Probe,
                BreakerAdmission::Pass,
            ],
        );
    }

    /// Returns the breaker of a hook after this many events, one per second, of which every `nth` fails.
    fn after(events: i64, nth: i64) -> Breaker {
        let mut breaker = Breaker::for_hook("h", "1");
        let mut untold = 0;
        for number in 1..=events {
            let now = UnixMillis(number * 1_000);
            untold += 1;

            if number % nth == 0 {
                breaker = breaker
                    .with_operations(untold, now)
                    .after_failure(&POLICY, "a", now)
                    .unwrap_or(breaker);
                untold = 0;
            } else {
                breaker = breaker.after_success("a").unwrap_or(breaker);
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
        assert_eq!(fourth.without_past_hour(now), None);
        assert_eq!(fourth.without_past_hour(later).and_then(|breaker| breaker.recent), None);
        assert_eq!(
            fourth.with_operations(5, later).recent.map(|recent| recent.operations),
            Some(1)
        );
    }

    #[test]
    fn whoever_is_probed_well_begins_anew() {
        let paused = after(60, 2);
        let at = UnixMillis(100_000);
        let probed = paused.claim_probe("a", CLAIM_MS, at).expect("it has cooled down");
        let closed = probed.after_success("a").expect("it counts");
        assert_eq!((closed.is_closed(), closed.recent), (true, None));
    }

    #[test]
    fn a_success_at_rest_writes_nothing() {
        assert_eq!(Breaker::for_hook("h", "1").after_success("a"), None);
    }
}
