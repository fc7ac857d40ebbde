//! The verdict on a call's outcome: done, retry after a wait, or give up. *Pure.*
//!
//! A platform's own wait is followed exactly: it is never shorter than the platform asks for, and has no jitter. A
//! platform that limits calls and names a wait works, so such a call is no failed attempt, up to a bound. Without such
//! a wait the caller's schedule decides. Permanent refusals give up at once, but a refused token does not: the account
//! is at fault, and its deliveries wait. Source: `docs/design/channels.md` §3; `docs/adr/0026-outcomes-of-calls.md`.

mod call_outcome;

use std::time::Duration;

pub use self::call_outcome::{CallOutcome, LimitScope, PartSearch, Refusal, Repetition, RequestSent};

/// Maximum wait that a platform may ask for; the delivery is given up if it asks for more.
pub const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);

/// Number of calls of a delivery that do not count because the platform asked for a wait; from then on each counts.
/// Each writes two receipts.
pub const MAX_LIMITED: u32 = 1_000;

/// The next step after a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptVerdict {
    /// The platform has the part.
    Done {
        /// Platform's ids of the sent messages.
        platform_ids: Vec<String>,
        /// Whether an open page was connected.
        live: Option<bool>,
    },
    /// Make another attempt after a wait.
    Retry {
        /// Minimum wait before the next attempt.
        after: Duration,
        /// Reason for the retry, for people.
        reason: String,
        /// Whether the platform may have the part, so that the next attempt may be its repetition.
        is_doubtful: bool,
    },
    /// Make another attempt after the wait that the platform asks for. This one does not count.
    Limited {
        /// Minimum wait before it.
        after: Duration,
        /// Reason for the wait, for people.
        reason: String,
    },
    /// Give the delivery up; it becomes a dead letter.
    GiveUp {
        /// Reason for giving up, for people.
        reason: String,
    },
}

/// The situation of a call.
#[derive(Debug, Clone, Copy)]
pub struct CallSituation {
    /// The schedule's wait for this attempt; `None` if it was the last one.
    pub scheduled: Option<Duration>,
    /// Number of earlier attempts that did not count.
    pub uncounted: u32,
    /// Effect of a repeated call on the channel.
    pub repetition: Repetition,
    /// Whether the platform can be searched for the part before a repetition.
    pub finds_parts: bool,
    /// Time since the delivery could be called first.
    pub age: Duration,
    /// Wait after a refused token.
    pub reauth_wait: Duration,
}

/// Returns the verdict on `call`.
#[must_use]
pub fn judge_call(call: CallOutcome, situation: CallSituation) -> AttemptVerdict {
    let scheduled = situation.scheduled;
    match call {
        CallOutcome::Accepted { platform_ids, live } => AttemptVerdict::Done { platform_ids, live },
        // The account's gate holds back what else the limit is for.
        CallOutcome::Limited {
            after,
            reason,
            scope: _,
        } => limited_verdict(reason, after, situation),
        CallOutcome::Refused { refusal, reason } => match refusal {
            Refusal::Permanent => AttemptVerdict::GiveUp { reason },
            Refusal::Passing { after: Some(asked) } => asked_verdict(reason, asked, scheduled),
            Refusal::Passing { after: None } => retry_verdict(reason, scheduled, false),
        },
        // Not bounded: the fault is not the delivery's, and ends when the operator renews the token.
        CallOutcome::Reauth { reason } => AttemptVerdict::Limited {
            after: situation.reauth_wait,
            reason: format!("the account's credentials are refused: {reason}"),
        },
        CallOutcome::WindowClosed { reason } => AttemptVerdict::GiveUp {
            reason: format!("the peer must write first: {reason}"),
        },
        CallOutcome::TooLarge { reason } => AttemptVerdict::GiveUp {
            reason: format!("too large for the platform: {reason}"),
        },
        // Its plain text was refused too, or it had none.
        CallOutcome::Unformattable { reason } => AttemptVerdict::GiveUp { reason },
        CallOutcome::Unreachable { sent, reason } => unreachable_verdict(reason, sent, situation),
        // Nothing was sent, so the next owner of the partition repeats the attempt.
        CallOutcome::Withheld => retry_verdict("the partition was lost before the call".to_owned(), scheduled, false),
    }
}

