//! Cost of an answer, in whole micro-dollars. *Pure.*

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::usage::TokenUsage;

/// Number of tokens that a price is for.
const TOKENS_PER_PRICE: u128 = 1_000_000;

/// Number of prompt bytes that are reserved as one token.
pub(super) const TOKEN_BYTES: u64 = 4;
/// Number of tokens that are reserved for an answer if the request names none.
pub(super) const ANSWER_TOKENS: u64 = 512;

/// Amount of money in millionths of a US dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct MicroDollars(pub u64);

impl MicroDollars {
    /// Returns the amount in US dollars, for records in that unit.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "exact up to nine billion dollars")]
    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1_000_000.0
    }
}

/// Price of a model per million tokens, in US dollars, as in providers' price lists.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    /// Price of input tokens.
    pub input: f64,
    /// Price of output tokens, reasoning included.
    pub output: f64,
    /// Price of cached input tokens; the price of `input` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<f64>,
}

/// Prices by model. A name is looked up as a whole, then repeatedly without the part after its last `-` or `@`, so
/// that a dated name (`model-2026-01-31`) finds the price of its family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PriceTable(pub BTreeMap<String, ModelPrice>);

impl Default for PriceTable {
    fn default() -> Self {
        let flash = ModelPrice {
            input: 0.50,
            output: 3.00,
            cached: Some(0.05),
        };
        Self(BTreeMap::from([("gemini-3-flash-preview".to_owned(), flash)]))
    }
}

/// A limit in US dollars applies to a model without a known price: it would limit nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{model}` has no price; set `input` and `output` (US dollars per million tokens, 0 if free) in [llm.prices.\"{model}\"]"
)]
pub struct UnpricedModel {
    /// Name of the model.
    pub model: String,
}

impl PriceTable {
    /// Returns the price of `model` for a limit in US dollars.
    ///
    /// # Errors
    /// Returns [`UnpricedModel`] if it has none.
    pub fn bounding_price(&self, model: &str) -> Result<ModelPrice, UnpricedModel> {
        let unpriced = || UnpricedModel {
            model: model.to_owned(),
        };
        self.price_of(model).copied().ok_or_else(unpriced)
    }

    /// Returns the price of `model`, or of the model of which `model` is a dated version.
    #[must_use]
    pub fn price_of(&self, model: &str) -> Option<&ModelPrice> {
        let mut name = model;
        loop {
            if let Some(price) = self.0.get(name) {
                return Some(price);
            }
            name = without_date(name)?;
        }
    }
}

/// Returns `name` without its last part, if that part names a date or a snapshot: `-20241022`, `-05`, `-001`, `@2026`,
/// `-latest`. Any other part makes another model: `gpt-5-pro` has not the price of `gpt-5`.
fn without_date(name: &str) -> Option<&str> {
    let (family, version) = name.split_at(name.rfind(['-', '@'])?);
    let version = version.get(1..)?;
    let is_date = version.len() >= 2 && version.bytes().all(|byte| byte.is_ascii_digit());

    (is_date || version == "latest").then_some(family)
}

/// Returns the cost of `usage` at `price`, rounded up once, at the end, to a whole micro-dollar.
#[must_use]
pub fn usage_cost(usage: &TokenUsage, price: &ModelPrice) -> MicroDollars {
    let cached = usage.cached.min(usage.input);
    let parts = [
        (usage.input - cached, price.input),
        (cached, price.cached.unwrap_or(price.input)),
        (usage.output, price.output),
    ];

    let total: u128 = parts
        .iter()
        .map(|(tokens, dollars)| u128::from(*tokens) * u128::from(micro_dollars(*dollars)))
        .sum();

    MicroDollars(u64::try_from(total.div_ceil(TOKENS_PER_PRICE)).unwrap_or(u64::MAX))
}

/// Returns the list price of a prompt of `prompt_bytes` and of its longest usual answer, of `max_tokens` or 512 tokens:
/// the amount that a budget reserves before the call. The real cost may be higher if tokens are shorter than four bytes
/// or the answer is longer.
#[must_use]
pub fn estimate(prompt_bytes: usize, max_tokens: Option<u32>, price: &ModelPrice) -> MicroDollars {
    let usage = TokenUsage {
        input: (prompt_bytes as u64).div_ceil(TOKEN_BYTES),
        output: max_tokens.map_or(ANSWER_TOKENS, u64::from),
        ..TokenUsage::default()
    };
    usage_cost(&usage, price)
}

/// Converts a list price to whole micro-dollars per million tokens.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rounded, and kept within the range of a price"
)]
fn micro_dollars(dollars: f64) -> u64 {
    (dollars.clamp(0.0, 1_000_000.0) * 1_000_000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLASH: ModelPrice = ModelPrice {
        input: 0.50,
        output: 3.00,
        cached: Some(0.05),
    };

    #[test]
    fn cached_tokens_are_priced_as_cached_and_the_sum_is_rounded_up_once() {
        let check = |input, cached, output, micro| {
            let usage = TokenUsage {
                input,
                cached,
                output,
                reasoning: 0,
            };

            assert_eq!(usage_cost(&usage, &FLASH), MicroDollars(micro), "{usage:?}");
        };

        check(0, 0, 0, 0);
        check(1_000_000, 0, 1_000_000, 3_500_000);
        check(1_000_000, 1_000_000, 0, 50_000);
        check(1, 0, 0, 1);
        check(100, 50, 10, 58);
    }

    #[test]
    fn a_dated_name_finds_the_price_of_its_family() {
        let prices = PriceTable::default();
        assert_eq!(prices.price_of("gemini-3-flash-preview"), Some(&FLASH));
        assert_eq!(prices.price_of("gemini-3-flash-preview-05-20"), Some(&FLASH));
        assert_eq!(prices.price_of("gemini-3-flash-preview-latest"), Some(&FLASH));
        assert_eq!(prices.price_of("gemini-3"), None);
        assert_eq!(prices.price_of("unknown"), None);
    }

    #[test]
    fn another_model_of_the_family_has_no_price_until_it_is_given_one() {
        let prices = PriceTable::default();
        for other in [
            "gemini-3-flash-preview-pro",
            "gemini-3-flash-preview-5",
            "gemini-3-flash-preview-",
        ] {
            assert_eq!(prices.price_of(other), None, "{other}");
        }
    }
}
