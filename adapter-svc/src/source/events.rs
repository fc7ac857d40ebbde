//! Parsing of the body of `POST /v1/events`: JSON or CBOR, one event or many, or CloudEvents. *Pure.*

pub mod access;
pub mod posted;
pub mod scope;

use axum::http::HeaderMap;
use serde::de::DeserializeOwned;
use serde_json::Value;
use shared::model::event::Event;
use shared::model::time::UnixMillis;
use shared::serde_text::reword_json_problem;

use super::cloudevents::{self, ReadCloudEventError};
use super::webhook::payload::content_type;
use crate::normalize::RefuseEventError;
use posted::PostedEvent;
use scope::TokenScope;

/// Maximum number of events in one request.
pub const MAX_BATCH: usize = 1_000;

/// Maximum depth of nesting in CBOR, in levels.
const MAX_CBOR_DEPTH: usize = 120;

/// The reason why a body is not a list of events, with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadEventsError {
    /// The content type is not supported.
    #[error("content type `{0}` is not supported: expected application/json, application/cbor or a CloudEvents type")]
    ContentType(String),
    /// The bytes do not match the content type.
    #[error("malformed {format}: {detail}")]
    Malformed {
        /// Format: `JSON` or `CBOR`; `event` if the bytes are JSON, but no event.
        format: &'static str,
        /// Error of the parser.
        detail: String,
        /// Path to the place in the body.
        place: String,
    },
    /// One of the events is refused.
    #[error("{detail}")]
    Event {
        /// Error in the event, for people.
        detail: String,
        /// Place of the event: `[index]` in a batch.
        place: String,
    },
    /// An event is on a channel that the caller's token does not have.
    #[error("{detail}")]
    Channel {
        /// Token and channel, for people.
        detail: String,
        /// Place of the event: `[index]` in a batch.
        place: String,
    },
    /// The request has too many events; the value is their number.
    #[error("{0} events in one request; at most {MAX_BATCH} are allowed")]
    TooMany(usize),
}

impl ReadEventsError {
    /// Returns the place in the request.
    #[must_use]
    pub fn place(&self) -> &str {
        match self {
            Self::ContentType(_) => "header content-type",
            Self::Malformed { place, .. } | Self::Event { place, .. } | Self::Channel { place, .. } => place,
            Self::TooMany(_) => "body",
        }
    }
}

/// Returns the events of a request within `scope`, in its order.
///
/// # Errors
/// Returns [`ReadEventsError`]. If one event is refused, all are.
pub fn read(
    headers: &HeaderMap,
    body: &[u8],
    scope: &TokenScope,
    now: UnixMillis,
) -> Result<Vec<Event>, ReadEventsError> {
    let kind = content_type(headers);
    match kind.as_str() {
        cloudevents::STRUCTURED => Ok(vec![structured_event(read_json(body)?, "body", scope, now)?]),
        cloudevents::BATCH => {
            let items = check_batch(read_json::<Vec<Value>>(body)?)?;
            items
                .into_iter()
                .enumerate()
                .map(|(index, item)| structured_event(item, &format!("body[{index}]"), scope, now))
                .collect()
        }
        _ if cloudevents::is_binary(headers) => {
            let event = cloudevents::binary_event(headers, body, scope, now);
            Ok(vec![event.map_err(|error| cloud_event_error("body", &error))?])
        }
        "application/json" => {
            // The first byte decides, so that a large body is parsed only once.
            let many = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
            own_events(if many { read_json(body)? } else { vec![read_json(body)?] }, scope, now)
        }
        "application/cbor" => {
            // Major type 4 (RFC 8949 §3.1) is an array.
            let many = body.first().is_some_and(|byte| byte >> 5 == 4);
            own_events(if many { read_cbor(body)? } else { vec![read_cbor(body)?] }, scope, now)
        }
        _ => Err(ReadEventsError::ContentType(kind.chars().take(64).collect())),
    }
}

fn own_events(events: Vec<PostedEvent>, scope: &TokenScope, now: UnixMillis) -> Result<Vec<Event>, ReadEventsError> {
    let check = |(index, posted): (usize, PostedEvent)| {
        let event = scope.to_event(posted, now);
        event.map_err(|error| refused_error(&format!("body[{index}]"), &error))
    };
    check_batch(events)?.into_iter().enumerate().map(check).collect()
}

fn check_batch<T>(items: Vec<T>) -> Result<Vec<T>, ReadEventsError> {
    if items.len() > MAX_BATCH {
        Err(ReadEventsError::TooMany(items.len()))
    } else {
        Ok(items)
    }
}

fn structured_event(value: Value, place: &str, scope: &TokenScope, now: UnixMillis) -> Result<Event, ReadEventsError> {
    cloudevents::structured_event(value, scope, now).map_err(|error| cloud_event_error(place, &error))
}

