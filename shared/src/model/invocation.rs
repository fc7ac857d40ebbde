//! Invocations: one record per event with the outcome of every hook. *Pure.*
//!
//! Source: seed 003 §8.4; `docs/design/wire.md` §3.1 (`INVOCATIONS`); `docs/design/hooks.md` §3.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::event::EventId;
use super::hook::HookResult;
use super::session::SessionRef;
use super::time::UnixMillis;
use crate::wire::unknown::lenient;

/// The outcome of one hook for one event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum HookOutcome {
    /// The hook returned `fire: false`.
    Passed,
    /// The hook fired and a dispatch was published.
    Fired {
        /// Id of the dispatch that was published.
        dispatch: Ulid,
        /// Result that the hook returned.
        #[serde(deserialize_with = "lenient")]
        result: Box<HookResult>,
        /// Session to which the dispatch was published. A deletion of the event withdraws the dispatch from there; the
        /// rules by which the session was chosen may have changed by then.
        #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
        target: Option<SessionRef>,
    },
    /// The hook fired, but its action was suppressed.
    Suppressed {
        /// Reason: `one_shot_already_fired`, `routed_by_another`, `too_many_hops`, …
        reason: String,
    },
    /// The hook was not run.
    Skipped {
        /// Reason: `breaker_open`, `no_match`, …
        reason: String,
    },
    /// The hook runs later, because too many evaluations of its author were waiting. A later record of the event has
    /// its outcome.
    Deferred,
    /// The hook threw an error, timed out or returned an invalid result.
    Failed {
        /// Message of the error.
        error: String,
        /// Stack trace of the error, if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stack: Option<String>,
    },
}

impl HookOutcome {
    /// Returns whether a later record contains the hook's outcome.
    #[must_use]
    pub const fn is_deferred(&self) -> bool {
        match self {
            Self::Deferred => true,
            Self::Passed
            | Self::Fired { .. }
            | Self::Suppressed { .. }
            | Self::Skipped { .. }
            | Self::Failed { .. } => false,
        }
    }
}

/// One hook's part in an [`EventInvocations`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookInvocation {
    /// Id of the hook.
    pub hook_id: String,
    /// Duration of the evaluation, in microseconds.
    pub latency_us: u64,
    /// Outcome of the evaluation.
    pub outcome: HookOutcome,
    /// Number of model calls.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub llm_calls: u32,
    /// Number of input tokens of the model.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub llm_tokens_in: u32,
    /// Number of output tokens of the model.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub llm_tokens_out: u32,
    /// Cost of the model calls by the price table, in US dollars.
    #[serde(default, skip_serializing_if = "is_free")]
    pub llm_cost_usd: f64,
    /// Number of searches the hook made.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub search_calls: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_free(cost: &f64) -> bool {
    *cost == 0.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_false(said: &bool) -> bool {
    !*said
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The outcomes of all hooks for one event. This record also marks the event as done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventInvocations {
    /// Id of the event.
    pub event_id: EventId,
    /// Sequence of the event in `EVENTS`.
    pub event_seq: u64,
    /// Instance name of the replica that evaluated it.
    pub evaluated_by: String,
    /// Time the evaluation began.
    pub started_at: UnixMillis,
    /// Time the last hook ended.
    pub finished_at: UnixMillis,
    /// Number of hooks that passed and have no entry in `hooks`.
    pub passed: u32,
    /// All hooks with an outcome other than a plain pass.
    pub hooks: Vec<HookInvocation>,
    /// Passes by hook that this replica had not reported yet, including those of earlier events. They are reported
    /// about once a second, so that a thousand hooks that pass do not cost a thousand entries per event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<HookPasses>,
    /// Whether the hooks' results are left out, because the record was too large for one message.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_slim: bool,
}

impl EventInvocations {
    /// Returns the ids of the hooks that run later.
    pub fn deferred_hooks(&self) -> impl Iterator<Item = &str> {
        let deferred = self.hooks.iter().filter(|hook| hook.outcome.is_deferred());
        deferred.map(|hook| hook.hook_id.as_str())
    }

    /// Returns whether a hook's fire has made the dispatch `id`.
    #[must_use]
    pub fn has_made(&self, id: Ulid) -> bool {
        let mut hooks = self.hooks.iter();
        hooks.any(|hook| matches!(hook.outcome, HookOutcome::Fired { dispatch, .. } if dispatch == id))
    }
}

/// Passes of one hook since the last report. A crash loses at most one second of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookPasses {
    /// Id of the hook.
    pub hook_id: String,
    /// Number of passes since the last report.
    pub count: u32,
    /// Durations of the latest passes, in microseconds: at most [`MAX_TOLD_LATENCIES`], oldest first.
    pub latencies_us: Vec<u32>,
}

/// Maximum number of latencies in a report of one hook's passes: enough for percentiles of the hook's last 100
/// invocations within seconds, and few enough that a thousand hooks cost one record of 80 KB a second.
pub const MAX_TOLD_LATENCIES: usize = 20;
