//! Waits of calls that failed: each stops its own scope, a route or the account, and nothing else. *Pure.*
//!
//! Source: <https://discord.com/developers/docs/topics/rate-limits>.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::api_error::{ApiCallError, LimitScope};
use crate::source::port::CALL_RETRY;

/// Pause of all calls after one that the vendor refused. It bars an address that makes 10,000 such calls in ten minutes.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Remaining wait from which people are told of it.
const SHOWN_FROM: Duration = Duration::from_secs(5);

/// A route of the API, with the part of its path that has limits of its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallRoute {
    /// What a channel is.
    Place(String),
    /// The bot's roles in a guild.
    Roles(String),
    /// The messages of a channel.
    History(String),
}

impl CallRoute {
    /// Returns the guild whose roles are asked for.
    #[must_use]
    pub(super) fn guild(&self) -> Option<&str> {
        match self {
            Self::Roles(guild) => Some(guild),
            Self::Place(_) | Self::History(_) => None,
        }
    }

    /// Describes the subject of the call, for people.
    #[must_use]
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Place(channel) => format!("what channel {channel} is"),
            Self::Roles(guild) => format!("the bot's roles in server {guild}"),
            Self::History(channel) => format!("the history of channel {channel}"),
        }
    }
}

/// A wait, and the failures in succession that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ScopeWait {
    until: Instant,
    failures: u32,
    reason: String,
}

/// The waits of an account's calls.
#[derive(Debug, Default)]
pub(super) struct CallWaits {
    routes: BTreeMap<CallRoute, ScopeWait>,
    /// Wait of all routes.
    account: Option<ScopeWait>,
}

impl CallWaits {
    /// Returns the time before which `route` must not be called; `None` = it may be called at `now`.
    #[must_use]
    pub(super) fn wait_of(&self, route: &CallRoute, now: Instant) -> Option<Instant> {
        let of_route = self.routes.get(route).map(|wait| wait.until);
        let of_account = self.account.as_ref().map(|wait| wait.until);
        of_route.max(of_account).filter(|until| *until > now)
    }

    /// Returns the first time after `now` at which a wait ends.
    #[must_use]
    pub(super) fn next_end(&self, now: Instant) -> Option<Instant> {
        let waits = self.routes.values().chain(&self.account);
        waits.map(|wait| wait.until).filter(|until| *until > now).min()
    }

    /// Notes that a call of `route` had a result.
    pub(super) fn note_success(&mut self, route: &CallRoute) {
        self.routes.remove(route);
        // A limit of the account holds until it is over, whatever another call had as its result.
        if let Some(wait) = &mut self.account {
            wait.failures = 0;
        }
    }

    /// Notes at `now` that a call of `route` was refused for good: `route` is not called again, and the others pause.
    pub(super) fn note_refused(&mut self, route: &CallRoute, error: &ApiCallError, now: Instant) {
        self.routes.remove(route);
        let until = now + REFUSED_PAUSE;
        match &mut self.account {
            Some(wait) if wait.until >= until => {}
            Some(_) | None => {
                self.account = Some(ScopeWait {
                    until,
                    failures: 0,
                    reason: error.to_string(),
                });
            }
        }
    }

    /// Notes at `now` that a call of `route` failed with `error` and is to be made again. `jitter` in 0..1 is random.
    pub(super) fn note_failure(&mut self, route: &CallRoute, error: &ApiCallError, jitter: f64, now: Instant) {
        let (of_account, asked) = match error {
            ApiCallError::Limited { after, scope } => match scope {
                LimitScope::Route => (false, *after),
                LimitScope::Account | LimitScope::Address => (true, *after),
            },
            // No answer of one route: the next one would have none either, or takes as long.
            ApiCallError::Unreachable(_) => (true, Duration::ZERO),
            ApiCallError::Unauthorized(_) | ApiCallError::Refused { .. } | ApiCallError::Malformed(_) => {
                (false, Duration::ZERO)
            }
        };

        let reason = error.to_string();
        let of_route = self.routes.get(route);
        self.routes
            .insert(route.clone(), longer_wait(of_route, asked, &reason, jitter, now));
        if of_account {
            self.account = Some(longer_wait(self.account.as_ref(), asked, &reason, jitter, now));
        }
    }

