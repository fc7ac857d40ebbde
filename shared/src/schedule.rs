//! Timing of schedules: `every`, `cron`, `rrule`, `at`.
//!
//! The stored form is the text and an IANA zone, never an offset; an instant is computed when it is needed, with the
//! zone data of that moment. Rules for civil time: a skipped time fires at the same distance after the gap begins
//! (02:30 → 03:30); a repeated time fires once, at its first occurrence; hourly and finer recurrences use elapsed
//! time; instants are strictly increasing. All cases are in `docs/schedules-dst.md`. Source:
//! `docs/design/schedules.md` §2.
//!
//! Pure except for the lookup of a zone's data by its name.

pub mod admission;
pub mod book;
mod civil;
pub mod cron;
pub mod duration;
pub mod rrule;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::model::time::UnixMillis;
use civil::{first_after, search_start};
use cron::{CronExpression, DayRule, ParseCronError};
use rrule::{ParseRruleError, Rrule};

/// Maximum length of a schedule's text, in bytes.
pub const MAX_SCHEDULE_BYTES: usize = 2_048;
/// Maximum number of offset changes of a zone in one search for a next instant: a century with two per year.
const MAX_CHANGES: usize = 256;

/// The reason why a text is not a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseScheduleError {
    /// The text starts with none of `every`, `cron`, `rrule` and `at`.
    #[error("`{text}`: expected `every …`, `cron …`, `rrule …` or `at …`")]
    Kind {
        /// Beginning of the text.
        text: String,
    },
    /// The time zone is unknown.
    #[error("unknown time zone `{zone}`")]
    Zone {
        /// Name of the zone.
        zone: String,
    },
    /// The period or anchor of `every` is invalid.
    #[error("every: {why}")]
    Every {
        /// Error in the text, for people.
        why: String,
    },
    /// The instant of `at` is invalid.
    #[error("at: `{text}`: expected a local time such as 2026-11-22T09:00, or an instant with an offset")]
    At {
        /// Text of the instant.
        text: String,
    },
    /// The cron expression is invalid.
    #[error("cron: {0}")]
    Cron(#[from] ParseCronError),
    /// The recurrence rule is invalid.
    #[error("rrule: {0}")]
    Rrule(#[from] ParseRruleError),
}

/// A parsed schedule, from which firings can be computed.
///
/// ```
/// use shared::model::time::UnixMillis;
/// use shared::schedule::{Schedule, next_after};
///
/// let schedule = Schedule::parse("cron 0 9 * * MON-FRI", "Europe/Berlin")?;
/// let friday_noon = UnixMillis(1_795_777_200_000); // 2026-11-27T12:00+01:00
/// let monday = next_after(&schedule, friday_noon);
/// assert_eq!(monday, Some(UnixMillis(1_796_025_600_000))); // 2026-11-30T09:00+01:00
/// # Ok::<(), shared::schedule::ParseScheduleError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Schedule {
    timing: ScheduleTiming,
    zone: TimeZone,
}

/// The kind of a schedule, with its parameters.
#[derive(Debug, Clone)]
enum ScheduleTiming {
    /// A grid: `anchor` plus any multiple of `period_ms`, before and after it.
    Every { period_ms: i64, anchor_ms: i64 },
    /// The times of a cron expression.
    Cron(CronExpression),
    /// The times of a recurrence rule.
    Rrule(Box<Rrule>),
    /// A single instant.
    At(UnixMillis),
}

impl Schedule {
    /// Parses `text`, with wall-clock times in `zone` (IANA):
    ///
    /// - `every 30m`, `every 1h30m from 2026-01-01T09:00`: a grid with its anchor at the epoch, or at the given time;
    /// - `cron 0 9 * * MON-FRI`: five fields, or six that start with seconds; a leading `TZ=Europe/Berlin` names the
    ///   zone;
    /// - `rrule FREQ=DAILY;BYHOUR=9`, `rrule DTSTART;TZID=Europe/Berlin:20260101T090000 RRULE:FREQ=WEEKLY`;
    /// - `at 2026-11-22T09:00`, `at 2026-11-22T09:00:00Z`.
    ///
    /// # Errors
    /// Returns [`ParseScheduleError`] with the part that is invalid.
    pub fn parse(text: &str, zone: &str) -> Result<Self, ParseScheduleError> {
        Self::parse_with(text, zone, DayRule::Either)
    }

    /// Parses a schedule like [`Schedule::parse`], with `days` for a cron expression in which both day fields
    /// restrict.
    ///
    /// # Errors
    /// Returns [`ParseScheduleError`] with the part that is invalid.
    pub fn parse_with(text: &str, zone: &str, days: DayRule) -> Result<Self, ParseScheduleError> {
        let kind_error = || ParseScheduleError::Kind {
            text: text.chars().take(80).collect(),
        };
        // Checked first, so that no parser below has to bound its own work.
        if text.len() > MAX_SCHEDULE_BYTES {
            return Err(kind_error());
        }

        let (kind, rest) = text.trim().split_once(char::is_whitespace).ok_or_else(kind_error)?;
        let rest = rest.trim();
        match kind {
            "every" => {
                let zone = zone_named(zone)?;
                let timing = parse_every(rest, &zone)?;
                Ok(Self { timing, zone })
            }
            "cron" => {
                // A zone in the expression takes precedence.
                let (expression, own) = zone_prefix(rest);
                Ok(Self {
                    timing: ScheduleTiming::Cron(CronExpression::parse_with(expression, days)?),
                    zone: zone_named(own.unwrap_or(zone))?,
                })
            }
            "rrule" => {
                // A rule with a zone of its own does not depend on the zone of its place.
                let rule = Rrule::parse(rest)?;
                let zone = zone_named(rule.zone().unwrap_or(zone))?;
                let timing = ScheduleTiming::Rrule(Box::new(rule));
                Ok(Self { timing, zone })
            }
            "at" => {
                let zone = zone_named(zone)?;
                let at = parse_instant(rest, &zone).ok_or_else(|| ParseScheduleError::At { text: rest.to_owned() })?;
                let timing = ScheduleTiming::At(at);
                Ok(Self { timing, zone })
            }
            _ => Err(kind_error()),
        }
    }

