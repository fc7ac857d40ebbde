//! Cron expressions: five fields, or six that start with seconds; `L`, `W`, `#` and macros. *Pure.*
//!
//! Fields contain `*`, lists, ranges (including those that wrap: `23-3`), steps and names; `?` in a day field means
//! `*`. If both day fields restrict, a day that matches either one is meant, as in Vixie's cron; a `+` before the
//! days of week requires both. Crate `croner` 4.0 was tried on 224 public expressions: it refuses 45 valid ones
//! (ranges that wrap, `n/step`, `L-n`) and accepts 5 invalid ones.

mod day;
mod field;

use jiff::civil::{DateTime, Time};

use day::{DayField, next_month};
use field::{CronField, HOURS, MINUTES, MONTHS, SECONDS, Values, at_or_after, contains};

/// Maximum length of an expression, in bytes.
const MAX_BYTES: usize = 512;
/// Maximum distance of the next time, in years: leap days on a certain weekday repeat within 40.
const HORIZON_YEARS: i16 = 100;
/// Macros and their expressions.
const MACROS: [(&str, &str); 9] = [
    ("@yearly", "0 0 0 1 1 *"),
    ("@annually", "0 0 0 1 1 *"),
    ("@monthly", "0 0 0 1 * *"),
    ("@weekly", "0 0 0 * * 0"),
    ("@daily", "0 0 0 * * *"),
    ("@midnight", "0 0 0 * * *"),
    ("@hourly", "0 0 * * * *"),
    ("@every_minute", "0 * * * * *"),
    ("@every_second", "* * * * * *"),
];
const ALL_HOURS: Values = (1 << 24) - 1;

/// An error in a cron expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} `{text}`: {why}")]
pub struct ParseCronError {
    /// Name of the field, or `expression`.
    pub field: &'static str,
    /// Text of the field.
    pub text: String,
    /// Error in the text, for people.
    pub why: String,
}

/// The days that match if both day fields restrict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DayRule {
    /// Days that match either of the fields.
    #[default]
    Either,
    /// Days that match both fields.
    Both,
}

/// A parsed cron expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronExpression {
    seconds: Values,
    minutes: Values,
    hours: Values,
    months: Values,
    days: DayField,
}

impl CronExpression {
    /// Parses `text`. If both day fields restrict, days that match either one are meant.
    ///
    /// # Errors
    /// Returns [`ParseCronError`] with the invalid field.
    pub fn parse(text: &str) -> Result<Self, ParseCronError> {
        Self::parse_with(text, DayRule::Either)
    }

    /// Parses `text`, with `rule` for the case that both day fields restrict.
    ///
    /// # Errors
    /// Returns [`ParseCronError`] with the invalid field.
    pub fn parse_with(text: &str, rule: DayRule) -> Result<Self, ParseCronError> {
        let whole = |why: &str| ParseCronError {
            field: "expression",
            text: text.trim().chars().take(80).collect(),
            why: why.to_owned(),
        };

        if text.len() > MAX_BYTES {
            return Err(whole("too long"));
        }

        let text = text.trim();
        let text = if text.starts_with('@') {
            let known = MACROS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
            known
                .map(|(_, meaning)| *meaning)
                .ok_or_else(|| whole("unknown macro"))?
        } else {
            text
        };

        let fields: Vec<&str> = text.split_whitespace().collect();
        // Six fields begin with seconds, as in most libraries; five are the classical form.
        let (seconds, rest) = match fields.as_slice() {
            [seconds, rest @ ..] if rest.len() == 5 => (*seconds, rest),
            rest if rest.len() == 5 => ("0", rest),
            _ => return Err(whole("expected five fields, or six with seconds in front")),
        };

        let values = |field: CronField, text: &str| field.values(text);
        Ok(Self {
            seconds: values(SECONDS, seconds)?,
            minutes: values(MINUTES, rest[0])?,
            hours: values(HOURS, rest[1])?,
            days: DayField::parse(rest[2], rest[4], rule)?,
            months: values(MONTHS, rest[3])?,
        })
    }

    /// Returns whether the expression matches in every hour of its days. It then uses elapsed time, not wall-clock
    /// time.
    #[must_use]
    pub const fn is_hourly(&self) -> bool {
        self.hours == ALL_HOURS
    }

    /// Returns the number of seconds of a minute that it names.
    #[must_use]
    pub const fn seconds_per_minute(&self) -> u32 {
        self.seconds.count_ones()
    }

    /// Returns the first matching wall-clock time at or after `from`; `None` if there is none within a hundred years.
    #[must_use]
    pub fn at_or_after(&self, from: DateTime) -> Option<DateTime> {
        let last_year = from.year().saturating_add(HORIZON_YEARS);
        let mut date = from.date();

        // `None` = no whole second is left on the first day.
        let mut earliest = ceil_second(from.time());
        while date.year() <= last_year {
            if !contains(self.months, u32::from(date.month().unsigned_abs())) {
                (date, earliest) = (next_month(self.months, date)?, Some(Time::midnight()));
                continue;
            }

            if let Some(earliest) = earliest
                && self.days.includes_date(date)
                && let Some(time) = self.time_at_or_after(earliest)
            {
                return Some(date.to_datetime(time));
            }

            (date, earliest) = (date.tomorrow().ok()?, Some(Time::midnight()));
        }

        None
    }

    /// Returns all matching wall-clock times from `from` on, in order.
    pub fn from(&self, from: DateTime) -> impl Iterator<Item = DateTime> {
        std::iter::successors(self.at_or_after(from), |last| {
            let next = last.checked_add(jiff::Span::new().seconds(1)).ok()?;
            self.at_or_after(next)
        })
    }

    fn time_at_or_after(&self, from: Time) -> Option<Time> {
        let unsigned = |value: i8| u32::from(value.unsigned_abs());
        let (hour, minute, second) = (unsigned(from.hour()), unsigned(from.minute()), unsigned(from.second()));
        let first = |values| at_or_after(values, 0);

        let in_hour = |hour, minute, second| -> Option<(u32, u32, u32)> {
            if let Some(found) = at_or_after(self.minutes, minute) {
                // A later minute starts again at its first second.
                if found > minute {
                    return Some((hour, found, first(self.seconds)?));
                }

                if let Some(second) = at_or_after(self.seconds, second) {
                    return Some((hour, found, second));
                }

                if let Some(later) = at_or_after(self.minutes, minute + 1) {
                    return Some((hour, later, first(self.seconds)?));
                }
            }

            None
        };

        let found = contains(self.hours, hour)
            .then(|| in_hour(hour, minute, second))
            .flatten();
        // A later hour starts again at its first minute and second.
        let (hour, minute, second) = match found {
            Some(found) => found,
            None => (
                at_or_after(self.hours, hour + 1)?,
                first(self.minutes)?,
                first(self.seconds)?,
            ),
        };

        let short = |value: u32| i8::try_from(value).ok();
        Time::new(short(hour)?, short(minute)?, short(second)?, 0).ok()
    }
}

/// Returns `time` rounded up to a whole second; `None` after the day's last one.
fn ceil_second(time: Time) -> Option<Time> {
    if time.subsec_nanosecond() == 0 {
        return Some(time);
    }
    let whole = time.with().subsec_nanosecond(0).build().ok()?;
    whole.checked_add(jiff::Span::new().seconds(1)).ok()
}
