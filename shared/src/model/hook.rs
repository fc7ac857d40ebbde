//! Hooks: the registry's record of a hook file, and the result that a script returns. *Pure.*
//!
//! Source: seed 003 §8.1, §8.5; seed 001 §2; `docs/design/hooks.md`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::dispatch::DeliveryContext;
use super::permission::PermissionSet;
use super::session::{QueueMode, SessionRef};
use super::time::UnixMillis;
use crate::wire::unknown::lenient;

/// The number of times a hook may fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookMode {
    /// The hook may fire any number of times.
    #[default]
    Persistent,
    /// The hook fires once and is then disabled.
    OneShot,
}

/// The place a hook was registered from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum HookOrigin {
    /// A file below a watched directory. Only that directory disables the hook.
    File {
        /// Name of the directory in the configuration.
        root: String,
    },
    /// A `nexus hook push` command.
    Pushed,
    /// A tool call of an agent.
    Tool,
}

/// Priority of a hook that sets none.
pub const DEFAULT_PRIORITY: i32 = 50;
/// Timeout of a hook that sets none, in milliseconds.
pub const DEFAULT_TIMEOUT_MS: u64 = 30_000;

/// The metadata in the JSDoc block of a hook file (`docs/design/hooks.md` §1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookMetadata {
    /// `@name`; the hook's id if absent.
    pub name: String,
    /// `@description`: the hook's purpose, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `@mode`: whether the hook fires once or any number of times.
    #[serde(default)]
    pub mode: HookMode,
    /// `@priority`, higher first; default 50.
    pub priority: i32,
    /// `@timeout` in milliseconds, default 30,000, at most 300,000.
    pub timeout_ms: u64,
    /// `@schedule`: schedule texts as written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<String>,
    /// `@timezone`: IANA zone of the schedules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// `@fallback`: the hook fires only if no other hook routed the event.
    #[serde(default)]
    pub fallback: bool,
    /// `@match`: the prefilter rule as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_rule: Option<String>,
    /// `@allow net=…`: servers that the hook asks to fetch from, as `https://host:port`. An operator must grant them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_net: Vec<String>,
    /// `@needs-channel`: channels to which replies must be deliverable before the hook sees events, as `channel` or
    /// `channel:account`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs_channels: Vec<String>,
    /// Unknown tags with their values, kept as written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_tags: Vec<(String, String)>,
}

impl HookMetadata {
    /// Returns the metadata of a file that contains no tag, with its `name`.
    #[must_use]
    pub const fn from_name(name: String) -> Self {
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

/// The turn in which an agent made a hook, as recorded by the broker that ran it. It bounds the hook's rights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MadeIn {
    /// Session in which the turn ran.
    pub session: SessionRef,
    /// Permissions that the turn had.
    pub permissions: PermissionSet,
    /// Conversation that the turn replied to.
    pub place: DeliveryContext,
    /// Whether the turn answered only messages of the owner, with all of the owner's rights.
    #[serde(default)]
    pub is_owners: bool,
}

/// An entry of the registry, KV `hooks`; its key is the hook's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookRecord {
    /// Path of the file below the hooks directory without `.ts`.
    pub id: String,
    /// The last valid source, which is the one that runs.
    pub source: String,
    /// SHA-256 of the file as last seen, in hex, even if the file was invalid.
    pub content_hash: String,
    /// Metadata parsed from `source`.
    pub metadata: HookMetadata,
    /// Whether the hook sees events.
    pub enabled: bool,
    /// Place the hook was registered from.
    pub origin: HookOrigin,
    /// Author of the hook; `operator` for files. Each author is one trust domain.
    pub created_by: String,
    /// The turn in which an agent made the hook; absent if an operator wrote it or the turn is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_in: Option<Box<MadeIn>>,
    /// Time the hook was first seen.
    pub created_at: UnixMillis,
    /// Time of the last change of its source.
    pub updated_at: UnixMillis,
    /// Reason for which the hook is disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// Error in the file as last seen; the last valid source keeps running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parse_error: Option<String>,
}

/// The destination that a fired hook sets for its event.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookRouting {
    /// Agent persona; absent = `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persona: Option<String>,
    /// Session key within the persona; absent = derived from the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Queue mode of the dispatch; absent = as the session's settings say, `followup` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_mode: Option<QueueMode>,
    /// Thread for the derived key and the delivery (the older spelling's `mode: thread`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

