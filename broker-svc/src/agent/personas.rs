//! Personas: the agent for each name, and its limits (`personas.yaml`). *Pure.*
//!
//! Source: `docs/design/sessions.md` §6. A name that is not in the file is answered by its persona `default`; without
//! a file that is the echo, so that the system runs out of the box.

mod fault;
mod faults;
mod patterns;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::llm::LlmConfig;
use shared::model::approval::ApprovalAsk;
use shared::model::heartbeat::Heartbeat;
use shared::model::ledger::TurnLimits;
use shared::model::permission::{PermissionPresets, PermissionSet, glob_matches};
use shared::model::session::{QueueSettings, SessionRef};
use shared::process::config::{KeyFault, read_yaml};

use crate::ledger::reset::ResetRule;
use crate::tool::credentials::SecretReferences;
use crate::tool::mcp::McpServer;
pub use faults::ParsePersonasError;

/// Name of the persona that answers for names that are not in the file.
pub const DEFAULT_PERSONA: &str = "default";

/// Number of bytes that count as a token.
pub const TOKEN_BYTES: usize = 4;

/// Kind of agent that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentRunner {
    /// The echo: answers with the message.
    #[default]
    Echo,
    /// A service on `nexus.agent.<persona>`.
    Nats,
    /// A model and its tools, configured in section `[llm]`.
    Llm,
    /// A program of the operator's.
    Process,
}

/// The program of runner `process`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentProgram {
    /// Path or name of the program.
    pub command: String,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Environment beside `PATH`, `HOME`, `USER`, `LANG`, `TMPDIR`: values, or references `env:NAME`, `file:/path`.
    pub env: BTreeMap<String, String>,
    /// Working directory; empty = that of the broker.
    pub directory: String,
}

/// Returns the approximate number of tokens in `text`: providers count differently, and none counts more than one per
/// byte.
#[must_use]
pub const fn tokens_of(text: &str) -> usize {
    text.len().div_ceil(TOKEN_BYTES)
}

/// Limits of a persona's turns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PersonaLimits {
    /// Maximum wall time of a turn, milliseconds.
    pub wall_ms: u64,
    /// Maximum number of model calls of a turn.
    pub model_calls: u32,
    /// Time after which an unanswered question to a remote agent is repeated, milliseconds.
    pub reply_timeout_ms: u64,
    /// Time without any reachable agent after which the turn fails, milliseconds.
    pub no_agent_ms: u64,
    /// Maximum number of history turns in a request.
    pub history_turns: usize,
    /// Maximum text of history in a request, tokens (four bytes each).
    pub history_tokens: usize,
    /// Maximum number of tokens of a turn, in and out; none = unlimited.
    pub tokens: Option<u64>,
    /// Maximum cost of a turn, US dollars; none = unlimited.
    pub cost_usd: Option<f64>,
}

impl Default for PersonaLimits {
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

impl PersonaLimits {
    /// Returns the limits as the ledger records them.
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

/// Tools that run only after an approval.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfirmationRule {
    /// Globs of the tools' names.
    pub tools: Vec<String>,
    /// Bounds by argument: only if one argument is above its bound, or is no number; empty = always.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub above: BTreeMap<String, f64>,
    /// Scope and times of the question.
    pub ask: ApprovalAsk,
}

impl ConfirmationRule {
    fn matches_call(&self, tool: &str, arguments: &Value) -> bool {
        let is_above = |(name, bound): (&String, &f64)| {
            let number = arguments.get(name).and_then(Value::as_f64);
            number.is_none_or(|number| number.is_nan() || number > *bound)
        };
        self.tools.iter().any(|pattern| glob_matches(pattern, tool))
            && (self.above.is_empty() || self.above.iter().any(is_above))
    }
}

impl Persona {
    /// Returns how humans must be asked before `tool` runs with `arguments`, one question for each rule that fits.
    pub fn confirmations<'a>(&'a self, tool: &'a str, arguments: &'a Value) -> impl Iterator<Item = &'a ApprovalAsk> {
        let rules = self.requires_confirmation.iter();
        rules
            .filter(|confirm| confirm.matches_call(tool, arguments))
            .map(|confirm| &confirm.ask)
    }
}

/// The agent for a name, and its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Persona {
    /// Kind of agent that answers.
    pub runner: AgentRunner,
    /// Model that is asked; none = that of section `[llm]`.
    pub model: Option<String>,
    /// Maximum number of tokens in one answer of the model; none = the provider's limit.
    pub max_tokens: Option<u32>,
    /// Whether the model of runner `llm` gets images as such; otherwise it reads their names.
    pub images: bool,
    /// Whether the model of runner `llm` gets recordings as such, if its provider takes their type; otherwise it reads their
    /// names. A transcript is read in either case.
    pub audio: bool,
    /// System prompt of the persona.
    pub prompt: String,
    /// Globs of the persona's built-in tools. The turn's permissions decide which of them it may use.
    pub tools: Vec<String>,
    /// Names in `mcp_servers` of the MCP servers whose tools the persona has.
    pub mcp_servers: Vec<String>,
    /// Tools that run only after an approval; each rule that fits asks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requires_confirmation: Vec<ConfirmationRule>,
    /// Ceiling for the permissions of every turn, independent of the dispatch; none = no ceiling.
    pub permissions: Option<PermissionSet>,
    /// Program of runner `process`.
    pub process: Option<AgentProgram>,
    /// Hooks within the persona's turns, as written.
    pub hooks: Vec<serde_json::Map<String, Value>>,
    /// Limits of the persona's turns.
    pub limits: PersonaLimits,
    /// Queue settings of the persona's sessions, before the global ones.
    pub queue: QueueSettings,
    /// Rule for when the history of the persona's sessions is reset.
    pub reset: ResetRule,
    /// Time zone of the time in the prompt: an IANA name.
    pub timezone: String,
    /// Schedule for waking the persona without a message; used by the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Heartbeat>,
}

