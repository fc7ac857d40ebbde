//! Invocations: one record per event of what every hook did with it. *Pure.*
//!
//! Source: seed 003 §8.4; `docs/design/wire.md` §3.1 (`INVOCATIONS`); `docs/design/hooks.md` §3.

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::event::EventId;
use super::hook::HookResult;
use super::time::UnixMillis;

/// What one hook did with one event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum HookOutcome {
    /// It answered `fire: false`.
    Passed,
    /// It fired.
    Fired {
        /// The dispatch made of it.
        dispatch: Ulid,
        /// What it answered.
        result: Box<HookResult>,
    },
    /// It fired, and nothing came of it.
    Suppressed {
        /// `one_shot_already_fired`, `routed_by_another`, `too_many_hops`, …
        reason: String,
    },
    /// It was not run.
    Skipped {
        /// `breaker_open`, `no_match`, …
        reason: String,
    },
    /// It is called later: so many evaluations of its author wait that there was no place. A later record of the event
    /// says what it did.
    Deferred,
    /// It threw, timed out or answered rubbish.
    Failed {
        /// What it said.
        error: String,
        /// Where.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stack: Option<String>,
    },
}

impl HookOutcome {
    /// Whether a later record says what the hook did.
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
    /// Which hook.
    pub hook_id: String,
    /// Evaluation time, microseconds.
    pub latency_us: u64,
    /// What it did.
    pub outcome: HookOutcome,
    /// Model calls made.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub llm_calls: u32,
    /// Tokens into the model.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub llm_tokens_in: u32,
    /// Tokens out of the model.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub llm_tokens_out: u32,
    /// What the model calls cost by the price table, US dollars.
    #[serde(default, skip_serializing_if = "is_free")]
    pub llm_cost_usd: f64,
    /// Searches made.
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

/// All hooks' outcomes for one event: the event's done-marker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventInvocations {
    /// The event.
    pub event_id: EventId,
    /// Its sequence in `EVENTS`.
    pub event_seq: u64,
    /// The replica that evaluated it.
    pub evaluated_by: String,
    /// When evaluation began.
    pub started_at: UnixMillis,
    /// When the last hook was done.
    pub finished_at: UnixMillis,
    /// Hooks that passed without anything to tell: how many.
    pub passed: u32,
    /// Every hook that did something other than pass.
    pub hooks: Vec<HookInvocation>,
    /// Passes by hook that this replica had not told yet, those of earlier events included: told about once a second,
    /// so that a thousand hooks that pass do not cost a thousand lines an event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passes: Vec<HookPasses>,
    /// The record was too large for one message: what hooks answered is left out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_slim: bool,
}

impl EventInvocations {
    /// The hooks that are called later.
    pub fn deferred(&self) -> impl Iterator<Item = &str> {
        let deferred = self.hooks.iter().filter(|hook| hook.outcome.is_deferred());
        deferred.map(|hook| hook.hook_id.as_str())
    }
}

/// Passes of one hook since they were told last. A crash loses at most those of a second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookPasses {
    /// Which hook.
    pub hook_id: String,
    /// How often it passed.
    pub count: u32,
    /// Microseconds of the latest of them, at most [`MAX_TOLD_LATENCIES`], oldest first.
    pub latencies_us: Vec<u32>,
}

/// Most latencies told of one hook's passes: enough for percentiles of a hook's last 100
/// invocations within seconds, and few enough that a thousand hooks cost one record of 80 KB a second.
pub const MAX_TOLD_LATENCIES: usize = 20;
