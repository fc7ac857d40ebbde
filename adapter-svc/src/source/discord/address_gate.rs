//! The calls of all accounts from this process's address: a server before the API bars the address, not a bot.
//!
//! Discord bars an address that makes 10,000 invalid calls in ten minutes. A call is invalid if its status is 401, 403 or
//! 429. Source: <https://discord.com/developers/docs/topics/rate-limits#invalid-request-limit-aka-cloudflare-bans>.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::api_error::{ApiCallError, LimitScope};

/// Time in which invalid calls are counted, and for which none is made after too many: the vendor's own.
const WINDOW: Duration = Duration::from_mins(10);

/// Maximum number of invalid calls of all accounts in [`WINDOW`]: a hundredth of the vendor's, because other programs
/// may call from the same address.
const MAX_INVALID: u32 = 100;

/// The state of an address towards one API. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct AddressGate(Arc<Mutex<GateState>>);

#[derive(Debug, Default)]
struct GateState {
    /// Time before which no account makes a call.
    until: Option<Instant>,
    /// Time of the first invalid call that is counted.
    begun: Option<Instant>,
    invalid: u32,
}

impl AddressGate {
    /// Returns whether a call may be made at `now`.
    ///
    /// # Errors
    /// Returns [`ApiCallError::Limited`] of the address, with the time that is left.
    pub fn check(&self, now: Instant) -> Result<(), ApiCallError> {
        let until = self.lock().until.filter(|until| *until > now);
        match until {
            Some(until) => Err(ApiCallError::Limited {
                after: until.saturating_duration_since(now),
                scope: LimitScope::Address,
            }),
            None => Ok(()),
        }
    }

    /// Takes in at `now` that a call failed with `error`.
    pub fn note_error(&self, error: &ApiCallError, now: Instant) {
        let mut state = self.lock();
        if let ApiCallError::Limited {
            after,
            scope: LimitScope::Address,
        } = error
        {
            state.bar(now + *after);
        }
        if !error.is_invalid_call() {
            return;
        }

        let is_over = state
            .begun
            .is_none_or(|begun| now.saturating_duration_since(begun) >= WINDOW);
        if is_over {
            (state.begun, state.invalid) = (Some(now), 0);
        }
        state.invalid = state.invalid.saturating_add(1);
        if state.invalid >= MAX_INVALID {
            tracing::error!(
                calls = state.invalid,
                "Discord refused too many calls within ten minutes; no account calls it for ten minutes"
            );
            (state.begun, state.invalid) = (None, 0);
            state.bar(now + WINDOW);
        }
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GateState {
    fn bar(&mut self, until: Instant) {
        self.until = self.until.max(Some(until));
    }
}

/// The gates of this process, by the base URL of the API.
#[derive(Debug, Default)]
pub struct AddressGates(BTreeMap<String, AddressGate>);

impl AddressGates {
    /// Returns the gate to the API at `base_url`.
    pub fn gate(&mut self, base_url: &str) -> AddressGate {
        self.0.entry(base_url.to_owned()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn a_bar_of_the_address_holds_for_all_accounts_until_it_is_over() {
        let now = SystemClock.monotonic();
        let mut gates = AddressGates::default();
        let (one, other, elsewhere) = (gates.gate("a"), gates.gate("a"), gates.gate("b"));
        let bar = ApiCallError::Limited {
            after: Duration::from_mins(1),
            scope: LimitScope::Address,
        };
        one.note_error(&bar, now);
        assert_eq!(other.check(now), Err(bar));
        assert!(other.check(now + Duration::from_mins(1)).is_ok());
        assert!(elsewhere.check(now).is_ok());

        // A limit of one account is its own.
        let own = ApiCallError::Limited {
            after: Duration::from_hours(1),
            scope: LimitScope::Account,
        };
        elsewhere.note_error(&own, now);
        assert!(elsewhere.check(now).is_ok());
    }

    #[test]
    fn a_hundred_invalid_calls_in_ten_minutes_stop_the_address_for_ten() {
        let (gate, start) = (AddressGate::default(), SystemClock.monotonic());
        let refused = |status| ApiCallError::Refused {
            status,
            words: String::new(),
        };
        // Answers that are no invalid calls count as none, and those of an earlier window are over.
        for _ in 0..1_000 {
            gate.note_error(&refused(404), start);
            gate.note_error(&ApiCallError::Unreachable(String::new()), start);
        }
        for _ in 0..99 {
            gate.note_error(&refused(403), start);
        }
        let later = start + WINDOW;
        for number in 0..100 {
            assert!(gate.check(later).is_ok(), "{number}");
            gate.note_error(&refused(403), later);
        }
        assert!(gate.check(later + WINDOW - Duration::from_millis(1)).is_err());
        assert!(gate.check(later + WINDOW).is_ok());
    }
}
