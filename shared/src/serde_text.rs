//! Rewords the error texts of serde, which name Rust types, for operators and authors. *Pure.*

/// Word for a value with keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyedValue {
    Table,
    Object,
}

impl KeyedValue {
    const fn name(self) -> &'static str {
        match self {
            Self::Table => "a table",
            Self::Object => "an object",
        }
    }
}

/// Returns serde's `problem` with a value of the configuration in an operator's words.
///
/// ```
/// use shared::serde_text::reword_config_problem;
///
/// let problem = "invalid type: string \"many\", expected u32";
/// assert_eq!(reword_config_problem(problem), "expected a non-negative integer, found string \"many\"");
/// ```
#[must_use]
pub fn reword_config_problem(problem: &str) -> String {
    reword(problem, KeyedValue::Table)
}

/// Returns serde's `problem` with a JSON value in its author's words.
#[must_use]
pub fn reword_json_problem(problem: &str) -> String {
    reword(problem, KeyedValue::Object)
}

fn reword(problem: &str, keyed: KeyedValue) -> String {
    let (problem, place) = match problem.find(" at line ") {
        Some(at) => problem.split_at(at),
        None => (problem, ""),
    };

    let mismatch = problem
        .strip_prefix("invalid type: ")
        .or_else(|| problem.strip_prefix("invalid value: "))
        .and_then(|rest| rest.rsplit_once(", expected "));
    let reworded = match mismatch {
        // A text that is no address was also read as a list: the type that was found says nothing.
        Some((_, "socket address")) => SOCKET_ADDRESS.to_owned(),
        Some((found, expected)) => {
            let (found, expected) = (found_words(found, keyed), expected_words(expected, keyed));
            format!("expected {expected}, found {found}")
        }
        None => reword_name(problem),
    };

    format!("{reworded}{place}")
}

const SOCKET_ADDRESS: &str = "expected IP:PORT, such as 127.0.0.1:8080";

/// Rewords problems with the name of a key or of a value.
fn reword_name(problem: &str) -> String {
    if problem == "invalid socket address syntax" {
        return SOCKET_ADDRESS.to_owned();
    }

    for (theirs, ours) in [
        ("unknown field ", "unknown key "),
        ("unknown variant ", "unknown value "),
        ("missing field ", "missing key "),
        ("duplicate field ", "key given twice: "),
    ] {
        if let Some(rest) = problem.strip_prefix(theirs) {
            let rest = rest.replacen("`, expected ", "`: expected ", 1);
            return format!(
                "{ours}{}",
                rest.replacen("`, there are no fields", "`: expected none", 1)
            );
        }
    }

    problem.to_owned()
}

fn expected_words(expected: &str, keyed: KeyedValue) -> &str {
    match expected {
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a non-negative integer",
        "f32" | "f64" => "a number",
        "string only" | "str" | "a borrowed string" => "a string",
        "a sequence" => "a list",
        "a map" => keyed.name(),
        _ if expected.starts_with("a nonzero ") => "a positive integer",
        _ if expected.starts_with("struct ") || expected.contains("tagged enum ") => keyed.name(),
        _ if expected.starts_with("variant ") || expected.starts_with("enum ") => "a name",
        _ => expected,
    }
}

fn found_words(found: &str, keyed: KeyedValue) -> String {
    match found {
        "map" => keyed.name().to_owned(),
        "sequence" => "a list".to_owned(),
        "unit value" => "null".to_owned(),
        _ => found.replace("floating point ", "number "),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "its shape alone is tested")]
    struct Sample {
        count: i64,
        size: Option<u32>,
        share: Option<f64>,
        names: Option<Vec<String>>,
        mode: Option<SampleMode>,
        listen: Option<SocketAddr>,
        inner: Option<Box<Sample>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum SampleMode {
        Slow,
        Fast,
    }

    /// The texts are serde's own, so a new version of serde that words them differently fails here.
    #[test]
    fn no_text_of_serde_keeps_a_word_of_rust() {
        let cases = [
            (json!({"count": "x"}), "expected an integer, found string \"x\""),
            (
                json!({"count": 1, "size": -1}),
                "expected a non-negative integer, found integer `-1`",
            ),
            (
                json!({"count": 1, "share": "x"}),
                "expected a number, found string \"x\"",
            ),
            (json!({"count": 1.5}), "expected an integer, found number `1.5`"),
            (json!({"count": 1, "names": {}}), "expected a list, found an object"),
            (
                json!({"count": 1, "names": [1]}),
                "expected a string, found integer `1`",
            ),
            (json!({"count": 1, "inner": 1}), "expected an object, found integer `1`"),
            (
                json!({"count": 1, "mode": "quick"}),
                "unknown value `quick`: expected `slow` or `fast`",
            ),
            (json!({"count": 1, "listen": "x"}), SOCKET_ADDRESS),
            (json!({"count": null}), "expected an integer, found null"),
            (json!({}), "missing key `count`"),
            (
                json!({"count": 1, "colour": 1}),
                "unknown key `colour`: expected one of `count`, `size`, `share`, `names`, `mode`, `listen`, `inner`",
            ),
        ];

        for (value, expected) in cases {
            let error = serde_json::from_value::<Sample>(value.clone()).expect_err("it is refused");
            assert_eq!(reword_json_problem(&error.to_string()), expected, "{value}");
        }
    }

    #[test]
    fn the_place_in_the_text_is_kept() {
        let error = serde_json::from_str::<Sample>(r#"{"count": "x"}"#).expect_err("it is refused");
        let text = reword_json_problem(&error.to_string());
        assert_eq!(text, "expected an integer, found string \"x\" at line 1 column 13");
    }

    #[test]
    fn an_error_of_syntax_is_kept() {
        let error = serde_json::from_str::<Value>("{").expect_err("it is refused");
        assert_eq!(reword_json_problem(&error.to_string()), error.to_string());
    }
}
