//! Access to the fields of an object, each in either spelling. *Pure.*

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{InvalidResultError, parse_field};

/// The fields of one object that have not been taken yet.
#[derive(Debug)]
pub(super) struct RemainingFields {
    left: Map<String, Value>,
    prefix: &'static str,
}

impl RemainingFields {
    /// Takes the fields of `value`, which error messages call `at`; they name its fields with `prefix`.
    pub(super) fn from_value(value: Value, at: &'static str, prefix: &'static str) -> Result<Self, InvalidResultError> {
        let found = match value {
            Value::Object(left) => return Ok(Self { left, prefix }),
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
        };
        Err(InvalidResultError::NotAnObject { at, found })
    }

    /// Takes the field `name`; null counts as absent.
    pub(super) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, InvalidResultError> {
        match self.left.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => parse_field(&format!("{}{name}", self.prefix), value).map(Some),
        }
    }

    /// Takes the field spelled `name` or `older`; both may be given if they have the same value.
    pub(super) fn take_either<T: DeserializeOwned + PartialEq>(
        &mut self,
        name: &str,
        older: &str,
    ) -> Result<Option<T>, InvalidResultError> {
        let (one, other) = (self.take::<T>(name)?, self.take::<T>(older)?);
        match (one, other) {
            (Some(one), Some(other)) if one != other => Err(InvalidResultError::Contradiction {
                one: format!("{}{name}", self.prefix),
                other: format!("{}{older}", self.prefix),
            }),
            (one, other) => Ok(one.or(other)),
        }
    }

    /// Checks that every field was taken.
    pub(super) fn expect_empty(self) -> Result<(), InvalidResultError> {
        match self.left.keys().next() {
            Some(name) => Err(InvalidResultError::UnknownField(format!("{}{name}", self.prefix))),
            None => Ok(()),
        }
    }
}
