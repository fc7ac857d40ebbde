//! Attempts without an answer that the provider may charge for. *Pure.*

use super::TokenUsage;
use super::error::AskModelError;
use super::price::{ANSWER_TOKENS, MicroDollars, ModelPrice, TOKEN_BYTES, estimate, usage_cost};

/// The attempts at one request that gave no answer and may have been paid for.
///
/// Each counts as much as a budget reserves for a call: the list price of the prompt and of the longest usual answer.
/// An answer that broke off after more text counts with the text that was received.
///
/// ```
/// use shared::llm::{AskModelError, LostAttempts, MicroDollars, ModelPrice};
///
/// let price = ModelPrice { input: 1.0, output: 1.0, cached: None };
/// let mut lost = LostAttempts::new(400, Some(50));
///
/// lost.note_failed(&AskModelError::Refused { status: 404, detail: "no such model".to_owned() });
/// assert_eq!(lost.cost(&price), MicroDollars(0));
///
/// lost.note_failed(&AskModelError::Silent { silent_ms: 60_000 });
/// assert_eq!((lost.count(), lost.cost(&price)), (1, MicroDollars(150)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostAttempts {
    prompt_bytes: usize,
    max_tokens: Option<u32>,
    count: u32,
    /// Tokens received beyond the longest usual answer.
    excess: u64,
}

impl LostAttempts {
    /// Creates the empty count for a request with a prompt of `prompt_bytes` and an answer of at most `max_tokens`, as
    /// far as its budget reserves them.
    #[must_use]
    pub const fn new(prompt_bytes: usize, max_tokens: Option<u32>) -> Self {
        Self {
            prompt_bytes,
            max_tokens,
            count: 0,
            excess: 0,
        }
    }

    /// Counts an attempt that ended with `error`, if it may have been paid for.
    pub fn note_failed(&mut self, error: &AskModelError) {
        if !error.may_cost() {
            return;
        }

        let usual = self.max_tokens.map_or(ANSWER_TOKENS, u64::from);
        let received = (error.received_bytes() as u64).div_ceil(TOKEN_BYTES);
        self.count = self.count.saturating_add(1);
        self.excess = self.excess.saturating_add(received.saturating_sub(usual));
    }

    /// Returns the number of attempts that may have been paid for.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the cost of the attempts at `price`.
    #[must_use]
    pub fn cost(&self, price: &ModelPrice) -> MicroDollars {
        let each = estimate(self.prompt_bytes, self.max_tokens, price).0;
        let excess = TokenUsage {
            output: self.excess,
            ..TokenUsage::default()
        };

        MicroDollars(
            each.saturating_mul(u64::from(self.count))
                .saturating_add(usage_cost(&excess, price).0),
        )
    }
}
