//! When an account may call its platform: not while the platform limits it or refuses its token, and not faster than the
//! platform allows. *Pure.*
//!
//! A platform limits accounts, not deliveries: a call that one destination makes too early is refused to all. Each
//! account has a rate for all its calls and one for each chat. Slots are given out in advance, so that many waiting
//! destinations do not compete for each of them. A refused token stops the account; single calls then probe at a bounded
//! pace whether it is accepted again, and every other delivery waits without a call.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::attempt::{CallOutcome, LimitScope, MAX_RETRY_AFTER};

/// Maximum number of chats whose rates are remembered before those at rest are dropped.
const MAX_CHATS: usize = 10_000;

/// Maximum wait for a slot that is given out in advance. A delivery that would wait longer is put aside.
pub const MAX_RESERVED: Duration = Duration::from_secs(1);

/// A rate of calls: a burst at once, and one more after each interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallRate {
    /// Number of calls at once, at least 1.
    pub burst: u32,
    /// Time after which another call is allowed.
    pub interval: Duration,
}

/// The rates at which an account may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendPace {
    /// Rate of all calls of the account.
    pub account: CallRate,
    /// Rate of the calls for one chat.
    pub chat: CallRate,
}

/// The rates of the calls for one chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatPace<'a> {
    /// Name of the chat, as far as the platform counts calls for it alone.
    pub chat: &'a str,
    /// Rates of the account and the chat.
    pub pace: SendPace,
}

/// Whether a call may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallAdmission {
    /// The call has a slot, after this wait.
    After(Duration),
    /// The call has none. It may ask again after this wait.
    NotBefore(Duration),
}

/// The calls of one rate: the time at which the next one would be due at an even pace.
#[derive(Debug, Clone, Copy)]
struct RateState {
    due: Instant,
}

impl RateState {
    /// Returns the wait until the next call at `rate`.
    fn wait(state: Option<Self>, rate: CallRate, now: Instant) -> Duration {
        let ahead = state.map_or(Duration::ZERO, |state| state.due.saturating_duration_since(now));
        let allowed = rate.interval.saturating_mul(rate.burst.saturating_sub(1));
        ahead.saturating_sub(allowed)
    }

    /// Returns the state after one more call at `rate`.
    fn with_call(state: Option<Self>, rate: CallRate, now: Instant) -> Self {
        let due = state.map_or(now, |state| state.due.max(now));
        Self {
            due: due + rate.interval,
        }
    }
}

/// The gate of one account.
#[derive(Debug, Clone, Default)]
pub struct AccountGate {
    /// Time until which the platform limits the account.
    limited_until: Option<Instant>,
    /// If the token is refused: the time from which one call may probe it.
    probe_from: Option<Instant>,
    account: Option<RateState>,
    chats: HashMap<String, RateState>,
}

impl AccountGate {
    /// Asks for a call to `chat` at `pace`. A probe of a refused token is allowed once per `probe_every`.
    pub fn admit(&mut self, chat: &str, pace: Option<SendPace>, probe_every: Duration, now: Instant) -> CallAdmission {
        if let Some(wait) = self.limit_left(now) {
            return CallAdmission::NotBefore(wait);
        }

        if let Some(from) = self.probe_from {
            let wait = from.saturating_duration_since(now);
            if !wait.is_zero() {
                return CallAdmission::NotBefore(wait);
            }
        }

        let admission = self.admit_at_pace(chat, pace, now);
        // A probe is spent only by a call.
        if let (Some(_), CallAdmission::After(_)) = (self.probe_from, admission) {
            self.probe_from = Some(now + probe_every);
        }
        admission
    }

    /// Asks for a call to `chat` at `pace` that is made now or not at all. Takes no slot otherwise.
    pub fn admit_spare(&mut self, chat: &str, pace: Option<SendPace>, now: Instant) -> bool {
        if self.limit_left(now).is_some() || self.is_stopped() {
            return false;
        }
        let is_free = pace.is_none_or(|pace| {
            let of_chat = self.chats.get(chat).copied();
            RateState::wait(self.account, pace.account, now).is_zero()
                && RateState::wait(of_chat, pace.chat, now).is_zero()
        });
        is_free && self.admit_at_pace(chat, pace, now) == CallAdmission::After(Duration::ZERO)
    }

    /// Asks for a slot for a call to `chat` at `pace`.
    fn admit_at_pace(&mut self, chat: &str, pace: Option<SendPace>, now: Instant) -> CallAdmission {
        let Some(pace) = pace else {
            return CallAdmission::After(Duration::ZERO);
        };
        let of_chat = self.chats.get(chat).copied();
        let wait = RateState::wait(self.account, pace.account, now).max(RateState::wait(of_chat, pace.chat, now));
        if wait > MAX_RESERVED {
            return CallAdmission::NotBefore(wait);
        }

        // The slots are this call's, also if it comes to nothing.
        self.account = Some(RateState::with_call(self.account, pace.account, now));
        let state = RateState::with_call(of_chat, pace.chat, now);
        self.chats.insert(chat.to_owned(), state);
        if self.chats.len() > MAX_CHATS {
            self.chats.retain(|_, state| state.due > now);
        }

        CallAdmission::After(wait)
    }

    /// Returns the time for which the platform still limits the account.
    #[must_use]
    pub fn limit_left(&self, now: Instant) -> Option<Duration> {
        let left = self.limited_until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Returns whether the token is refused.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        self.probe_from.is_some()
    }

    /// Stops the account, because another replica's call was refused.
    pub fn stop(&mut self, probe_every: Duration, now: Instant) {
        self.probe_from.get_or_insert(now + probe_every);
    }

