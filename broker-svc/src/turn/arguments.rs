//! Arguments and outcomes of tool calls: their fingerprint, and the part that is kept. *Pure.*

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use shared::model::ledger::ToolOutcome;

use crate::agent::message_text::shorten_text;

/// Maximum result of a tool that is kept and shown to the model, bytes of JSON; the rest is cut and the cut is
/// marked.
pub const MAX_OUTCOME_BYTES: usize = 256 * 1_024;

/// Returns the SHA-256 of the canonical arguments (keys sorted, no spaces), in hex.
#[must_use]
pub fn args_hash(arguments: &Value) -> String {
    let mut canonical = String::new();
    write(arguments, &mut canonical);
    hex::encode(Sha256::digest(canonical.as_bytes()))
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            // Sorted keys make the text, and so the hash, independent of the order in which a model writes them.
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            out.push('{');

            for (index, key) in keys.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write(&map[key], out);
            }

            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');

            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(item, out);
            }

            out.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => out.push_str(&value.to_string()),
    }
}

/// Returns `outcome`, cut to the maximum that is kept: a longer one becomes the beginning of its JSON, as text.
#[must_use]
pub fn bounded_outcome(outcome: ToolOutcome) -> ToolOutcome {
    let cut = |text: &str| format!("{}… [cut]", shorten_text(text, MAX_OUTCOME_BYTES));
    match outcome {
        ToolOutcome::Ok { result } => {
            let text = result.to_string();
            if text.len() <= MAX_OUTCOME_BYTES {
                return ToolOutcome::Ok { result };
            }

            ToolOutcome::Ok {
                result: Value::from(cut(&text)),
            }
        }
        ToolOutcome::Error { error } if error.len() > MAX_OUTCOME_BYTES => ToolOutcome::Error { error: cut(&error) },
        ToolOutcome::Error { .. } | ToolOutcome::Skipped { .. } | ToolOutcome::Unknown { .. } => outcome,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_arguments_have_the_same_hash_whatever_their_order() {
        let one: Value = serde_json::from_str(r#"{"b": [1, {"d": "é", "c": null}], "a": 1.5}"#).expect("JSON");
        let other: Value = serde_json::from_str(r#"{"a":1.5,"b":[1,{"c":null,"d":"é"}]}"#).expect("JSON");
        assert_eq!(args_hash(&one), args_hash(&other));
        assert_ne!(args_hash(&one), args_hash(&json!({"a": 1.5})));
        assert_eq!(
            args_hash(&json!({})),
            "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        );
    }

    #[test]
    fn a_long_result_is_cut_and_marked() {
        let long = json!({ "text": "ü".repeat(MAX_OUTCOME_BYTES) });
        let ToolOutcome::Ok { result } = bounded_outcome(ToolOutcome::Ok { result: long }) else {
            panic!()
        };
        let text = result.as_str().expect("text");
        assert!(text.len() <= MAX_OUTCOME_BYTES + 20 && text.ends_with("[cut]"));
    }
}
