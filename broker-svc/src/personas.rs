//! Personas: who answers for which name, and within which bounds (`personas.yaml`). *Pure.*
//!
//! Source: `sessions.md` "Agents". A name that the file does not hold is answered by its persona `default`; without
//! a file that is the echo, so that the system runs out of the box.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shared::model::heartbeat::Heartbeat;
use shared::model::identity::PermissionPresets;
use shared::model::ledger::TurnLimits;

/// The persona that answers for names that the file does not hold.
pub const DEFAULT_PERSONA: &str = "default";

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runner {
    /// The message itself, back.
    #[default]
    Echo,
    /// Whoever serves `nexus.agent.<persona>`.
    Nats,
}

/// What bounds a persona's turns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Wall time of a turn, milliseconds.
    pub wall_ms: u64,
    /// Model calls of a turn.
    pub model_calls: u32,
    /// How long one question to a remote agent may stay unanswered before it is asked again, milliseconds.
    pub reply_timeout_ms: u64,
    /// How long nobody may be there to ask before the turn fails, milliseconds.
    pub no_agent_ms: u64,
    /// Turns of history that go along.
    pub history_turns: usize,
    /// Text of history that goes along, bytes.
    pub history_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let turn = TurnLimits::default();
        Self {
            wall_ms: turn.wall_ms,
            model_calls: turn.model_calls,
            reply_timeout_ms: 60_000,
            no_agent_ms: 30_000,
            history_turns: 32,
            history_bytes: 16 * 1_024,
        }
    }
}

impl Limits {
    /// As the ledger records them.
    #[must_use]
    pub const fn of_turn(&self) -> TurnLimits {
        TurnLimits {
            wall_ms: self.wall_ms,
            model_calls: self.model_calls,
            tokens: None,
            cost_usd: None,
        }
    }
}

/// Who answers for a name, and how.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Persona {
    /// Who answers.
    pub runner: Runner,
    /// The system prompt.
    pub prompt: String,
    /// What bounds its turns.
    pub limits: Limits,
    /// When it is woken with nobody having said anything; the scheduler's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Heartbeat>,
}

/// The content of `personas.yaml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Personas {
    /// By name.
    pub personas: BTreeMap<String, Persona>,
    /// Presets of tools by level.
    pub permission_levels: PermissionPresets,
    /// What answers where neither the name nor `default` is in the file.
    #[serde(skip)]
    fallback: Persona,
}

/// Why a text is not a `personas.yaml`.
#[derive(Debug, thiserror::Error)]
pub enum ParsePersonasError {
    /// Not YAML of this shape.
    #[error("personas: not the expected YAML")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// A bound that cannot hold.
    #[error("personas.{persona}.limits.{key}: must be at least 1")]
    Zero {
        /// Whose.
        persona: String,
        /// Which.
        key: &'static str,
    },
}

impl Personas {
    /// Reads `personas.yaml`.
    ///
    /// # Errors
    /// [`ParsePersonasError`] names line and key, or the bound that cannot hold.
    pub fn parse(text: &str) -> Result<Self, ParsePersonasError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let parsed: Self = serde_yaml_ng::from_str(text)?;
        for (name, Persona { limits, .. }) in &parsed.personas {
            let bounds = [
                ("wall_ms", limits.wall_ms),
                ("model_calls", u64::from(limits.model_calls)),
                ("reply_timeout_ms", limits.reply_timeout_ms),
            ];
            if let Some((key, _)) = bounds.into_iter().find(|(_, bound)| *bound == 0) {
                return Err(ParsePersonasError::Zero {
                    persona: name.clone(),
                    key,
                });
            }
        }
        Ok(parsed)
    }

    /// Who answers for `name`.
    #[must_use]
    pub fn of(&self, name: &str) -> &Persona {
        self.personas
            .get(name)
            .or_else(|| self.personas.get(DEFAULT_PERSONA))
            .unwrap_or(&self.fallback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_file_everybody_is_the_echo() {
        let personas = Personas::parse("").expect("an empty file");
        assert_eq!(personas.of("atlas").runner, Runner::Echo);
    }

    #[test]
    fn a_name_that_is_not_there_is_answered_by_default() {
        let text = "personas:\n  default: {runner: nats, prompt: hi}\n  bob: {runner: echo, limits: {wall_ms: 5}}\n";
        let personas = Personas::parse(text).expect("a good file");
        assert_eq!(personas.of("atlas").prompt, "hi");
        assert_eq!(
            personas.of("bob").limits,
            Limits {
                wall_ms: 5,
                ..Limits::default()
            }
        );
    }

    #[test]
    fn faults_name_the_key() {
        let unknown = Personas::parse("personas: {a: {runer: echo}}").expect_err("an unknown key");
        let source = std::error::Error::source(&unknown)
            .map(ToString::to_string)
            .unwrap_or_default();
        assert!(source.contains("runer"), "{source}");
        let zero = Personas::parse("personas: {a: {limits: {wall_ms: 0}}}").expect_err("a bound of nothing");
        assert!(zero.to_string().contains("personas.a.limits.wall_ms"), "{zero}");
    }
}