fn cloud_event_error(place: &str, error: &ReadCloudEventError) -> ReadEventsError {
    if let ReadCloudEventError::Refused(error) = error {
        return refused_error(place, error);
    }
    ReadEventsError::Event {
        detail: error.to_string(),
        place: place.to_owned(),
    }
}

fn refused_error(place: &str, error: &RefuseEventError) -> ReadEventsError {
    let (detail, place) = (error.to_string(), place.to_owned());
    match error {
        RefuseEventError::Channel { .. } => ReadEventsError::Channel { detail, place },
        RefuseEventError::Id(_) | RefuseEventError::Reserved(_) | RefuseEventError::Bounds(_) => {
            ReadEventsError::Event { detail, place }
        }
    }
}

fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ReadEventsError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let malformed = |format: &'static str, detail: String, path: &str| ReadEventsError::Malformed {
        format,
        detail,
        place: if path == "." {
            "body".to_owned()
        } else {
            format!("body {path}")
        },
    };

    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        // JSON in good order may still be no event.
        let format = if error.inner().is_data() { "event" } else { "JSON" };
        let detail = reword_json_problem(&error.inner().to_string());
        malformed(format, detail, &error.path().to_string())
    })?;
    reader
        .end()
        .map_err(|error| malformed("JSON", error.to_string(), "."))?;

    Ok(value)
}

fn read_cbor<T: DeserializeOwned>(body: &[u8]) -> Result<T, ReadEventsError> {
    let mut rest = body;
    let at = |rest: &[u8]| format!("body byte {}", body.len() - rest.len());
    let malformed = |detail: String, place: String| ReadEventsError::Malformed {
        format: "CBOR",
        detail,
        place,
    };

    let value = ciborium::de::from_reader_with_recursion_limit(&mut rest, MAX_CBOR_DEPTH);
    let value = value.map_err(|error| malformed(error.to_string(), at(rest)))?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(malformed("bytes follow the value".to_owned(), at(rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::webhook::signature::tests::headers;
    use super::*;

    fn check(kind: &str, body: &[u8]) -> Result<Vec<String>, ReadEventsError> {
        let channels = ["crm", "cloudevents"].map(str::to_owned).to_vec();
        let scope = TokenScope::for_token("crm-1".to_owned(), "crm".to_owned(), channels, Vec::new());
        let events = read(&headers(&[("content-type", kind)]), body, &scope, UnixMillis(7))?;
        Ok(events.into_iter().map(|event| event.id.to_string()).collect())
    }

    fn one(id: &str) -> String {
        format!(r#"{{"id":"{id}","timestamp":5,"channel":"crm"}}"#)
    }

    #[test]
    fn one_and_many_are_read_in_order() {
        assert_eq!(check("application/json", one("crm:1").as_bytes()).unwrap(), ["crm:1"]);
        let many = format!(" [{},{}]", one("crm:1"), one("crm:2"));
        assert_eq!(check("application/json", many.as_bytes()).unwrap(), ["crm:1", "crm:2"]);
        let event: Value = serde_json::from_str(&one("crm:3")).unwrap();
        let mut bytes = Vec::new();
        ciborium::into_writer(&vec![&event, &event], &mut bytes).unwrap();
        assert_eq!(check("application/cbor", &bytes).unwrap(), ["crm:3", "crm:3"]);
        let cloud = br#"[{"specversion":"1.0","type":"t","source":"s","id":"1"}]"#;
        assert_eq!(check(cloudevents::BATCH, cloud).unwrap(), ["crm:s/1"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let place = |kind: &str, body: &[u8]| check(kind, body).unwrap_err().place().to_owned();
        let json = "application/json";
        let with = |second: &str| format!("[{},{second}]", one("crm:1"));

        assert_eq!(place(json, with(r#"{"id":7}"#).as_bytes()), "body [1].id");
        assert_eq!(place(json, with(&one("crm:")).as_bytes()), "body[1]");

        let foreign = one("crm:2").replace("\"crm\"", "\"telegram\"");
        assert_eq!(place(json, with(&foreign).as_bytes()), "body[1]");
        assert!(matches!(
            check(json, foreign.as_bytes()),
            Err(ReadEventsError::Channel { .. })
        ));
        assert_eq!(place(json, b"{\"id\":\"a:\0\"}"), "body id");
        assert_eq!(place(json, b"\xff"), "body");
        assert_eq!(place(json, format!("{} x", one("a:1")).as_bytes()), "body");
        assert_eq!(place("text/plain", b""), "header content-type");

        assert!(place("application/cbor", b"\x1c").starts_with("body byte"));
        assert!(place("application/cbor", &[0x81; 10_000]).starts_with("body byte"));
        assert_eq!(place(cloudevents::BATCH, b"[{}]"), "body[0]");
    }

    #[test]
    fn a_batch_is_bounded() {
        let many = format!("[{}]", vec![one("crm:1"); MAX_BATCH + 1].join(","));
        assert_eq!(
            check("application/json", many.as_bytes()),
            Err(ReadEventsError::TooMany(MAX_BATCH + 1))
        );
    }
}
