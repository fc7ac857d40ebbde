//! A YAML file, deserialised with every fault found at once. *Pure.*
//!
//! As with a [section](super::ConfigDocument::section): deserialising stops at the first fault, so its place is cut out and the
//! rest is deserialised again. The keys that faults name are those of the file as written, although cutting an element
//! out of a list moves the ones behind it.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use serde_yaml_ng::Value;

use super::fault::KeyFault;
use super::section::are_related;
use crate::serde_text::reword_config_problem;

/// The most faults that are reported of one file.
const MAX_FAULTS: usize = 100;

/// Reads `text` as a `T`, which `check` then looks at for faults of meaning. Returns `None` if the text holds nothing but
/// comments.
///
/// If places of the text cannot be read, `check` gets the value without them, and the faults that it finds at such a
/// place are left out.
///
/// # Errors
/// Every fault of shape and of meaning, at least one. The key is empty if the text is not YAML, or a fault concerns the
/// whole of it.
///
/// ```
/// use std::collections::BTreeMap;
/// use shared::process::config::read_yaml;
///
/// let none = |_: &BTreeMap<String, u32>| Vec::new();
/// assert_eq!(read_yaml("a: 1", none).unwrap().unwrap()["a"], 1);
/// let faults = read_yaml("a: one\nb: -2\nc: 3", none).unwrap_err();
/// let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
/// assert_eq!(keys, ["a", "b"]);
/// ```
pub fn read_yaml<T: DeserializeOwned>(
    text: &str,
    check: impl FnOnce(&T) -> Vec<KeyFault>,
) -> Result<Option<T>, Vec<KeyFault>> {
    let whole = match serde_yaml_ng::from_str::<Option<T>>(text) {
        Ok(value) => {
            let faults = value.as_ref().map(check).unwrap_or_default();
            return if faults.is_empty() { Ok(value) } else { Err(faults) };
        }
        Err(error) => KeyFault::whole(error.to_string()),
    };
    // The same error for every reader of the file, no matter which part of it they read.
    let written = serde_yaml_ng::from_str::<Value>(text);
    let written = written.map_err(|error| vec![KeyFault::whole(error.to_string())])?;

    let mut reading = YamlReader::over(written);
    let value = reading.value::<T>();
    let meant = value.as_ref().map(check).unwrap_or_default();
    for fault in meant {
        let fault = KeyFault {
            key: reading.key_as_written(&fault.key),
            ..fault
        };
        if !reading.faults.iter().any(|shape| is_about(shape, &fault)) {
            reading.faults.push(fault);
        }
    }

    // Places can be named only inside of valid YAML, and a fault that has no place is one of the whole file.
    if reading.faults.is_empty() {
        reading.faults.push(whole);
    }

    Err(reading.faults)
}

/// Whether `meant`, a fault of meaning, is about a place that `shape` has reported.
fn is_about(shape: &KeyFault, meant: &KeyFault) -> bool {
    !shape.key.is_empty() && are_related(&shape.key, &meant.key)
}

/// A step into a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum YamlStep {
    Key(String),
    Index(usize),
}

/// A file on its way to being clean.
struct YamlReader {
    /// The file without the places that are cut out.
    left: Value,
    /// Places that are cut out, as written.
    cut: BTreeSet<Vec<YamlStep>>,
    faults: Vec<KeyFault>,
}

impl YamlReader {
    fn over(written: Value) -> Self {
        Self {
            left: with_names(written),
            cut: BTreeSet::new(),
            faults: Vec::new(),
        }
    }

    /// The value without the parts that cannot be read, `None` if not even the outermost map can.
    fn value<T: DeserializeOwned>(&mut self) -> Option<T> {
        // Each round cuts a place, or makes a text of one.
        while self.faults.len() < MAX_FAULTS {
            let error = match serde_path_to_error::deserialize::<_, Option<T>>(&self.left) {
                Ok(value) => return value,
                Err(error) => error,
            };

            let found: Vec<YamlStep> = error.path().iter().map_while(step).collect();
            let problem = error.inner().to_string();
            if !(self.took_as_text(&found, &problem) || self.note(&found, problem.trim())) {
                break;
            }
        }

        None
    }

    /// Makes a text of the number, truth value or nothing at `found` if a text was expected there: in a file such a word is
    /// one, and only here it has become something else. Returns whether it was so.
    fn took_as_text(&mut self, found: &[YamlStep], problem: &str) -> bool {
        let Some(value) = value_at(&mut self.left, found).filter(|_| problem.ends_with("expected a string")) else {
            return false;
        };

        let text = match value {
            Value::Null => String::new(),
            Value::Bool(_) | Value::Number(_) => word(value),
            Value::String(_) | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => return false,
        };
        *value = Value::String(text);
        true
    }

