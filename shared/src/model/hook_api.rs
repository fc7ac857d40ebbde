//! Requests to and responses of `nexus.svc.hook.*`: the hook tools for operators, agents and services. *Pure.*
//!
//! Source: seed 003 §9.4; `docs/design/hooks.md` §9.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::event::EventId;
use super::hook::{HookMode, HookOrigin, HookResult, HookStatus, MadeIn};
use super::time::UnixMillis;

/// Author of hooks that operators make.
pub const OPERATOR: &str = "operator";

/// Maximum length of the name of a hook made by `create`, in characters.
pub const MAX_NAME: usize = 64;

/// Number of invocations in a response of `get` if the request names none.
pub const DEFAULT_INVOCATIONS: u32 = 20;

/// Maximum number of invocations in a response of `get`.
pub const MAX_INVOCATIONS: u32 = 500;

fn operator() -> String {
    OPERATOR.to_owned()
}

/// `create`: writes a hook and enables it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateHook {
    /// Id of the hook, and its file's name without `.ts`: `[a-z0-9-]{1,64}`.
    pub name: String,
    /// `@description` of the hook.
    #[serde(default)]
    pub description: String,
    /// `@mode` of the hook.
    #[serde(default)]
    pub mode: HookMode,
    /// Body of the hook's function, which has `ctx` and its parts `event`, `dbPath`, `search`, `llm`, `now` and
    /// `hook` in scope; or a whole file with a default export.
    pub script: String,
    /// Author of the hook.
    #[serde(default = "operator")]
    pub created_by: String,
    /// The turn in which an agent makes the hook, set by the broker from its own knowledge. If it is absent for an
    /// agent's hook, the hook has the least rights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_in: Option<Box<MadeIn>>,
}

/// `push`: installs a whole hook file, as a new hook or in place of one that was pushed before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushHook {
    /// Id of the hook: a path without `.ts`.
    pub id: String,
    /// Text of the file.
    pub source: String,
    /// Author of the hook.
    #[serde(default = "operator")]
    pub created_by: String,
}

/// `list`: returns all hooks that are not deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListHooks {
    /// Return only hooks with this status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<HookStatus>,
    /// Return only hooks of this author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
}

/// The response to `list`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HookList {
    /// The hooks found, by id.
    pub hooks: Vec<HookView>,
}

/// `get`: returns one hook with its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetHook {
    /// Id of the hook.
    pub name: String,
    /// Number of last invocations to return: [`DEFAULT_INVOCATIONS`] if absent, at most [`MAX_INVOCATIONS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocations: Option<u32>,
}

/// `enable`, `delete`: a request about one hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameHook {
    /// Id of the hook.
    pub name: String,
    /// Name of the caller: absent or [`OPERATOR`] for operators, who may change every hook. Others may change only
    /// their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
}

/// `disable`: the hook sees no events until it is enabled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisableHook {
    /// Id of the hook.
    pub name: String,
    /// Reason for disabling it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of the caller, as in [`NameHook`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
}

/// A hook in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookView {
    /// Id of the hook.
    pub id: String,
    /// `@name` of the hook.
    pub name: String,
    /// `@description` of the hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Operating state of the hook.
    pub status: HookStatus,
    /// `@mode` of the hook.
    pub mode: HookMode,
    /// `@priority` of the hook.
    pub priority: i32,
    /// `@fallback`: whether it fires only if no other hook routed the event.
    #[serde(default)]
    pub fallback: bool,
    /// `@schedule` texts of the hook.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<String>,
    /// `@match` rule of the hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_rule: Option<String>,
    /// `@allow net=…`: servers from which the hook asks to fetch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_net: Vec<String>,
    /// `@needs-channel`: channels that the hook requires.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs_channels: Vec<String>,
    /// Place the hook was registered from.
    pub origin: HookOrigin,
    /// Author of the hook.
    pub created_by: String,
    /// Time the hook was first seen.
    pub created_at: UnixMillis,
    /// Time of the last change of its source.
    pub updated_at: UnixMillis,
    /// Number of times the hook fired.
    pub trigger_count: u64,
    /// Time the hook fired last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_triggered: Option<UnixMillis>,
    /// Message of the hook's last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Reason for which it is disabled, or the channel for which it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// Error in the file as last seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parse_error: Option<String>,
}

/// The response to `get`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookDetails {
    /// The hook, as in a list.
    pub hook: HookView,
    /// Source of the hook that runs at present.
    pub source: String,
    /// Last invocations with an outcome other than a pass, newest first.
    pub invocations: Vec<InvocationRow>,
}

/// One invocation as stored in the read model (seed 003 §8.4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InvocationRow {
    /// Id of the hook.
    pub hook_id: String,
    /// Id of the event.
    pub event_id: EventId,
    /// Time the event's evaluation began.
    pub started_at: UnixMillis,
    /// Duration of the hook, in milliseconds.
    pub latency_ms: f64,
    /// Outcome: `passed`, `fired`, `suppressed`, `skipped`, `failed`.
    pub outcome: String,
    /// Reason for which it was suppressed or skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Result that the hook returned, if it fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Id of the dispatch that was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_id: Option<String>,
    /// Message of the error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Number of model calls.
    pub llm_calls: u32,
    /// Number of input and output tokens of the model.
    pub llm_tokens: u64,
    /// Cost of the model calls, in US dollars.
    pub llm_cost_usd: f64,
    /// Number of searches the hook made.
    pub search_calls: u32,
}

/// `run`: runs one registered hook on one event in the production runner. Nothing is dispatched or recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunHook {
    /// Id of the hook.
    pub hook: String,
    /// A whole event in JSON, or the id of a stored event.
    pub event: Value,
    /// Value of `ctx.now`; absent = now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<UnixMillis>,
}

/// `test`: runs an unregistered file on one event. Nothing is dispatched, recorded or kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestHook {
    /// Text of the file.
    pub source: String,
    /// A whole event in JSON, or the id of a stored event.
    pub event: Value,
    /// Value of `ctx.now`; absent = now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<UnixMillis>,
}

/// The response to `run` and `test`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookRun {
    /// Whether the hook fired.
    pub fired: bool,
    /// Result in the unified spelling; absent if the hook passed or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<HookResult>,
    /// Message of the error, if the hook failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Stack trace of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// Duration of the run, in microseconds.
    pub latency_us: u64,
    /// Number of model calls.
    pub llm_calls: u32,
    /// Number of input tokens of the model.
    pub llm_tokens_in: u64,
    /// Number of output tokens of the model.
    pub llm_tokens_out: u64,
    /// Cost of the model calls, in US dollars.
    pub llm_cost_usd: f64,
    /// Number of searches the hook made.
    pub search_calls: u32,
}
