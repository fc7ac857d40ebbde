//! Matching of dates against a rule. *Pure.* Source: RFC 5545 §3.3.10, the table of BYxxx parts.

use jiff::ToSpan as _;
use jiff::civil::{Date, Weekday};

use super::{RecurrenceRule, RruleFrequency};

impl RecurrenceRule {
    /// Returns whether `date` matches every part that is about days.
    pub(super) fn holds_on(&self, date: Date) -> bool {
        let month = i16::from(date.month());
        (self.months.is_empty() || self.months.contains(&month))
            && (self.weeks.is_empty() || self.in_weeks(date))
            && (self.year_days.is_empty() || in_year(&self.year_days, date))
            && (self.month_days.is_empty() || in_month(&self.month_days, date))
            && (self.week_days.is_empty() || self.on_week_day(date))
            && (self.easter.is_empty() || self.by_easter(date))
    }

    fn in_weeks(&self, date: Date) -> bool {
        let (year, week) = week_of(date, self.week_start);
        let from_end = week - weeks_in(year, self.week_start) - 1;
        self.weeks.contains(&week) || self.weeks.contains(&from_end)
    }

    fn on_week_day(&self, date: Date) -> bool {
        self.week_days.iter().any(|wanted| {
            wanted.day == date.weekday()
                && wanted.nth.is_none_or(|nth| {
                    // The n-th one of the year, unless the rule has months.
                    let (at, length) = if self.freq == RruleFrequency::Yearly && self.months.is_empty() {
                        (date.day_of_year(), date.days_in_year())
                    } else {
                        (i16::from(date.day()), i16::from(date.days_in_month()))
                    };

                    nth == (at - 1) / 7 + 1 || nth == -((length - at) / 7 + 1)
                })
        })
    }

    fn by_easter(&self, date: Date) -> bool {
        let Some(sunday) = easter_sunday(date.year()) else {
            return false;
        };
        let distance = date.day_of_year() - sunday.day_of_year();
        self.easter.contains(&distance)
    }
}

fn in_year(days: &[i16], date: Date) -> bool {
    let day = date.day_of_year();
    days.contains(&day) || days.contains(&(day - date.days_in_year() - 1))
}

fn in_month(days: &[i16], date: Date) -> bool {
    let day = i16::from(date.day());
    days.contains(&day) || days.contains(&(day - i16::from(date.days_in_month()) - 1))
}

/// Returns the first day of the week of `date`.
pub(super) fn start_of_week(date: Date, week_start: Weekday) -> Date {
    let days = date.weekday().since(week_start);
    date.checked_sub(i64::from(days).days()).unwrap_or(date)
}

/// Returns the year and the number of the week of `date`: week 1 is the first with four days in its year.
fn week_of(date: Date, week_start: Weekday) -> (i16, i16) {
    let middle = start_of_week(date, week_start).checked_add(3.days()).unwrap_or(date);
    (middle.year(), (middle.day_of_year() - 1) / 7 + 1)
}

/// Returns the number of weeks of `year`. December 28 is always in the last one.
fn weeks_in(year: i16, week_start: Weekday) -> i16 {
    Date::new(year, 12, 28).map_or(52, |date| week_of(date, week_start).1)
}

/// Returns Easter Sunday of `year` in the Gregorian calendar (anonymous Gregorian computus).
fn easter_sunday(year: i16) -> Option<Date> {
    let y = i32::from(year);
    let (a, b, c) = (y % 19, y / 100, y % 100);
    let (d, e) = (b / 4, b % 4);
    let g = (8 * b + 13) / 25;
    let h = (19 * a + b - d - g + 15) % 30;
    let (i, k) = (c / 4, c % 4);
    let l = (32 + 2 * e + 2 * i - h - k) % 7;
    let m = (a + 11 * h + 22 * l) / 451;
    let month = (h + l - 7 * m + 114) / 31;

    let day = (h + l - 7 * m + 114) % 31 + 1;
    Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()
}
