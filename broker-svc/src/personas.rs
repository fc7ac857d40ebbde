//! Personas: who answers for which name, and within which bounds (`personas.yaml`). *Pure.*
//!
//! Source: `docs/design/sessions.md` §6. A name that the file does not hold is answered by its persona `default`;
//! without a file that is the echo, so that the system runs out of the box.

mod fault;
mod faults;
mod patterns;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::llm::LlmConfig;
use shared::model::approval::Ask;
use shared::model::heartbeat::Heartbeat;
use shared::model::identity::PermissionPresets;
use shared::model::ledger::TurnLimits;
use shared::model::permission::{PermissionSet, glob};
use shared::model::session::{QueueSettings, SessionRef};
use shared::process::config::{KeyFault, read_yaml};

use crate::reset::Reset;
use crate::tool::credentials::References;
use crate::tool::mcp::McpServer;
pub use faults::ParsePersonasError;

/// The persona that answers for names that the file does not hold.
pub const DEFAULT_PERSONA: &str = "default";

/// Bytes that count as a token.
pub const TOKEN_BYTES: usize = 4;

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runner {
    /// The message itself, back.
    #[default]
    Echo,
    /// Whoever serves `nexus.agent.<persona>`.
    Nats,
    /// A model and its tools, by section `[llm]`.
    Llm,
    /// A program of one's own.
    Process,
}

/// The program of runner `process`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Program {
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment beside `PATH`, `HOME`, `USER`, `LANG`, `TMPDIR`: values, or references `env:NAME`, `file:/path`.
    pub env: BTreeMap<String, String>,
    /// Where it runs; empty = where the broker does.
    pub directory: String,
}

/// Roughly how many tokens `text` is: providers count differently, and none of them more than one per byte.
#[must_use]
pub const fn tokens_of(text: &str) -> usize {
    text.len().div_ceil(TOKEN_BYTES)
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
    /// Text of history that goes along, tokens (four bytes each).
    pub history_tokens: usize,
    /// Tokens of a turn, in and out; none = any number.
    pub tokens: Option<u64>,
    /// Cost of a turn, US dollars; none = any.
    pub cost_usd: Option<f64>,
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
            history_tokens: 4_096,
            tokens: None,
            cost_usd: None,
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
            tokens: self.tokens,
            cost_usd: self.cost_usd,
        }
    }
}

/// Tools that run only after a human's yes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Confirm {
    /// Globs of their names.
    pub tools: Vec<String>,
    /// Only where one of these arguments is above its bound, or is no number; empty = always.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub above: BTreeMap<String, f64>,
    /// Who is asked, and how.
    pub ask: Ask,
}

impl Confirm {
    fn fits(&self, tool: &str, arguments: &Value) -> bool {
        let is_above = |(name, bound): (&String, &f64)| {
            let number = arguments.get(name).and_then(Value::as_f64);
            number.is_none_or(|number| number.is_nan() || number > *bound)
        };
        self.tools.iter().any(|pattern| glob(pattern, tool))
            && (self.above.is_empty() || self.above.iter().any(is_above))
    }
}

impl Persona {
    /// How humans are asked before `tool` runs with `arguments`, one question a rule that fits; none = nobody is.
    pub fn confirmations<'a>(&'a self, tool: &'a str, arguments: &'a Value) -> impl Iterator<Item = &'a Ask> {
        let rules = self.requires_confirmation.iter();
        rules
            .filter(|confirm| confirm.fits(tool, arguments))
            .map(|confirm| &confirm.ask)
    }
}

/// Who answers for a name, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Persona {
    /// Who answers.
    pub runner: Runner,
    /// The model that is asked; none = that of section `[llm]`.
    pub model: Option<String>,
    /// Tokens that one answer of the model may have; none = the provider's bound.
    pub max_tokens: Option<u32>,
    /// The system prompt.
    pub prompt: String,
    /// The built-in tools that it has: globs. What a turn may use of them its permissions say.
    pub tools: Vec<String>,
    /// The MCP servers whose tools it has, by their names in `mcp_servers`.
    pub mcp_servers: Vec<String>,
    /// Which of its tools run only after a human's yes; each that fits asks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requires_confirmation: Vec<Confirm>,
    /// More than this no turn of it may do, whatever its dispatch says; none = no such bound.
    pub permissions: Option<PermissionSet>,
    /// The program of runner `process`.
    pub process: Option<Program>,
    /// Hooks within its turns, as written.
    pub hooks: Vec<serde_json::Map<String, Value>>,
    /// What bounds its turns.
    pub limits: Limits,
    /// Queue settings of its sessions, before the global ones.
    pub queue: QueueSettings,
    /// When the history of its sessions begins anew.
    pub reset: Reset,
    /// Time zone in which it is told what time it is: an IANA name.
    pub timezone: String,
    /// When it is woken with nobody having said anything; the scheduler's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Heartbeat>,
}

