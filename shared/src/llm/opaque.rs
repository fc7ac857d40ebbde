//! Data that a provider needs back with an answer, in the form that journals keep. *Pure.*

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::config::ModelProvider;

/// Opaque parts of an answer, in the form of its wire.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct OpaqueBlocks {
    /// Blocks that precede text and calls, in order: signed thoughts, steps of the provider's own tools.
    pub(super) blocks: Vec<Value>,
    /// Signature of the text.
    pub(super) text_signature: Option<String>,
    /// Signatures of calls, by their index among the calls.
    pub(super) signatures: BTreeMap<usize, String>,
    /// Thoughts that are not signed, if the provider wants them back with its calls.
    pub(super) reasoning: String,
    /// Parts that were not understood; kept, and not sent back.
    pub(super) unread: Vec<Value>,
}

/// Stored form of [`OpaqueBlocks`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptBlock {
    wire: ModelProvider,
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

impl OpaqueBlocks {
    /// Returns the form to store, or `None` if there are no opaque parts.
    pub(super) fn into_kept(self, provider: ModelProvider) -> Option<Value> {
        if self == Self::default() {
            return None;
        }

        let kept = KeptBlock {
            wire: provider,
            blocks: self.blocks,
            text_signature: self.text_signature,
            call_signatures: self.signatures,
            reasoning: self.reasoning,
            unread: self.unread,
        };

        serde_json::to_value(kept).ok()
    }

    /// Reads the stored form for `provider`; empty if another provider wrote it.
    pub(super) fn from_kept(kept: Option<&Value>, provider: ModelProvider) -> Self {
        let read = kept.and_then(|kept| KeptBlock::deserialize(kept).ok());
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
