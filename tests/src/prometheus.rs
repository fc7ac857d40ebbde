//! The Prometheus text format, read strictly. *Pure.*
//!
//! Source: <https://prometheus.io/docs/instrumenting/exposition_formats/> "Text format details".

use std::collections::{BTreeMap, BTreeSet};

/// One sample: name, labels in order, value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its name, suffix included.
    pub name: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Its value.
    pub value: f64,
}

/// The samples of `text`.
///
/// # Errors
/// The first line that breaks the format, and how.
pub fn parse(text: &str) -> Result<Vec<Sample>, String> {
    if !text.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }

    let mut types: BTreeMap<String, String> = BTreeMap::new();
    let mut series = BTreeSet::new();

    let mut samples = Vec::new();
    for line in text.lines() {
        let fault = |what: &str| format!("{what}: `{line}`");
        if let Some(comment) = line.strip_prefix("# TYPE ") {
            let (name, kind) = comment.split_once(' ').ok_or_else(|| fault("no type"))?;
            if !is_name(name) || !["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind) {
                return Err(fault("no such type"));
            }

            if types.insert(name.to_owned(), kind.to_owned()).is_some() {
                return Err(fault("a second type"));
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            let sample = sample(line).ok_or_else(|| fault("no sample"))?;
            if !has_type(&types, &sample) {
                return Err(fault("of no type that was told before"));
            }

            if !series.insert((sample.name.clone(), sample.labels.clone())) {
                return Err(fault("told twice"));
            }
            samples.push(sample);
        }
    }

    Ok(samples)
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !text.is_empty() && text.chars().all(plain) && !text.starts_with(|c: char| c.is_ascii_digit())
}

fn has_type(types: &BTreeMap<String, String>, sample: &Sample) -> bool {
    let of = |name: &str| types.get(name).map(String::as_str);
    if let Some(kind) = of(&sample.name) {
        return kind != "histogram";
    }

    let suffixes = ["_bucket", "_sum", "_count"];
    let family = suffixes.iter().find_map(|suffix| sample.name.strip_suffix(suffix));
    let bucket = sample.name.ends_with("_bucket");
    let bounded = sample.labels.iter().any(|(name, _)| name == "le");

    family.and_then(of).is_some_and(|kind| {
        if bucket {
            kind == "histogram" && bounded
        } else {
            kind != "gauge"
        }
    })
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };

    let value = match rest.strip_prefix(' ')? {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => number.parse().ok()?,
    };

    is_name(name).then(|| Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut found = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((found, after));
        }

        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = after.char_indices();

        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    escaped @ ('\\' | '"') => escaped,
                    _ => return None,
                }),
                (_, letter) => value.push(letter),
            }
        };

        if !is_name(name) || name.contains(':') {
            return None;
        }

        found.push((name.to_owned(), value));
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_format_allows_is_read() {
        let text = "# HELP a what\n# TYPE a counter\na{x=\"1,}\\\"\\n\",y=\"\"} 5\na 6e3\n\n# TYPE h histogram\n\
                    h_bucket{le=\"+Inf\"} 1\nh_sum 0.5\nh_count 1\n# TYPE g gauge\ng NaN\n";
        let samples = parse(text).expect("it is well formed");
        assert_eq!(samples.len(), 6);
        assert_eq!(samples[0].labels[0], ("x".to_owned(), "1,}\"\n".to_owned()));
        assert_eq!(samples[1].value, 6_000.0);
    }

    #[test]
    fn what_breaks_it_is_named() {
        for (text, fault) in [
            ("# TYPE a counter\na 1", "does not end"),
            ("a 1\n", "of no type"),
            ("# TYPE a counter\n# TYPE a gauge\n", "a second type"),
            ("# TYPE a colour\n", "no such type"),
            ("# TYPE a counter\na 1\na 1\n", "told twice"),
            ("# TYPE a counter\na one\n", "no sample"),
            ("# TYPE a counter\na{x=\"1} 1\n", "no sample"),
            ("# TYPE a counter\na{x=\"\\q\"} 1\n", "no sample"),
            ("# TYPE h histogram\nh_bucket 1\n", "of no type"),
            ("# TYPE h histogram\nh 1\n", "of no type"),
        ] {
            let told = parse(text).expect_err(text);
            assert!(told.contains(fault), "{told} for {text}");
        }
    }
}
