//! Bounds for the parts of an answer besides its text in a ledger record. *Pure.*
//!
//! Attachments, tool calls and the provider's opaque part cannot be cut as a text can: too much of them is a fault of
//! the agent, and ends its turn before a record is made that the server would not store.

use serde::Serialize;
use shared::model::event::Attachment;
use shared::model::ledger::TurnFailure;

use crate::agent::port::ModelAnswer;

/// Maximum size of the attachments, tool calls and opaque part of one answer together, bytes of JSON.
pub const MAX_BESIDE_BYTES: usize = 1_024 * 1_024;

/// Returns the failure if an answer with these `attachments` is too large to be kept.
#[must_use]
pub fn attachments_failure(attachments: &[Attachment]) -> Option<TurnFailure> {
    size_failure(bytes(&attachments))
}

/// Returns the failure if the model's answer `said` is too large to be kept.
#[must_use]
pub fn excess_of(said: &ModelAnswer) -> Option<TurnFailure> {
    let calls: usize = said
        .calls
        .iter()
        .map(|call| call.name.len() + bytes(&call.arguments) + call.fault.as_ref().map_or(0, String::len))
        .sum();
    size_failure(bytes(&said.attachments) + calls + said.opaque.as_ref().map_or(0, bytes))
}

fn size_failure(size: usize) -> Option<TurnFailure> {
    (size > MAX_BESIDE_BYTES).then(|| TurnFailure::Agent {
        error: format!("{size} bytes of attachments and tool calls in one answer, at most {MAX_BESIDE_BYTES} are kept"),
    })
}

fn bytes(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX / 8, |text| text.len())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::agent::port::AskedCall;

    /// Checks whether a call with half of the maximum, an opaque part and attachments of the same size are kept
    /// together.
    fn check(call: bool, opaque: bool, attached: bool) -> bool {
        let half = Value::from("x".repeat(MAX_BESIDE_BYTES / 2));
        let attachment: Attachment =
            serde_json::from_value(json!({"media_type": "image", "storage_uri": half})).expect("an attachment");
        let calls = call.then(|| AskedCall {
            name: "t".to_owned(),
            arguments: half.clone(),
            fault: None,
        });

        let said = ModelAnswer {
            calls: calls.into_iter().collect(),
            attachments: attached.then_some(attachment).into_iter().collect(),
            opaque: opaque.then_some(half),
            ..ModelAnswer::default()
        };

        excess_of(&said).is_none()
    }

    #[test]
    fn what_stands_beside_the_text_is_bounded_together() {
        assert!(check(true, false, false) && check(false, true, false) && check(false, false, true));
        assert!(!check(true, true, false) && !check(false, true, true) && !check(true, false, true));
        assert_eq!(
            (attachments_failure(&[]), excess_of(&ModelAnswer::default())),
            (None, None)
        );
    }
}
