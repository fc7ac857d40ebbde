//! What a provider must see again with an answer, as journals keep it. *Pure.*

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::config::Provider;

/// What is opaque in an answer, in the words of its wire.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Opaque {
    /// What stands before text and calls, in order: signed thoughts, steps of the provider's own tools.
    pub(super) blocks: Vec<Value>,
    /// What the text is signed with.
    pub(super) text_signature: Option<String>,
    /// Signatures of calls, by their place among the calls.
    pub(super) signatures: BTreeMap<usize, String>,
    /// Thoughts that are not signed, where the provider wants them back with its calls.
    pub(super) reasoning: String,
    /// What was not understood. It is kept, and not sent back.
    pub(super) unread: Vec<Value>,
}

/// The form in which it is kept.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    wire: Provider,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    blocks: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text_signature: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    call_signatures: BTreeMap<usize, String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reasoning: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unread: Vec<Value>,
}

impl Opaque {
    /// What is kept of it; none where there is nothing.
    pub(super) fn kept(self, provider: Provider) -> Option<Value> {
        if self == Self::default() {
            return None;
        }

        let kept = Kept {
            wire: provider,
            blocks: self.blocks,
            text_signature: self.text_signature,
            call_signatures: self.signatures,
            reasoning: self.reasoning,
            unread: self.unread,
        };

        serde_json::to_value(kept).ok()
    }

    /// What was kept, for `provider`; nothing if another provider's answer was kept.
    pub(super) fn of(kept: Option<&Value>, provider: Provider) -> Self {
        let read = kept.and_then(|kept| Kept::deserialize(kept).ok());
        let Some(kept) = read.filter(|kept| kept.wire == provider) else {
            return Self::default();
        };

        Self {
            blocks: kept.blocks,
            text_signature: kept.text_signature,
            signatures: kept.call_signatures,
            reasoning: kept.reasoning,
            unread: kept.unread,
        }
    }
}
