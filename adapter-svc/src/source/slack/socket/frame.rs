//! Frames of Socket Mode, as Slack sends them and as they are acknowledged. *Pure.*
//!
//! Source: <https://docs.slack.dev/apis/events-api/using-socket-mode>.

use serde::Deserialize;
use serde_json::{Value, json};

/// A frame of Slack's.
#[derive(Debug, PartialEq)]
pub(super) enum SocketFrame {
    /// The connection works; the app has this number of them.
    Hello { connections: u32 },
    /// Socket Mode is switched off for the app.
    SwitchedOff,
    /// The connection ends soon.
    EndsSoon,
    /// A payload, which is acknowledged by the id `envelope`.
    Payload { envelope: String, payload: Value },
    /// A frame that asks for nothing.
    Other,
}

/// A frame, before its kind is looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SentFrame {
    #[serde(rename = "type")]
    kind: String,
    /// Id by which a payload is acknowledged.
    envelope_id: Option<String>,
    payload: Value,
    /// Of `hello`: number of the app's connections.
    num_connections: Option<u32>,
    /// Of `disconnect`.
    reason: Option<String>,
}

impl SocketFrame {
    /// Reads the frame `text`.
    pub(super) fn from_text(text: &str) -> Result<Self, serde_json::Error> {
        let sent: SentFrame = serde_json::from_str(text)?;
        let frame = match (sent.kind.as_str(), sent.envelope_id) {
            ("hello", _) => Self::Hello {
                connections: sent.num_connections.unwrap_or(1),
            },
            ("disconnect", _) if sent.reason.as_deref() == Some("link_disabled") => Self::SwitchedOff,
            ("disconnect", _) => Self::EndsSoon,
            (_, Some(envelope)) => Self::Payload {
                envelope,
                payload: sent.payload,
            },
            (_, None) => Self::Other,
        };

        Ok(frame)
    }
}

/// Returns what is kept of the frame `text`, which cannot be read, and the id of its envelope, if it names one.
pub(super) fn unreadable_frame(text: &str) -> (Value, Option<String>) {
    // In a text that is no JSON a code of ours cannot be found, so nothing of it is kept.
    let frame: Value = serde_json::from_str(text).unwrap_or_else(|_| json!({"left_out_bytes": text.len()}));
    let envelope = frame.get("envelope_id").and_then(Value::as_str).map(str::to_owned);
    (frame, envelope)
}

/// Returns the frame that acknowledges the payload of `envelope`.
pub(super) fn acknowledgement(envelope: &str) -> String {
    json!({ "envelope_id": envelope }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &SocketFrame) {
        let read = SocketFrame::from_text(text).expect("a frame");
        assert_eq!(&read, expected, "{text}");
    }

    #[test]
    fn a_frame_is_read_by_its_kind_and_then_by_its_envelope() {
        check(
            r#"{"type":"hello","num_connections":2,"connection_info":{}}"#,
            &SocketFrame::Hello { connections: 2 },
        );
        check(r#"{"type":"hello"}"#, &SocketFrame::Hello { connections: 1 });
        check(
            r#"{"type":"disconnect","reason":"link_disabled"}"#,
            &SocketFrame::SwitchedOff,
        );
        check(
            r#"{"type":"disconnect","reason":"refresh_requested"}"#,
            &SocketFrame::EndsSoon,
        );

        let payload = SocketFrame::Payload {
            envelope: "e1".to_owned(),
            payload: json!({"a": 1}),
        };
        check(
            r#"{"type":"events_api","envelope_id":"e1","payload":{"a":1}}"#,
            &payload,
        );
        check(r#"{"type":"events_api"}"#, &SocketFrame::Other);
    }

    #[test]
    fn a_frame_that_cannot_be_read_is_kept_if_it_is_json_and_may_name_its_envelope() {
        let text = r#"{"type":7,"envelope_id":"e1"}"#;
        assert!(SocketFrame::from_text(text).is_err());
        let kept = json!({"type": 7, "envelope_id": "e1"});
        assert_eq!(unreadable_frame(text), (kept, Some("e1".to_owned())));
        assert_eq!(unreadable_frame("no json"), (json!({"left_out_bytes": 7}), None));
        assert_eq!(acknowledgement("e1"), r#"{"envelope_id":"e1"}"#);
    }
}
