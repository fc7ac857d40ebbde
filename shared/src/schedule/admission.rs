//! Admission of schedules. *Pure* except for the lookup of zones.
//!
//! The parser accepts every valid text. Admission refuses schedules that fire more than once a minute, or never.

use crate::model::time::UnixMillis;

use super::cron::DayRule;
use super::rrule::RruleFrequency;
use super::{ParseScheduleError, Schedule, ScheduleTiming, next_after, next_instants};

/// Minimum time between two firings, in milliseconds.
pub const MIN_DISTANCE_MS: i64 = 60_000;
/// Maximum time to the first firing, in milliseconds: ten years.
pub const MAX_AHEAD_MS: i64 = 3_653 * 86_400_000;
/// Number of firings whose distances are checked if a schedule names several seconds of a minute.
const SAMPLED: usize = 128;

/// The reason for refusing a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitScheduleError {
    /// The text is not a schedule.
    #[error(transparent)]
    Parse(#[from] ParseScheduleError),
    /// The rule has FREQ=SECONDLY.
    #[error("FREQ=SECONDLY is not allowed")]
    Secondly,
    /// The schedule fires more often than once a minute.
    #[error("fires more often than once a minute: {first} and {second} are {distance_ms} ms apart")]
    TooOften {
        /// Time of a firing, in Unix milliseconds.
        first: UnixMillis,
        /// Time of the next firing, in Unix milliseconds.
        second: UnixMillis,
        /// Time between the two, in milliseconds.
        distance_ms: i64,
    },
    /// The schedule does not fire within ten years.
    #[error("never fires within ten years")]
    Never,
}

/// Parses `text` with wall-clock times in `zone`. Refuses it if it fires too often, or never after `now`.
///
/// # Errors
/// Returns [`AdmitScheduleError`] with the reason.
pub fn admit_schedule(text: &str, zone: &str, now: UnixMillis) -> Result<Schedule, AdmitScheduleError> {
    let schedule = check(text, zone, now)?;
    match next_after(&schedule, now) {
        Some(first) if first.since(now) <= MAX_AHEAD_MS => Ok(schedule),
        Some(_) | None => Err(AdmitScheduleError::Never),
    }
}

/// Parses `text` with wall-clock times in `zone`. Refuses it if it fires too often after `since`; it may be over.
///
/// # Errors
/// Returns [`AdmitScheduleError`] with the reason.
pub fn check(text: &str, zone: &str, since: UnixMillis) -> Result<Schedule, AdmitScheduleError> {
    let schedule = Schedule::parse_with(text, zone, DayRule::Either)?;
    match &schedule.timing {
        ScheduleTiming::Rrule(rule) if rule.freq() == RruleFrequency::Secondly => {
            return Err(AdmitScheduleError::Secondly);
        }
        ScheduleTiming::Every { .. } | ScheduleTiming::Cron(_) | ScheduleTiming::Rrule(_) | ScheduleTiming::At(_) => {}
    }

    // Sampling costs time, and most schedules show by their form that they cannot be dense.
    let sampled = if may_be_dense(&schedule) { SAMPLED } else { 0 };
    let sample = next_instants(&schedule, since, sampled);
    for pair in sample.windows(2) {
        let distance_ms = pair[1].since(pair[0]);
        if distance_ms < MIN_DISTANCE_MS {
            return Err(AdmitScheduleError::TooOften {
                first: pair[0],
                second: pair[1],
                distance_ms,
            });
        }
    }

    Ok(schedule)
}

/// Returns whether two firings may be less than a minute apart. They are not if all of them have the same second.
const fn may_be_dense(schedule: &Schedule) -> bool {
    match &schedule.timing {
        ScheduleTiming::Every { period_ms, .. } => *period_ms < MIN_DISTANCE_MS,
        ScheduleTiming::At(_) => false,
        ScheduleTiming::Cron(cron) => cron.seconds_per_minute() > 1,
        ScheduleTiming::Rrule(rule) => rule.seconds_per_minute() > 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_780_000_000_000);

    fn check(text: &str, expected: &str) {
        match admit_schedule(text, "Europe/Berlin", NOW) {
            Ok(_) => assert_eq!(expected, "", "{text} is admitted"),
            Err(error) => {
                let said = error.to_string();
                assert!(!expected.is_empty() && said.contains(expected), "{text}: {said}");
            }
        }
    }

    #[test]
    fn what_fires_at_most_once_a_minute_is_admitted() {
        for text in [
            "every 1m",
            "every 30m",
            "cron * * * * *",
            "cron 30 */5 * * * *",
            "rrule FREQ=MINUTELY",
            "rrule FREQ=DAILY;BYHOUR=9",
            "at 2027-01-01T09:00",
            "rrule DTSTART:20260101T000000 RRULE:FREQ=HOURLY;COUNT=100000",
        ] {
            check(text, "");
        }
    }

    #[test]
    fn the_rest_is_refused_with_a_reason() {
        for (text, reason) in [
            ("rrule FREQ=SECONDLY", "FREQ=SECONDLY is not allowed"),
            ("rrule FREQ=SECONDLY;INTERVAL=3600", "FREQ=SECONDLY is not allowed"),
            (
                "rrule FREQ=DAILY;INTERVAL=0",
                "INTERVAL `0`: expected a whole number from 1",
            ),
            (
                "rrule DTSTART:20260101T000000 RRULE:FREQ=DAILY;COUNT=3;UNTIL=20270101",
                "COUNT and UNTIL exclude each other",
            ),
            (
                "rrule FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
                "never fires within ten years",
            ),
            ("cron 0 0 31 2 *", "never fires within ten years"),
            ("at 2020-01-01T00:00", "never fires within ten years"),
            ("at 2099-01-01T00:00", "never fires within ten years"),
            ("every 59s", "more often than once a minute"),
            ("cron */30 * * * * *", "more often than once a minute"),
            ("cron 0,30 0 0 1 * *", "more often than once a minute"),
            ("rrule FREQ=MINUTELY;BYSECOND=0,30", "more often than once a minute"),
            ("rrule FREQ=DAILY;BYSECOND=0,10", "more often than once a minute"),
            ("every 0m", "expected a duration"),
            ("cron 0 9 * *", "expected five fields"),
            ("daily", "expected `every …`"),
        ] {
            check(text, reason);
        }

        let zone = admit_schedule("every 1h", "Mars/Olympus", NOW).expect_err("no such zone");
        assert_eq!(zone.to_string(), "unknown time zone `Mars/Olympus`");
    }
}