/// Returns the verdict on a call without an answer.
fn unreachable_verdict(reason: String, sent: RequestSent, situation: CallSituation) -> AttemptVerdict {
    let CallSituation {
        scheduled, repetition, ..
    } = situation;
    // The repetition comes after the scheduled wait.
    let effect = repetition.at_age(situation.age.saturating_add(scheduled.unwrap_or_default()));
    match (sent, effect) {
        (RequestSent::No, _) => retry_verdict(reason, scheduled, false),
        // The next attempt looks for the part first.
        (RequestSent::Maybe, Repetition::AtMostOnce) if situation.finds_parts => {
            retry_verdict(reason, scheduled, repetition.keeps_doubts())
        }
        (RequestSent::Maybe, Repetition::AtMostOnce) => AttemptVerdict::GiveUp {
            reason: format!("{reason} (it may have been sent, and is sent at most once)"),
        },
        (RequestSent::Maybe, Repetition::Recognised | Repetition::AtLeastOnce | Repetition::RecognisedFor { .. }) => {
            retry_verdict(reason, scheduled, repetition.keeps_doubts())
        }
    }
}

fn retry_verdict(reason: String, scheduled: Option<Duration>, is_doubtful: bool) -> AttemptVerdict {
    match scheduled {
        Some(after) => AttemptVerdict::Retry {
            after,
            reason,
            is_doubtful,
        },
        None => AttemptVerdict::GiveUp {
            reason: format!("{reason} (last attempt)"),
        },
    }
}

/// Returns the verdict on a failed call, after which the platform asks for the wait `asked`.
fn asked_verdict(reason: String, asked: Duration, scheduled: Option<Duration>) -> AttemptVerdict {
    match excess_verdict(&reason, asked) {
        Some(excess) => excess,
        // The schedule says whether another attempt follows, and the platform after how long.
        None => retry_verdict(reason, scheduled.map(|_| asked), false),
    }
}

/// Returns the verdict on a call to a platform that limits calls and asks for the wait `asked`.
fn limited_verdict(reason: String, asked: Duration, situation: CallSituation) -> AttemptVerdict {
    match excess_verdict(&reason, asked) {
        Some(excess) => excess,
        None if situation.uncounted < MAX_LIMITED => AttemptVerdict::Limited { after: asked, reason },
        None => asked_verdict(reason, asked, situation.scheduled),
    }
}