    /// Returns whether the schedule may fire more than once.
    #[must_use]
    pub const fn is_recurring(&self) -> bool {
        match self.timing {
            ScheduleTiming::Every { .. } | ScheduleTiming::Cron(_) | ScheduleTiming::Rrule(_) => true,
            ScheduleTiming::At(_) => false,
        }
    }
}

/// Returns the first firing of `schedule` after `after`; `None` if it is over, or has no firing within a hundred
/// years.
#[must_use]
pub fn next_after(schedule: &Schedule, after: UnixMillis) -> Option<UnixMillis> {
    let zone = &schedule.zone;
    match &schedule.timing {
        ScheduleTiming::Every { period_ms, anchor_ms } => {
            // Rounded down, so that instants before the anchor are on the grid as well.
            let passed = after.0.checked_sub(*anchor_ms)?.div_euclid(*period_ms);
            let next = passed.checked_add(1)?.checked_mul(*period_ms)?;
            anchor_ms.checked_add(next).map(UnixMillis)
        }
        ScheduleTiming::At(at) => (*at > after).then_some(*at),
        ScheduleTiming::Cron(cron) => {
            let after = to_timestamp(after)?;
            let next = if cron.is_hourly() {
                elapsed_after(cron, after, zone)
            } else {
                first_after(cron.from(search_start(after, zone)), after, zone)
            };

            next.map(to_millis)
        }
        ScheduleTiming::Rrule(rule) => rule.next_after(to_timestamp(after)?, zone).map(to_millis),
    }
}

/// Returns the next `count` firings after `after`, strictly increasing.
#[must_use]
pub fn next_instants(schedule: &Schedule, after: UnixMillis, count: usize) -> Vec<UnixMillis> {
    std::iter::successors(next_after(schedule, after), |last| next_after(schedule, *last))
        .take(count)
        .collect()
}

/// Returns the next instant of a cron expression that matches in every hour. Between two changes of the zone's
/// offset, the distances of its wall-clock times are real; after a change the search starts again from the change.
fn elapsed_after(cron: &CronExpression, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let mut from = Timestamp::from_second(after.as_millisecond().div_euclid(1_000) + 1).ok()?;
    for _ in 0..MAX_CHANGES {
        let offset = zone.to_offset(from);
        let change = zone.following(from).next().map(|change| change.timestamp());
        let found = cron.at_or_after(offset.to_datetime(from));
        let found = found.and_then(|time| offset.to_timestamp(time).ok());

        // A time at or after the change must be computed with the new offset.
        match (found, change) {
            (Some(found), Some(change)) if found >= change => from = change,
            (None, Some(change)) => from = change,
            (found, _) => return found,
        }
    }

    None
}

fn to_timestamp(at: UnixMillis) -> Option<Timestamp> {
    Timestamp::from_millisecond(at.0).ok()
}

fn to_millis(at: Timestamp) -> UnixMillis {
    UnixMillis(at.as_millisecond())
}

/// Returns the zone `name`, with its current data.
///
/// # Errors
/// Returns [`ParseScheduleError::Zone`] if the zone is unknown.
pub fn zone_named(name: &str) -> Result<TimeZone, ParseScheduleError> {
    TimeZone::get(name).map_err(|_| ParseScheduleError::Zone {
        zone: name.chars().take(80).collect(),
    })
}

/// Splits `TZ=Europe/Berlin 0 9 * * *` into the expression and its zone.
fn zone_prefix(text: &str) -> (&str, Option<&str>) {
    let named = text.strip_prefix("CRON_TZ=").or_else(|| text.strip_prefix("TZ="));
    match named.and_then(|rest| rest.split_once(char::is_whitespace)) {
        Some((zone, expression)) => (expression, Some(zone)),
        None => (text, None),
    }
}

/// Parses the parameters of `every`: `30m`, `1h30m from 2026-01-01T09:00`.
fn parse_every(text: &str, zone: &TimeZone) -> Result<ScheduleTiming, ParseScheduleError> {
    let wrong = |why: &str| ParseScheduleError::Every { why: why.to_owned() };
    let (period, anchor) = match text.split_once(" from ") {
        Some((period, anchor)) => (period.trim(), Some(anchor.trim())),
        None => (text, None),
    };

    let period_ms = duration::parse(period).map_err(|error| wrong(&error.to_string()))?;
    let anchor = match anchor {
        Some(text) => parse_instant(text, zone).ok_or_else(|| wrong("expected a time after `from`"))?,
        None => UnixMillis(0),
    };

    Ok(ScheduleTiming::Every {
        period_ms,
        anchor_ms: anchor.0,
    })
}

/// Parses a local time in `zone`, or an instant with an offset.
fn parse_instant(text: &str, zone: &TimeZone) -> Option<UnixMillis> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(to_millis(at));
    }
    let local: DateTime = text.parse().ok()?;
    zone.to_timestamp(local).ok().map(to_millis)
}

#[cfg(test)]
mod tests;
