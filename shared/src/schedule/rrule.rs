//! Recurrence rules of RFC 5545, and BYEASTER. *Pure.*
//!
//! Daily and coarser rules use wall-clock times (`periods`); hourly and finer ones use elapsed time (`slots`), so
//! that no real hour is skipped or fires twice when clocks change. Crate `rrule` does the latter, but it includes a
//! second database of zones.

mod day;
mod parse;
mod periods;
mod slots;

use jiff::Timestamp;
use jiff::civil::{DateTime, Weekday};
use jiff::tz::TimeZone;

use super::civil::{first_after, search_start};
use parse::ParsedRule;
use periods::RulePeriods;

/// An error in a recurrence rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part} `{text}`: {why}")]
pub struct ParseRruleError {
    /// Name of the part.
    pub part: String,
    /// Text of the part.
    pub text: String,
    /// Error in the text, for people.
    pub why: String,
}

/// The frequency of a rule, without its interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RruleFrequency {
    /// Every second; refused at admission.
    Secondly,
    /// Once every minute.
    Minutely,
    /// Once every hour.
    Hourly,
    /// Once every day.
    #[default]
    Daily,
    /// Once every week.
    Weekly,
    /// Once every month.
    Monthly,
    /// Once every year.
    Yearly,
}

impl RruleFrequency {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "SECONDLY" => Some(Self::Secondly),
            "MINUTELY" => Some(Self::Minutely),
            "HOURLY" => Some(Self::Hourly),
            "DAILY" => Some(Self::Daily),
            "WEEKLY" => Some(Self::Weekly),
            "MONTHLY" => Some(Self::Monthly),
            "YEARLY" => Some(Self::Yearly),
            _ => None,
        }
    }

    /// Returns the elapsed seconds of one step; `None` for frequencies that follow the calendar.
    const fn elapsed_seconds(self) -> Option<i64> {
        match self {
            Self::Secondly => Some(1),
            Self::Minutely => Some(60),
            Self::Hourly => Some(3_600),
            Self::Daily | Self::Weekly | Self::Monthly | Self::Yearly => None,
        }
    }
}

/// A weekday, or the n-th one of a month or year.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WeekDayNumber {
    day: Weekday,
    nth: Option<i16>,
}

/// The end of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RruleUntil {
    Instant(Timestamp),
    Local(DateTime),
}

/// The parts of a rule. Lists are sorted; an empty list means that the part is absent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RecurrenceRule {
    freq: RruleFrequency,
    interval: u32,
    count: Option<u32>,
    until: Option<RruleUntil>,
    week_start: Weekday,
    months: Vec<i16>,
    weeks: Vec<i16>,
    year_days: Vec<i16>,
    month_days: Vec<i16>,
    week_days: Vec<WeekDayNumber>,
    easter: Vec<i16>,
    hours: Vec<i16>,
    minutes: Vec<i16>,
    seconds: Vec<i16>,
    positions: Vec<i16>,
}

impl Default for RecurrenceRule {
    fn default() -> Self {
        Self {
            freq: RruleFrequency::default(),
            interval: 1,
            count: None,
            until: None,
            week_start: Weekday::Monday,
            months: Vec::new(),
            weeks: Vec::new(),
            year_days: Vec::new(),
            month_days: Vec::new(),
            week_days: Vec::new(),
            easter: Vec::new(),
            hours: Vec::new(),
            minutes: Vec::new(),
            seconds: Vec::new(),
            positions: Vec::new(),
        }
    }
}

