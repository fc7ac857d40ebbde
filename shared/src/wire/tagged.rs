//! Reading enums whose variant is named by one of their fields, in one pass. *Pure.*
//!
//! That field may be the last one, so serde reads every other field into a buffer first, and the variant from there.
//! Nexus writes the field first: [`tag_first`] declares such an enum with a second reader, which needs no buffer. It
//! refuses what has the field elsewhere, so a caller falls back to the enum's own reader.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, IntoDeserializer as _, MapAccess, VariantAccess,
    Visitor,
};

/// Declares an enum that serde tags by a field, and a type with the function `read`, which reads the enum in one pass if
/// that field is written first: `"Enum" by Reader, "field": enum Enum { … }`. Names on the wire are in `snake_case`.
macro_rules! tag_first {
    (
        $remote:tt by $reader:ident, $tag:tt:
        $(#[$attribute:meta])*
        $vis:vis enum $name:ident { $($variants:tt)* }
    ) => {
        $(#[$attribute])*
        $vis enum $name { $($variants)* }

        // The same enum as serde reads it if the variant is named outside of the fields.
        #[derive(serde::Deserialize)]
        #[serde(remote = $remote, rename_all = "snake_case")]
        pub(crate) enum $reader { $($variants)* }

        impl $reader {
            /// Reads the enum in one pass.
            ///
            /// # Errors
            /// Fails if its first field is not the one that names the variant, or if the others are not the variant's.
            pub(crate) fn read<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                $reader::deserialize($crate::wire::tagged::TagFirstDeserializer::new(deserializer, $tag))
            }
        }
    };
}
pub(crate) use tag_first;

/// Presents a map whose first field names a variant as an enum whose variant is named outside of its fields.
pub(crate) struct TagFirstDeserializer<D> {
    inner: D,
    tag: &'static str,
}

impl<D> TagFirstDeserializer<D> {
    pub(crate) const fn new(inner: D, tag: &'static str) -> Self {
        Self { inner, tag }
    }
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for TagFirstDeserializer<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, D::Error> {
        Err(D::Error::custom("only an enum has a field that names its variant"))
    }

    // Asked for as serde's own reader asks for it, so that both read the same inside.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(TaggedVisitor {
            inner: visitor,
            tag: self.tag,
        })
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct TaggedVisitor<V> {
    inner: V,
    tag: &'static str,
}

impl<'de, V: Visitor<'de>> Visitor<'de> for TaggedVisitor<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map that begins with `{}`", self.tag)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<V::Value, A::Error> {
        let tag = self.tag;
        match access.next_key_seed(IsTag(tag))? {
            Some(true) => self.inner.visit_enum(TaggedAccess { fields: access, tag }),
            Some(false) | None => Err(A::Error::custom(format!("`{tag}` is not the first field"))),
        }
    }
}