    /// Ends the stop, because another replica's call was accepted.
    pub fn resume(&mut self) {
        self.probe_from = None;
    }

    /// Notes the outcome of a call that ended at `now`.
    pub fn note_outcome(&mut self, outcome: &CallOutcome, probe_every: Duration, now: Instant) {
        match outcome {
            CallOutcome::Reauth { .. } => self.probe_from = Some(now + probe_every),
            CallOutcome::Limited {
                after,
                scope: LimitScope::Account,
                ..
            } => {
                // A wait beyond the longest one gives up its own delivery; the others ask again.
                let until = now + (*after).min(MAX_RETRY_AFTER);
                self.limited_until = Some(self.limited_until.map_or(until, |before| before.max(until)));
                self.probe_from = None;
            }
            // The platform looked at the part, so it accepted the token.
            CallOutcome::Accepted { .. }
            | CallOutcome::Limited {
                scope: LimitScope::Destination,
                ..
            }
            | CallOutcome::WindowClosed { .. }
            | CallOutcome::TooLarge { .. }
            | CallOutcome::Unformattable { .. } => self.probe_from = None,
            CallOutcome::Refused { .. } | CallOutcome::Unreachable { .. } | CallOutcome::Withheld => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    const PROBE: Duration = Duration::from_mins(1);
    const SECOND: Duration = Duration::from_secs(1);

    const PACE: SendPace = SendPace {
        account: CallRate {
            burst: 30,
            interval: Duration::from_millis(33),
        },
        chat: CallRate {
            burst: 2,
            interval: SECOND,
        },
    };

    fn limited(seconds: u64, scope: LimitScope) -> CallOutcome {
        CallOutcome::Limited {
            after: Duration::from_secs(seconds),
            scope,
            reason: String::new(),
        }
    }

    fn reauth() -> CallOutcome {
        CallOutcome::Reauth { reason: String::new() }
    }

    fn accepted() -> CallOutcome {
        CallOutcome::Accepted {
            platform_ids: Vec::new(),
            live: None,
        }
    }

    #[test]
    fn a_chat_has_a_burst_and_then_one_call_an_interval() {
        let (mut gate, now) = (AccountGate::default(), SystemClock.monotonic());
        let mut ask = |chat: &str, after: Duration| gate.admit(chat, Some(PACE), PROBE, now + after);
        let at_once = CallAdmission::After(Duration::ZERO);

        assert_eq!([ask("a", Duration::ZERO), ask("a", Duration::ZERO)], [at_once; 2]);
        assert_eq!(
            ask("a", Duration::ZERO),
            CallAdmission::After(SECOND),
            "given out in advance"
        );
        assert_eq!(ask("a", Duration::ZERO), CallAdmission::NotBefore(SECOND * 2));
        assert_eq!(ask("b", Duration::ZERO), at_once, "another chat");
        assert_eq!(ask("a", SECOND * 2), at_once);
        assert_eq!([ask("a", SECOND * 60), ask("a", SECOND * 60)], [at_once; 2]);
    }

    #[test]
    fn a_limit_of_the_account_holds_every_chat_and_one_of_a_destination_none() {
        let (mut gate, now) = (AccountGate::default(), SystemClock.monotonic());
        gate.note_outcome(&limited(5, LimitScope::Destination), PROBE, now);
        assert_eq!(gate.limit_left(now), None);

        gate.note_outcome(&limited(5, LimitScope::Account), PROBE, now);
        gate.note_outcome(&limited(3, LimitScope::Account), PROBE, now);
        for chat in ["a", "b"] {
            let told = gate.admit(chat, None, PROBE, now + SECOND);
            assert_eq!(told, CallAdmission::NotBefore(SECOND * 4));
        }
        let told = gate.admit("a", None, PROBE, now + SECOND * 5);
        assert_eq!(told, CallAdmission::After(Duration::ZERO));
    }

    #[test]
    fn a_refused_token_is_probed_by_one_call_at_a_time_until_one_is_accepted() {
        let (mut gate, now) = (AccountGate::default(), SystemClock.monotonic());
        gate.note_outcome(&reauth(), PROBE, now);
        assert!(gate.is_stopped());
        let ask = |gate: &mut AccountGate, at| gate.admit("a", None, PROBE, at);

        assert_eq!(ask(&mut gate, now), CallAdmission::NotBefore(PROBE));
        let probe = now + PROBE;
        assert_eq!(ask(&mut gate, probe), CallAdmission::After(Duration::ZERO));
        assert_eq!(ask(&mut gate, probe), CallAdmission::NotBefore(PROBE), "one probe");

        gate.note_outcome(&reauth(), PROBE, probe);
        assert_eq!(ask(&mut gate, probe), CallAdmission::NotBefore(PROBE));
        gate.note_outcome(&accepted(), PROBE, probe + PROBE);
        assert!(!gate.is_stopped());
        assert_eq!(ask(&mut gate, probe), CallAdmission::After(Duration::ZERO));
    }

    proptest! {
        #[test]
        fn no_period_has_more_calls_than_burst_and_rate_allow(waits in prop::collection::vec(0_u64..1_500, 1..80)) {
            let (mut gate, start) = (AccountGate::default(), SystemClock.monotonic());
            let (mut now, mut calls) = (start, Vec::new());
            for wait in waits {
                now += Duration::from_millis(wait);
                if let CallAdmission::After(wait) = gate.admit("a", Some(PACE), PROBE, now) {
                    calls.push(now + wait);
                }
            }

            let burst = usize::try_from(PACE.chat.burst).expect("small");
            for pair in calls.windows(burst + 1) {
                prop_assert!(pair[burst].duration_since(pair[0]) >= PACE.chat.interval);
            }
        }
    }
}
