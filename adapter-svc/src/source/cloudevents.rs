//! Conversion of CloudEvents 1.0 to events: structured, binary and batch mode. *Pure.*
//!
//! Source: CloudEvents 1.0.2, its HTTP binding and JSON format,
//! <https://github.com/cloudevents/spec/tree/v1.0.2/cloudevents>.
//!
//! | CloudEvents | event |
//! | --- | --- |
//! | `source`, `id` | `id` = `{the token's source}:{source}/{id}`, hashed if it is longer than an event id may be |
//! | `time` | `timestamp`; the time of receipt without it |
//! | extension `nexuschannel` | `channel`, one of the token's; `cloudevents` without it |
//! | extension `nexusaccount` | `account_id` |
//! | extension `nexuspeer`, else `subject`, else `source` | `peer.id`, of kind `channel` |
//! | `source` | `from.id` |
//! | `type` | `metadata.event_type` |
//! | `data` | `metadata.payload`; a string is `content` as well; bytes that are no text: `metadata.payload_base64` |
//! | every attribute | `metadata.cloudevents` |

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use shared::model::event::{Event, EventSender, PeerKind};
use shared::model::time::UnixMillis;

use super::events::scope::TokenScope;
use super::webhook::payload::{MAX_DEPTH, content_type, content_type_as_said, too_deep};
use crate::normalize::RefuseEventError;

/// Media type of structured mode.
pub const STRUCTURED: &str = "application/cloudevents+json";
/// Media type of batch mode.
pub const BATCH: &str = "application/cloudevents-batch+json";

/// Prefix of a binary header's name.
const PREFIX: &str = "ce-";

/// The reason why a request is refused as a CloudEvent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadCloudEventError {
    /// The bytes are not JSON.
    #[error("malformed JSON: {0}")]
    Json(String),
    /// A required attribute is missing.
    #[error("attribute `{0}` is missing")]
    Missing(&'static str),
    /// An attribute has an invalid value.
    #[error("attribute `{name}`: expected {expected}")]
    Attribute {
        /// Name of the attribute.
        name: String,
        /// Expected value, for people.
        expected: &'static str,
    },
    /// The CloudEvent cannot become an event.
    #[error(transparent)]
    Refused(#[from] RefuseEventError),
}

/// The content of a CloudEvent.
enum Data {
    None,
    Json(Value),
    Bytes(Vec<u8>),
}

/// Returns whether `headers` contain a CloudEvent in binary mode.
#[must_use]
pub fn is_binary(headers: &HeaderMap) -> bool {
    headers.contains_key("ce-specversion")
}

/// Returns the event of one JSON object in structured mode.
///
/// # Errors
/// Returns [`ReadCloudEventError`] with the attribute.
pub fn structured_event(value: Value, scope: &TokenScope, now: UnixMillis) -> Result<Event, ReadCloudEventError> {
    let Value::Object(mut attributes) = value else {
        return Err(ReadCloudEventError::Json("expected an object".to_owned()));
    };
    let data = match (attributes.remove("data"), attributes.remove("data_base64")) {
        (None, None) => Data::None,
        (Some(value), None) => Data::Json(value),
        (None, Some(Value::String(text))) => Data::Bytes(
            STANDARD
                .decode(text)
                .map_err(|_| attribute_error("data_base64", "base64"))?,
        ),
        (None, Some(_)) => return Err(attribute_error("data_base64", "base64")),
        (Some(_), Some(_)) => return Err(attribute_error("data_base64", "either it or `data`")),
    };

    build_event(attributes, data, scope, now)
}

/// Returns the event of a request in binary mode: attributes in `ce-` headers, and the data as the body.
///
/// # Errors
/// Returns [`ReadCloudEventError`] with the attribute.
pub fn binary_event(
    headers: &HeaderMap,
    body: &[u8],
    scope: &TokenScope,
    now: UnixMillis,
) -> Result<Event, ReadCloudEventError> {
    let mut attributes = Map::new();
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix(PREFIX) {
            let text = value.to_str().ok().and_then(percent_decoded);
            let text = text.ok_or_else(|| attribute_error(name, "percent-encoded UTF-8"))?;
            attributes.insert(name.to_owned(), Value::String(text));
        }
    }

    let kind = content_type(headers);
    let is_json = kind == "application/json" || kind.ends_with("+json");

    // In binary mode this header is the attribute `datacontenttype`.
    if !kind.is_empty() {
        let said = content_type_as_said(headers);
        attributes.insert("datacontenttype".to_owned(), Value::String(said));
    }

    let data = if body.is_empty() {
        Data::None
    } else if is_json {
        Data::Json(serde_json::from_slice(body).map_err(|error| ReadCloudEventError::Json(error.to_string()))?)
    } else {
        Data::Bytes(body.to_vec())
    };

    build_event(attributes, data, scope, now)
}