/// The additions of a fired hook to the agent's context.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookContextPatch {
    /// Text added to the system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Data that the hook extracted from the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extracted: Option<Map<String, Value>>,
    /// Whether the session's history is included; absent = true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include_thread_history: Option<bool>,
    /// What is spoken in recordings of the event, for the sender's message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transcripts: Vec<Transcript>,
}

/// The words of one attachment of a hook's event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transcript {
    /// Index of the attachment in the event.
    pub index: usize,
    /// Words that are spoken in it; empty for none.
    pub text: String,
}

/// The result that a hook returns, in the unified spelling (seed 001 §2).
///
/// ```
/// use shared::model::hook::HookResult;
///
/// let result: HookResult = serde_json::from_str(r#"{"fire": true, "routing": {"persona": "ops"}}"#)?;
/// assert!(result.fire && !result.disable_hook);
/// assert!(serde_json::from_str::<HookResult>(r#"{"fire": true, "surprise": 1}"#).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookResult {
    /// Whether an agent should act.
    pub fire: bool,
    /// Destination of the event; absent = defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<HookRouting>,
    /// Permissions of the agent; absent = those of the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<PermissionSet>,
    /// Destination of the agent's reply; absent = the event's conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_context: Option<DeliveryContext>,
    /// Additions to the agent's context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<HookContextPatch>,
    /// Whether to disable the hook after this result.
    #[serde(default)]
    pub disable_hook: bool,
}

impl HookResult {
    /// Returns the transcripts that the hook has made of the event's recordings.
    #[must_use]
    pub fn transcripts(&self) -> &[Transcript] {
        let context = self.context.as_ref();
        context.map_or(&[][..], |context| context.transcripts.as_slice())
    }
}

/// The operating state of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookStatus {
    /// The hook sees events.
    #[default]
    Active,
    /// The hook sees events, but a quarter of its runs in the last hour failed.
    Degraded,
    /// The hook's breaker is open.
    Paused,
    /// A required channel is not configured. Lists show this state; it is not stored.
    Waiting,
    /// The hook is disabled and sees no events.
    Disabled,
    /// The hook's file does not parse.
    Errored,
}

/// An entry of KV `hook_state`: the run-time state of a hook (seed 003 §8.1).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HookState {
    /// Number of times the hook fired.
    pub trigger_count: u64,
    /// Time the hook fired last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_triggered: Option<UnixMillis>,
    /// Message of the hook's last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Operating state of the hook.
    pub status: HookStatus,
    /// For one-shot and self-disabled hooks: the event that fired, and its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_once: Option<FiredOnce>,
    /// For hooks that read their own counters: ids of the last occurrences counted in `trigger_count`, so that each
    /// is counted once. A change of an item has an id of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<super::event::EventId>,
}

/// The single firing of a one-shot hook, kept so that a redelivery publishes the same dispatch again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FiredOnce {
    /// Id of the event that fired. A change of a known item has an id of its own, `change:<sequence>/<adapter>`.
    pub event_id: super::event::EventId,
    /// Result that the hook returned for this event.
    pub result: HookResult,
}

/// An entry of KV `hook_spend`: the model usage of one hook, or of all hooks, on one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HookSpend {
    /// Number of calls that reached the model.
    pub calls: u64,
    /// Number of input tokens.
    pub tokens_in: u64,
    /// Number of output tokens.
    pub tokens_out: u64,
    /// Cost by the price table, in millionths of a US dollar.
    pub micro_usd: u64,
    /// Cost that replicas reserve for calls, in millionths of a US dollar. It counts as spent until they release it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held_micro_usd: u64,
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The result of a hook that called the model or searched, stored before the result has any effect: another run might
/// return a different result, so this one counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum StoredAnswer {
    /// The hook fired with this result.
    Fired {
        /// Id of the hook.
        hook_id: String,
        /// Result that the hook returned.
        #[serde(deserialize_with = "lenient")]
        result: Box<HookResult>,
    },
    /// The hook did not fire, and `@fallback` hooks were fired because of that.
    Passed {
        /// Id of the hook.
        hook_id: String,
    },
}

impl StoredAnswer {
    /// Returns the id of the hook.
    #[must_use]
    pub fn hook_id(&self) -> &str {
        match self {
            Self::Fired { hook_id, .. } | Self::Passed { hook_id } => hook_id,
        }
    }
}

/// An entry of KV `hook_results`: the stored results for one event, which are not computed again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StoredAnswers {
    /// At most one result of each hook: the one stored first.
    pub answers: Vec<StoredAnswer>,
}
