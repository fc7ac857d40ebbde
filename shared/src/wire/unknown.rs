//! Fields that this release does not know: read past, and kept where a value is written again. *Pure.*
//!
//! Within a version of a schema, a later release may add optional fields. An earlier release that runs beside it reads
//! such a message ([`read_lenient`]), and writes the fields again: [`UnknownFields`] travels with a value that is passed
//! on, [`carry_over`] serves a record that is changed in place. Unknown fields never replace a known one. What people
//! write (configuration, requests) is read without this module, so that a typing error is an error. Source:
//! `docs/design/wire.md` §6 (Schema); `docs/operations.md` "Upgrades".

mod carry;
mod deserializer;
#[cfg(all(feature = "testing", debug_assertions))]
mod rehearsal;
mod strict;

use ciborium::value::Value;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::carry::{carry_over, has_unknown};
pub use self::strict::read_strict;

#[cfg(all(feature = "testing", debug_assertions))]
pub use self::rehearsal::rehearse_later_release;
#[cfg(all(feature = "testing", debug_assertions))]
pub(super) use self::rehearsal::{is_later, with_later_fields, without_later_entries};

use self::deserializer::LenientDeserializer;

/// Variable with which a test lets a process stand for a later release. Release builds do not read it.
pub const LATER_RELEASE: &str = "NEXUS_TEST_LATER_RELEASE";

/// One step from a value to a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PathStep {
    /// Field of a struct.
    Field(&'static str),
    /// Index in a list.
    Index(usize),
}

/// A field that this release does not know.
#[derive(Debug, Clone, PartialEq)]
struct UnknownField {
    /// The struct that has the field.
    at: Vec<PathStep>,
    name: String,
    value: Value,
}

/// The fields of a value, and of the structs in it, that this release does not know. They are written again with the
/// value ([`UnknownFields::serialize_with`]); nothing else reads them.
///
/// Fields inside a variant of an enum, and of structs that are values of a map, are read past and not kept.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UnknownFields(Vec<UnknownField>);

impl UnknownFields {
    /// Returns whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets them: a party that is not trusted to set the fields of later releases set them.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Serializes a value by `known`, with these fields added. Without any, it is exactly `known`.
    ///
    /// # Errors
    /// Fails if the value cannot be serialized.
    pub fn serialize_with<T: Serialize, S: Serializer>(&self, known: &T, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_empty() {
            return known.serialize(serializer);
        }

        let mut whole = Value::serialized(known).map_err(serde::ser::Error::custom)?;
        for field in &self.0 {
            add_field(&mut whole, field);
        }

        whole.serialize(serializer)
    }
}

/// Adds `field` where it belongs, if that place is still there and has no such field.
fn add_field(whole: &mut Value, field: &UnknownField) {
    let mut place = Some(whole);
    for step in &field.at {
        place = match (place, step) {
            (Some(Value::Map(map)), PathStep::Field(name)) => find_field(map, name),
            (Some(Value::Array(list)), PathStep::Index(index)) => list.get_mut(*index),
            _ => None,
        };
    }

    if let Some(Value::Map(map)) = place
        && find_field(map, &field.name).is_none()
    {
        map.push((Value::Text(field.name.clone()), field.value.clone()));
    }
}

fn find_field<'a>(map: &'a mut [(Value, Value)], name: &str) -> Option<&'a mut Value> {
    let found = map.iter_mut().find(|(key, _)| key.as_text() == Some(name));
    found.map(|(_, value)| value)
}

/// Reads a `T` and the fields in it that it does not know, even if its type refuses them.
///
/// # Errors
/// Fails if the known fields are not those of a `T`.
pub fn read_lenient<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<(T, UnknownFields), D::Error> {
    read_lenient_by(deserializer, |lenient| T::deserialize(lenient))
}

/// Reads a value by `read`, as [`read_lenient`] does: for types that keep their unknown fields, whose derived function
/// `read` is.
///
/// # Errors
/// Fails if `read` fails.
pub fn read_lenient_by<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    read: impl FnOnce(LenientDeserializer<'_, D>) -> Result<T, D::Error>,
) -> Result<(T, UnknownFields), D::Error> {
    let mut noted = deserializer::Noted::default();
    let value = read(LenientDeserializer::new(deserializer, &mut noted))?;
    Ok((value, UnknownFields(noted.fields)))
}

/// Reads a field of a tagged enum's variant, whatever it has that this release does not know; for `deserialize_with`.
/// serde buffers such an enum, so that [`read_lenient`] of the whole does not reach its inside.
///
/// # Errors
/// Fails if the known fields are not those of a `T`.
pub fn lenient<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    read_lenient(deserializer).map(|(value, _)| value)
}

/// Makes a type with a field `unknown: UnknownFields` keep what it does not know. The type derives serde's traits with
/// `remote = "Self"` and skips the field.
#[macro_export]
macro_rules! keeps_unknown {
    ($type:ident) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                struct Known<'a>(&'a $type);
                impl serde::Serialize for Known<'_> {
                    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                        $type::serialize(self.0, serializer)
                    }
                }
                self.unknown.serialize_with(&Known(self), serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let (mut value, unknown) =
                    $crate::wire::unknown::read_lenient_by(deserializer, |lenient| $type::deserialize(lenient))?;
                value.unknown = unknown;
                Ok(value)
            }
        }
    };
}
pub use crate::keeps_unknown;

#[cfg(test)]
mod tests;