    /// Takes in a fault at the place `found` in the rest, and cuts it out; returns whether there was something to cut.
    fn note(&mut self, found: &[YamlStep], problem: &str) -> bool {
        let mut at = self.as_written(found);
        let written = at.clone();
        let missing = problem
            .strip_prefix("missing field `")
            .and_then(|rest| rest.split('`').next());

        let problem = match missing {
            Some(field) => {
                at.push(YamlStep::Key(field.to_owned()));
                "required, but missing".to_owned()
            }
            None => reword_config_problem(problem),
        };

        // A field that is missing because it was cut out has been reported.
        if !self.cut.contains(&at) {
            self.faults.push(KeyFault { key: key(&at), problem });
        }

        self.cut.insert(written) && cut_out(&mut self.left, found)
    }

    /// The key, in the file as written, of the key `found` in the rest of it.
    fn key_as_written(&self, found: &str) -> String {
        let mut found = found.to_owned();
        let mut lists: Vec<Vec<YamlStep>> = self.cut.iter().filter_map(|place| list_of(place)).collect();
        lists.sort_by_key(Vec::len);
        lists.dedup();

        // Outer lists first: the keys of inner ones are as written there.
        for list in lists {
            let before = key(&list);
            let inside = found.strip_prefix(&before).and_then(|rest| rest.strip_prefix('['));
            let Some((index, rest)) = inside.and_then(|rest| rest.split_once(']')) else {
                continue;
            };
            let Ok(index) = index.parse() else { continue };
            let place = list.into_iter().chain([YamlStep::Index(index)]).collect();
            found = format!("{}{rest}", key(&self.last_as_written(place)));
        }

        found
    }

    /// The place, in the file as written, of the place `found` in the rest of it.
    fn as_written(&self, found: &[YamlStep]) -> Vec<YamlStep> {
        let mut place = Vec::new();
        for step in found {
            place.push(step.clone());
            place = self.last_as_written(place);
        }

        place
    }

    /// `place`, of which the last step alone is not yet as written.
    fn last_as_written(&self, mut place: Vec<YamlStep>) -> Vec<YamlStep> {
        let Some(YamlStep::Index(index)) = place.pop_if(|step| matches!(step, YamlStep::Index(_))) else {
            return place;
        };

        let (mut written, mut before) = (0, index);
        loop {
            place.push(YamlStep::Index(written));
            let is_cut = self.cut.contains(&place);
            if !is_cut && before == 0 {
                return place;
            }

            before -= usize::from(!is_cut);
            written += 1;
            place.pop();
        }
    }
}

/// The list that `place` is an element of.
fn list_of(place: &[YamlStep]) -> Option<Vec<YamlStep>> {
    match place.split_last()? {
        (YamlStep::Index(_), list) => Some(list.to_vec()),
        (YamlStep::Key(_), _) => None,
    }
}

/// A step of the deserialiser's path; a variant of an enum, or a step that it does not know, ends the nameable path.
fn step(segment: &Segment) -> Option<YamlStep> {
    match segment {
        Segment::Map { key } => Some(YamlStep::Key(key.clone())),
        Segment::Seq { index } => Some(YamlStep::Index(*index)),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

/// The value at the place `found` of `value`.
fn value_at<'v>(value: &'v mut Value, found: &[YamlStep]) -> Option<&'v mut Value> {
    found.iter().try_fold(value, |inside, step| match (inside, step) {
        (Value::Mapping(map), YamlStep::Key(name)) => map.get_mut(name.as_str()),
        (Value::Sequence(list), YamlStep::Index(index)) => list.get_mut(*index),
        (_, YamlStep::Key(_) | YamlStep::Index(_)) => None,
    })
}

/// Removes the place `found` from `value`; returns whether it was there.
fn cut_out(value: &mut Value, found: &[YamlStep]) -> bool {
    let Some((last, before)) = found.split_last() else {
        return false;
    };

    match (value_at(value, before), last) {
        (Some(Value::Mapping(map)), YamlStep::Key(name)) => map.shift_remove(name.as_str()).is_some(),
        (Some(Value::Sequence(list)), YamlStep::Index(index)) if *index < list.len() => {
            list.remove(*index);
            true
        }
        (_, YamlStep::Key(_) | YamlStep::Index(_)) => false,
    }
}

