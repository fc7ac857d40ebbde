//! Hooks: what the registry holds of a file, and what a script answers. *Pure.*
//!
//! Source: seed 003 §8.1, §8.5; seed 001 §2; `docs/design/hooks.md`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::dispatch::DeliveryContext;
use super::permission::PermissionSet;
use super::session::{QueueMode, SessionRef};
use super::time::UnixMillis;

/// How often a hook fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookMode {
    /// As often as it likes.
    #[default]
    Persistent,
    /// Once; then it is disabled.
    OneShot,
}

/// Where a hook came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum HookOrigin {
    /// A file below a watched directory; only that root disables it.
    File {
        /// The directory's name as configured.
        root: String,
    },
    /// `nexus hook push`.
    Pushed,
    /// An agent's tool call.
    Tool,
}

/// Priority of a hook that names none.
pub const DEFAULT_PRIORITY: i32 = 50;
/// How long a hook may take that says nothing of it, milliseconds.
pub const DEFAULT_TIMEOUT_MS: u64 = 30_000;

/// What the JSDoc block of a hook file says (`docs/design/hooks.md` §1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookMetadata {
    /// `@name`; the id where absent.
    pub name: String,
    /// `@description`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `@mode`.
    #[serde(default)]
    pub mode: HookMode,
    /// `@priority`, default 50.
    pub priority: i32,
    /// `@timeout` in milliseconds, default 30,000, at most 300,000.
    pub timeout_ms: u64,
    /// `@schedule`, as written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<String>,
    /// `@timezone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// `@fallback`: fires only where no other hook routed the event.
    #[serde(default)]
    pub fallback: bool,
    /// `@match`, as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_rule: Option<String>,
    /// `@allow net=…`: servers that it asks to fetch from, as `https://host:port`. An operator grants it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_net: Vec<String>,
    /// `@needs-channel`: channels that replies must be deliverable to before it sees events, as `channel` or
    /// `channel:account`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs_channels: Vec<String>,
    /// Tags that mean nothing to us, kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_tags: Vec<(String, String)>,
}

impl HookMetadata {
    /// Of a file that says nothing but its `name`.
    #[must_use]
    pub const fn of(name: String) -> Self {
        Self {
            name,
            description: None,
            mode: HookMode::Persistent,
            priority: DEFAULT_PRIORITY,
            timeout_ms: DEFAULT_TIMEOUT_MS,
            schedules: Vec::new(),
            timezone: None,
            fallback: false,
            match_rule: None,
            allow_net: Vec::new(),
            needs_channels: Vec::new(),
            other_tags: Vec::new(),
        }
    }
}

/// The turn in which an agent made a hook, as the broker that ran the turn knew it. What the hook may do is bounded by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeIn {
    /// The turn's session.
    pub session: SessionRef,
    /// What the turn was permitted to do.
    pub permissions: PermissionSet,
    /// The conversation that the turn answered.
    pub place: DeliveryContext,
    /// Whether the owner alone wrote what the turn answered, with all of their rights.
    #[serde(default)]
    pub is_owners: bool,
}

/// An entry of KV `hooks`, the registry: key = hook id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookRecord {
    /// Path below the hooks directory without `.ts`.
    pub id: String,
    /// The last good source: what runs.
    pub source: String,
    /// SHA-256 of the file as last seen, in hex (of a broken one too).
    pub content_hash: String,
    /// Parsed from `source`.
    pub metadata: HookMetadata,
    /// Whether it sees events.
    pub enabled: bool,
    /// Where it came from.
    pub origin: HookOrigin,
    /// Its author; `operator` for files. One trust domain each.
    pub created_by: String,
    /// The turn in which an agent made it; none where an operator wrote it, or nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_in: Option<Box<MadeIn>>,
    /// When first seen.
    pub created_at: UnixMillis,
    /// When its source last changed.
    pub updated_at: UnixMillis,
    /// Why it is disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// Why the file as last seen does not run (the last good source goes on).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parse_error: Option<String>,
}

/// Where a fired hook wants its event to go.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Routing {
    /// Agent persona; absent = `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persona: Option<String>,
    /// Session within it; absent = derived from the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Absent = `followup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_mode: Option<QueueMode>,
    /// Thread for the derived key and the delivery (the older spelling's `mode: thread`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

/// What a fired hook adds to the context.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookContextPatch {
    /// Additional system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Data read out of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extracted: Option<Map<String, Value>>,
    /// Absent = true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include_thread_history: Option<bool>,
}

/// What a hook answers, in the unified spelling (seed 001 §2).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookResult {
    /// Whether an agent should act.
    pub fire: bool,
    /// Where to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<Routing>,
    /// What the agent may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<PermissionSet>,
    /// Where the answer goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_context: Option<DeliveryContext>,
    /// What to inject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<HookContextPatch>,
    /// Disable the hook after this.
    #[serde(default)]
    pub disable_hook: bool,
}

/// Whether a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookStatus {
    /// It sees events.
    #[default]
    Active,
    /// It sees events, and a quarter of what it was tried upon in the last hour failed.
    Degraded,
    /// Its breaker is open.
    Paused,
    /// A channel that it needs is not configured. Lists say so; it is stored nowhere.
    Waiting,
    /// Switched off.
    Disabled,
    /// Its file does not parse.
    Errored,
}

/// An entry of KV `hook_state`: what happened to a hook at run time (seed 003 §8.1).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HookState {
    /// How often it fired.
    pub trigger_count: u64,
    /// When last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_triggered: Option<UnixMillis>,
    /// Its last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Whether it runs.
    pub status: HookStatus,
    /// One-shot and self-disabled hooks: the event that won, and its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_once: Option<FiredOnce>,
    /// Hooks that read their own counters: the last occurrences that `trigger_count` holds, by event id (a change of an
    /// item by one of its own), so that each is counted once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<super::event::EventId>,
}

/// The one fire of a one-shot hook, kept so that a redelivery publishes the same dispatch again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FiredOnce {
    /// The event that won; a change of an item known before has an id of its own, `change:<sequence>/<adapter>`.
    pub event_id: super::event::EventId,
    /// What the hook answered then.
    pub result: HookResult,
}

/// An entry of KV `hook_spend`: what was asked of the model on one day, by one hook or by all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HookSpend {
    /// Calls that reached the model.
    pub calls: u64,
    /// Tokens in.
    pub tokens_in: u64,
    /// Tokens out.
    pub tokens_out: u64,
    /// By the price table, millionths of a US dollar.
    pub micro_usd: u64,
    /// What replicas hold for calls, millionths of a US dollar: it counts as spent until they give it back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_micro_usd: u64,
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a hook that asked the model or searched did with one event, before anything came of it: another run might
/// answer otherwise, so this one counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum StoredAnswer {
    /// It fired.
    Fired {
        /// Which hook.
        hook_id: String,
        /// What it answered.
        result: Box<HookResult>,
    },
    /// It did not, and `@fallback` hooks were fired because of it.
    Passed {
        /// Which hook.
        hook_id: String,
    },
}

impl StoredAnswer {
    /// Which hook.
    #[must_use]
    pub fn hook_id(&self) -> &str {
        match self {
            Self::Fired { hook_id, .. } | Self::Passed { hook_id } => hook_id,
        }
    }
}

/// An entry of KV `hook_results`: the answers of one event that are not to be asked again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StoredAnswers {
    /// At most one of each hook; the first that was stored.
    pub answers: Vec<StoredAnswer>,
}
