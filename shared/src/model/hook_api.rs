//! What is asked of `nexus.svc.hook.*`, and answered: the tools for hooks, for operators, agents and services. *Pure.*
//!
//! Source: seed 003 §9.4; `docs/design/hooks.md` §9.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::event::EventId;
use super::hook::{HookMode, HookOrigin, HookResult, HookStatus, MadeIn};
use super::time::UnixMillis;

/// Author of what operators make.
pub const OPERATOR: &str = "operator";

/// Longest name of a hook made by `create`, in characters.
pub const MAX_NAME: usize = 64;

/// Invocations in an answer of `get` where the question names no number.
pub const DEFAULT_INVOCATIONS: u32 = 20;

/// Most invocations in an answer of `get`.
pub const MAX_INVOCATIONS: u32 = 500;

fn operator() -> String {
    OPERATOR.to_owned()
}

/// `create`: writes a hook and puts it in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateHook {
    /// Its id, and its file's name without `.ts`: `[a-z0-9-]{1,64}`.
    pub name: String,
    /// `@description`.
    #[serde(default)]
    pub description: String,
    /// `@mode`.
    #[serde(default)]
    pub mode: HookMode,
    /// The body of the hook's function, which has `ctx` and what it names of `event`, `dbPath`, `search`, `llm`, `now`
    /// and `hook`; or a whole file with a default export.
    pub script: String,
    /// Its author.
    #[serde(default = "operator")]
    pub created_by: String,
    /// The turn in which an agent makes it. The broker says so, from what it knows; absent for an agent's hook, the hook
    /// has the least rights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_in: Option<Box<MadeIn>>,
}

/// `push`: puts a whole hook file in force, new or over one that was pushed before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushHook {
    /// Its id: a path without `.ts`.
    pub id: String,
    /// The file's text.
    pub source: String,
    /// Its author.
    #[serde(default = "operator")]
    pub created_by: String,
}

/// `list`: all hooks but the deleted ones.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListHooks {
    /// Only those of this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<HookStatus>,
    /// Only those of this author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
}

/// What `list` answers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HookList {
    /// By id.
    pub hooks: Vec<HookView>,
}

/// `get`: one hook, whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetHook {
    /// Its id.
    pub name: String,
    /// With so many of its last invocations ([`DEFAULT_INVOCATIONS`], at most [`MAX_INVOCATIONS`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocations: Option<u32>,
}

/// `enable`, `delete`: one hook by its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameHook {
    /// Its id.
    pub name: String,
    /// Who asks: absent or [`OPERATOR`] for operators, who may change every hook; anybody else only their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
}

/// `disable`: it sees no events until it is enabled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisableHook {
    /// Its id.
    pub name: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who asks, as in [`NameHook`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
}

/// A hook in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookView {
    /// Its id.
    pub id: String,
    /// `@name`.
    pub name: String,
    /// `@description`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether it runs.
    pub status: HookStatus,
    /// `@mode`.
    pub mode: HookMode,
    /// `@priority`.
    pub priority: i32,
    /// `@fallback`.
    #[serde(default)]
    pub fallback: bool,
    /// `@schedule`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<String>,
    /// `@match`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_rule: Option<String>,
    /// `@allow net=…`: servers that it asks to fetch from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_net: Vec<String>,
    /// `@needs-channel`: channels that it waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs_channels: Vec<String>,
    /// Where it came from.
    pub origin: HookOrigin,
    /// Its author.
    pub created_by: String,
    /// When first seen.
    pub created_at: UnixMillis,
    /// When its source last changed.
    pub updated_at: UnixMillis,
    /// How often it fired.
    pub trigger_count: u64,
    /// When last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_triggered: Option<UnixMillis>,
    /// Its last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Why it is disabled, or what it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// Why the file as last seen does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parse_error: Option<String>,
}

/// What `get` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookDetails {
    /// The hook.
    pub hook: HookView,
    /// What runs.
    pub source: String,
    /// Its last invocations that did more than pass, the newest first.
    pub invocations: Vec<InvocationRow>,
}

/// One invocation as the read model holds it (seed 003 §8.4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InvocationRow {
    /// Which hook.
    pub hook_id: String,
    /// Upon which event.
    pub event_id: EventId,
    /// When its event's evaluation began.
    pub started_at: UnixMillis,
    /// How long the hook took, milliseconds.
    pub latency_ms: f64,
    /// `passed`, `fired`, `suppressed`, `skipped`, `failed`.
    pub outcome: String,
    /// Why nothing came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it answered, where it fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The dispatch made of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_id: Option<String>,
    /// What it said when it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Model calls made.
    pub llm_calls: u32,
    /// Tokens in and out of the model.
    pub llm_tokens: u64,
    /// What they cost, US dollars.
    pub llm_cost_usd: f64,
    /// Searches made.
    pub search_calls: u32,
}

/// `run`: one registered hook upon one event, in the runner that evaluates all; nothing is dispatched or recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunHook {
    /// Its id.
    pub hook: String,
    /// A whole event in JSON, or the id of a stored one.
    pub event: Value,
    /// `ctx.now`; absent = now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<UnixMillis>,
}

/// `test`: a file that is not registered, upon one event; nothing is dispatched, recorded or kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestHook {
    /// The file's text.
    pub source: String,
    /// A whole event in JSON, or the id of a stored one.
    pub event: Value,
    /// `ctx.now`; absent = now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<UnixMillis>,
}

/// What `run` and `test` answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookRun {
    /// Whether it fired.
    pub fired: bool,
    /// What it answered, in the unified spelling; absent where it passed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<HookResult>,
    /// What it said when it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// How long it took, microseconds.
    pub latency_us: u64,
    /// Model calls made.
    pub llm_calls: u32,
    /// Tokens into the model.
    pub llm_tokens_in: u64,
    /// Tokens out of it.
    pub llm_tokens_out: u64,
    /// What they cost, US dollars.
    pub llm_cost_usd: f64,
    /// Searches made.
    pub search_calls: u32,
}
