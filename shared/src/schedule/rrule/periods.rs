//! Daily and coarser rules: the wall-clock times of a rule, period by period. *Pure.*

use jiff::civil::{Date, DateTime, Time};
use jiff::{Span, ToSpan as _};

use super::day::start_of_week;
use super::{RecurrenceRule, RruleFrequency};

/// Maximum distance of the next time, in years.
const HORIZON_YEARS: i16 = 100;

/// The periods of a rule that begins at `start`, each as its matching times in order.
#[derive(Debug)]
pub(super) struct RulePeriods<'r> {
    rule: &'r RecurrenceRule,
    start: DateTime,
    times: Vec<Time>,
    next: i64,
    last_year: i16,
}

impl<'r> RulePeriods<'r> {
    /// Returns the periods from the one that contains `from`, or from the first one if the rule has a COUNT.
    pub(super) fn new(rule: &'r RecurrenceRule, start: DateTime, from: DateTime) -> Self {
        let first = if rule.count.is_some() {
            0
        } else {
            periods_between(rule, start.date(), from.date())
        };

        Self {
            rule,
            start,
            times: times_of_day(rule),
            next: first,
            last_year: start.year().max(from.year()).saturating_add(HORIZON_YEARS),
        }
    }

    /// Returns the first day and the number of days of period `n`.
    fn nth_period(&self, n: i64) -> Option<(Date, i16)> {
        let steps = n.checked_mul(i64::from(self.rule.interval))?;
        let day = self.start.date();
        match self.rule.freq {
            RruleFrequency::Daily => Some((day.checked_add(checked_span(|s| s.try_days(steps))?).ok()?, 1)),
            RruleFrequency::Weekly => {
                let first = start_of_week(day, self.rule.week_start);
                Some((first.checked_add(checked_span(|s| s.try_weeks(steps))?).ok()?, 7))
            }
            RruleFrequency::Monthly => {
                let first = day
                    .first_of_month()
                    .checked_add(checked_span(|s| s.try_months(steps))?)
                    .ok()?;
                Some((first, i16::from(first.days_in_month())))
            }
            RruleFrequency::Yearly => {
                let first = day
                    .first_of_year()
                    .checked_add(checked_span(|s| s.try_years(steps))?)
                    .ok()?;
                Some((first, first.days_in_year()))
            }
            RruleFrequency::Hourly | RruleFrequency::Minutely | RruleFrequency::Secondly => None,
        }
    }
}

fn checked_span(build: impl FnOnce(Span) -> Result<Span, jiff::Error>) -> Option<Span> {
    build(Span::new()).ok()
}

impl Iterator for RulePeriods<'_> {
    type Item = Vec<DateTime>;

    fn next(&mut self) -> Option<Vec<DateTime>> {
        let (first, days) = self.nth_period(self.next)?;
        if first.year() > self.last_year {
            return None;
        }

        self.next += 1;
        let held = (0..i64::from(days))
            .filter_map(|offset| first.checked_add(offset.days()).ok())
            .filter(|date| self.rule.holds_on(*date));
        let all: Vec<DateTime> = held
            .flat_map(|date| self.times.iter().map(move |time| date.to_datetime(*time)))
            .collect();
        // BYSETPOS counts within the whole period, including the times before the start.
        let chosen = self.rule.choose_positions(all);

        Some(chosen.into_iter().filter(|at| *at >= self.start).collect())
    }
}

/// Returns a number of whole steps between the periods of `start` and `from`, which is never too high.
fn periods_between(rule: &RecurrenceRule, start: Date, from: Date) -> i64 {
    let days = i64::from(start.until(from).map_or(0, |span| span.get_days()));
    let months = i64::from(from.year() - start.year()) * 12 + i64::from(from.month()) - i64::from(start.month());
    let units = match rule.freq {
        RruleFrequency::Daily => days,
        RruleFrequency::Weekly => days / 7 - 1,
        RruleFrequency::Monthly => months,
        RruleFrequency::Yearly => i64::from(from.year() - start.year()),
        RruleFrequency::Hourly | RruleFrequency::Minutely | RruleFrequency::Secondly => 0,
    };

    units.max(0) / i64::from(rule.interval)
}

/// Returns the times of day of a rule, in order.
fn times_of_day(rule: &RecurrenceRule) -> Vec<Time> {
    let mut all = Vec::new();
    for &hour in &rule.hours {
        for &minute in &rule.minutes {
            for &second in &rule.seconds {
                let small = |value: i16| i8::try_from(value).unwrap_or(0);
                if let Ok(time) = Time::new(small(hour), small(minute), small(second), 0) {
                    all.push(time);
                }
            }
        }
    }

    all
}
