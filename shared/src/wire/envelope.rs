//! Envelopes: a payload with its content type and schema. *Pure.*
//!
//! `Content-Type` distinguishes CBOR (the default) from JSON (for any language with only a NATS client), and
//! `Nexus-Schema: name/version` names the type. A consumer reads versions n and n−1 ([`upgrade`]), with fields that it
//! does not know ([`super::unknown`]). A newer version becomes a dead letter with the reason `newer_schema`. Source:
//! `docs/design/wire.md` §6.

mod decode_error;
pub mod upgrade;

use bytes::Bytes;
use ciborium::value::Value;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use super::headers::{CONTENT_TYPE, Headers, SCHEMA};
use super::unknown;

pub use self::decode_error::DecodeError;

/// Maximum size of a payload that is read or written, in bytes; the server's `max_payload` must not be smaller.
pub const MAX_PAYLOAD_BYTES: usize = 4 * 1024 * 1024;
/// Minimum `max_payload` of a server, in bytes: a dead letter contains the largest payload in base64, and all its
/// headers.
pub const MIN_SERVER_PAYLOAD_BYTES: usize = 7_500_000;
/// Maximum depth of nesting, in levels: deeper input would overflow the stack.
const MAX_DEPTH: usize = 128;

/// Number of this release, which counts up by one with each. A new version of a schema is read one release before it is
/// written ([`WireMessage::READ_SINCE`]), so that of two successive releases each reads what the other writes.
pub const RELEASE: u16 = 1;

/// A type that crosses the wire under a name and a version.
pub trait WireMessage: Serialize + DeserializeOwned {
    /// Name of the type in `Nexus-Schema`.
    const SCHEMA: &'static str;
    /// Newest version that is read.
    const VERSION: u16 = 1;
    /// Number of the first release that reads [`Self::VERSION`].
    const READ_SINCE: u16 = 0;
    /// Version that is written: the newest one that the release before this one reads.
    const WRITTEN: u16 = if RELEASE > Self::READ_SINCE {
        Self::VERSION
    } else {
        Self::VERSION - 1
    };
    /// Maximum size of a payload of this type, in bytes.
    const MAX_BYTES: usize = MAX_PAYLOAD_BYTES;
    /// Whether the type reads past unknown fields by itself, and keeps them ([`super::unknown`]).
    const KEEPS_UNKNOWN: bool = false;

    /// Checks conditions that the type cannot express, such as bounds between fields.
    ///
    /// # Errors
    /// Returns a message that begins with the field's name.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the value in the shape of the version before [`Self::VERSION`], for the one release in which that is still
    /// written; `None` in every other.
    #[must_use]
    fn to_earlier(&self) -> Option<Value> {
        None
    }

    /// Returns the name of the part of a malformed message that only a later release knows, if that is its fault.
    #[must_use]
    fn find_newer_part(_written: &Value) -> Option<String> {
        None
    }
}

/// The encoding of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PayloadFormat {
    /// CBOR (RFC 8949).
    #[default]
    Cbor,
    /// JSON (RFC 8259).
    Json,
}

impl PayloadFormat {
    /// Returns the content type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Cbor => "application/cbor",
            Self::Json => "application/json",
        }
    }
}

/// Returns the payload of `value`.
///
/// # Panics
/// Never: Nexus's types have string keys, and none of them can fail to be serialized.
#[must_use]
pub fn encode_payload<T: Serialize>(value: &T, format: PayloadFormat) -> Bytes {
    match format {
        PayloadFormat::Cbor => {
            let mut bytes = Vec::with_capacity(512);
            ciborium::into_writer(value, &mut bytes).expect("our types have a CBOR form");
            bytes.into()
        }
        PayloadFormat::Json => serde_json::to_vec(value).expect("our types have a JSON form").into(),
    }
}