fn build_event(
    attributes: Map<String, Value>,
    data: Data,
    scope: &TokenScope,
    now: UnixMillis,
) -> Result<Event, ReadCloudEventError> {
    // Another version may give the attributes another meaning.
    if required_attribute(&attributes, "specversion")? != "1.0" {
        return Err(attribute_error("specversion", "1.0"));
    }

    check_names(&attributes)?;

    let (id, source, kind) = (
        required_attribute(&attributes, "id")?,
        required_attribute(&attributes, "source")?,
        required_attribute(&attributes, "type")?,
    );

    // A URI reference cannot contain any of these.
    if source.contains(|c: char| c == '|' || c.is_whitespace() || c.is_control()) {
        return Err(attribute_error("source", "a URI reference"));
    }

    let timestamp = match optional_attribute(&attributes, "time")? {
        None => now,
        Some(text) => {
            let at = text
                .parse::<jiff::Timestamp>()
                .map_err(|_| attribute_error("time", "an RFC 3339 timestamp"))?;
            UnixMillis(at.as_millisecond())
        }
    };

    // The conversation decides the order of events: the most specific name wins.
    let peer = match (
        optional_attribute(&attributes, "nexuspeer")?,
        optional_attribute(&attributes, "subject")?,
    ) {
        (Some(peer), _) => peer,
        (None, Some(subject)) => subject,
        (None, None) => source,
    };
    let channel = optional_attribute(&attributes, "nexuschannel")?.unwrap_or("cloudevents");
    let event_id = scope.cloud_id(source, id)?;

    let mut event = Event::new(event_id, channel, peer, timestamp);
    event.received_at = now;
    event.peer.kind = PeerKind::Channel;
    event.account_id = optional_attribute(&attributes, "nexusaccount")?.map(str::to_owned);
    event.from = EventSender {
        id: source.to_owned(),
        ..EventSender::default()
    };

    event.content = kind.to_owned();
    event.metadata.insert("is_group".to_owned(), json!(false));
    event.metadata.insert("event_type".to_owned(), json!(kind));
    attach_data(&mut event, data)?;
    event
        .metadata
        .insert("cloudevents".to_owned(), Value::Object(attributes));

    Ok(scope.stamp_event(event, now)?)
}

/// Adds the data to the event.
fn attach_data(event: &mut Event, data: Data) -> Result<(), ReadCloudEventError> {
    let payload = match data {
        Data::None => return Ok(()),
        Data::Json(value) => value,
        // Text stays readable for hooks; other bytes are kept as Base64.
        Data::Bytes(bytes) => match std::str::from_utf8(&bytes) {
            Ok(text) if !text.contains('\0') => Value::String(text.to_owned()),
            Ok(_) | Err(_) => {
                event
                    .metadata
                    .insert("payload_base64".to_owned(), Value::String(STANDARD.encode(bytes)));
                return Ok(());
            }
        },
    };

    if too_deep(&payload, MAX_DEPTH) {
        return Err(attribute_error("data", "fewer than 100 nested levels"));
    }

    if let Value::String(text) = &payload {
        event.content = text.replace('\0', "\u{fffd}");
    }

    event.metadata.insert("payload".to_owned(), payload);
    Ok(())
}

/// Checks that names are lower-case letters and digits, and that values are neither lists nor objects.
fn check_names(attributes: &Map<String, Value>) -> Result<(), ReadCloudEventError> {
    for (name, value) in attributes {
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()) {
            return Err(attribute_error(name, "a name of lower-case letters and digits"));
        }
        if matches!(value, Value::Array(_) | Value::Object(_)) {
            return Err(attribute_error(name, "a string, a number or a boolean"));
        }
    }
    Ok(())
}

fn required_attribute<'a>(
    attributes: &'a Map<String, Value>,
    name: &'static str,
) -> Result<&'a str, ReadCloudEventError> {
    optional_attribute(attributes, name)?.ok_or(ReadCloudEventError::Missing(name))
}

fn optional_attribute<'a>(
    attributes: &'a Map<String, Value>,
    name: &'static str,
) -> Result<Option<&'a str>, ReadCloudEventError> {
    match attributes.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
        Some(_) => Err(attribute_error(name, "a string that is not empty")),
    }
}

fn attribute_error(name: &str, expected: &'static str) -> ReadCloudEventError {
    ReadCloudEventError::Attribute {
        name: name.chars().take(64).collect(),
        expected,
    }
}

