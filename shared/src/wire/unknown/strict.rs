//! Reading what a person or a model wrote into a type that the wire reads leniently. *Pure.*

use serde::de::{DeserializeOwned, Deserializer, Error};
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

/// Reads a `T` that a person or a model wrote: for enums that the wire has too, and that can therefore not refuse fields
/// by themselves. `T` writes all its fields; one that it may leave out may be written as null. For `deserialize_with`.
///
/// # Errors
/// Fails if the value is no `T`, or has a field that `T` does not have.
pub fn read_strict<'de, T: DeserializeOwned + Serialize, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let written = Value::deserialize(deserializer)?;
    let read = T::deserialize(&written).map_err(Error::custom)?;
    let known = serde_json::to_value(&read).map_err(Error::custom)?;

    match find_unknown(&written, &known) {
        Some(name) => Err(Error::custom(format!("unknown field `{name}`"))),
        None => Ok(read),
    }
}

fn find_unknown<'a>(written: &'a Value, known: &Value) -> Option<&'a str> {
    match (written, known) {
        (Value::Object(written), Value::Object(known)) => {
            written.iter().find_map(|(name, value)| match known.get(name) {
                None if value.is_null() => None,
                None => Some(name.as_str()),
                Some(known) => find_unknown(value, known),
            })
        }
        (Value::Array(written), Value::Array(known)) => written
            .iter()
            .zip(known)
            .find_map(|(written, known)| find_unknown(written, known)),
        _ => None,
    }
}