    /// Returns the longest wait at `now` with its words, if it is worth telling.
    #[must_use]
    pub(super) fn longest(&self, now: Instant) -> Option<(Duration, String)> {
        let of_routes = self.routes.iter().map(|(route, wait)| (wait, route.describe()));
        let of_account = self.account.iter().map(|wait| (wait, "all calls".to_owned()));
        // Of two that end together the account's says more.
        let longest = of_routes.chain(of_account).max_by_key(|(wait, _)| wait.until);
        let (wait, what) = longest?;
        let left = wait.until.saturating_duration_since(now);
        (left >= SHOWN_FROM).then(|| (left, format!("{what} ({})", wait.reason)))
    }
}

/// Returns the wait after one more failure behind `before`: at least `asked`, and never shorter than before.
fn longer_wait(before: Option<&ScopeWait>, asked: Duration, reason: &str, jitter: f64, now: Instant) -> ScopeWait {
    let failures = before.map_or(0, |wait| wait.failures).saturating_add(1);
    let grown = CALL_RETRY.delay(failures, jitter).unwrap_or_default();
    let until = now + asked.max(grown);
    ScopeWait {
        until: before.map_or(until, |wait| until.max(wait.until)),
        failures,
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use shared::clock::{Clock as _, SystemClock};

    use super::*;

    fn history(channel: &str) -> CallRoute {
        CallRoute::History(channel.to_owned())
    }

    fn limited(after: u64, scope: LimitScope) -> ApiCallError {
        ApiCallError::Limited {
            after: Duration::from_secs(after),
            scope,
        }
    }

    #[test]
    fn a_wait_stops_its_own_scope_and_ends_no_sooner_than_asked() {
        let (mut waits, now) = (CallWaits::default(), SystemClock.monotonic());
        let day = Duration::from_hours(24);
        waits.note_failure(&history("1"), &limited(86_400, LimitScope::Route), 0.0, now);
        assert_eq!(waits.wait_of(&history("1"), now), Some(now + day));
        assert_eq!(waits.wait_of(&history("2"), now), None);
        assert_eq!(waits.wait_of(&CallRoute::Place("1".to_owned()), now), None);
        assert_eq!(waits.next_end(now), Some(now + day));
        let (left, words) = waits.longest(now).expect("long");
        assert_eq!(left, day);
        assert!(words.starts_with("the history of channel 1 (too many calls"), "{words}");

        // The account's stops every route, and a success elsewhere does not end it.
        waits.note_failure(&history("2"), &limited(60, LimitScope::Account), 0.0, now);
        waits.note_success(&history("2"));
        assert_eq!(waits.wait_of(&history("3"), now), Some(now + Duration::from_mins(1)));
        assert_eq!(waits.wait_of(&history("3"), now + Duration::from_mins(1)), None);
        // A shorter one does not make it shorter.
        waits.note_failure(&history("4"), &limited(1, LimitScope::Address), 0.0, now);
        assert_eq!(waits.wait_of(&history("3"), now), Some(now + Duration::from_mins(1)));
    }

    #[test]
    fn waits_grow_up_to_the_formula_s_maximum_and_begin_anew_after_a_success() {
        let (mut waits, mut now) = (CallWaits::default(), SystemClock.monotonic());
        let away = ApiCallError::Refused {
            status: 502,
            words: String::new(),
        };
        let mut before = Duration::ZERO;
        for number in 1..=40 {
            waits.note_failure(&history("1"), &away, 0.5, now);
            let until = waits.wait_of(&history("1"), now).expect("a wait");
            let wait = until.saturating_duration_since(now);
            assert!(wait >= before && wait <= Duration::from_secs(30), "{number}: {wait:?}");
            (before, now) = (wait, until);
        }
        assert_eq!(before, Duration::from_secs(30));
        assert_eq!(waits.wait_of(&history("2"), now), None);

        waits.note_success(&history("1"));
        waits.note_failure(&history("1"), &away, 0.5, now);
        assert_eq!(
            waits.wait_of(&history("1"), now),
            Some(now + Duration::from_millis(500))
        );
        assert_eq!(waits.longest(now), None, "short ones are nobody's business");
    }

    #[test]
    fn a_refusal_pauses_all_calls_for_a_second() {
        let (mut waits, now) = (CallWaits::default(), SystemClock.monotonic());
        let refused = ApiCallError::Refused {
            status: 403,
            words: String::new(),
        };
        waits.note_refused(&history("1"), &refused, now);
        assert_eq!(waits.wait_of(&history("2"), now), Some(now + REFUSED_PAUSE));
        assert_eq!(waits.wait_of(&history("2"), now + REFUSED_PAUSE), None);
    }
}
