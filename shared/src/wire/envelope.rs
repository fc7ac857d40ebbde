//! Envelopes: a payload, its content type and its schema. *Pure.*
//!
//! `Content-Type` tells CBOR (our default) from JSON (any language with nothing but a NATS client); `Nexus-Schema:
//! name/version` tells what it is. A consumer reads version n and n−1 ([`super::upgrade`]); a newer one is parked in
//! the dead letters with the reason `newer_schema`. Source: `docs/design/wire.md` §6.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use super::headers::{CONTENT_TYPE, Headers, SCHEMA};

/// Largest payload that is read or written, in bytes; the server's `max_payload` must not be smaller.
pub const MAX_PAYLOAD_BYTES: usize = 4 * 1024 * 1024;
/// Smallest `max_payload` of a server: a dead letter holds the largest payload in base64, and all its headers.
pub const MIN_SERVER_PAYLOAD_BYTES: usize = 7_500_000;
/// Deepest nesting that is read, in levels: deeper input would exhaust the stack.
const MAX_DEPTH: usize = 128;

/// A type that crosses the wire under a name and a version.
pub trait Wire: Serialize + DeserializeOwned {
    /// The name in `Nexus-Schema`.
    const SCHEMA: &'static str;
    /// The version that is written.
    const VERSION: u16 = 1;
    /// The largest payload of this type that is read, in bytes.
    const MAX_BYTES: usize = MAX_PAYLOAD_BYTES;

    /// What no type can say: bounds between fields. The error names the field.
    ///
    /// # Errors
    /// What is wrong, beginning with the field's name.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// How a payload is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// RFC 8949.
    #[default]
    Cbor,
    /// RFC 8259.
    Json,
}

impl Format {
    /// The content type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Cbor => "application/cbor",
            Self::Json => "application/json",
        }
    }
}

/// Why a message is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not CBOR or JSON of this type.
    #[error("{schema}: malformed {format}: {detail}")]
    Malformed {
        /// What it should be.
        schema: &'static str,
        /// `cbor` or `json`.
        format: &'static str,
        /// What and where.
        detail: String,
    },
    /// `Nexus-Schema` names another type.
    #[error("{expected}: the message says it is `{found}`")]
    OtherSchema {
        /// What it should be.
        expected: &'static str,
        /// What it says.
        found: String,
    },
    /// A version that a newer release writes.
    #[error("{schema}: version {found} is newer than {known}, which this release reads")]
    NewerSchema {
        /// What it is.
        schema: &'static str,
        /// Its version.
        found: u16,
        /// Ours.
        known: u16,
    },
    /// A version so old that nobody reads it any more.
    #[error("{schema}: version {found} is no longer read")]
    TooOld {
        /// What it is.
        schema: &'static str,
        /// Its version.
        found: u16,
    },
    /// `Content-Type` is neither CBOR nor JSON.
    #[error("{schema}: content type `{found}` is neither application/cbor nor application/json")]
    ContentType {
        /// What it should be.
        schema: &'static str,
        /// What it says.
        found: String,
    },
    /// More than [`Wire::MAX_BYTES`].
    #[error("{schema}: {size} bytes, at most {max} are read")]
    Oversize {
        /// What it should be.
        schema: &'static str,
        /// How many bytes are read.
        max: usize,
        /// Its size, bytes.
        size: usize,
    },
    /// Well formed, and not possible.
    #[error("{schema}: {detail}")]
    Invalid {
        /// What it is.
        schema: &'static str,
        /// The field and what is wrong with it.
        detail: String,
    },
}

impl DecodeError {
    /// The reason's name in a dead letter.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Malformed { .. } => "malformed",
            Self::OtherSchema { .. } => "other_schema",
            Self::NewerSchema { .. } => "newer_schema",
            Self::TooOld { .. } => "too_old",
            Self::ContentType { .. } => "content_type",
            Self::Oversize { .. } => "oversize",
            Self::Invalid { .. } => "invalid",
        }
    }
}

/// The payload of `value`.
///
/// # Panics
/// Never: our types have string keys and no map that could fail to serialise.
#[must_use]
pub fn payload<T: Serialize>(value: &T, format: Format) -> Bytes {
    match format {
        Format::Cbor => {
            let mut bytes = Vec::with_capacity(512);
            ciborium::into_writer(value, &mut bytes).expect("our types have a CBOR form");
            bytes.into()
        }
        Format::Json => serde_json::to_vec(value).expect("our types have a JSON form").into(),
    }
}