impl RecurrenceRule {
    /// Fills in absent parts from the rule's start.
    fn complete_from(&mut self, start: DateTime) {
        let is_open = self.year_days.is_empty()
            && self.month_days.is_empty()
            && self.week_days.is_empty()
            && self.easter.is_empty();
        let weekday = WeekDayNumber {
            day: start.weekday(),
            nth: None,
        };
        match self.freq {
            // With BYWEEKNO, the start provides the weekday and not the date.
            RruleFrequency::Yearly if is_open && !self.weeks.is_empty() => self.week_days.push(weekday),
            RruleFrequency::Yearly if is_open => {
                if self.months.is_empty() {
                    self.months.push(i16::from(start.month()));
                }
                self.month_days.push(i16::from(start.day()));
            }
            RruleFrequency::Monthly if is_open && self.weeks.is_empty() => self.month_days.push(i16::from(start.day())),
            RruleFrequency::Weekly if is_open => self.week_days.push(weekday),
            RruleFrequency::Yearly
            | RruleFrequency::Monthly
            | RruleFrequency::Weekly
            | RruleFrequency::Daily
            | RruleFrequency::Hourly
            | RruleFrequency::Minutely
            | RruleFrequency::Secondly => {}
        }

        // Finer rules take these from each slot instead.
        if self.freq.elapsed_seconds().is_none() {
            let or = |list: &mut Vec<i16>, value: i8| {
                if list.is_empty() {
                    list.push(i16::from(value));
                }
            };
            or(&mut self.hours, start.hour());
            or(&mut self.minutes, start.minute());
            or(&mut self.seconds, start.second());
        }
    }

    /// Returns the times of one period that BYSETPOS selects.
    fn choose_positions<T: Copy + Ord>(&self, all: Vec<T>) -> Vec<T> {
        if self.positions.is_empty() {
            return all;
        }

        let at = |position: i16| {
            let index = usize::from(position.unsigned_abs()).checked_sub(1)?;
            // Negative positions count from the end.
            let index = if position > 0 {
                index
            } else {
                all.len().checked_sub(index + 1)?
            };

            all.get(index).copied()
        };

        let mut chosen: Vec<T> = self.positions.iter().filter_map(|position| at(*position)).collect();
        chosen.sort_unstable();
        chosen.dedup();

        chosen
    }
}

/// A rule with its start.
#[derive(Debug, Clone)]
pub struct Rrule {
    rule: RecurrenceRule,
    start: DateTime,
    zone: Option<String>,
}

impl Rrule {
    /// Parses a rule: `FREQ=…`, with an optional `DTSTART…` before it. `DTSTART` and `RRULE:` are on lines of their
    /// own, or separated by a space. Without a `DTSTART` the rule begins at 2001-01-01 00:00, a Monday.
    ///
    /// # Errors
    /// Returns [`ParseRruleError`] with the invalid part.
    pub fn parse(text: &str) -> Result<Self, ParseRruleError> {
        let ParsedRule { mut rule, start, zone } = parse::parse(text)?;
        rule.complete_from(start);
        Ok(Self { rule, start, zone })
    }

    /// Returns the zone that its `DTSTART` names.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// Returns the frequency.
    #[must_use]
    pub const fn freq(&self) -> RruleFrequency {
        self.rule.freq
    }

    /// Returns the number of seconds of a minute that it names.
    #[must_use]
    pub const fn seconds_per_minute(&self) -> usize {
        match self.rule.freq {
            RruleFrequency::Secondly => 60,
            RruleFrequency::Minutely
            | RruleFrequency::Hourly
            | RruleFrequency::Daily
            | RruleFrequency::Weekly
            | RruleFrequency::Monthly
            | RruleFrequency::Yearly => self.rule.seconds.len(),
        }
    }

    /// Returns the first instant of the rule after `after`, with its wall-clock times in `zone`.
    #[must_use]
    pub fn next_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self.rule.freq.elapsed_seconds() {
            Some(step) => slots::next_after(&self.rule, self.start, step, after, zone),
            None => first_after(self.civil_times(after, zone), after, zone),
        }
    }

    /// Returns the wall-clock times that may be the next one, in order.
    fn civil_times<'r>(&'r self, after: Timestamp, zone: &'r TimeZone) -> impl Iterator<Item = DateTime> + 'r {
        let from = search_start(after, zone).max(self.start);
        let count = self.rule.count.map_or(usize::MAX, |count| count as usize);
        RulePeriods::new(&self.rule, self.start, from)
            .flatten()
            .take(count)
            .take_while(|at| self.rule.until.is_none_or(|until| until.allows(*at, zone)))
            .skip_while(move |at| *at < from)
    }
}

impl RruleUntil {
    fn allows(self, at: DateTime, zone: &TimeZone) -> bool {
        match self {
            Self::Instant(last) => zone.to_timestamp(at).is_ok_and(|at| at <= last),
            Self::Local(last) => at <= last,
        }
    }
}