/// `value` with texts for the keys of its maps, as names are read from a file.
fn with_names(value: Value) -> Value {
    match value {
        Value::Mapping(map) => {
            let entries = map.into_iter().map(|(key, value)| {
                let name = if key.is_string() {
                    key
                } else {
                    Value::String(word(&key))
                };
                (name, with_names(value))
            });
            Value::Mapping(entries.collect())
        }
        Value::Sequence(list) => Value::Sequence(list.into_iter().map(with_names).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Tagged(_) => value,
    }
}

/// A number or a truth value as it is written.
fn word(value: &Value) -> String {
    let text = serde_yaml_ng::to_string(value).unwrap_or_default();
    text.trim_end().to_owned()
}

fn key(place: &[YamlStep]) -> String {
    let mut key = String::new();
    for step in place {
        match step {
            YamlStep::Key(name) if key.is_empty() => key.push_str(name),
            YamlStep::Key(name) => {
                key.push('.');
                key.push_str(name);
            }
            YamlStep::Index(index) => key.push_str(&format!("[{index}]")),
        }
    }

    key
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::process::SecretValue;

    #[derive(Debug, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    #[derive(Default)]
    struct YamlFile {
        count: u32,
        accounts: BTreeMap<String, YamlAccount>,
        list: Vec<YamlAccount>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct YamlAccount {
        url: String,
        #[expect(dead_code, reason = "its shape alone is tested")]
        secret: Option<SecretValue>,
    }

    fn check(text: &str, expected: &[&str]) {
        let too_many = |file: &YamlFile| match file.count {
            0..=9 => Vec::new(),
            _ => vec![KeyFault::new("count", "expected at most 9")],
        };
        let check = |file: &YamlFile| {
            let named = file.list.iter().enumerate();
            let wrong = named.filter(|(_, account)| account.url == "wrong");
            let wrong = wrong.map(|(at, _)| KeyFault::new(format!("list[{at}].url"), "it is wrong"));
            too_many(file).into_iter().chain(wrong).collect()
        };
        let faults = read_yaml(text, check).err().unwrap_or_default();
        let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(lines, expected, "{text}");
    }

    #[test]
    fn a_file_is_read_and_nothing_is_nothing() {
        check("count: 3\naccounts: {a: {url: x}}\n", &[]);
        check("# none\n", &[]);
        assert!(
            read_yaml("# none\n", |_: &YamlFile| Vec::new())
                .expect("sound")
                .is_none()
        );
    }

    #[test]
    fn every_fault_of_shape_and_of_meaning_is_told_with_its_key_as_written() {
        check(
            "count: 12\naccounts:\n  a: {url: [1]}\n  b: {url: x, secret: 'env:NEXUS_NO_SUCH_ONE'}\n  c: {secret: hunter2}\n  \
             7: {uri: x}\nlist: [{url: {}}, {url: x}, {url: {}}, {}, {url: wrong}]\ncolour: red\n",
            &[
                "accounts.a.url: expected a string, found a list",
                "accounts.b.secret: environment variable NEXUS_NO_SUCH_ONE is not set",
                "accounts.c.secret: expected a reference, `env:NAME` or `file:/path`",
                "accounts.c.url: required, but missing",
                "accounts.7.uri: unknown key `uri`: expected `url` or `secret`",
                "accounts.7.url: required, but missing",
                "list[0].url: expected a string, found a table",
                "list[2].url: expected a string, found a table",
                "list[3].url: required, but missing",
                "colour: unknown key `colour`: expected one of `count`, `accounts`, `list`",
                "count: expected at most 9",
                "list[4].url: it is wrong",
            ],
        );
    }

    #[test]
    fn words_that_look_like_numbers_are_texts_where_texts_are_expected() {
        check("accounts: {a: {url: 7}, b: {url: true}, c: {url: 1.5}}\n", &[]);
        check(
            "accounts: {a: {url: 7}, b: {url: true}, 8: {url: 1.5}}\nlist: [{url: 9}]\ncount: -1\n",
            &["count: expected a non-negative integer, found integer `-1`"],
        );
    }

    #[test]
    fn what_is_no_yaml_or_no_map_is_told_once() {
        check("- 1\n- 2\n", &["expected a table, found a list"]);
        let faults = read_yaml("a: [", |_: &YamlFile| Vec::new()).expect_err("no YAML");
        assert!(faults.len() == 1 && faults[0].key.is_empty(), "{faults:?}");
        assert!(faults[0].problem.contains("line"), "{faults:?}");
    }
}
