//! When a schedule fires: `every`, `cron`, `rrule`, `at`.
//!
//! What is stored is the text and an IANA zone, never an offset; an instant is computed when it is needed, with the
//! zone data of that moment. Civil time: a skipped time fires at the same distance after the gap begins (02:30 →
//! 03:30), a doubled one once, the first time; hourly and finer recurrences walk elapsed time; instants are strictly
//! increasing. Case by case in `docs/schedules-dst.md`. Source: `docs/design/schedules.md` §2.
//!
//! Pure but for the lookup of a zone's data by its name.

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
use cron::{Cron, DayRule, ParseCronError};
use rrule::{ParseRruleError, Rrule};

/// Longest text of a schedule, in bytes.
pub const MAX_SCHEDULE_BYTES: usize = 2_048;
/// How many changes of a zone's offset are passed in the search for a next instant: a century of two a year.
const MAX_CHANGES: usize = 256;

/// Why a text is not a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseScheduleError {
    /// Neither `every`, `cron`, `rrule` nor `at`.
    #[error("`{text}`: expected `every …`, `cron …`, `rrule …` or `at …`")]
    Kind {
        /// Its beginning.
        text: String,
    },
    /// No zone of this name is known.
    #[error("time zone `{zone}` is not known")]
    Zone {
        /// The name.
        zone: String,
    },
    /// The period of `every` cannot be read.
    #[error("every: {why}")]
    Every {
        /// What is wrong.
        why: String,
    },
    /// The instant of `at` cannot be read.
    #[error("at: `{text}`: expected a local time such as 2026-11-22T09:00, or an instant with an offset")]
    At {
        /// What stands there.
        text: String,
    },
    /// The cron expression is wrong.
    #[error("cron: {0}")]
    Cron(#[from] ParseCronError),
    /// The rule is wrong.
    #[error("rrule: {0}")]
    Rrule(#[from] ParseRruleError),
}

/// A schedule, read: it can be asked when it fires.
#[derive(Debug, Clone)]
pub struct Schedule {
    timing: Timing,
    zone: TimeZone,
}

/// What kind of schedule it is.
#[derive(Debug, Clone)]
enum Timing {
    /// A grid: `anchor` and every `period_ms` from there, before and after.
    Every { period_ms: i64, anchor_ms: i64 },
    /// A cron expression.
    Cron(Cron),
    /// A recurrence rule.
    Rrule(Box<Rrule>),
    /// One instant.
    At(UnixMillis),
}

impl Schedule {
    /// Reads `text`, with wall-clock times in `zone` (IANA):
    ///
    /// - `every 30m`, `every 1h30m from 2026-01-01T09:00`: a grid that is anchored at the epoch, or there;
    /// - `cron 0 9 * * MON-FRI`: five fields, or six with seconds in front; `TZ=Europe/Berlin` in front names the zone;
    /// - `rrule FREQ=DAILY;BYHOUR=9`, `rrule DTSTART;TZID=Europe/Berlin:20260101T090000 RRULE:FREQ=WEEKLY`;
    /// - `at 2026-11-22T09:00`, `at 2026-11-22T09:00:00Z`.
    ///
    /// # Errors
    /// [`ParseScheduleError`] names the place.
    pub fn parse(text: &str, zone: &str) -> Result<Self, ParseScheduleError> {
        Self::parse_with(text, zone, DayRule::Either)
    }

    /// As [`Schedule::parse`], with `days` where both day fields of a cron expression restrict.
    ///
    /// # Errors
    /// [`ParseScheduleError`] names the place.
    pub fn parse_with(text: &str, zone: &str, days: DayRule) -> Result<Self, ParseScheduleError> {
        let kind_error = || ParseScheduleError::Kind {
            text: text.chars().take(80).collect(),
        };
        if text.len() > MAX_SCHEDULE_BYTES {
            return Err(kind_error());
        }

        let (kind, rest) = text.trim().split_once(char::is_whitespace).ok_or_else(kind_error)?;
        let rest = rest.trim();
        match kind {
            "every" => {
                let zone = zone_named(zone)?;
                let timing = every(rest, &zone)?;
                Ok(Self { timing, zone })
            }
            "cron" => {
                let (expression, own) = zone_prefix(rest);
                Ok(Self {
                    timing: Timing::Cron(Cron::parse_with(expression, days)?),
                    zone: zone_named(own.unwrap_or(zone))?,
                })
            }
            "rrule" => {
                let rule = Rrule::parse(rest)?;
                let zone = zone_named(rule.zone().unwrap_or(zone))?;
                let timing = Timing::Rrule(Box::new(rule));
                Ok(Self { timing, zone })
            }
            "at" => {
                let zone = zone_named(zone)?;
                let at = instant(rest, &zone).ok_or_else(|| ParseScheduleError::At { text: rest.to_owned() })?;
                let timing = Timing::At(at);
                Ok(Self { timing, zone })
            }
            _ => Err(kind_error()),
        }
    }

    /// Whether it may fire more than once.
    #[must_use]
    pub const fn is_recurring(&self) -> bool {
        match self.timing {
            Timing::Every { .. } | Timing::Cron(_) | Timing::Rrule(_) => true,
            Timing::At(_) => false,
        }
    }
}

/// The first instant after `after` at which `schedule` fires; none where it is over, or silent for a hundred years.
#[must_use]
pub fn next_after(schedule: &Schedule, after: UnixMillis) -> Option<UnixMillis> {
    let zone = &schedule.zone;
    match &schedule.timing {
        Timing::Every { period_ms, anchor_ms } => {
            let passed = after.0.checked_sub(*anchor_ms)?.div_euclid(*period_ms);
            let next = passed.checked_add(1)?.checked_mul(*period_ms)?;
            anchor_ms.checked_add(next).map(UnixMillis)
        }
        Timing::At(at) => (*at > after).then_some(*at),
        Timing::Cron(cron) => {
            let after = timestamp(after)?;
            let next = if cron.is_hourly() {
                elapsed_after(cron, after, zone)
            } else {
                first_after(cron.from(search_start(after, zone)), after, zone)
            };

            next.map(millis)
        }
        Timing::Rrule(rule) => rule.next_after(timestamp(after)?, zone).map(millis),
    }
}

/// The next `count` instants after `after`, strictly increasing.
#[must_use]
pub fn preview(schedule: &Schedule, after: UnixMillis, count: usize) -> Vec<UnixMillis> {
    std::iter::successors(next_after(schedule, after), |last| next_after(schedule, *last))
        .take(count)
        .collect()
}

/// The next instant of a cron expression that goes on in every hour: between two changes of the clock its times are as
/// far apart as they look, and what follows a change is looked for from the change on.
fn elapsed_after(cron: &Cron, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let mut from = Timestamp::from_second(after.as_millisecond().div_euclid(1_000) + 1).ok()?;
    for _ in 0..MAX_CHANGES {
        let offset = zone.to_offset(from);
        let change = zone.following(from).next().map(|change| change.timestamp());
        let found = cron.at_or_after(offset.to_datetime(from));
        let found = found.and_then(|time| offset.to_timestamp(time).ok());

        match (found, change) {
            (Some(found), Some(change)) if found >= change => from = change,
            (None, Some(change)) => from = change,
            (found, _) => return found,
        }
    }

    None
}

fn timestamp(at: UnixMillis) -> Option<Timestamp> {
    Timestamp::from_millisecond(at.0).ok()
}

fn millis(at: Timestamp) -> UnixMillis {
    UnixMillis(at.as_millisecond())
}

/// The zone `name`, with the data of this moment.
///
/// # Errors
/// [`ParseScheduleError::Zone`] where there is none of this name.
pub fn zone_named(name: &str) -> Result<TimeZone, ParseScheduleError> {
    TimeZone::get(name).map_err(|_| ParseScheduleError::Zone {
        zone: name.chars().take(80).collect(),
    })
}

/// `TZ=Europe/Berlin 0 9 * * *` → the expression and its zone.
fn zone_prefix(text: &str) -> (&str, Option<&str>) {
    let named = text.strip_prefix("CRON_TZ=").or_else(|| text.strip_prefix("TZ="));
    match named.and_then(|rest| rest.split_once(char::is_whitespace)) {
        Some((zone, expression)) => (expression, Some(zone)),
        None => (text, None),
    }
}

/// `30m`, `1h30m from 2026-01-01T09:00`.
fn every(text: &str, zone: &TimeZone) -> Result<Timing, ParseScheduleError> {
    let wrong = |why: &str| ParseScheduleError::Every { why: why.to_owned() };
    let (period, anchor) = match text.split_once(" from ") {
        Some((period, anchor)) => (period.trim(), Some(anchor.trim())),
        None => (text, None),
    };

    let period_ms = duration::parse(period).map_err(|error| wrong(&error.to_string()))?;
    let anchor = match anchor {
        Some(text) => instant(text, zone).ok_or_else(|| wrong("expected a time after `from`"))?,
        None => UnixMillis(0),
    };

    Ok(Timing::Every {
        period_ms,
        anchor_ms: anchor.0,
    })
}

/// A local time in `zone`, or an instant with an offset.
fn instant(text: &str, zone: &TimeZone) -> Option<UnixMillis> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(millis(at));
    }
    let local: DateTime = text.parse().ok()?;
    zone.to_timestamp(local).ok().map(millis)
}

#[cfg(test)]
mod tests;
