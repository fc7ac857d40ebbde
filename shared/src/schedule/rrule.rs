//! Recurrence rules of RFC 5545, and BYEASTER. *Pure.*
//!
//! Daily and coarser rules mean times of the wall clock (`periods`); hourly and finer ones walk elapsed time
//! (`slots`), so that no real hour is left out or fired twice where clocks change. Crate `rrule` does the latter, and
//! brings a second database of zones along.

mod day;
mod parse;
mod periods;
mod slots;

use jiff::Timestamp;
use jiff::civil::{DateTime, Weekday};
use jiff::tz::TimeZone;

use super::civil::{first_after, search_start};
use parse::Parsed;
use periods::Periods;

/// What is wrong with a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part} `{text}`: {why}")]
pub struct ParseRruleError {
    /// Which part.
    pub part: String,
    /// What stands there.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

/// How often, before the interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freq {
    /// Each second; refused at admission.
    Secondly,
    /// Each minute.
    Minutely,
    /// Each hour.
    Hourly,
    /// Each day.
    #[default]
    Daily,
    /// Each week.
    Weekly,
    /// Each month.
    Monthly,
    /// Each year.
    Yearly,
}

impl Freq {
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

    /// The seconds that one step elapses; none for those that follow the calendar.
    const fn elapsed_seconds(self) -> Option<i64> {
        match self {
            Self::Secondly => Some(1),
            Self::Minutely => Some(60),
            Self::Hourly => Some(3_600),
            Self::Daily | Self::Weekly | Self::Monthly | Self::Yearly => None,
        }
    }
}

/// A weekday, or the n-th of a month or year.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WeekDayNumber {
    day: Weekday,
    nth: Option<i16>,
}

/// When a rule ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    Instant(Timestamp),
    Local(DateTime),
}

/// The parts of a rule. Lists are sorted; an empty one says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    freq: Freq,
    interval: u32,
    count: Option<u32>,
    until: Option<Until>,
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

impl Default for Rule {
    fn default() -> Self {
        Self {
            freq: Freq::default(),
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

impl Rule {
    /// What the rule leaves open is read off its start.
    fn complete(&mut self, start: DateTime) {
        let is_open = self.year_days.is_empty()
            && self.month_days.is_empty()
            && self.week_days.is_empty()
            && self.easter.is_empty();
        let weekday = WeekDayNumber {
            day: start.weekday(),
            nth: None,
        };
        match self.freq {
            Freq::Yearly if is_open && !self.weeks.is_empty() => self.week_days.push(weekday),
            Freq::Yearly if is_open => {
                if self.months.is_empty() {
                    self.months.push(i16::from(start.month()));
                }
                self.month_days.push(i16::from(start.day()));
            }
            Freq::Monthly if is_open && self.weeks.is_empty() => self.month_days.push(i16::from(start.day())),
            Freq::Weekly if is_open => self.week_days.push(weekday),
            Freq::Yearly
            | Freq::Monthly
            | Freq::Weekly
            | Freq::Daily
            | Freq::Hourly
            | Freq::Minutely
            | Freq::Secondly => {}
        }

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

    /// Those of one period's `all` that BYSETPOS asks for.
    fn choose<T: Copy + Ord>(&self, all: Vec<T>) -> Vec<T> {
        if self.positions.is_empty() {
            return all;
        }

        let at = |position: i16| {
            let index = usize::from(position.unsigned_abs()).checked_sub(1)?;
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

/// A rule and where it begins.
#[derive(Debug, Clone)]
pub struct Rrule {
    rule: Rule,
    start: DateTime,
    zone: Option<String>,
}

impl Rrule {
    /// Reads a rule: `FREQ=…`, with `DTSTART…` in front where it has one. `DTSTART` and `RRULE:` stand on lines of their
    /// own, or with a space between. Without a `DTSTART` it begins at 2001-01-01 00:00, a Monday.
    ///
    /// # Errors
    /// [`ParseRruleError`] names the part.
    pub fn parse(text: &str) -> Result<Self, ParseRruleError> {
        let Parsed { mut rule, start, zone } = parse::parse(text)?;
        rule.complete(start);
        Ok(Self { rule, start, zone })
    }

    /// The zone that its `DTSTART` names.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// Its frequency.
    #[must_use]
    pub const fn freq(&self) -> Freq {
        self.rule.freq
    }

    /// How many seconds of a minute it names.
    #[must_use]
    pub const fn seconds_per_minute(&self) -> usize {
        match self.rule.freq {
            Freq::Secondly => 60,
            Freq::Minutely | Freq::Hourly | Freq::Daily | Freq::Weekly | Freq::Monthly | Freq::Yearly => {
                self.rule.seconds.len()
            }
        }
    }

    /// The first instant of the rule after `after`, with its wall-clock times in `zone`.
    #[must_use]
    pub fn next_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self.rule.freq.elapsed_seconds() {
            Some(step) => slots::next_after(&self.rule, self.start, step, after, zone),
            None => first_after(self.civil(after, zone), after, zone),
        }
    }

    /// The wall-clock times that may be the next one, in order.
    fn civil<'r>(&'r self, after: Timestamp, zone: &'r TimeZone) -> impl Iterator<Item = DateTime> + 'r {
        let from = search_start(after, zone).max(self.start);
        let count = self.rule.count.map_or(usize::MAX, |count| count as usize);
        Periods::new(&self.rule, self.start, from)
            .flatten()
            .take(count)
            .take_while(|at| self.rule.until.is_none_or(|until| until.allows(*at, zone)))
            .skip_while(move |at| *at < from)
    }
}

impl Until {
    fn allows(self, at: DateTime, zone: &TimeZone) -> bool {
        match self {
            Self::Instant(last) => zone.to_timestamp(at).is_ok_and(|at| at <= last),
            Self::Local(last) => at <= last,
        }
    }
}
