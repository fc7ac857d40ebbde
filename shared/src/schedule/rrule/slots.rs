//! Hourly and finer rules: slots of elapsed time. *Pure.*
//!
//! Slot n begins n × interval hours (minutes, seconds) of real time after the slot of the rule's start, even if
//! clocks change in between. The parts of the rule then match a slot by the wall-clock times in it.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::{RecurrenceRule, RruleFrequency, RruleUntil};

/// Maximum distance of the next time, in seconds: a hundred years.
const HORIZON_S: i64 = 100 * 366 * 86_400;
/// Maximum number of slots in one search.
const MAX_SLOTS: u32 = 3_000_000;

/// A rule with its slots in elapsed time.
struct TimeLine<'r> {
    rule: &'r RecurrenceRule,
    zone: &'r TimeZone,
    start: Timestamp,
    /// Start of slot 0, in seconds since the epoch.
    origin: i64,
    /// Length of a slot, in seconds.
    unit: i64,
    /// Distance between the starts of two slots, in seconds.
    step: i64,
}

/// Returns the first instant of `rule` after `after`.
pub(super) fn next_after(
    rule: &RecurrenceRule,
    start: DateTime,
    unit: i64,
    after: Timestamp,
    zone: &TimeZone,
) -> Option<Timestamp> {
    let start = zone.to_timestamp(start).ok()?;
    let local = zone.to_datetime(start);
    // Slots start at whole hours or minutes, even if the rule starts within one.
    let into_slot = match rule.freq {
        RruleFrequency::Hourly => i64::from(local.minute()) * 60 + i64::from(local.second()),
        RruleFrequency::Minutely => i64::from(local.second()),
        RruleFrequency::Secondly
        | RruleFrequency::Daily
        | RruleFrequency::Weekly
        | RruleFrequency::Monthly
        | RruleFrequency::Yearly => 0,
    };

    let step = unit * i64::from(rule.interval);
    // Without further parts the next instant can be computed; otherwise the slots are searched.
    if is_plain(rule) {
        return plain_after(rule, start, step, after, zone);
    }

    let line = TimeLine {
        rule,
        zone,
        start,
        origin: start.as_second() - into_slot,
        unit,
        step,
    };

    line.next_after(after, into_slot)
}

/// Returns whether the rule has only a frequency, an interval and an end.
const fn is_plain(rule: &RecurrenceRule) -> bool {
    rule.months.is_empty()
        && rule.weeks.is_empty()
        && rule.year_days.is_empty()
        && rule.month_days.is_empty()
        && rule.week_days.is_empty()
        && rule.easter.is_empty()
        && rule.hours.is_empty()
        && rule.minutes.is_empty()
        && rule.seconds.is_empty()
        && rule.positions.is_empty()
}

/// Computes the next instant of a plain rule directly, without a search.
fn plain_after(
    rule: &RecurrenceRule,
    start: Timestamp,
    step: i64,
    after: Timestamp,
    zone: &TimeZone,
) -> Option<Timestamp> {
    let passed = (after.as_second() - start.as_second()).div_euclid(step) + 1;
    let number = if after < start { 0 } else { passed };
    if rule.count.is_some_and(|count| number >= i64::from(count)) {
        return None;
    }
    let at = Timestamp::from_second(start.as_second().checked_add(number.checked_mul(step)?)?).ok()?;
    (!is_over(rule, at, zone)).then_some(at)
}

fn is_over(rule: &RecurrenceRule, at: Timestamp, zone: &TimeZone) -> bool {
    match rule.until {
        None => false,
        Some(RruleUntil::Instant(last)) => at > last,
        Some(RruleUntil::Local(last)) => zone.to_datetime(at) > last,
    }
}

