//! Configured places of an event's fields in a webhook. *Pure.*

use std::collections::BTreeMap;

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use shared::model::time::UnixMillis;

/// The place of a value: `/json/pointer` into the body (RFC 6901), `header:name`, or `=text`, which is that text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FieldSource {
    /// A JSON pointer into the body.
    Body(String),
    /// The value of a header.
    Header(String),
    /// The same text for every request.
    Constant(String),
}

impl TryFrom<String> for FieldSource {
    type Error = String;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if let Some(constant) = text.strip_prefix('=') {
            return Ok(Self::Constant(constant.to_owned()));
        }

        if let Some(name) = text.strip_prefix("header:") {
            let name = name.trim().to_ascii_lowercase();
            if name.parse::<axum::http::HeaderName>().is_ok() {
                return Ok(Self::Header(name));
            }
        } else if text.starts_with('/') {
            return Ok(Self::Body(text));
        }

        Err(format!("`{text}`: expected `/json/pointer`, `header:name` or `=text`"))
    }
}

impl From<FieldSource> for String {
    fn from(pick: FieldSource) -> Self {
        match pick {
            FieldSource::Body(pointer) => pointer,
            FieldSource::Header(name) => format!("header:{name}"),
            FieldSource::Constant(text) => format!("={text}"),
        }
    }
}

impl FieldSource {
    /// Returns the value at this place; `None` if it is absent or null.
    #[must_use]
    pub fn value(&self, headers: &HeaderMap, payload: &Value) -> Option<Value> {
        match self {
            Self::Body(pointer) => payload.pointer(pointer).filter(|value| !value.is_null()).cloned(),
            Self::Header(name) => headers
                .get(name.as_str())
                .and_then(|value| value.to_str().ok())
                .map(|text| Value::String(text.to_owned())),
            Self::Constant(text) => Some(Value::String(text.clone())),
        }
    }

    /// Returns the value at this place as text: a nonempty string, a number or a boolean.
    #[must_use]
    pub fn text(&self, headers: &HeaderMap, payload: &Value) -> Option<String> {
        match self.value(headers, payload)? {
            Value::String(text) if !text.is_empty() => Some(text),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(truth) => Some(truth.to_string()),
            Value::String(_) | Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

/// The section `[adapter.webhook.<source>.mapping]`: the place of each field; absent = the scheme's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FieldMapping {
    /// Id of the delivery, if the scheme proves none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<FieldSource>,
    /// Type of the event: `metadata.event_type`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub event_type: Option<FieldSource>,
    /// Text of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<FieldSource>,
    /// Id of the conversation; default: the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<FieldSource>,
    /// Id of the sender; default: the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<FieldSource>,
    /// Name of the sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_name: Option<FieldSource>,
    /// Thread within the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<FieldSource>,
    /// Time it happened: seconds or milliseconds since the epoch, or RFC 3339; default: the signed timestamp,
    /// otherwise now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<FieldSource>,
    /// Further fields of `metadata`, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, FieldSource>,
}

/// Smallest timestamp that counts milliseconds: in seconds it would be after the year 5138.
const FIRST_MILLIS: f64 = 1e11;
/// Latest valid instant, in Unix milliseconds (the year 9999).
const LAST_MILLIS: i64 = 253_402_300_799_999;

/// Parses `value` as an instant, in any of the three forms.
#[must_use]
pub fn parse_instant(value: &Value) -> Option<UnixMillis> {
    let millis = match value {
        Value::Number(number) => from_number(number.as_f64()?)?,
        Value::String(text) => match text.parse::<f64>() {
            Ok(number) => from_number(number)?,
            Err(_) => text.parse::<jiff::Timestamp>().ok()?.as_millisecond(),
        },
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    (0..=LAST_MILLIS).contains(&millis).then_some(UnixMillis(millis))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a float that does not fit saturates, and the range is checked"
)]
fn from_number(number: f64) -> Option<i64> {
    let millis = if number < FIRST_MILLIS {
        number * 1_000.0
    } else {
        number
    };
    millis.is_finite().then_some(millis as i64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::signature::tests::headers;
    use super::*;

    #[test]
    fn a_pick_reads_body_or_header() {
        let map = headers(&[("X-Kind", "ping")]);
        let body = json!({"a": {"b": [7]}, "empty": "", "none": null});
        let check = |pick: &str| FieldSource::try_from(pick.to_owned()).unwrap().text(&map, &body);

        assert_eq!(check("/a/b/0").as_deref(), Some("7"));
        assert_eq!(check("header:X-Kind").as_deref(), Some("ping"));
        assert_eq!(check("=shop order").as_deref(), Some("shop order"));

        for absent in ["=", "/a", "/empty", "/none", "/zz", "header:x-none"] {
            assert_eq!(check(absent), None, "{absent}");
        }

        assert!(FieldSource::try_from("a.b".to_owned()).is_err());
        assert!(FieldSource::try_from("header:no good".to_owned()).is_err());
    }

    #[test]
    fn instants_are_read_in_three_spellings() {
        for value in [
            json!(1_700_000_000),
            json!(1_700_000_000_000_i64),
            json!("1700000000"),
            json!("2023-11-14T22:13:20Z"),
        ] {
            assert_eq!(parse_instant(&value), Some(UnixMillis(1_700_000_000_000)), "{value}");
        }

        for bad in [json!("soon"), json!(-1), json!(1e300), json!(null), json!("NaN")] {
            assert_eq!(parse_instant(&bad), None, "{bad}");
        }
    }
}