/// Returns the payload and headers of `value`.
#[must_use]
pub fn encode<T: WireMessage>(value: &T, format: PayloadFormat) -> (Bytes, Headers) {
    let mut headers = Headers::new();
    headers.insert(CONTENT_TYPE, format.content_type());
    headers.insert(SCHEMA, format!("{}/{}", T::SCHEMA, T::WRITTEN));
    let earlier = if T::WRITTEN < T::VERSION {
        value.to_earlier()
    } else {
        None
    };
    let payload = match earlier {
        Some(earlier) => encode_payload(&earlier, format),
        None => encode_payload(value, format),
    };
    #[cfg(all(feature = "testing", debug_assertions))]
    let payload = if unknown::is_later() {
        unknown::with_later_fields(payload, format)
    } else {
        payload
    };

    (payload, headers)
}

/// Decodes a `T` from a message.
///
/// A message without `Content-Type` is read as CBOR, and one without `Nexus-Schema` as the current version, so that a
/// plain client can publish a JSON event with one header.
///
/// # Errors
/// Returns [`DecodeError`] with the type, the error and its place.
pub fn decode<T: WireMessage>(headers: &Headers, payload: &[u8]) -> Result<T, DecodeError> {
    // Before parsing, so that an oversized message costs nothing.
    if payload.len() > T::MAX_BYTES {
        return Err(DecodeError::Oversize {
            schema: T::SCHEMA,
            max: T::MAX_BYTES,
            size: payload.len(),
        });
    }

    let version = version_of::<T>(headers)?;
    let format = format_of::<T>(headers)?;
    // A stored message keeps the version with which it was written.
    if version != T::VERSION {
        return upgrade::decode_older(version, format, payload);
    }

    let value = parse::<T>(format, payload).or_else(|error| read_otherwise(error, format, payload))?;
    value.check().map_err(|detail| DecodeError::Invalid {
        schema: T::SCHEMA,
        detail,
    })?;

    Ok(value)
}

/// Returns the payload of any message of ours as JSON, whatever its schema is.
///
/// # Errors
/// Returns what is wrong with the payload.
pub fn decode_value(headers: &Headers, payload: &[u8]) -> Result<serde_json::Value, String> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        let size = payload.len();
        return Err(format!("{size} bytes; at most {MAX_PAYLOAD_BYTES} are allowed"));
    }

    let content_type = headers.get(CONTENT_TYPE).unwrap_or("application/cbor");
    match content_type.split(';').next().unwrap_or_default().trim() {
        "application/cbor" => {
            let mut rest = payload;
            ciborium::de::from_reader_with_recursion_limit(&mut rest, MAX_DEPTH)
                .map_err(|error| format!("malformed cbor: {error}"))
        }
        "application/json" => serde_json::from_slice(payload).map_err(|error| format!("malformed json: {error}")),
        other => Err(format!(
            "content type `{}` is unknown",
            other.chars().take(64).collect::<String>()
        )),
    }
}

/// Returns the version of a message with `headers`.
///
/// # Errors
/// Returns [`DecodeError`] if the message is of another type, or of a newer version.
pub(super) fn version_of<T: WireMessage>(headers: &Headers) -> Result<u16, DecodeError> {
    let Some(schema) = headers.get(SCHEMA) else {
        return Ok(T::VERSION);
    };

    let other = || DecodeError::OtherSchema {
        expected: T::SCHEMA,
        // The header is foreign text that ends in logs.
        found: schema.chars().take(64).collect(),
    };
    let (name, version) = schema.split_once('/').ok_or_else(other)?;
    let version: u16 = version.parse().map_err(|_| other())?;
    if name != T::SCHEMA || version == 0 {
        return Err(other());
    }

    // Fields of a newer version may change the meaning of those that are known, so nothing is guessed.
    if version > T::VERSION {
        return Err(DecodeError::NewerSchema {
            schema: T::SCHEMA,
            found: version,
            known: T::VERSION,
        });
    }

    Ok(version)
}

/// Returns the format of a message with `headers`.
///
/// # Errors
/// Returns [`DecodeError::ContentType`] if it is none that is read.
pub(super) fn format_of<T: WireMessage>(headers: &Headers) -> Result<PayloadFormat, DecodeError> {
    let Some(found) = headers.get(CONTENT_TYPE) else {
        return Ok(PayloadFormat::Cbor);
    };
    match found.split(';').next().unwrap_or_default().trim() {
        "application/cbor" => Ok(PayloadFormat::Cbor),
        "application/json" => Ok(PayloadFormat::Json),
        other => Err(DecodeError::ContentType {
            schema: T::SCHEMA,
            found: other.chars().take(64).collect(),
        }),
    }
}