/// Payload and headers of `value`.
#[must_use]
pub fn encode<T: Wire>(value: &T, format: Format) -> (Bytes, Headers) {
    let mut headers = Headers::new();
    headers.insert(CONTENT_TYPE, format.content_type());
    headers.insert(SCHEMA, format!("{}/{}", T::SCHEMA, T::VERSION));
    (payload(value, format), headers)
}

/// Reads a `T` from a message.
///
/// Without `Content-Type` it is CBOR; without `Nexus-Schema` it is the version that we write, so that a plain
/// client can publish a JSON event with one header.
///
/// # Errors
/// [`DecodeError`] names the type and what is wrong with it, and where.
pub fn decode<T: Wire>(headers: &Headers, payload: &[u8]) -> Result<T, DecodeError> {
    if payload.len() > T::MAX_BYTES {
        return Err(DecodeError::Oversize {
            schema: T::SCHEMA,
            max: T::MAX_BYTES,
            size: payload.len(),
        });
    }

    let version = version_of::<T>(headers)?;
    let format = format_of::<T>(headers)?;
    if version != T::VERSION {
        return super::upgrade::decode_older(version, format, payload);
    }

    let value = parse::<T>(format, payload)?;
    value.check().map_err(|detail| DecodeError::Invalid {
        schema: T::SCHEMA,
        detail,
    })?;

    Ok(value)
}

fn version_of<T: Wire>(headers: &Headers) -> Result<u16, DecodeError> {
    let Some(schema) = headers.get(SCHEMA) else {
        return Ok(T::VERSION);
    };

    let other = || DecodeError::OtherSchema {
        expected: T::SCHEMA,
        found: schema.chars().take(64).collect(),
    };
    let (name, version) = schema.split_once('/').ok_or_else(other)?;
    let version: u16 = version.parse().map_err(|_| other())?;
    if name != T::SCHEMA || version == 0 {
        return Err(other());
    }

    if version > T::VERSION {
        return Err(DecodeError::NewerSchema {
            schema: T::SCHEMA,
            found: version,
            known: T::VERSION,
        });
    }

    Ok(version)
}

fn format_of<T: Wire>(headers: &Headers) -> Result<Format, DecodeError> {
    let Some(found) = headers.get(CONTENT_TYPE) else {
        return Ok(Format::Cbor);
    };
    match found.split(';').next().unwrap_or_default().trim() {
        "application/cbor" => Ok(Format::Cbor),
        "application/json" => Ok(Format::Json),
        other => Err(DecodeError::ContentType {
            schema: T::SCHEMA,
            found: other.chars().take(64).collect(),
        }),
    }
}

/// Reads a `T` from bare bytes, its bounds unchecked.
pub(super) fn parse<T: Wire>(format: Format, payload: &[u8]) -> Result<T, DecodeError> {
    match format {
        Format::Cbor => {
            let mut rest = payload;
            let value = ciborium::de::from_reader_with_recursion_limit(&mut rest, MAX_DEPTH)
                .map_err(|error| malformed::<T>("cbor", &error))?;
            if !rest.is_empty() {
                return Err(malformed::<T>(
                    "cbor",
                    &format!("{} bytes follow the value", rest.len()),
                ));
            }

            Ok(value)
        }
        Format::Json => serde_json::from_slice(payload).map_err(|error| malformed::<T>("json", &error)),
    }
}

fn malformed<T: Wire>(format: &'static str, detail: &impl ToString) -> DecodeError {
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

    #[test]
    fn both_formats_come_back() {
        for format in [Format::Cbor, Format::Json] {
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
                &b"{\"id\":\"x:1\",\"timestamp\":5,\"channel\":\"a\",\"colour\":1}"[..],
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

        let (bytes, headers) = encode(&sample(), Format::Cbor);
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
            let (payload, headers) = encode(&sample(), Format::Cbor);
            let mut bytes = payload.to_vec();
            let length = bytes.len();
            bytes[at % length] = to;
            let _ = decode::<Event>(&headers, &bytes);
        }

        #[test]
        fn events_round_trip(content in "\\PC{0,80}", peer in "\\PC{0,40}", hops in 0_u8..9, time in any::<i64>()) {
            let mut event = Event { content, hops, timestamp: UnixMillis(time), ..sample() };
            event.peer.id = peer;
            for format in [Format::Cbor, Format::Json] {
                let (payload, headers) = encode(&event, format);
                prop_assert_eq!(decode::<Event>(&headers, &payload).expect("it decodes"), event.clone());
            }
        }
    }
}