/// Reads a key, and whether it is the tag.
struct IsTag(&'static str);

impl<'de> DeserializeSeed<'de> for IsTag {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for IsTag {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

/// A map whose first key, the tag, was read: its value names the variant, and the other fields are the variant's.
struct TaggedAccess<A> {
    fields: A,
    tag: &'static str,
}

impl<'de, A: MapAccess<'de>> EnumAccess<'de> for TaggedAccess<A> {
    type Error = A::Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(mut self, seed: V) -> Result<(V::Value, Self), A::Error> {
        let name = self.fields.next_value_seed(seed)?;
        Ok((name, self))
    }
}

impl<'de, A: MapAccess<'de>> VariantAccess<'de> for TaggedAccess<A> {
    type Error = A::Error;

    fn unit_variant(mut self) -> Result<(), A::Error> {
        while self.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, A::Error> {
        seed.deserialize(MapAccessDeserializer::new(self))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, A::Error> {
        Err(A::Error::custom("fields of a map have names"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(self)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for TaggedAccess<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let tag = self.tag;
        self.fields.next_key_seed(OtherKey { inner: seed, tag })
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, A::Error> {
        self.fields.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.fields.size_hint()
    }
}

/// Reads a key after the tag, which must not be the tag again.
struct OtherKey<K> {
    inner: K,
    tag: &'static str,
}

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for OtherKey<K> {
    type Value = K::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<K::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<'de, K: DeserializeSeed<'de>> Visitor<'de> for OtherKey<K> {
    type Value = K::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<K::Value, E> {
        if name == self.tag {
            return Err(E::duplicate_field(self.tag));
        }
        let name: StrDeserializer<'_, E> = name.into_deserializer();
        self.inner.deserialize(name)
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub(crate) struct Label {
        text: String,
    }

    tag_first! {
        "Shape" by TagFirstShape, "kind":

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", tag = "kind")]
        pub(crate) enum Shape {
            Nothing,
            Round {
                radius: u32,
                #[serde(default, skip_serializing_if = "Option::is_none")]
                label: Option<Label>,
            },
            Labelled(Label),
        }
    }

    struct TagFirst(Shape);

    impl<'de> Deserialize<'de> for TagFirst {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            TagFirstShape::read(deserializer).map(Self)
        }
    }

    /// Returns what the reader in one pass makes of `text`, in JSON and in CBOR. If it makes anything of it, serde's own
    /// reader makes the same of it.
    fn read(text: &str) -> Option<Shape> {
        let value: ciborium::Value = serde_json::from_str(text).expect("JSON");
        let mut cbor = Vec::new();
        ciborium::into_writer(&value, &mut cbor).expect("CBOR");
        let in_json = serde_json::from_str::<TagFirst>(text).ok();
        let in_cbor = ciborium::from_reader::<TagFirst, _>(cbor.as_slice()).ok();

        let (Some(TagFirst(in_json)), Some(TagFirst(in_cbor))) = (in_json, in_cbor) else {
            return None;
        };
        assert_eq!(serde_json::from_str::<Shape>(text).expect("a shape"), in_json, "{text}");
        let serdes: Shape = ciborium::from_reader(cbor.as_slice()).expect("a shape");
        assert_eq!(serdes, in_cbor, "{text}");
        assert_eq!(in_json, in_cbor, "{text}");
        Some(in_json)
    }

    #[test]
    fn every_variant_with_its_tag_first_is_read_in_one_pass() {
        for shape in [
            Shape::Nothing,
            Shape::Round {
                radius: 2,
                label: Some(Label { text: "é".to_owned() }),
            },
            Shape::Round { radius: 0, label: None },
            Shape::Labelled(Label { text: String::new() }),
        ] {
            let text = serde_json::to_string(&shape).expect("JSON");
            assert_eq!(read(&text), Some(shape));
        }

        let with_more = r#"{"kind": "round", "more": [{"kind": 1}], "radius": 2, "label": {"text": "", "kind": "a"}}"#;
        let label = Some(Label { text: String::new() });
        assert_eq!(read(with_more), Some(Shape::Round { radius: 2, label }));
        let nothing = r#"{"kind": "nothing", "more": {"a": [1]}}"#;
        assert_eq!(read(nothing), Some(Shape::Nothing));
    }

    #[test]
    fn everything_else_is_left_to_serde() {
        for text in [
            r#"{"radius": 2, "kind": "round"}"#,
            r#"{"radius": 2}"#,
            "{}",
            "[]",
            "null",
            r#""nothing""#,
            r#"{"kind": "square"}"#,
            r#"{"kind": null}"#,
            r#"{"kind": "round"}"#,
            r#"{"kind": "round", "radius": "2"}"#,
            r#"{"kind": "round", "radius": 2, "radius": 3}"#,
            r#"{"kind": "round", "radius": 2, "kind": "round"}"#,
            r#"{"kind": "nothing", "kind": "nothing"}"#,
            r#"{"kind": "labelled"}"#,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
