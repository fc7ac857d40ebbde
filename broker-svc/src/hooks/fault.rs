//! The reader of a declaration of hooks, which collects its faults. *Pure.*

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use shared::process::config::KeyFault;
use shared::serde_text::reword_config_problem;

/// The fields of a mapping, taken one by one; fields left at the end are unknown keys.
pub(super) struct FieldReader<'a> {
    pub(super) map: Map<String, Value>,
    pub(super) at: &'a str,
    pub(super) faults: &'a mut Vec<KeyFault>,
}

impl FieldReader<'_> {
    pub(super) fn add_fault(&mut self, key: &str, problem: impl Into<String>) {
        let key = if key.is_empty() {
            self.at.to_owned()
        } else if self.at.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.at)
        };
        let problem = problem.into();
        self.faults.push(KeyFault { key, problem });
    }

    pub(super) fn take<T: DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        let value = self.map.remove(key).filter(|value| !value.is_null())?;
        match serde_json::from_value(value) {
            Ok(read) => Some(read),
            Err(error) => {
                self.add_fault(key, reword_config_problem(&error.to_string()));
                None
            }
        }
    }

    pub(super) fn reject_unknown(mut self, expected: &str) {
        let unknown: Vec<String> = self.map.keys().cloned().collect();
        for key in unknown {
            self.add_fault(&key, format!("unknown key: expected {expected}"));
        }
    }
}
