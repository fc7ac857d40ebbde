//! A deserializer that takes the fields out of every struct that the struct does not know. *Pure.*

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer as _, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};

use super::{PathStep, UnknownField};

/// What was found so far, and where the deserializer is.
#[derive(Debug, Default)]
pub(super) struct Noted {
    at: Vec<PathStep>,
    pub(super) fields: Vec<UnknownField>,
}

/// Reads like the deserializer in it, but past the fields of structs that these do not know.
///
/// A struct is asked for as a map of the inner deserializer: it may be lenient itself, and would keep the fields that
/// belong to the inner reader.
#[derive(Debug)]
pub struct LenientDeserializer<'a, D> {
    inner: D,
    noted: &'a mut Noted,
}

impl<'a, D> LenientDeserializer<'a, D> {
    pub(super) const fn new(inner: D, noted: &'a mut Noted) -> Self {
        Self { inner, noted }
    }
}

/// A visitor, seed or access of serde with the place at which it is.
struct Within<'a, T> {
    inner: T,
    noted: &'a mut Noted,
}

macro_rules! forward {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(visitor)
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for LenientDeserializer<'_, D> {
    type Error = D::Error;

    // What asks for anything is a value without a type, or serde's buffer of a tagged enum: no struct is in it.
    forward! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64
        deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_unit
        deserialize_identifier deserialize_ignored_any
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let Self { inner, noted } = self;
        inner.deserialize_option(Within { inner: visitor, noted })
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        let Self { inner, noted } = self;
        inner.deserialize_newtype_struct(name, Within { inner: visitor, noted })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let Self { inner, noted } = self;
        inner.deserialize_seq(Within { inner: visitor, noted })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, D::Error> {
        let Self { inner, noted } = self;
        inner.deserialize_tuple(len, Within { inner: visitor, noted })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { inner, noted } = self;
        inner.deserialize_tuple_struct(name, len, Within { inner: visitor, noted })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let Self { inner, noted } = self;
        inner.deserialize_map(Within { inner: visitor, noted })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { inner, noted } = self;
        inner.deserialize_map(StructVisitor {
            inner: visitor,
            fields,
            noted,
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { inner, noted } = self;
        inner.deserialize_enum(name, variants, Within { inner: visitor, noted })
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Within<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let lenient = LenientDeserializer::new(deserializer, self.noted);
        self.inner.visit_some(lenient)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let lenient = LenientDeserializer::new(deserializer, self.noted);
        self.inner.visit_newtype_struct(lenient)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(ListAccess {
            inner: access,
            next: 0,
            noted: self.noted,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(KeyedAccess(access))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.inner.visit_enum(Within {
            inner: access,
            noted: self.noted,
        })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Within<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner
            .deserialize(LenientDeserializer::new(deserializer, self.noted))
    }
}

/// Reads the element or value at `step` of the place of `noted`.
fn read_part<T, E>(noted: &mut Noted, step: PathStep, read: impl FnOnce(&mut Noted) -> Result<T, E>) -> Result<T, E> {
    noted.at.push(step);
    let part = read(noted);
    noted.at.pop();
    part
}

struct ListAccess<'a, A> {
    inner: A,
    next: usize,
    noted: &'a mut Noted,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for ListAccess<'_, A> {
    type Error = A::Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, A::Error> {
        let (inner, step) = (&mut self.inner, PathStep::Index(self.next));
        self.next += 1;
        read_part(self.noted, step, |noted| {
            inner.next_element_seed(Within { inner: seed, noted })
        })
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

/// A map whose keys are data: what its values do not know is read past and not kept, because the place is not named.
struct KeyedAccess<A>(A);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for KeyedAccess<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        let mut apart = Noted::default();
        self.0.next_value_seed(Within {
            inner: seed,
            noted: &mut apart,
        })
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

struct StructVisitor<'a, V> {
    inner: V,
    fields: &'static [&'static str],
    noted: &'a mut Noted,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for StructVisitor<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(StructAccess {
            inner: access,
            fields: self.fields,
            field: "",
            noted: self.noted,
        })
    }
}

/// The fields of a struct: those that it knows are passed on, the others are noted.
struct StructAccess<'a, A> {
    inner: A,
    fields: &'static [&'static str],
    field: &'static str,
    noted: &'a mut Noted,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for StructAccess<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        loop {
            let Some(name) = self.inner.next_key_seed(FieldSeed(self.fields))? else {
                return Ok(None);
            };
            match name {
                FieldName::Known(field) => {
                    self.field = field;
                    return seed.deserialize(field.into_deserializer()).map(Some);
                }
                FieldName::Unknown(name) => {
                    let value = self.inner.next_value()?;
                    let at = self.noted.at.clone();
                    self.noted.fields.push(UnknownField { at, name, value });
                }
            }
        }
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        let (inner, step) = (&mut self.inner, PathStep::Field(self.field));
        read_part(self.noted, step, |noted| {
            inner.next_value_seed(Within { inner: seed, noted })
        })
    }
}

/// The name of a struct's field as written.
enum FieldName {
    Known(&'static str),
    Unknown(String),
}

struct FieldSeed(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for FieldSeed {
    type Value = FieldName;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<FieldName, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for FieldSeed {
    type Value = FieldName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<FieldName, E> {
        let known = self.0.iter().find(|field| **field == name);
        Ok(known.map_or_else(|| FieldName::Unknown(name.to_owned()), |field| FieldName::Known(field)))
    }
}

impl<'a, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Within<'a, A> {
    type Error = A::Error;
    type Variant = Within<'a, A::Variant>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self::Variant), A::Error> {
        let (name, variant) = self.inner.variant_seed(seed)?;
        Ok((
            name,
            Within {
                inner: variant,
                noted: self.noted,
            },
        ))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Within<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    // The place of a variant's content in what is written is not known here: what is in it is read past and not kept.
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        let mut apart = Noted::default();
        self.inner.newtype_variant_seed(Within {
            inner: seed,
            noted: &mut apart,
        })
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let mut apart = Noted::default();
        self.inner.struct_variant(
            fields,
            StructVisitor {
                inner: visitor,
                fields,
                noted: &mut apart,
            },
        )
    }
}