impl Default for Persona {
    fn default() -> Self {
        Self {
            runner: Runner::default(),
            model: None,
            max_tokens: None,
            prompt: String::new(),
            tools: vec!["*".to_owned()],
            mcp_servers: Vec::new(),
            requires_confirmation: Vec::new(),
            permissions: None,
            process: None,
            hooks: Vec::new(),
            limits: Limits::default(),
            queue: QueueSettings::default(),
            reset: Reset::default(),
            timezone: "UTC".to_owned(),
            heartbeat: None,
        }
    }
}

/// The content of `personas.yaml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Personas {
    /// By name.
    pub personas: BTreeMap<String, Persona>,
    /// Presets of tools by level.
    pub permission_levels: PermissionPresets,
    /// MCP servers, by name.
    pub mcp_servers: BTreeMap<String, McpServer>,
    /// Secrets that tools may resolve where a turn's permissions name them: references `env:NAME`, `file:/path`.
    pub credentials: References,
    /// What answers where neither the name nor `default` is in the file.
    #[serde(skip)]
    fallback: Persona,
}

impl Personas {
    /// Reads `personas.yaml`.
    ///
    /// # Errors
    /// [`ParsePersonasError`] names every key that is wrong and what is expected there.
    pub fn parse(text: &str) -> Result<Self, ParsePersonasError> {
        let read = read_yaml(text, faults::of).map_err(ParsePersonasError)?;
        Ok(read.unwrap_or_default())
    }

    /// Everything that is wrong with the text of a `personas.yaml` whose personas ask the model of `llm`; and what of it can
    /// be read, `None` if it is not YAML.
    #[must_use]
    pub fn check(text: &str, llm: &LlmConfig) -> (Option<Self>, Vec<KeyFault>) {
        let mut known = None;
        let read = read_yaml(text, |personas: &Self| {
            known = Some(personas.clone());

            // A persona that asks a model needs one that can be asked.
            let unusable = if personas.ask_models() {
                llm.usable().err()
            } else {
                None
            };
            let unusable = unusable.map(|fault| KeyFault::new("personas", format!("runner llm: {fault}")));

            let mut faults = faults::of(personas);
            faults.extend(unusable);
            faults.extend(personas.unbound(llm));
            faults.extend(personas.idle());
            faults
        });

        match read {
            Ok(read) => (Some(read.unwrap_or_default()), Vec::new()),
            Err(faults) => (known, faults),
        }
    }

    /// The personas whose limit of US dollars bounds nothing, because the model that they ask by `llm` has no price.
    #[must_use]
    pub fn unbound(&self, llm: &LlmConfig) -> Vec<KeyFault> {
        faults::unbound(self, llm)
    }

    /// Denials and demands for a human's yes that hold nothing back: nobody has a tool of that name. A server that is told
    /// of new tools may make one sound, so it is no reason not to start.
    #[must_use]
    pub fn idle(&self) -> Vec<KeyFault> {
        patterns::idle(self)
    }

    /// Levels under which nobody has a tool although they allow some, each `key: why`.
    #[must_use]
    pub fn empty_levels(&self) -> Vec<String> {
        patterns::empty_levels(self)
    }

    /// Whether a persona asks models.
    #[must_use]
    pub fn ask_models(&self) -> bool {
        self.personas.values().any(|persona| persona.runner == Runner::Llm)
    }

    /// How humans are asked before `tool` runs with `arguments` in a turn of `session`, which works for `inherited`: what
    /// binds whoever sends the work binds those who do it.
    pub fn confirmations<'a>(
        &'a self,
        session: &'a SessionRef,
        inherited: &'a [SessionRef],
        tool: &'a str,
        arguments: &'a Value,
    ) -> impl Iterator<Item = &'a Ask> {
        let sessions = std::iter::once(session).chain(inherited);
        sessions.flat_map(move |session| self.of(&session.persona).confirmations(tool, arguments))
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
mod tests;