/// Returns `text` with each `%XX` replaced by its byte; `None` if the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = if *first == b'%' {
            tail.get(..2).and_then(|digits| hex::decode(digits).ok())
        } else {
            None
        };

        match digits {
            Some(byte) => {
                bytes.extend(byte);
                rest = &tail[2..];
            }
            None => {
                // A `%` without two digits is kept as it is.
                bytes.push(*first);
                rest = tail;
            }
        }
    }

    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::super::webhook::signature::tests::headers;
    use super::*;

    const NOW: UnixMillis = UnixMillis(9_000);

    fn door() -> TokenScope {
        let channels = vec!["cloudevents".to_owned()];
        TokenScope::for_token("door-1".to_owned(), "door".to_owned(), channels, Vec::new())
    }

    fn structured(value: Value, now: UnixMillis) -> Result<Event, ReadCloudEventError> {
        structured_event(value, &door(), now)
    }

    fn binary(headers: &HeaderMap, body: &[u8], now: UnixMillis) -> Result<Event, ReadCloudEventError> {
        binary_event(headers, body, &door(), now)
    }

    // The example of the JSON event format, §3.2, shortened.
    fn example() -> Value {
        json!({
            "specversion": "1.0", "type": "com.example.someevent", "source": "/mycontext", "subject": "larger-context",
            "id": "C234-1234-1234", "time": "2018-04-05T17:31:00Z", "comexampleextension1": "value",
            "comexampleothervalue": 5, "datacontenttype": "application/json",
            "data": {"appinfoA": "abc", "appinfoB": 123, "appinfoC": true}
        })
    }

    #[test]
    fn the_published_example_keeps_every_attribute() {
        let event = structured(example(), NOW).unwrap();
        assert_eq!(event.id.as_str(), "door:/mycontext/C234-1234-1234");
        assert_eq!(event.timestamp, UnixMillis(1_522_949_460_000));
        assert_eq!(
            (event.channel.as_str(), event.peer.id.as_str()),
            ("cloudevents", "larger-context")
        );
        assert_eq!(event.metadata["cloudevents"]["comexampleothervalue"], 5);
        assert_eq!(event.metadata["payload"]["appinfoB"], 123);
        assert_eq!(event.metadata["event_type"], "com.example.someevent");
    }

    #[test]
    fn binary_mode_says_the_same() {
        let pairs = [
            ("ce-specversion", "1.0"),
            ("ce-type", "t"),
            ("ce-source", "urn:x"),
            ("ce-id", "1%20%E2%82%AC"),
            ("ce-nexuspeer", "room"),
            ("content-type", "application/json; charset=utf-8"),
        ];

        let event = binary(&headers(&pairs), b"{\"a\":1}", NOW).unwrap();
        assert_eq!(event.id.as_str(), "door:urn:x/1 \u{20ac}");
        assert_eq!((event.peer.id.as_str(), event.timestamp), ("room", NOW));
        assert_eq!(event.metadata["payload"], json!({"a": 1}));
        assert_eq!(
            event.metadata["cloudevents"]["datacontenttype"],
            "application/json; charset=utf-8"
        );
    }

    #[test]
    fn data_is_text_json_or_bytes() {
        let pairs = [
            ("ce-specversion", "1.0"),
            ("ce-type", "t"),
            ("ce-source", "s"),
            ("ce-id", "1"),
        ];

        assert_eq!(binary(&headers(&pairs), b"hi", NOW).unwrap().content, "hi");
        assert_eq!(
            binary(&headers(&pairs), b"\xff\x00", NOW).unwrap().metadata["payload_base64"],
            "/wA="
        );

        let mut value = example();
        value.as_object_mut().unwrap().remove("data");
        value["data_base64"] = json!("aGk=");

        assert_eq!(structured(value, NOW).unwrap().content, "hi");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |name: &str, wrong: Value| {
            let mut value = example();
            value[name] = wrong;
            structured(value, NOW).unwrap_err().to_string()
        };
        assert_eq!(with("id", Value::Null), "attribute `id` is missing");

        for (name, wrong) in [
            ("specversion", json!("0.3")),
            ("source", json!("a b")),
            ("time", json!("yesterday")),
            ("type", json!("")),
            ("Upper", json!("x")),
            ("list", json!([])),
            ("data_base64", json!("aGk=")),
        ] {
            assert!(with(name, wrong).contains(&format!("`{name}`")), "{name}");
        }

        assert!(with("nexuschannel", json!("timer")).contains("timer"));
        assert!(structured(json!([]), NOW).is_err());
    }

    #[test]
    fn a_source_and_an_id_never_meet_those_of_another() {
        let id = |source: &str, id: &str| {
            let value = json!({"specversion": "1.0", "type": "t", "source": source, "id": id});
            structured(value, NOW).unwrap().id
        };
        assert_ne!(id("a", "b|c"), id("a%7Cb", "c"));
        assert!(id("s", &"x".repeat(600)).as_str().starts_with("door:sha256-"));
    }
}
