//! One section, deserialised so that every fault is found at once. *Pure.*
//!
//! Deserialising stops at the first fault. So the place of the fault is cut out of the section and it is deserialised
//! again, until it has no fault: places that are cut out get their defaults. Places are kept in coordinates of the
//! section as written, because cutting an element out of a list moves those after it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::{Table, Value};

use super::document::{ConfigDocument, set_path};
use super::fault::ConfigFault;
use crate::serde_text::reword_config_problem;

/// Maximum number of faults that are reported per section.
const MAX_FAULTS: usize = 100;

/// A section and its faults. If there are faults, the value holds defaults in the faulty places.
#[derive(Debug, Clone)]
pub struct LoadedSection<T> {
    /// Value of the section, with defaults in faulty places.
    pub value: T,
    /// Faults of the section; empty if the value can be used.
    pub faults: Vec<ConfigFault>,
}

impl<T: Serialize> LoadedSection<T> {
    /// Returns every key with its value, defaults included, secrets as references.
    #[must_use]
    pub fn shown_values(&self) -> Value {
        Value::try_from(&self.value).unwrap_or_else(|error| Value::String(format!("cannot be shown: {error}")))
    }
}

/// A step into a value: a key or an index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SectionStep {
    Key(String),
    Index(usize),
}

type Place = Vec<SectionStep>;

impl ConfigDocument {
    /// Deserialises section `name` as a `T`, and checks it by `check`, which returns `key: problem` for each fault of
    /// meaning.
    #[must_use]
    pub fn section<T>(&self, name: &str, check: impl Fn(&T) -> Vec<String>) -> LoadedSection<T>
    where
        T: DeserializeOwned + Default,
    {
        let mut reading = SectionReader::for_section(self, name);
        let value = reading.value::<T>();
        let mut faults = reading.faults;
        let mut misread: Vec<String> = faults.iter().map(|fault| fault.key.clone()).collect();
        misread.retain(|key| !key.is_empty());

        for said in check(&value) {
            let (key, problem) = said.split_once(": ").unwrap_or(("", &said));
            let key = [name, key].join(".").trim_end_matches('.').to_owned();

            // A default that replaces a misread key must not count as a second fault of the operator.
            if !misread.iter().any(|misread| are_related(misread, &key)) {
                faults.push(ConfigFault {
                    source: self.source_of(&key),
                    key,
                    problem: problem.to_owned(),
                });
            }
        }

        LoadedSection { value, faults }
    }

    fn source_of(&self, key: &str) -> String {
        let by = self.overrides.iter().find(|by| are_related(&by.path.join("."), key));
        by.map_or_else(|| self.source.clone(), |by| by.variable.clone())
    }
}

/// Returns whether one of two dotted keys is the other or lies within it.
pub(super) fn are_related(one: &str, other: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    within(one, other) || within(other, one)
}

/// A section that is deserialised repeatedly until it has no fault.
struct SectionReader<'a> {
    document: &'a ConfigDocument,
    name: &'a str,
    written: Table,
    cut: BTreeSet<Place>,
    /// Number of meanings tried of each overriding variable, by the variable's index in the document's list.
    tried: BTreeMap<usize, usize>,
    faults: Vec<ConfigFault>,
}

impl<'a> SectionReader<'a> {
    fn for_section(document: &'a ConfigDocument, name: &'a str) -> Self {
        let written = document
            .root
            .get(name)
            .and_then(Value::as_table)
            .cloned()
            .unwrap_or_default();

        Self {
            document,
            name,
            written,
            cut: BTreeSet::new(),
            tried: BTreeMap::new(),
            faults: Vec::new(),
        }
    }

    fn value<T: DeserializeOwned + Default>(&mut self) -> T {
        // Each round cuts a place, or takes the next meaning of a variable: both are finite, and bounded here.
        for _ in 0..MAX_FAULTS * 3 {
            let clean = without_places(&Value::Table(self.written.clone()), &mut Vec::new(), &self.cut);
            let error = match serde_path_to_error::deserialize::<_, T>(clean.unwrap_or(Value::Table(Table::new()))) {
                Ok(value) => return value,
                Err(error) => error,
            };

            let place = self.written_place(error.path().iter());
            let problem = error.inner().message().trim().to_owned();
            if self.faults.len() == MAX_FAULTS || !self.note_fault(&place, &problem) {
                break;
            }
        }

        T::default()
    }

