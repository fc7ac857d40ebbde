//! Patterns for values: text in which `*` matches any text. *Pure.*

/// A parsed pattern: text in which `*` matches any text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GlobPattern {
    /// Text without `*`, which must be equal.
    Exact(String),
    /// `text*`, a prefix; the empty text matches any value.
    Prefix(String),
    /// `*text*`, a substring.
    Contains(String),
    /// Any other pattern, in parts.
    Glob {
        /// Text before the first `*`.
        start: String,
        /// Texts between, in order; none is empty.
        middle: Vec<String>,
        /// Text after the last `*`.
        end: String,
    },
}

impl GlobPattern {
    /// Parses the pattern `text`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let Some((start, rest)) = text.split_once('*') else {
            return Self::Exact(text.to_owned());
        };
        let (between, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle: Vec<String> = between
            .split('*')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect();

        match (start, middle.as_slice(), end) {
            (start, [], "") => Self::Prefix(start.to_owned()),
            ("", [only], "") => Self::Contains(only.clone()),
            (start, _, end) => Self::Glob {
                start: start.to_owned(),
                end: end.to_owned(),
                middle,
            },
        }
    }

    /// Returns whether `value` matches the pattern.
    #[must_use]
    pub fn matches_value(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => value == text,
            Self::Prefix(text) => value.starts_with(text.as_str()),
            Self::Contains(text) => value.contains(text.as_str()),
            Self::Glob { start, middle, end } => {
                let Some(rest) = value.strip_prefix(start.as_str()) else {
                    return false;
                };
                // On the rest, so that `a*a` does not match a single `a`.
                let Some(mut rest) = rest.strip_suffix(end.as_str()) else {
                    return false;
                };

                for part in middle {
                    // The first place leaves the most text for the parts that follow.
                    let Some((_, after)) = rest.split_once(part.as_str()) else {
                        return false;
                    };
                    rest = after;
                }

                true
            }
        }
    }

    /// Returns the longest literal part that every matching value contains; may be empty.
    #[must_use]
    pub fn longest_literal(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Contains(text) => text,
            Self::Glob { start, middle, end } => {
                let parts = middle.iter().chain([start, end]);
                parts.max_by_key(|part| part.len()).map_or("", String::as_str)
            }
        }
    }

    /// Returns the pattern in lower case (ASCII).
    #[must_use]
    pub fn lower_case(self) -> Self {
        let lower = |text: String| text.to_ascii_lowercase();
        match self {
            Self::Exact(text) => Self::Exact(lower(text)),
            Self::Prefix(text) => Self::Prefix(lower(text)),
            Self::Contains(text) => Self::Contains(lower(text)),
            Self::Glob { start, middle, end } => Self::Glob {
                start: lower(start),
                middle: middle.into_iter().map(lower).collect(),
                end: lower(end),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, value, is_meant) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("+1555*", "+15551", true),
            ("+1555*", "+1666", false),
            ("*", "", true),
            ("*", "anything", true),
            ("**", "anything", true),
            ("*code*", "your code is", true),
            ("*code*", "cod", false),
            ("*@example.com", "ann@example.com", true),
            ("*@example.com", "ann@example.com.evil", false),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(
                GlobPattern::parse(pattern).matches_value(value),
                is_meant,
                "{pattern} {value}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_meant_contains_the_literal(pattern in "[ab*]{0,6}", value in "[ab]{0,6}") {
            let pattern = GlobPattern::parse(&pattern);
            if pattern.matches_value(&value) {
                prop_assert!(value.contains(pattern.longest_literal()));
            }
        }

        #[test]
        fn a_pattern_means_what_a_regular_expression_would(pattern in "[ab*]{0,6}", value in "[ab]{0,6}") {
            // Two rows of the usual table of glob matching.
            let (p, v): (Vec<char>, Vec<char>) = (pattern.chars().collect(), value.chars().collect());
            let mut row = vec![false; v.len() + 1];
            row[0] = true;
            for c in p {
                let mut next = vec![false; v.len() + 1];
                next[0] = c == '*' && row[0];
                for at in 1..=v.len() {
                    next[at] = if c == '*' { row[at] || next[at - 1] } else { row[at - 1] && v[at - 1] == c };
                }
                row = next;
            }
            prop_assert_eq!(GlobPattern::parse(&pattern).matches_value(&value), row[v.len()], "{} {}", pattern, value);
        }
    }
}