impl TimeLine<'_> {
    fn next_after(&self, after: Timestamp, into_slot: i64) -> Option<Timestamp> {
        let mut left = self.rule.count.unwrap_or(u32::MAX);
        // A rule with a COUNT is searched from its beginning.
        let mut slot = match self.rule.count {
            Some(_) => 0,
            None => ((after.as_second() - self.origin) / self.step - 1).max(0),
        };

        let end = after.max(self.start).as_second().saturating_add(HORIZON_S);
        for _ in 0..MAX_SLOTS {
            let begins = self.origin.checked_add(slot.checked_mul(self.step)?)?;
            if begins > end {
                return None;
            }

            let begins_at = Timestamp::from_second(begins).ok()?;
            if let Some(skip_to) = self.shut_until(begins_at) {
                // At least one slot, so that the search ends.
                slot += ((skip_to.as_second() - begins + self.step - 1) / self.step).max(1);
                continue;
            }

            for at in self.rule.choose_positions(self.times_in(begins, into_slot)) {
                if at < self.start {
                    continue;
                }

                if left == 0 || is_over(self.rule, at, self.zone) {
                    return None;
                }

                left -= 1;

                if at > after {
                    return Some(at);
                }
            }

            slot += 1;
        }

        None
    }

    /// Returns a time until which no instant matches, if none matches in the slot that starts at `begins`.
    fn shut_until(&self, begins: Timestamp) -> Option<Timestamp> {
        let last = begins.checked_add(SignedDuration::from_secs(self.unit - 1)).ok()?;
        let (local, end) = (self.zone.to_datetime(begins), self.zone.to_datetime(last));

        // A slot can extend from one wall-clock hour or day into the next, so both ends are checked.
        if !self.rule.holds_on(local.date()) && !self.rule.holds_on(end.date()) {
            let midnight = local.date().tomorrow().ok()?.to_datetime(Time::midnight());
            let next = self.zone.to_timestamp(midnight).ok()?;
            return Some(
                Timestamp::from_second(next.as_second() - self.unit + 1)
                    .ok()?
                    .max(begins),
            );
        }

        let hours = &self.rule.hours;
        let is_shut = |hour: i8| !hours.is_empty() && !hours.contains(&i16::from(hour));
        if is_shut(local.hour()) && is_shut(end.hour()) {
            return Some(begins);
        }

        let minutes = &self.rule.minutes;
        if self.rule.freq != RruleFrequency::Hourly
            && !minutes.is_empty()
            && !minutes.contains(&i16::from(local.minute()))
        {
            return Some(begins);
        }

        None
    }

    /// Returns the matching instants in the slot that starts at `begins`, in order.
    fn times_in(&self, begins: i64, into_slot: i64) -> Vec<Timestamp> {
        let mut found: Vec<Timestamp> = self
            .slot_offsets(begins, into_slot)
            .into_iter()
            .filter_map(|offset| Timestamp::from_second(begins + offset).ok())
            .filter(|at| self.shows_local(self.zone.to_datetime(*at)))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Returns the seconds from the slot's start by its wall-clock time. An absent part is taken from the rule's
    /// start.
    fn slot_offsets(&self, begins: i64, into_slot: i64) -> Vec<i64> {
        let Ok(begins_at) = Timestamp::from_second(begins) else {
            return Vec::new();
        };
        let local = self.zone.to_datetime(begins_at);
        // Zone offsets need not be whole hours, so the wall clock may show any minute at a slot's start.
        let behind = |wanted: i16, shown: i8| (i64::from(wanted) - i64::from(shown)).rem_euclid(60);

        let seconds: Vec<i64> = if self.rule.freq == RruleFrequency::Secondly {
            vec![0]
        } else if self.rule.seconds.is_empty() {
            vec![into_slot % 60]
        } else {
            let shown = local.second();
            self.rule.seconds.iter().map(|s| behind(*s, shown)).collect()
        };

        let minutes: Vec<i64> = if self.rule.freq != RruleFrequency::Hourly {
            vec![0]
        } else if self.rule.minutes.is_empty() {
            vec![into_slot / 60]
        } else {
            let shown = local.minute();
            self.rule.minutes.iter().map(|m| behind(*m, shown)).collect()
        };

        minutes
            .iter()
            .flat_map(|minute| seconds.iter().map(move |second| minute * 60 + second))
            .collect()
    }

    /// Returns whether the wall-clock time `local` matches every part.
    fn shows_local(&self, local: DateTime) -> bool {
        let passes = |list: &[i16], value: i8| list.is_empty() || list.contains(&i16::from(value));
        self.rule.holds_on(local.date())
            && passes(&self.rule.hours, local.hour())
            && passes(&self.rule.minutes, local.minute())
            && passes(&self.rule.seconds, local.second())
    }
}