/// Returns the verdict on a wait that is longer than any that is waited for.
fn excess_verdict(reason: &str, asked: Duration) -> Option<AttemptVerdict> {
    let (seconds, most) = (asked.as_secs(), MAX_RETRY_AFTER.as_secs());
    (asked > MAX_RETRY_AFTER).then(|| AttemptVerdict::GiveUp {
        reason: format!("{reason} (asks to wait {seconds} s, at most {most} s)"),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shared::platform::policy::DoubtPolicy;

    use super::*;

    const SCHEDULED: Duration = Duration::from_secs(5);

    const SITUATION: CallSituation = CallSituation {
        scheduled: Some(SCHEDULED),
        uncounted: 0,
        repetition: Repetition::Recognised,
        finds_parts: false,
        age: Duration::ZERO,
        reauth_wait: Duration::from_mins(1),
    };

    fn limited(seconds: u64) -> CallOutcome {
        CallOutcome::Limited {
            after: Duration::from_secs(seconds),
            scope: LimitScope::Destination,
            reason: "status 429".to_owned(),
        }
    }

    fn refused(refusal: Refusal) -> CallOutcome {
        let reason = "no".to_owned();
        CallOutcome::Refused { refusal, reason }
    }

    fn unreachable(sent: RequestSent) -> CallOutcome {
        let reason = "reset".to_owned();
        CallOutcome::Unreachable { sent, reason }
    }

    #[track_caller]
    fn check(call: CallOutcome, situation: CallSituation, expected: &str) {
        let told = match judge_call(call, situation) {
            AttemptVerdict::Done { .. } => "done".to_owned(),
            AttemptVerdict::Retry {
                after,
                reason,
                is_doubtful,
            } => {
                let doubt = if is_doubtful { " (doubtful)" } else { "" };
                format!("retry {}: {reason}{doubt}", after.as_millis())
            }
            AttemptVerdict::Limited { after, reason } => format!("limited {}: {reason}", after.as_millis()),
            AttemptVerdict::GiveUp { reason } => format!("give up: {reason}"),
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn each_outcome_has_its_verdict() {
        let reason = || "no".to_owned();
        let accepted = CallOutcome::Accepted {
            platform_ids: Vec::new(),
            live: None,
        };
        let asked = Refusal::Passing {
            after: Some(Duration::from_secs(7)),
        };

        for (call, expected) in [
            (accepted, "done"),
            (limited(7), "limited 7000: status 429"),
            (refused(Refusal::Permanent), "give up: no"),
            (refused(asked), "retry 7000: no"),
            (refused(Refusal::Passing { after: None }), "retry 5000: no"),
            (
                CallOutcome::Reauth { reason: reason() },
                "limited 60000: the account's credentials are refused: no",
            ),
            (
                CallOutcome::WindowClosed { reason: reason() },
                "give up: the peer must write first: no",
            ),
            (
                CallOutcome::TooLarge { reason: reason() },
                "give up: too large for the platform: no",
            ),
            (CallOutcome::Unformattable { reason: reason() }, "give up: no"),
            (unreachable(RequestSent::No), "retry 5000: reset"),
            (unreachable(RequestSent::Maybe), "retry 5000: reset"),
            (
                CallOutcome::Withheld,
                "retry 5000: the partition was lost before the call",
            ),
        ] {
            check(call, SITUATION, expected);
        }
    }

    #[test]
    fn a_call_that_may_have_arrived_is_repeated_as_the_account_says() {
        for (repetition, sent, expected) in [
            (Repetition::AtLeastOnce, RequestSent::No, "retry 5000: reset"),
            (Repetition::AtMostOnce, RequestSent::No, "retry 5000: reset"),
            (
                Repetition::AtLeastOnce,
                RequestSent::Maybe,
                "retry 5000: reset (doubtful)",
            ),
            (
                Repetition::AtMostOnce,
                RequestSent::Maybe,
                "give up: reset (it may have been sent, and is sent at most once)",
            ),
        ] {
            let situation = CallSituation {
                repetition,
                ..SITUATION
            };
            check(unreachable(sent), situation, expected);
        }
    }

    #[test]
    fn a_repetition_that_is_recognised_for_a_while_is_a_doubt_that_ends_or_stays() {
        let lasts = Duration::from_mins(2);
        let aged = |then, seconds| CallSituation {
            repetition: Repetition::RecognisedFor { lasts, then },
            age: Duration::from_secs(seconds),
            ..SITUATION
        };
        let maybe = || unreachable(RequestSent::Maybe);
        let (least, most) = (DoubtPolicy::AtLeastOnce, DoubtPolicy::AtMostOnce);

        // The repetition follows five seconds later.
        let again = "retry 5000: reset (doubtful)";
        check(maybe(), aged(most, 114), again);
        check(
            maybe(),
            aged(most, 115),
            "give up: reset (it may have been sent, and is sent at most once)",
        );
        check(maybe(), aged(least, 114), again);
        check(maybe(), aged(least, 115), again);
        check(unreachable(RequestSent::No), aged(most, 1_000), "retry 5000: reset");

        let effect = |then, seconds| Repetition::RecognisedFor { lasts, then }.at_age(Duration::from_secs(seconds));
        assert_eq!(effect(least, 119), Repetition::Recognised);
        assert_eq!(
            (effect(least, 120), effect(most, 120)),
            (Repetition::AtLeastOnce, Repetition::AtMostOnce)
        );
    }

    #[test]
    fn a_wait_beyond_the_bound_gives_up() {
        let expected = "give up: status 429 (asks to wait 86401 s, at most 86400 s)";
        check(limited(86_401), SITUATION, expected);

        let after = Some(Duration::from_secs(86_401));
        let expected = "give up: no (asks to wait 86401 s, at most 86400 s)";
        check(refused(Refusal::Passing { after }), SITUATION, expected);
    }

    #[test]
    fn the_last_attempt_gives_up_unless_the_platform_asks_for_a_wait() {
        let last = CallSituation {
            scheduled: None,
            ..SITUATION
        };
        let passing = Refusal::Passing { after: None };
        check(refused(passing), last, "give up: no (last attempt)");
        check(unreachable(RequestSent::Maybe), last, "give up: reset (last attempt)");
        check(limited(1), last, "limited 1000: status 429");
    }

    #[test]
    fn only_a_limit_is_free_and_not_for_ever() {
        let often = CallSituation {
            uncounted: MAX_LIMITED,
            ..SITUATION
        };
        check(limited(7), often, "retry 7000: status 429");

        let reason = "401".to_owned();
        let waits = "limited 60000: the account's credentials are refused: 401";
        check(CallOutcome::Reauth { reason }, often, waits);
    }

    proptest! {
        #[test]
        fn what_is_asked_is_what_is_waited(seconds in 1_u64..=86_400, scheduled in 0_u64..10_000_000) {
            let situation = CallSituation { scheduled: Some(Duration::from_millis(scheduled)), ..SITUATION };
            let verdict = judge_call(limited(seconds), situation);
            prop_assert_eq!(
                verdict,
                AttemptVerdict::Limited { after: Duration::from_secs(seconds), reason: "status 429".to_owned() }
            );
        }
    }
}
