//! Files beside the checkout that are not part of it: recordings of other people's traffic, and their tables of cases.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::says;

/// The file or folder `path` of `../shared`, seen from the checkout's root; `None`, and a line that says so, where it is
/// absent.
///
/// # Panics
/// In CI, unless `NEXUS_FIXTURES=absent` says that the files cannot be had: a skipped test must not look like a passed
/// one.
#[must_use]
pub fn fixture(path: &str) -> Option<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(path);
    if file.exists() {
        return Some(file);
    }

    assert!(
        !is_expected(says),
        "{} is missing; NEXUS_FIXTURES=absent leaves out the tests that need it",
        file.display()
    );

    println!("SKIPPED: no {}", file.display());
    None
}

/// Whether the files must be there, by the variables that the environment `says`.
fn is_expected(says: impl Fn(&str, &str) -> bool) -> bool {
    says("CI", "true") && !says("NEXUS_FIXTURES", "absent")
}

/// The text of [`fixture`] `path`.
///
/// # Panics
/// As [`fixture`], and if the file cannot be read as text.
#[must_use]
pub fn fixture_text(path: &str) -> Option<String> {
    let file = fixture(path)?;
    let text = std::fs::read_to_string(&file);
    Some(text.unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

/// Calls `check` with copies of `value`, in each of which one part is one of `replacements`: each part, each replacement.
/// Returns the number of calls.
pub fn replace_each_part(value: &Value, replacements: &[Value], mut check: impl FnMut(&Value)) -> usize {
    let mut paths = Vec::new();
    add_paths(value, "", &mut paths);

    for path in &paths {
        for replacement in replacements {
            let mut changed = value.clone();
            if let Some(part) = changed.pointer_mut(path) {
                *part = replacement.clone();
            }
            check(&changed);
        }
    }
    paths.len() * replacements.len()
}

/// Adds the paths of everything in `value`, which is at `here`, to `paths`.
fn add_paths(value: &Value, here: &str, paths: &mut Vec<String>) {
    paths.push(here.to_owned());
    match value {
        Value::Object(keys) => keys
            .iter()
            .for_each(|(key, inner)| add_paths(inner, &format!("{here}/{key}"), paths)),
        Value::Array(items) => (0..)
            .zip(items)
            .for_each(|(index, item): (usize, _)| add_paths(item, &format!("{here}/{index}"), paths)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_part_is_replaced_once_by_each_replacement() {
        let mut seen = Vec::new();
        let calls = replace_each_part(&json!({"a": [1]}), &[json!(null)], |changed| seen.push(changed.clone()));
        assert_eq!(
            (calls, seen),
            (3, vec![json!(null), json!({"a": null}), json!({"a": [null]})])
        );
    }

    #[test]
    fn what_is_absent_is_left_out_aloud_and_in_ci_only_where_that_is_known() {
        for (said, expected) in [
            (vec![], false),
            (vec![("NEXUS_FIXTURES", "absent")], false),
            (vec![("CI", "true")], true),
            (vec![("CI", "true"), ("NEXUS_FIXTURES", "absent")], false),
        ] {
            let says = |name: &str, word: &str| said.contains(&(name, word));
            assert_eq!(is_expected(says), expected, "{said:?}");
        }
    }
}
