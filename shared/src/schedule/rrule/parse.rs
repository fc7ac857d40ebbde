//! Parsing of a recurrence rule's text. *Pure.* Source: RFC 5545 §3.3.10 and §3.8.5.3.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time, Weekday};

use super::{ParseRruleError, RecurrenceRule, RruleFrequency, RruleUntil, WeekDayNumber};

/// Maximum length of a rule's text, in bytes.
const MAX_BYTES: usize = 2_048;
/// Start of rules without a DTSTART: midnight of a Monday that is the first day of a month and of a year, so that
/// intervals count from a fixed grid and not from the time at which the rule was created.
pub(super) const NO_START: DateTime = DateTime::constant(2001, 1, 1, 0, 0, 0, 0);

/// A parsed rule with its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParsedRule {
    pub(super) rule: RecurrenceRule,
    pub(super) start: DateTime,
    /// `TZID` of the DTSTART, or `UTC` if the start ends in `Z`.
    pub(super) zone: Option<String>,
}

fn part_error(part: &str, text: &str, why: &str) -> ParseRruleError {
    ParseRruleError {
        part: part.to_owned(),
        text: text.chars().take(80).collect(),
        why: why.to_owned(),
    }
}

/// Parses `DTSTART…` (optional) and `RRULE:…` on lines of their own, or a bare rule.
pub(super) fn parse(text: &str) -> Result<ParsedRule, ParseRruleError> {
    // Checked first, so that the parsers below need no bound of their own.
    if text.len() > MAX_BYTES {
        return Err(part_error("rule", text, "too long"));
    }

    let (mut start, mut zone, mut rule) = (None, None, None);
    for line in text.split_whitespace() {
        let upper = line.to_ascii_uppercase();
        if upper.starts_with("DTSTART") {
            if start.is_some() {
                return Err(part_error("DTSTART", line, "given twice"));
            }
            let (found, its_zone) = parse_dtstart(line)?;
            (start, zone) = (Some(found), its_zone);
        } else if rule.is_some() {
            return Err(part_error("rule", line, "expected one DTSTART and one RRULE"));
        } else {
            rule = Some(parse_parts(upper.strip_prefix("RRULE:").unwrap_or(&upper))?);
        }
    }

    let rule = rule.ok_or_else(|| part_error("rule", text, "missing"))?;
    // Counted from the fixed start, the rule would already be over.
    if start.is_none() && rule.count.is_some() {
        return Err(part_error("COUNT", text, "needs a DTSTART to count from"));
    }

    Ok(ParsedRule {
        rule,
        start: start.unwrap_or(NO_START),
        zone,
    })
}

/// Parses `DTSTART:19970902T090000`, `DTSTART;TZID=Europe/Berlin:…`, `DTSTART:…Z`.
fn parse_dtstart(line: &str) -> Result<(DateTime, Option<String>), ParseRruleError> {
    let error = |why| part_error("DTSTART", line, why);
    let (head, value) = line.split_once(':').ok_or_else(|| error("expected `:` and a time"))?;

    let mut zone = None;
    for parameter in head.split(';').skip(1) {
        match parameter.split_once('=') {
            Some((name, id)) if name.eq_ignore_ascii_case("TZID") => zone = Some(id.to_owned()),
            Some((name, _)) if name.eq_ignore_ascii_case("VALUE") => {}
            Some(_) | None => return Err(error("expected TZID=…")),
        }
    }

    let (start, is_utc, _) = parse_moment(value).ok_or_else(|| error("expected YYYYMMDDTHHMMSS"))?;
    if is_utc {
        zone = Some("UTC".to_owned());
    }

    Ok((start, zone))
}

/// Parses `YYYYMMDD[THHMMSS[Z]]`. Returns the time, whether it is in UTC, and whether it is only a date.
fn parse_moment(text: &str) -> Option<(DateTime, bool, bool)> {
    let (text, is_utc) = match text.strip_suffix(['Z', 'z']) {
        Some(text) => (text, true),
        None => (text, false),
    };
    // The fields below are cut out by byte offsets.
    if !text.is_ascii() {
        return None;
    }

    let (date, time) = match text.split_once(['T', 't']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let number = |text: &str, from: usize, to: usize| {
        let digits = text.get(from..to)?;
        digits
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| digits.parse::<i16>().ok())?
    };

    let small = |text: &str, from: usize, to: usize| i8::try_from(number(text, from, to)?).ok();

    if date.len() != 8 || time.is_some_and(|time| time.len() != 6) {
        return None;
    }

    let day = Date::new(number(date, 0, 4)?, small(date, 4, 6)?, small(date, 6, 8)?).ok()?;
    let at = match time {
        Some(time) => Time::new(small(time, 0, 2)?, small(time, 2, 4)?, small(time, 4, 6)?, 0).ok()?,
        None => Time::midnight(),
    };

    Some((day.to_datetime(at), is_utc, time.is_none()))
}

/// Parses the parts `FREQ=…;INTERVAL=…;…`.
fn parse_parts(text: &str) -> Result<RecurrenceRule, ParseRruleError> {
    let mut rule = RecurrenceRule::default();
    let mut freq = None;

    let mut seen: Vec<&str> = Vec::new();
    for part in text.split(';').filter(|part| !part.is_empty()) {
        let (name, value) = part
            .split_once('=')
            .ok_or_else(|| part_error("rule", part, "expected NAME=VALUE"))?;
        // RFC 5545 allows each part only once.
        if seen.contains(&name) {
            return Err(part_error(name, value, "given twice"));
        }

        seen.push(name);

        if name == "FREQ" {
            freq = Some(RruleFrequency::parse(value).ok_or_else(|| part_error(name, value, "unknown frequency"))?);
        } else {
            part_of(&mut rule, name, value)?;
        }
    }

    rule.freq = freq.ok_or_else(|| part_error("FREQ", text, "missing"))?;
    check(&rule, text)?;

    Ok(rule)
}

