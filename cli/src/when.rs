//! Points in time on the command line (`--since`, `--until`).

use anyhow::Result;
use shared::model::time::UnixMillis;

use crate::exit::{Exit, failure};

/// Units of a span, with their length in milliseconds.
const UNITS: [(char, i64); 5] = [
    ('s', 1_000),
    ('m', 60_000),
    ('h', 3_600_000),
    ('d', 86_400_000),
    ('w', 604_800_000),
];

/// Parses a point in time: a span before `now` (`90s`, `15m`, `2h`, `7d`, `1w`), an instant such as
/// `2026-11-22T09:00:00Z`, or Unix milliseconds.
///
/// # Errors
/// Fails with exit code 2 if `text` is none of these; the error names `option`.
pub fn parse_when(option: &str, text: &str, now: UnixMillis) -> Result<UnixMillis> {
    if let Ok(millis) = text.parse() {
        return Ok(UnixMillis(millis));
    }
    if let Ok(instant) = text.parse::<jiff::Timestamp>() {
        return Ok(UnixMillis(instant.as_millisecond()));
    }

    match span_of(text) {
        Some(ago) => Ok(UnixMillis(now.0.saturating_sub(ago))),
        None => Err(failure(
            Exit::Usage,
            format!(
                "{option} `{text}`: expected an age such as 90s, 15m, 2h, 7d or 1w, an instant such as 2026-11-22T09:00:00Z, or Unix milliseconds"
            ),
        )),
    }
}

/// Parses a span (`90s`, `15m`, `2h`, `7d`, `1w`). Returns it in milliseconds.
///
/// # Errors
/// Fails with exit code 2 if `text` is none; the error names `option`.
pub fn parse_span(option: &str, text: &str) -> Result<i64> {
    let span = span_of(text).filter(|span| *span > 0);
    span.ok_or_else(|| {
        let problem = format!("{option} `{text}`: expected a time such as 90s, 15m, 2h, 7d or 1w");
        failure(Exit::Usage, problem)
    })
}

/// Returns a span in milliseconds; `None` if `text` is none.
fn span_of(text: &str) -> Option<i64> {
    let span = UNITS.iter().find_map(|(unit, millis)| {
        let count: i64 = text.strip_suffix(*unit)?.parse().ok()?;
        count.checked_mul(*millis)
    });
    span.filter(|span| *span >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_in_time_are_spans_instants_or_milliseconds() {
        let now = UnixMillis(1_000_000_000);
        for (text, expected) in [
            ("0s", 1_000_000_000),
            ("2m", 999_880_000),
            ("1d", 913_600_000),
            ("1w", 395_200_000),
            ("12345", 12_345),
            ("1970-01-01T00:00:01Z", 1_000),
        ] {
            assert_eq!(
                parse_when("--since", text, now).expect(text),
                UnixMillis(expected),
                "{text}"
            );
        }

        for text in ["", "d", "-1d", "2 weeks", "9999999999999999999d", "yesterday"] {
            let error = parse_when("--since", text, now).expect_err(text);
            assert_eq!(Exit::of_error(&error), Exit::Usage, "{text}");
        }
    }
}