/// Parses a `T` from bare bytes without checking its bounds.
pub(super) fn parse<T: WireMessage>(format: PayloadFormat, payload: &[u8]) -> Result<T, DecodeError> {
    parse_by::<T, Lenient<T>>(format, payload).map(|Lenient(value)| value)
}

/// Parses a `T` as [`parse`] does, by a reader that wraps it.
pub(super) fn parse_by<T: WireMessage, R: DeserializeOwned>(
    format: PayloadFormat,
    payload: &[u8],
) -> Result<R, DecodeError> {
    match format {
        PayloadFormat::Cbor => {
            let mut rest = payload;
            let value = ciborium::de::from_reader_with_recursion_limit(&mut rest, MAX_DEPTH)
                .map_err(|error| malformed_error::<T>("cbor", &error))?;
            // ciborium leaves trailing bytes; serde_json refuses them by itself.
            if !rest.is_empty() {
                return Err(malformed_error::<T>(
                    "cbor",
                    &format!("{} bytes follow the value", rest.len()),
                ));
            }

            Ok(value)
        }
        PayloadFormat::Json => serde_json::from_slice(payload).map_err(|error| malformed_error::<T>("json", &error)),
    }
}

/// A message that is read past the fields that this release does not know.
struct Lenient<T>(T);

impl<'de, T: WireMessage> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if T::KEEPS_UNKNOWN {
            T::deserialize(deserializer).map(Self)
        } else {
            unknown::lenient(deserializer).map(Self)
        }
    }
}

/// Returns `error`, or that a later release wrote the message if it is malformed for that reason.
fn read_otherwise<T: WireMessage>(error: DecodeError, format: PayloadFormat, payload: &[u8]) -> Result<T, DecodeError> {
    #[cfg(all(feature = "testing", debug_assertions))]
    if unknown::is_later()
        && let Some(payload) = unknown::without_later_entries(payload, format)
    {
        return parse(format, &payload);
    }

    let written = parse_value(format, payload);
    match written.as_ref().and_then(T::find_newer_part) {
        Some(part) => Err(DecodeError::NewerPart {
            schema: T::SCHEMA,
            part,
        }),
        None => Err(error),
    }
}

/// Parses bare bytes as a value without a type; `None` if they are no CBOR or JSON.
pub(super) fn parse_value(format: PayloadFormat, payload: &[u8]) -> Option<Value> {
    match format {
        PayloadFormat::Cbor => ciborium::de::from_reader_with_recursion_limit(payload, MAX_DEPTH).ok(),
        PayloadFormat::Json => serde_json::from_slice(payload).ok(),
    }
}

