//! Parsing of one field of a cron expression into the set of its values. *Pure.*
//!
//! A field contains lists, ranges (including those that wrap, `23-3`), steps and names; `n/step` ends at the field's
//! maximum.

use super::ParseCronError;

/// A field with its name, its bounds and the names of its values.
#[derive(Debug, Clone, Copy)]
pub(super) struct CronField {
    /// Name of the field in errors.
    pub(super) name: &'static str,
    /// Minimum value of the field.
    pub(super) min: u32,
    /// Maximum value of the field.
    pub(super) max: u32,
    /// Names of the values, starting at `names_from`.
    pub(super) names: &'static [&'static str],
    /// Value of the first name.
    pub(super) names_from: u32,
    /// Number of different values, after which a range that wraps starts again.
    pub(super) cycle: u32,
}

const fn plain_field(name: &'static str, min: u32, max: u32) -> CronField {
    CronField {
        name,
        min,
        max,
        names: &[],
        names_from: 0,
        cycle: max - min + 1,
    }
}

pub(super) const SECONDS: CronField = plain_field("seconds", 0, 59);
pub(super) const MINUTES: CronField = plain_field("minutes", 0, 59);
pub(super) const HOURS: CronField = plain_field("hours", 0, 23);
pub(super) const DAYS: CronField = plain_field("days of month", 1, 31);
pub(super) const MONTHS: CronField = CronField {
    names: &[
        "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
    ],
    names_from: 1,
    ..plain_field("months", 1, 12)
};
/// Both 0 and 7 are Sunday.
pub(super) const WEEKDAYS: CronField = CronField {
    names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
    names_from: 0,
    cycle: 7,
    ..plain_field("days of week", 0, 7)
};

/// The values of one field, one bit each.
pub(super) type Values = u64;

impl CronField {
    pub(super) fn item_error(&self, text: &str, why: &str) -> ParseCronError {
        ParseCronError {
            field: self.name,
            text: text.to_owned(),
            why: why.to_owned(),
        }
    }

    /// Parses the number or name at the start of `text`. Returns it with the rest of the text.
    pub(super) fn value<'t>(&self, text: &'t str) -> Result<(u32, &'t str), ParseCronError> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits > 0 {
            let (number, rest) = text.split_at(digits);
            let number = number.parse().ok().filter(|n| (self.min..=self.max).contains(n));
            return number
                .map(|number| (number, rest))
                .ok_or_else(|| self.item_error(text, &format!("expected {} to {}", self.min, self.max)));
        }

        let named = text.get(..3).and_then(|head| {
            let at = self.names.iter().position(|name| name.eq_ignore_ascii_case(head))?;
            Some((self.names_from + u32::try_from(at).ok()?, &text[3..]))
        });

        named.ok_or_else(|| self.item_error(text, "expected a number or a name"))
    }

    /// Returns the values of `text`: `*`, or a list of values, ranges and steps.
    pub(super) fn values(&self, text: &str) -> Result<Values, ParseCronError> {
        text.split(',')
            .try_fold(0, |all, item| Ok(all | self.parse_item(item)?))
    }

    /// Returns the values of one item of a list.
    pub(super) fn parse_item(&self, item: &str) -> Result<Values, ParseCronError> {
        let (first, last, rest) = if let Some(rest) = item.strip_prefix('*') {
            (self.min, self.max, rest)
        } else {
            let (first, rest) = self.value(item)?;
            match rest.strip_prefix('-') {
                Some(rest) => {
                    let (last, rest) = self.value(rest)?;
                    (first, last, rest)
                }
                None if rest.starts_with('/') => (first, self.max, rest),
                None => (first, first, rest),
            }
        };

        let step = self.step(rest, item)?;
        // A range that wraps continues past the maximum at the minimum, with the same step.
        let last = if last < first { last + self.cycle } else { last };
        let bit = |value: u32| {
            let value = if value > self.max { value - self.cycle } else { value };
            1_u64 << value
        };

        Ok((first..=last).step_by(step).fold(0, |all, value| all | bit(value)))
    }

    fn step(&self, rest: &str, item: &str) -> Result<usize, ParseCronError> {
        if rest.is_empty() {
            return Ok(1);
        }

        let step = rest
            .strip_prefix('/')
            .filter(|step| step.bytes().all(|b| b.is_ascii_digit()));
        step.and_then(|step| step.parse().ok())
            .filter(|step| (1..=self.max).contains(step))
            .and_then(|step| usize::try_from(step).ok())
            .ok_or_else(|| self.item_error(item, &format!("expected a step between 1 and {}", self.max)))
    }
}

/// Returns the smallest of `values` at or after `from`.
pub(super) const fn at_or_after(values: Values, from: u32) -> Option<u32> {
    if from > 63 {
        return None;
    }
    let left = values >> from;
    if left == 0 {
        None
    } else {
        Some(from + left.trailing_zeros())
    }
}

/// Returns whether `value` is one of `values`.
pub(super) const fn contains(values: Values, value: u32) -> bool {
    value < 64 && values >> value & 1 == 1
}
