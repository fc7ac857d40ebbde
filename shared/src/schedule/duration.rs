//! Durations as people write them: `90s`, `30m`, `1h30m`, `2d`, `1w`. *Pure.*

/// Maximum duration, in milliseconds: ten years.
pub const MAX_MS: i64 = 3_653 * 86_400_000;

/// The error for a text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}`: expected a duration such as 90s, 30m, 1h30m, 2d or 1w, up to ten years")]
pub struct ParseDurationError {
    /// The invalid text, at most 80 characters.
    pub text: String,
}

/// Returns the milliseconds of `text`: numbers with `w`, `d`, `h`, `m`, `min`, `s` or `ms`, at least one in total.
///
/// ```
/// assert_eq!(shared::schedule::duration::parse("1h30m"), Ok(5_400_000));
/// assert!(shared::schedule::duration::parse("soon").is_err());
/// ```
///
/// # Errors
/// Returns [`ParseDurationError`] if `text` is not of this form.
pub fn parse(text: &str) -> Result<i64, ParseDurationError> {
    parse_total(text.trim()).ok_or_else(|| ParseDurationError {
        text: text.chars().take(80).collect(),
    })
}

fn parse_total(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut sum = 0_i64;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, tail) = tail.split_at(letters);

        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            _ => return None,
        };

        // Fails if the digits are missing, too: an empty text is not a number.
        sum = sum.checked_add(number.parse::<i64>().ok()?.checked_mul(unit_ms)?)?;
        rest = tail.trim_start();
    }

    (1..=MAX_MS).contains(&sum).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, expected) in [
            ("90s", 90_000),
            ("30m", 1_800_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("2d", 172_800_000),
            ("1w", 604_800_000),
            ("5ms", 5),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }

        for text in ["", "0m", "m", "30", "1y", "-5m", "999999w", "5mm"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
