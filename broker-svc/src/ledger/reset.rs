//! Rules for when a session's history is reset: never, daily at a time of day, or after it was idle. *Pure.*
//!
//! Source: `docs/design/sessions.md` §4. The rule is checked when a turn is about to begin: no session has to be
//! woken for it.

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use shared::model::time::UnixMillis;

/// A rule: `none`, `daily HH:MM Area/City` or `idle N min`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ResetRule {
    /// The history is never reset.
    #[default]
    Never,
    /// The history is reset when the first turn after this time of day begins.
    Daily {
        /// Time of day of the reset.
        at: Time,
        /// Time zone of the day: an IANA name.
        zone: String,
    },
    /// The history is reset when a turn begins long enough after the last one ended.
    Idle {
        /// Minimum idle time in minutes; at least 1.
        minutes: u32,
    },
}

/// Error for a text that is not a rule.
#[derive(Debug, thiserror::Error)]
#[error("`{0}`: expected `none`, `daily HH:MM Area/City` or `idle N min`")]
pub struct ParseResetError(String);

impl TryFrom<String> for ResetRule {
    type Error = ParseResetError;

    fn try_from(text: String) -> Result<Self, ParseResetError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let read = match words[..] {
            ["none"] => Some(Self::Never),
            ["daily", at] => parse_daily(at, "UTC"),
            ["daily", at, zone] => parse_daily(at, zone),
            ["idle", minutes] | ["idle", minutes, "min"] => minutes
                .parse()
                .ok()
                .filter(|&minutes| minutes > 0)
                .map(|minutes| Self::Idle { minutes }),
            _ => None,
        };

        read.ok_or(ParseResetError(text))
    }
}

fn parse_daily(at: &str, zone: &str) -> Option<ResetRule> {
    let at = Time::strptime("%H:%M", at).ok()?;
    is_zone(zone).then(|| ResetRule::Daily {
        at,
        zone: zone.to_owned(),
    })
}

/// Returns whether `name` is the name of a time zone.
#[must_use]
pub fn is_zone(name: &str) -> bool {
    TimeZone::get(name).is_ok()
}

impl From<ResetRule> for String {
    fn from(reset: ResetRule) -> Self {
        match reset {
            ResetRule::Never => "none".to_owned(),
            ResetRule::Daily { at, zone } => format!("daily {} {zone}", at.strftime("%H:%M")),
            ResetRule::Idle { minutes } => format!("idle {minutes} min"),
        }
    }
}

impl ResetRule {
    /// Returns the reason for a reset if a turn begins at `now` and the last one ended at `active`; `None` if there
    /// is no reset.
    #[must_use]
    pub fn due_reason(&self, active: UnixMillis, now: UnixMillis) -> Option<String> {
        if active.0 == 0 {
            return None;
        }
        let due = match self {
            Self::Never => false,
            Self::Idle { minutes } => now.since(active) >= i64::from(*minutes) * 60_000,
            Self::Daily { at, zone } => last_passed(*at, zone, now).is_some_and(|passed| active < passed),
        };
        due.then(|| String::from(self.clone()))
    }
}

/// Returns the last time before or at `now` at which it was `at` in `zone`.
fn last_passed(at: Time, zone: &str, now: UnixMillis) -> Option<UnixMillis> {
    let here = Timestamp::from_millisecond(now.0).ok()?.in_tz(zone).ok()?;
    let today = here.date().to_datetime(at).in_tz(zone).ok()?;
    let passed = if today > here {
        here.date().yesterday().ok()?.to_datetime(at).in_tz(zone).ok()?
    } else {
        today
    };
    Some(UnixMillis(passed.timestamp().as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> ResetRule {
        ResetRule::try_from(text.to_owned()).expect("a rule")
    }

    fn at(text: &str) -> UnixMillis {
        UnixMillis(text.parse::<Timestamp>().expect("an instant").as_millisecond())
    }

    #[test]
    fn rules_are_read_and_written() {
        for text in ["none", "daily 04:30 Europe/Berlin", "idle 90 min"] {
            assert_eq!(String::from(rule(text)), text);
        }

        for text in [
            "",
            "daily",
            "daily 25:00 UTC",
            "daily 04:00 Mars/Olympus",
            "idle 0 min",
            "weekly",
        ] {
            assert!(ResetRule::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_day_begins_at_its_time_in_its_zone() {
        let daily = rule("daily 04:00 Europe/Berlin");
        let check =
            |active, now, expected| assert_eq!(daily.due_reason(at(active), at(now)).is_some(), expected, "{now}");
        // 04:00 in Berlin is 03:00Z in winter and 02:00Z in summer.
        check("2026-01-10T02:59:00Z", "2026-01-10T02:59:30Z", false);
        check("2026-01-10T02:59:00Z", "2026-01-10T03:00:00Z", true);
        check("2026-01-10T03:00:00Z", "2026-01-11T02:59:59Z", false);
        check("2026-07-10T01:59:00Z", "2026-07-10T02:00:00Z", true);
        check("2026-07-01T01:59:00Z", "2026-07-10T00:00:00Z", true);
    }

    #[test]
    fn idleness_counts_from_the_last_end_and_a_new_session_has_nothing_to_forget() {
        let idle = rule("idle 30 min");
        let start = UnixMillis(1_000_000);
        assert_eq!(idle.due_reason(start, start.plus(30 * 60_000 - 1)), None);
        assert_eq!(
            idle.due_reason(start, start.plus(30 * 60_000)).as_deref(),
            Some("idle 30 min")
        );
        assert_eq!(idle.due_reason(UnixMillis(0), start), None);
        assert_eq!(rule("none").due_reason(start, start.plus(i64::MAX / 2)), None);
    }
}