    /// Records a fault at `place`. Returns whether the section should be deserialised again.
    fn note_fault(&mut self, place: &Place, problem: &str) -> bool {
        if self.next_reading(place) {
            return true;
        }

        let missing = problem
            .strip_prefix("missing field `")
            .and_then(|rest| rest.split('`').next());
        let (at, problem) = match missing {
            Some(field) => {
                let at: Place = place
                    .iter()
                    .cloned()
                    .chain([SectionStep::Key(field.to_owned())])
                    .collect();
                (at, "required, but missing".to_owned())
            }
            None => (place.clone(), reword_config_problem(problem)),
        };

        // A field that is missing because it was cut out was reported already.
        if !self.cut.contains(&at) {
            let key = self.key(&at);
            self.faults.push(ConfigFault {
                source: self.document.source_of(&key),
                key,
                problem,
            });
        }

        // A fault of the section itself leaves nothing to cut; the section gets its default.
        !place.is_empty() && self.cut.insert(place.clone())
    }

    /// Takes the next meaning of the variable that set `place`, if a variable did and has one left.
    fn next_reading(&mut self, place: &Place) -> bool {
        let keys: Vec<&String> = place
            .iter()
            .map_while(|step| match step {
                SectionStep::Key(key) => Some(key),
                SectionStep::Index(_) => None,
            })
            .collect();

        // A variable that sets a list or a table may have caused a fault anywhere within it.
        let by = self.document.overrides.iter().enumerate().find(|(_, by)| {
            by.path.first().is_some_and(|section| section == self.name)
                && by.path.iter().skip(1).zip(&keys).all(|(wanted, key)| wanted == *key)
                && keys.len() + 1 >= by.path.len()
        });
        let Some((index, by)) = by else { return false };
        let tried = self.tried.entry(index).or_insert(0);
        *tried += 1;

        let Some(reading) = by.readings.get(*tried) else {
            return false;
        };
        set_path(&mut self.written, &by.path[1..], reading.clone());

        true
    }

    /// Converts `path` in the section without the cut places to the place in the section as written.
    fn written_place<'s>(&self, path: impl Iterator<Item = &'s Segment>) -> Place {
        let mut place = Place::new();
        for segment in path {
            match segment {
                Segment::Map { key } => place.push(SectionStep::Key(key.clone())),
                Segment::Seq { index } => {
                    let written = self.index_as_written(&mut place, *index);
                    place.push(SectionStep::Index(written));
                }
                // A variant of an enum is not a step into the file; after an unknown step the place is not known any
                // more.
                Segment::Enum { .. } => {}
                Segment::Unknown => break,
            }
        }

        place
    }

    fn index_as_written(&self, list: &mut Place, index: usize) -> usize {
        let mut left = index;
        for written in 0..=index + self.cut.len() {
            list.push(SectionStep::Index(written));
            let is_cut = self.cut.contains(list);
            list.pop();

            match (is_cut, left) {
                (true, _) => {}
                (false, 0) => return written,
                (false, _) => left -= 1,
            }
        }

        index
    }

    fn key(&self, place: &Place) -> String {
        let mut key = self.name.to_owned();
        for step in place {
            match step {
                SectionStep::Key(name) => {
                    key.push('.');
                    key.push_str(name);
                }
                SectionStep::Index(index) => key.push_str(&format!("[{index}]")),
            }
        }

        key
    }
}

/// Returns `value` without the places in `cut`; `None` if it is such a place itself.
fn without_places(value: &Value, place: &mut Place, cut: &BTreeSet<Place>) -> Option<Value> {
    if cut.contains(place) {
        return None;
    }

    let mut inside = |step: SectionStep, value: &Value| {
        place.push(step);
        let kept = without_places(value, place, cut);
        place.pop();
        kept
    };

    Some(match value {
        Value::Table(table) => {
            let entries = table.iter();
            Value::Table(
                entries
                    .filter_map(|(k, v)| Some((k.clone(), inside(SectionStep::Key(k.clone()), v)?)))
                    .collect(),
            )
        }
        Value::Array(list) => {
            let elements = list.iter().enumerate();
            Value::Array(
                elements
                    .filter_map(|(index, v)| inside(SectionStep::Index(index), v))
                    .collect(),
            )
        }
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => {
            value.clone()
        }
    })
}

#[cfg(test)]
mod tests;
