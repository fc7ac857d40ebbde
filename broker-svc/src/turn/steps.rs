//! The turn machine: the next step of a turn that thinks in steps, by its journal alone. *Pure.*
//!
//! Source: `docs/design/sessions.md` §3. The machine holds no state of its own: every broker that folds the same
//! ledger takes the same step, so a turn that moves between brokers repeats neither an answered model call nor a
//! finished tool.

use shared::model::event::Attachment;
use shared::model::ledger::{LedgerEntry, ToolCall, ToolOutcome};

use super::journal::RunningTurn;

/// Outcome of a call that was not begun when a newer message came.
pub const SKIPPED_FOR_NEWER: &str = "superseded by a newer message";
/// Outcome of a call that was begun and whose end is unknown.
pub const INTERRUPTED: &str = "interrupted";

/// Facts besides the journal that decide the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepContext {
    /// Time that the owner has held the session, milliseconds.
    pub held_ms: u64,
    /// Whether a message waits to be put in before the next model call.
    pub steering: bool,
}

/// Next step of a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnStep {
    /// Ask the model; the first call is 1.
    Ask {
        /// Number of the model call.
        step: u32,
    },
    /// Run a tool that was not begun.
    Run {
        /// The call to run.
        call: ToolCall,
    },
    /// Handle a tool call that a former owner began: run it again if it is idempotent, else its outcome is unknown.
    Recover {
        /// The call that was begun.
        call: ToolCall,
    },
    /// Show the outcome of a call to the hooks after it.
    Observe {
        /// The call, with the arguments that it ran with.
        call: ToolCall,
        /// Outcome of the call.
        outcome: ToolOutcome,
    },
    /// Record that a call is not run.
    Skip {
        /// The call that is skipped.
        call: ToolCall,
        /// Outcome to record for the call.
        outcome: ToolOutcome,
    },
    /// Commit the model's last answer.
    Finish {
        /// Text of the answer.
        content: String,
        /// Attachments of the answer.
        attachments: Vec<Attachment>,
    },
    /// Fail the turn, because a limit is reached.
    Fail {
        /// Name of the persona's limit.
        limit: &'static str,
    },
}

/// Returns the next step of the turn whose journal is `running`.
#[must_use]
pub fn next(running: &RunningTurn, situation: StepContext) -> TurnStep {
    // A result that no hook has seen comes first: nothing may be built on it before.
    if let Some((call, outcome)) = running.unseen_call() {
        let outcome = outcome.clone();
        return match left_ms(running, situation.held_ms) {
            0 => TurnStep::Fail { limit: "wall_ms" },
            _ => TurnStep::Observe { call, outcome },
        };
    }

    let (asked, open) = match running.last_answer() {
        None => (0, None),
        Some((step, content, [])) if !running.ends_steered() => {
            // An answer that was paid for is delivered, even beyond the limits.
            let _ = step;
            return TurnStep::Finish {
                content: content.to_owned(),
                attachments: running.last_attachments().to_vec(),
            };
        }
        Some((step, _, calls)) => (step, first_open(running, calls)),
    };

    if let Some((call, begun)) = open {
        return tool_step(running, situation, call, begun);
    }

    // Limits are checked only before new work: work that was begun is finished.
    match exceeded_limit(running, situation.held_ms) {
        Some(limit) => TurnStep::Fail { limit },
        None if running.model_calls() >= running.limits.model_calls => TurnStep::Fail { limit: "model_calls" },
        None => TurnStep::Ask { step: asked + 1 },
    }
}

/// Returns the first call without an end, and whether it was begun.
fn first_open<'a>(running: &RunningTurn, calls: &'a [ToolCall]) -> Option<(&'a ToolCall, bool)> {
    calls.iter().find_map(|call| match running.call_outcome(&call.call) {
        None => Some((call, false)),
        Some(None) => Some((call, true)),
        Some(Some(_)) => None,
    })
}

fn tool_step(running: &RunningTurn, situation: StepContext, call: &ToolCall, begun: bool) -> TurnStep {
    let call = call.clone();
    if begun {
        return TurnStep::Recover { call };
    }

    if situation.steering {
        let reason = SKIPPED_FOR_NEWER.to_owned();
        return TurnStep::Skip {
            call,
            outcome: ToolOutcome::Skipped { reason },
        };
    }

    match exceeded_limit(running, situation.held_ms) {
        Some(limit) => TurnStep::Fail { limit },
        None => TurnStep::Run { call },
    }
}

/// Returns the limit that a further step would exceed.
fn exceeded_limit(running: &RunningTurn, held_ms: u64) -> Option<&'static str> {
    let limits = &running.limits;

    if left_ms(running, held_ms) == 0 {
        return Some("wall_ms");
    }

    let tokens = running.usage.tokens_in.saturating_add(running.usage.tokens_out);
    if limits.tokens.is_some_and(|most| tokens >= most) {
        return Some("tokens");
    }

    limits
        .cost_usd
        .is_some_and(|most| running.spent_usd() >= most)
        .then_some("cost_usd")
}

/// Returns the reservation of the turn's next model call, whose highest expected cost is `cost_usd`: the entry to
/// append before the call, or `None` if the turn has no limit in US dollars or the same amount is reserved already.
/// `lost_usd` is the cost that the call before it may have had if it has no answer; if that is not known, its reservation
/// counts as spent.
///
/// # Errors
/// Returns the name of the limit if the cost exceeds the rest of it.
pub fn reserve(
    running: &RunningTurn,
    step: u32,
    cost_usd: f64,
    lost_usd: Option<f64>,
) -> Result<Option<LedgerEntry>, &'static str> {
    let Some(most) = running.limits.cost_usd else {
        return Ok(None);
    };

    let given_up_usd = lost_usd.unwrap_or(running.reserved_usd);
    if micro(running.spent_usd() + given_up_usd + cost_usd) > micro(most) {
        return Err("cost_usd");
    }

    let is_reserved = given_up_usd == 0.0 && running.reserved_usd == cost_usd;
    Ok((!is_reserved).then_some(LedgerEntry::CostReserved {
        step,
        cost_usd,
        given_up_usd,
    }))
}

/// Returns `usd` in millionths, in which costs are counted, so that the error of a sum decides nothing.
fn micro(usd: f64) -> f64 {
    (usd * 1_000_000.0).round()
}

/// Returns the time that the turn has left, milliseconds, when its owner has held the session for `held_ms`. Every
/// time-out of the turn, of its model calls, its tools and its agent is at most this; [`super::used`] defines the time
/// that counts.
#[must_use]
pub fn left_ms(running: &RunningTurn, held_ms: u64) -> u64 {
    running.limits.wall_ms.saturating_sub(running.used.at(held_ms))
}

#[cfg(test)]
mod tests;