fn part_of(rule: &mut RecurrenceRule, name: &str, value: &str) -> Result<(), ParseRruleError> {
    let numbers = |min: i16, max: i16, zero: bool| parse_numbers(name, value, min, max, zero);
    match name {
        "INTERVAL" => rule.interval = parse_positive(name, value)?,
        "COUNT" => rule.count = Some(parse_positive(name, value)?),
        "UNTIL" => {
            rule.until = Some(parse_until(value).ok_or_else(|| part_error(name, value, "expected a date or a time"))?);
        }
        "WKST" => {
            rule.week_start = parse_weekday(value).ok_or_else(|| part_error(name, value, "expected a weekday"))?;
        }
        "BYMONTH" => rule.months = numbers(1, 12, false)?,
        "BYMONTHDAY" => rule.month_days = numbers(-31, 31, false)?,
        "BYYEARDAY" => rule.year_days = numbers(-366, 366, false)?,
        "BYWEEKNO" => rule.weeks = numbers(-53, 53, false)?,
        "BYEASTER" => rule.easter = numbers(-366, 366, true)?,
        "BYHOUR" => rule.hours = numbers(0, 23, true)?,
        "BYMINUTE" => rule.minutes = numbers(0, 59, true)?,
        // 60 is a leap second, which no clock here shows.
        "BYSECOND" => rule.seconds = numbers(0, 59, true)?,
        "BYSETPOS" => rule.positions = numbers(-366, 366, false)?,
        "BYDAY" => {
            rule.week_days = value
                .split(',')
                .map(|day| parse_numbered_day(day).ok_or_else(|| part_error(name, value, "expected weekdays")))
                .collect::<Result<_, _>>()?;
        }
        _ => return Err(part_error(name, value, "unknown part")),
    }

    Ok(())
}

fn check(rule: &RecurrenceRule, text: &str) -> Result<(), ParseRruleError> {
    if rule.count.is_some() && rule.until.is_some() {
        return Err(part_error("COUNT", text, "COUNT and UNTIL exclude each other"));
    }

    let numbered = rule.week_days.iter().any(|day| day.nth.is_some());
    if numbered && !matches!(rule.freq, RruleFrequency::Monthly | RruleFrequency::Yearly) {
        return Err(part_error(
            "BYDAY",
            text,
            "a number belongs to monthly and yearly rules only",
        ));
    }

    if numbered && !rule.weeks.is_empty() {
        return Err(part_error("BYDAY", text, "a number does not go with BYWEEKNO"));
    }

    Ok(())
}

fn parse_positive(name: &str, value: &str) -> Result<u32, ParseRruleError> {
    let number = value
        .bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| value.parse().ok())
        .flatten();
    number
        .filter(|&number| number > 0)
        .ok_or_else(|| part_error(name, value, "expected a whole number from 1"))
}

fn parse_numbers(name: &str, value: &str, min: i16, max: i16, zero: bool) -> Result<Vec<i16>, ParseRruleError> {
    let read = |text: &str| {
        let number = text.strip_prefix('+').unwrap_or(text).parse::<i16>().ok()?;
        ((min..=max).contains(&number) && (zero || number != 0)).then_some(number)
    };
    let mut found = value
        .split(',')
        .map(|text| read(text).ok_or_else(|| part_error(name, value, &format!("expected numbers from {min} to {max}"))))
        .collect::<Result<Vec<_>, _>>()?;

    found.sort_unstable();
    found.dedup();

    Ok(found)
}

fn parse_until(value: &str) -> Option<RruleUntil> {
    let (at, is_utc, is_date) = parse_moment(value)?;
    if is_utc {
        let at: Timestamp = jiff::tz::Offset::UTC.to_timestamp(at).ok()?;
        return Some(RruleUntil::Instant(at));
    }

    // A date without a time includes the whole day.
    let last = if is_date {
        at.date().to_datetime(Time::constant(23, 59, 59, 0))
    } else {
        at
    };

    Some(RruleUntil::Local(last))
}

fn parse_weekday(text: &str) -> Option<Weekday> {
    match text {
        "MO" => Some(Weekday::Monday),
        "TU" => Some(Weekday::Tuesday),
        "WE" => Some(Weekday::Wednesday),
        "TH" => Some(Weekday::Thursday),
        "FR" => Some(Weekday::Friday),
        "SA" => Some(Weekday::Saturday),
        "SU" => Some(Weekday::Sunday),
        _ => None,
    }
}

/// Parses a weekday with an optional number: `MO`, `2TU`, `-1SU`.
fn parse_numbered_day(text: &str) -> Option<WeekDayNumber> {
    let at = text.len().checked_sub(2)?;
    let (number, day) = (text.get(..at)?, parse_weekday(text.get(at..)?)?);
    let nth = match number.strip_prefix('+').unwrap_or(number) {
        "" if number.is_empty() => None,
        number => Some(
            number
                .parse::<i16>()
                .ok()
                .filter(|n| *n != 0 && (-53..=53).contains(n))?,
        ),
    };

    Some(WeekDayNumber { day, nth })
}
