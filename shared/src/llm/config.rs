//! Section `[llm]` of `nexus.toml`. *Pure.*

use serde::{Deserialize, Serialize};

use super::price::PriceTable;
use crate::process::SecretValue;
use crate::retry::RetrySchedule;

/// Default model of the provider [`ModelProvider::Gemini`].
pub const DEFAULT_MODEL: &str = "gemini-3-flash-preview";

/// Provider of the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelProvider {
    /// Google, with its interface `streamGenerateContent`.
    #[default]
    Gemini,
    /// OpenAI's chat completions, or a server at `base_url` that implements them.
    #[serde(rename = "openai")]
    OpenAi,
    /// Anthropic, with its messages interface.
    Anthropic,
}

impl ModelProvider {
    /// Returns the MIME types of the recordings that the provider takes within a request. Sources: OpenAI "Audio and
    /// speech", Google "Audio understanding", Anthropic "Messages".
    pub(super) const fn recording_types(self) -> &'static [&'static str] {
        match self {
            Self::Gemini => &[
                "audio/wav",
                "audio/mp3",
                "audio/aiff",
                "audio/aac",
                "audio/ogg",
                "audio/flac",
            ],
            Self::OpenAi => &["audio/wav", "audio/mp3"],
            Self::Anthropic => &[],
        }
    }
}

/// Configuration section `[llm]`, read by the services that use models (broker-svc, hook-svc).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LlmConfig {
    /// Provider of the models.
    pub provider: ModelProvider,
    /// Model of requests that name none; empty for the default of `gemini`.
    pub model: String,
    /// Address of the provider, including its version (`http://127.0.0.1:11434/v1`); empty for the provider's own
    /// address.
    pub base_url: String,
    /// API key, as a reference: `env:GEMINI_API_KEY` or `file:/path`. A self-hosted server may need none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretValue>,
    /// Longest silence of the provider, in milliseconds.
    pub idle_timeout_ms: u64,
    /// Schedule of retries after 429, 5xx and broken streams. The provider's `Retry-After` is respected if it is
    /// longer.
    pub retry: RetrySchedule,
    /// US dollars per million tokens, by model.
    pub prices: PriceTable,
}

impl Default for LlmConfig {
    fn default() -> Self {
        Self {
            provider: ModelProvider::default(),
            model: String::new(),
            base_url: String::new(),
            api_key: None,
            idle_timeout_ms: 60_000,
            retry: RetrySchedule {
                initial_ms: 500,
                max_ms: 20_000,
                max_attempts: 5,
                ..RetrySchedule::default()
            },
            prices: PriceTable::default(),
        }
    }
}

/// Reason why a configuration cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LlmFault {
    /// There is no key, and the provider's own address is used.
    #[error("llm.api_key: required if llm.base_url is empty; expected \"env:NAME\" or \"file:/path\"")]
    NoKey,
    /// There is no model, and the provider has no default.
    #[error("llm.model: required if llm.provider is not gemini")]
    NoModel,
    /// The HTTP client could not be created.
    #[error("llm: failed to create the HTTP client")]
    NoClient,
}

impl LlmConfig {
    /// Returns the faults of meaning, each `key: problem`. An empty section has no faults, because a service
    /// may not need it.
    #[must_use]
    pub fn find_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let url = self.base_url.as_str();
        if !(url.is_empty() || url.starts_with("http://") || url.starts_with("https://")) {
            faults.push(format!(
                "base_url: `{url}` found, expected http://… or https://… or nothing"
            ));
        }

        if self.idle_timeout_ms == 0 {
            faults.push("idle_timeout_ms: expected at least 1".to_owned());
        }

        for (model, price) in &self.prices.0 {
            let all = [Some(price.input), Some(price.output), price.cached];
            if all.into_iter().flatten().any(|price| !price.is_finite() || price < 0.0) {
                faults.push(format!(
                    "prices.{model}: expected US dollars per million tokens, not negative"
                ));
            }
        }

        faults
    }

    /// Returns the provider's address, with its version and a final slash.
    #[must_use]
    pub fn endpoint(&self) -> String {
        let own = match self.provider {
            ModelProvider::Gemini => "https://generativelanguage.googleapis.com/v1beta/",
            ModelProvider::OpenAi => "https://api.openai.com/v1/",
            ModelProvider::Anthropic => "https://api.anthropic.com/v1/",
        };
        match self.base_url.trim_end_matches('/') {
            "" => own.to_owned(),
            base => format!("{base}/"),
        }
    }

    /// Returns the model of requests that name none.
    ///
    /// # Errors
    /// Returns [`LlmFault`] if the configuration lacks something.
    pub fn usable_model(&self) -> Result<&str, LlmFault> {
        if self.api_key.is_none() && self.base_url.is_empty() {
            return Err(LlmFault::NoKey);
        }
        match (self.model.as_str(), self.provider) {
            ("", ModelProvider::Gemini) => Ok(DEFAULT_MODEL),
            ("", ModelProvider::OpenAi | ModelProvider::Anthropic) => Err(LlmFault::NoModel),
            (model, _) => Ok(model),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> LlmConfig {
        toml::from_str(text).expect("a good section")
    }

    #[test]
    fn the_default_is_without_fault_and_not_usable_without_a_key() {
        let config = LlmConfig::default();
        assert_eq!(config.find_faults(), Vec::<String>::new());
        assert_eq!(config.usable_model(), Err(LlmFault::NoKey));
    }

    #[test]
    fn a_server_of_ones_own_needs_no_key_but_a_model() {
        let own = parsed("provider = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"");
        assert_eq!(own.usable_model(), Err(LlmFault::NoModel));
        let own = parsed("provider = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"");
        assert_eq!(own.usable_model(), Ok("m"));
    }

    #[test]
    fn every_fault_is_told() {
        let wrong = parsed("base_url = \"x\"\nidle_timeout_ms = 0\n[prices.m]\ninput = -1\noutput = 0");
        assert_eq!(wrong.find_faults().len(), 3, "{:?}", wrong.find_faults());
    }
}