impl Default for Persona {
    fn default() -> Self {
        Self {
            runner: AgentRunner::default(),
            model: None,
            max_tokens: None,
            images: true,
            audio: true,
            prompt: String::new(),
            tools: vec!["*".to_owned()],
            mcp_servers: Vec::new(),
            requires_confirmation: Vec::new(),
            permissions: None,
            process: None,
            hooks: Vec::new(),
            limits: PersonaLimits::default(),
            queue: QueueSettings::default(),
            reset: ResetRule::default(),
            timezone: "UTC".to_owned(),
            heartbeat: None,
        }
    }
}

/// The content of `personas.yaml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Personas {
    /// All personas, by name.
    pub personas: BTreeMap<String, Persona>,
    /// Presets of tools by permission level.
    pub permission_levels: PermissionPresets,
    /// MCP servers, by name.
    pub mcp_servers: BTreeMap<String, McpServer>,
    /// Secrets that tools may resolve if a turn's permissions name them: references `env:NAME`, `file:/path`.
    pub credentials: SecretReferences,
    /// Persona for a name if neither the name nor `default` is in the file.
    #[serde(skip)]
    fallback: Persona,
}

impl Personas {
    /// Reads `personas.yaml`.
    ///
    /// # Errors
    /// Returns [`ParsePersonasError`] with every wrong key and the value expected there.
    pub fn parse(text: &str) -> Result<Self, ParsePersonasError> {
        let read = read_yaml(text, faults::find_faults).map_err(ParsePersonasError)?;
        Ok(read.unwrap_or_default())
    }

    /// Returns the readable part of a `personas.yaml` whose personas ask the model of `llm` (`None` if it is not
    /// YAML), and every fault of it.
    #[must_use]
    pub fn check(text: &str, llm: &LlmConfig) -> (Option<Self>, Vec<KeyFault>) {
        let mut known = None;
        let read = read_yaml(text, |personas: &Self| {
            known = Some(personas.clone());

            // A persona that asks a model needs a usable one.
            let unusable = if personas.ask_models() {
                llm.usable_model().err()
            } else {
                None
            };
            let unusable = unusable.map(|fault| KeyFault::new("personas", format!("runner llm: {fault}")));

            let mut faults = faults::find_faults(personas);
            faults.extend(unusable);
            faults.extend(personas.unbound_faults(llm));
            faults.extend(personas.idle_faults());
            faults
        });

        match read {
            Ok(read) => (Some(read.unwrap_or_default()), Vec::new()),
            Err(faults) => (known, faults),
        }
    }

    /// Returns the personas whose limit of US dollars has no effect, because the model that they ask by `llm` has no
    /// price.
    #[must_use]
    pub fn unbound_faults(&self, llm: &LlmConfig) -> Vec<KeyFault> {
        faults::unbound_faults(self, llm)
    }

    /// Returns the denials and approval rules that have no effect, because no persona has a tool of that name. An MCP
    /// server may offer such a tool later, so this is no reason not to start.
    #[must_use]
    pub fn idle_faults(&self) -> Vec<KeyFault> {
        patterns::idle_faults(self)
    }

    /// Returns the levels under which no persona has a tool although they allow some, each `key: why`.
    #[must_use]
    pub fn empty_levels(&self) -> Vec<String> {
        patterns::empty_levels(self)
    }

    /// Returns whether a persona asks models.
    #[must_use]
    pub fn ask_models(&self) -> bool {
        self.personas.values().any(|persona| persona.runner == AgentRunner::Llm)
    }

    /// Returns how humans must be asked before `tool` runs with `arguments` in a turn of `session`, which works for
    /// `inherited`: rules that bind the sender of the work also bind its workers.
    pub fn confirmations<'a>(
        &'a self,
        session: &'a SessionRef,
        inherited: &'a [SessionRef],
        tool: &'a str,
        arguments: &'a Value,
    ) -> impl Iterator<Item = &'a ApprovalAsk> {
        let sessions = std::iter::once(session).chain(inherited);
        sessions.flat_map(move |session| self.persona_of(&session.persona).confirmations(tool, arguments))
    }

    /// Returns the persona that answers for `name`.
    #[must_use]
    pub fn persona_of(&self, name: &str) -> &Persona {
        self.personas
            .get(name)
            .or_else(|| self.personas.get(DEFAULT_PERSONA))
            .unwrap_or(&self.fallback)
    }
}

#[cfg(test)]
mod tests;
