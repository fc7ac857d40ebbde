//! Parsing of a webhook's body: JSON, a form or text, recognized by content type and content. *Pure.*

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

/// Maximum depth of nesting in an event's JSON, in levels. Every later reader must be able to parse it within its own
/// envelope, and the common JSON parsers stop at 128.
pub const MAX_DEPTH: usize = 100;

/// The reason why a body cannot become an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadPayloadError {
    /// The content type is JSON, but the body is not.
    #[error("malformed JSON: {detail}")]
    Json {
        /// Error of the parser, with line and column.
        detail: String,
    },
    /// The body is not UTF-8.
    #[error("invalid UTF-8 at byte {at}")]
    Utf8 {
        /// Offset of the first invalid byte.
        at: usize,
    },
    /// A text contains a NUL byte.
    #[error("NUL byte at byte {at}")]
    Nul {
        /// Offset of the byte.
        at: usize,
    },
    /// The body is nested too deeply.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    Depth,
}

/// Parses `body` as a JSON value.
///
/// JSON is kept as it is. A form becomes an object of strings; if its field `payload` contains JSON (GitHub's and
/// Slack's forms), that JSON is the payload. Any other body is text: JSON if it can be parsed, otherwise a string.
/// # Errors
/// Returns [`ReadPayloadError`] with the error and its place.
pub fn read(headers: &HeaderMap, body: &[u8]) -> Result<Value, ReadPayloadError> {
    let text = std::str::from_utf8(body).map_err(|error| ReadPayloadError::Utf8 {
        at: error.valid_up_to(),
    })?;
    let kind = content_type(headers);
    let value = if kind == "application/json" || kind.ends_with("+json") {
        serde_json::from_str(text).map_err(|error| ReadPayloadError::Json {
            detail: error.to_string(),
        })?
    } else if kind == "application/x-www-form-urlencoded" {
        read_form(body)
    } else if text.trim().is_empty() {
        Value::Null
    } else {
        match serde_json::from_str(text) {
            Ok(value) => value,
            Err(_) => read_json(text)?,
        }
    };

    if too_deep(&value, MAX_DEPTH) {
        Err(ReadPayloadError::Depth)
    } else {
        Ok(value)
    }
}

/// Returns the media type of `headers` in lower case, without parameters; empty if there is none.
#[must_use]
pub fn content_type(headers: &HeaderMap) -> String {
    let value = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns the content type with its parameters, as written; empty if it is absent or unreadable.
#[must_use]
pub fn content_type_as_said(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().trim().to_owned()
}

/// Returns whether `value` is nested deeper than `levels`.
#[must_use]
pub fn too_deep(value: &Value, levels: usize) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        Value::Array(items) => levels == 0 || items.iter().any(|item| too_deep(item, levels - 1)),
        Value::Object(fields) => levels == 0 || fields.values().any(|field| too_deep(field, levels - 1)),
    }
}

fn read_json(text: &str) -> Result<Value, ReadPayloadError> {
    match text.find('\0') {
        Some(at) => Err(ReadPayloadError::Nul { at }),
        None => Ok(Value::String(text.to_owned())),
    }
}

fn read_form(body: &[u8]) -> Value {
    // Any bytes are a form: parts that cannot be decoded are kept as they are.
    let pairs: Vec<(String, String)> = serde_urlencoded::from_bytes(body).unwrap_or_default();
    let nested = pairs
        .iter()
        .find(|(name, _)| name == "payload")
        .map(|(_, text)| serde_json::from_str(text));
    match nested {
        Some(Ok(payload)) => payload,
        Some(Err(_)) | None => Value::Object(
            pairs
                .into_iter()
                .map(|(name, text)| (name, Value::String(text)))
                .collect::<Map<_, _>>(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::signature::tests::headers;
    use super::*;

    fn check(kind: &str, body: &[u8]) -> Result<Value, ReadPayloadError> {
        let map = if kind.is_empty() {
            HeaderMap::new()
        } else {
            headers(&[("content-type", kind)])
        };
        read(&map, body)
    }

    #[test]
    fn json_form_and_text_are_told_apart() {
        let cases: [(&str, &[u8], Value); 8] = [
            ("application/json; charset=utf-8", b"{\"a\":1}", json!({"a": 1})),
            ("application/vnd.api+json", b"[1]", json!([1])),
            ("", b"{\"a\":1}", json!({"a": 1})),
            ("", b"Hello, World!", json!("Hello, World!")),
            ("text/plain", b"", Value::Null),
            (
                "application/x-www-form-urlencoded",
                b"a=1&b=%20x",
                json!({"a": "1", "b": " x"}),
            ),
            (
                "application/x-www-form-urlencoded",
                b"payload=%7B%22a%22%3A1%7D",
                json!({"a": 1}),
            ),
            (
                "application/x-www-form-urlencoded",
                b"payload=no&x",
                json!({"payload": "no", "x": ""}),
            ),
        ];

        for (kind, body, expected) in cases {
            assert_eq!(check(kind, body), Ok(expected), "{kind}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        assert!(matches!(
            check("application/json", b"{\"a\":"),
            Err(ReadPayloadError::Json { .. })
        ));
        assert!(matches!(
            check("application/json", b"{\"a\":\"\0\"}"),
            Err(ReadPayloadError::Json { .. })
        ));
        assert_eq!(check("", b"ab\xff"), Err(ReadPayloadError::Utf8 { at: 2 }));
        assert_eq!(check("text/plain", b"ab\0"), Err(ReadPayloadError::Nul { at: 2 }));

        let nested = "[".repeat(120) + &"]".repeat(120);
        assert_eq!(
            check("application/json", nested.as_bytes()),
            Err(ReadPayloadError::Depth)
        );

        let endless = "[".repeat(100_000);
        assert!(matches!(
            check("application/json", endless.as_bytes()),
            Err(ReadPayloadError::Json { .. })
        ));
    }
}
