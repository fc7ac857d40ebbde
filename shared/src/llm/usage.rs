//! Number of tokens that an answer took. *Pure.*

use serde::{Deserialize, Serialize};

/// Token counts of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Input tokens, cached ones included.
    pub input: u64,
    /// Output tokens, reasoning included.
    pub output: u64,
    /// Input tokens that the provider had in its cache.
    pub cached: u64,
    /// Output tokens of reasoning, which are not part of the text.
    pub reasoning: u64,
}