fn malformed_error<T: WireMessage>(format: &'static str, detail: &impl ToString) -> DecodeError {
    DecodeError::Malformed {
        schema: T::SCHEMA,
        format,
        detail: detail.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::event::{Event, EventId};
    use crate::model::time::UnixMillis;

    fn check(headers: &[(&str, &str)], payload: &[u8]) -> Result<Event, DecodeError> {
        decode(&headers.iter().copied().collect(), payload)
    }

    fn sample() -> Event {
        let id = EventId::parse("webchat:default/v1/1").expect("an id");
        Event {
            content: "hello".to_owned(),
            ..Event::new(id, "webchat", "v1", UnixMillis(1))
        }
    }

    /// A type whose second version this release is the first to read.
    #[derive(Debug, Serialize, Deserialize)]
    struct Fresh {
        names: Vec<String>,
    }

    impl WireMessage for Fresh {
        const SCHEMA: &'static str = "fresh";
        const VERSION: u16 = 2;
        const READ_SINCE: u16 = RELEASE;

        fn to_earlier(&self) -> Option<Value> {
            Value::serialized(&serde_json::json!({ "name": self.names.first() })).ok()
        }
    }

    #[test]
    fn a_version_is_written_one_release_after_it_is_read() {
        let fresh = Fresh {
            names: vec!["ann".to_owned()],
        };
        let (payload, headers) = encode(&fresh, PayloadFormat::Json);
        assert_eq!(headers.get(SCHEMA), Some("fresh/1"));
        assert_eq!(payload.as_ref(), br#"{"name":"ann"}"#);

        let newest: Headers = [(SCHEMA, "fresh/2"), (CONTENT_TYPE, "application/json")]
            .into_iter()
            .collect();
        let read: Fresh = decode(&newest, br#"{"names":["ann","bob"]}"#).expect("it is read already");
        assert_eq!(read.names.len(), 2);
        assert_eq!(Event::WRITTEN, Event::VERSION, "the release before reads it");
    }

    #[test]
    fn both_formats_come_back() {
        for format in [PayloadFormat::Cbor, PayloadFormat::Json] {
            let (payload, headers) = encode(&sample(), format);
            assert_eq!(decode::<Event>(&headers, &payload).expect("it decodes"), sample());
        }
    }

    #[test]
    fn a_plain_json_event_in_the_seeds_spelling_is_read() {
        let json = br#"{"id":"x:1","timestamp":5,"channel":"imessage","accountId":"a","threadId":"t"}"#;
        let event = check(&[("Content-Type", "application/json; charset=utf-8")], json).expect("an event");
        assert_eq!((event.account(), event.thread_id.as_deref()), ("a", Some("t")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let json = [("Content-Type", "application/json")];
        for (headers, payload, reason) in [
            (
                &json[..],
                &b"{\"id\":\"x:1\",\"timestamp\":\"5\",\"channel\":\"a\"}"[..],
                "malformed",
            ),
            (
                &json[..],
                b"{\"id\":\"no adapter\",\"timestamp\":5,\"channel\":\"a\"}",
                "malformed",
            ),
            (&json[..], b"\xff\xfe", "malformed"),
            (&[], b"\x1c\x00", "malformed"),
            (&[("Content-Type", "text/plain")], b"", "content_type"),
            (&[("Nexus-Schema", "event/9")], b"", "newer_schema"),
            (&[("Nexus-Schema", "dispatch/1")], b"", "other_schema"),
            (&[("Nexus-Schema", "event")], b"", "other_schema"),
        ] {
            let error = check(headers, payload).expect_err("it is wrong");
            assert_eq!(error.reason(), reason, "{error}");
            assert!(error.to_string().starts_with("event: "), "{error}");
        }

        let (bytes, headers) = encode(&sample(), PayloadFormat::Cbor);
        let mut long = bytes.to_vec();
        long.push(0);

        assert_eq!(
            decode::<Event>(&headers, &long).expect_err("trailing").reason(),
            "malformed"
        );
    }

    #[test]
    fn nesting_without_end_is_an_error_and_not_a_crash() {
        assert_eq!(
            check(&[], &[0x81; 100_000]).expect_err("too deep").reason(),
            "malformed"
        );

        let json = "[".repeat(100_000);
        assert_eq!(
            check(&[("Content-Type", "application/json")], json.as_bytes())
                .expect_err("deep")
                .reason(),
            "malformed"
        );
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), json in any::<bool>()) {
            let kind = if json { "application/json" } else { "application/cbor" };
            let _ = check(&[("Content-Type", kind)], &bytes);
        }

        #[test]
        fn a_flipped_byte_never_panics(at in 0_usize..400, to in any::<u8>()) {
            let (payload, headers) = encode(&sample(), PayloadFormat::Cbor);
            let mut bytes = payload.to_vec();
            let length = bytes.len();
            bytes[at % length] = to;
            let _ = decode::<Event>(&headers, &bytes);
        }

        #[test]
        fn events_round_trip(content in "\\PC{0,80}", peer in "\\PC{0,40}", hops in 0_u8..9, time in any::<i64>()) {
            let mut event = Event { content, hops, timestamp: UnixMillis(time), ..sample() };
            event.peer.id = peer;
            for format in [PayloadFormat::Cbor, PayloadFormat::Json] {
                let (payload, headers) = encode(&event, format);
                prop_assert_eq!(decode::<Event>(&headers, &payload).expect("it decodes"), event.clone());
            }
        }
    }
}
