//! The two day fields of a cron expression, with `L`, `W` and `#`. *Pure.*

use jiff::civil::Date;

use super::field::{self, DAYS, Values, WEEKDAYS, contains};
use super::{DayRule, ParseCronError};

/// Maximum number of days before the last day in `L-n`.
const MAX_FROM_LAST: i8 = 30;

/// A day of the month that depends on the month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MonthDay {
    /// `L-n`: n days before the last day.
    FromLast(i8),
    /// `nW`: the weekday nearest to the n-th day, within the month.
    Nearest(i8),
    /// `L-nW`: the weekday nearest to that day, within the month.
    NearestFromLast(i8),
}

/// A day of the week that depends on the month; 0 = Sunday.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WeekDay {
    /// `d#n`: the n-th one of the month.
    Nth(i8, i8),
    /// `dL`: the last one of the month.
    Last(i8),
}

/// The days that a cron expression matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DayField {
    plain: Values,
    special: Vec<MonthDay>,
    any_month_day: bool,
    week: Values,
    special_week: Vec<WeekDay>,
    any_week_day: bool,
    rule: DayRule,
}

impl DayField {
    /// Parses both day fields. A `+` before the days of week selects [`DayRule::Both`].
    pub(super) fn parse(days: &str, weekdays: &str, rule: DayRule) -> Result<Self, ParseCronError> {
        let (rule, weekdays) = match weekdays.strip_prefix('+') {
            Some(rest) => (DayRule::Both, rest),
            None => (rule, weekdays),
        };
        let mut found = Self {
            plain: 0,
            special: Vec::new(),
            any_month_day: days == "?" || days.starts_with('*'),
            week: 0,
            special_week: Vec::new(),
            any_week_day: weekdays == "?" || weekdays.starts_with('*'),
            rule,
        };

        // `?` is Quartz's spelling of "any".
        let days = if days == "?" { "*" } else { days };
        for item in days.split(',') {
            match month_day(item)? {
                Some(special) => found.special.push(special),
                None => found.plain |= DAYS.parse_item(item)?,
            }
        }

        let weekdays = if weekdays == "?" { "*" } else { weekdays };
        for item in weekdays.split(',') {
            match week_day(item)? {
                Some(special) => found.special_week.push(special),
                None => found.week |= WEEKDAYS.parse_item(item)?,
            }
        }

        // Both 0 and 7 are Sunday.
        if contains(found.week, 7) {
            found.week |= 1;
        }

        Ok(found)
    }

    /// Returns whether `date` matches.
    pub(super) fn includes_date(&self, date: Date) -> bool {
        let (month, week) = (self.month_day(date), self.week_day(date));
        // As in Vixie's cron: if either field begins with a star, both must match.
        if self.any_month_day || self.any_week_day || self.rule == DayRule::Both {
            month && week
        } else {
            month || week
        }
    }

    fn month_day(&self, date: Date) -> bool {
        contains(self.plain, u32::from(date.day().unsigned_abs()))
            || self.special.iter().any(|special| {
                let last = date.days_in_month();
                match *special {
                    MonthDay::FromLast(before) => date.day() == last - before,
                    MonthDay::Nearest(day) => day <= last && date.day() == nearest_weekday(date, day),
                    MonthDay::NearestFromLast(before) => {
                        last > before && date.day() == nearest_weekday(date, last - before)
                    }
                }
            })
    }

    fn week_day(&self, date: Date) -> bool {
        let weekday = date.weekday().to_sunday_zero_offset();
        contains(self.week, u32::from(weekday.unsigned_abs()))
            || self.special_week.iter().any(|special| match *special {
                WeekDay::Nth(day, nth) => weekday == day && (date.day() - 1) / 7 + 1 == nth,
                WeekDay::Last(day) => weekday == day && date.day() + 7 > date.days_in_month(),
            })
    }
}

/// Returns the weekday nearest to `day` in the month of `date`, without leaving the month.
fn nearest_weekday(date: Date, day: i8) -> i8 {
    let Ok(wanted) = date.with().day(day).build() else {
        return 0;
    };
    match wanted.weekday() {
        jiff::civil::Weekday::Saturday if day == 1 => 3,
        jiff::civil::Weekday::Saturday => day - 1,
        jiff::civil::Weekday::Sunday if day == date.days_in_month() => day - 2,
        jiff::civil::Weekday::Sunday => day + 1,
        jiff::civil::Weekday::Monday
        | jiff::civil::Weekday::Tuesday
        | jiff::civil::Weekday::Wednesday
        | jiff::civil::Weekday::Thursday
        | jiff::civil::Weekday::Friday => day,
    }
}

/// Parses `L`, `L-n`, `LW`, `L-nW` or `nW`; returns `None` for other text.
fn month_day(item: &str) -> Result<Option<MonthDay>, ParseCronError> {
    let upper = item.to_ascii_uppercase();
    let (rest, is_nearest) = match upper.strip_suffix('W') {
        Some(rest) => (rest, true),
        None => (upper.as_str(), false),
    };
    if let Some(from) = rest.strip_prefix('L') {
        let before = match from.strip_prefix('-') {
            None if from.is_empty() => Some(0),
            None => None,
            Some(number) => number.parse::<i8>().ok().filter(|n| (0..=MAX_FROM_LAST).contains(n)),
        };
        let before = before.ok_or_else(|| DAYS.item_error(item, "expected `L`, `L-n`, `LW` or `L-nW`"))?;

        return Ok(Some(if is_nearest {
            MonthDay::NearestFromLast(before)
        } else {
            MonthDay::FromLast(before)
        }));
    }

    // A plain value, which the field itself parses.
    if !is_nearest {
        return Ok(None);
    }

    let (day, rest) = DAYS.value(rest)?;
    if !rest.is_empty() {
        return Err(DAYS.item_error(item, "`W` follows a single day"));
    }

    Ok(Some(MonthDay::Nearest(i8::try_from(day).unwrap_or(1))))
}

/// Parses `d#n` or `dL`; returns `None` for other text.
fn week_day(item: &str) -> Result<Option<WeekDay>, ParseCronError> {
    let short = |day: u32| i8::try_from(day % 7).unwrap_or(0);
    if let Some((day, nth)) = item.split_once('#') {
        let (day, rest) = WEEKDAYS.value(day)?;
        let nth = match nth.as_bytes() {
            [digit @ b'1'..=b'5'] if rest.is_empty() => i8::try_from(digit - b'0').unwrap_or(1),
            _ => return Err(WEEKDAYS.item_error(item, "expected `day#n` with n from 1 to 5")),
        };
        return Ok(Some(WeekDay::Nth(short(day), nth)));
    }

    let Some(day) = item.strip_suffix(['L', 'l']) else {
        return Ok(None);
    };
    let (day, rest) = WEEKDAYS.value(day)?;
    if !rest.is_empty() {
        return Err(WEEKDAYS.item_error(item, "`L` follows a single day"));
    }

    Ok(Some(WeekDay::Last(short(day))))
}

/// Returns the first day of the next month in `months` after that of `date`.
pub(super) fn next_month(months: Values, date: Date) -> Option<Date> {
    let month = u32::from(date.month().unsigned_abs());
    let (year, month) = match field::at_or_after(months, month + 1) {
        Some(month) => (date.year(), month),
        None => (date.year().checked_add(1)?, field::at_or_after(months, 1)?),
    };
    Date::new(year, i8::try_from(month).ok()?, 1).ok()
}
