//! The turn machine: what a turn that thinks in steps does next, by its journal alone. *Pure.*
//!
//! Source: `docs/design/sessions.md` §3. It holds no state of its own: whoever folds the same ledger takes the same
//! step, so a turn that moves between brokers neither repeats an answered model call nor a finished tool.

use shared::model::event::Attachment;
use shared::model::ledger::{ToolCall, ToolOutcome};

use super::journal::Running;

/// What a call that was not begun when a newer message came is answered with.
pub const SKIPPED_FOR_NEWER: &str = "superseded by a newer message";
/// What a call that was begun, and whose end nobody knows, is answered with.
pub const INTERRUPTED: &str = "interrupted";

/// What is known besides the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Situation {
    /// How long the owner has held the session, milliseconds.
    pub held_ms: u64,
    /// Whether a message waits to be put in before the next model call.
    pub steering: bool,
}

/// What a turn does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Ask the model; the first call is 1.
    Ask {
        /// Which model call it is.
        step: u32,
    },
    /// Run a tool that was not begun.
    Run {
        /// Which call.
        call: ToolCall,
    },
    /// A tool was begun by somebody who is gone: again where it is idempotent, else its outcome is unknown.
    Recover {
        /// Which call.
        call: ToolCall,
    },
    /// Show the hooks behind a call how it ended.
    Observe {
        /// Which call, with what it ran with.
        call: ToolCall,
        /// How it ended.
        outcome: ToolOutcome,
    },
    /// Write down that a call is not run.
    Skip {
        /// Which call.
        call: ToolCall,
        /// How it ends.
        outcome: ToolOutcome,
    },
    /// Commit what the model said last.
    Finish {
        /// It.
        content: String,
        /// What goes along with it.
        attachments: Vec<Attachment>,
    },
    /// A limit is reached.
    Fail {
        /// Which: the name of the persona's limit.
        limit: &'static str,
    },
}

/// What the turn whose journal is `running` does next.
#[must_use]
pub fn next(running: &Running, situation: Situation) -> Step {
    if let Some((call, outcome)) = running.unseen() {
        let outcome = outcome.clone();
        return match left_ms(running, situation.held_ms) {
            0 => Step::Fail { limit: "wall_ms" },
            _ => Step::Observe { call, outcome },
        };
    }

    let (asked, open) = match running.answered() {
        None => (0, None),
        Some((step, content, [])) if !running.ends_steered() => {
            // What was paid for is delivered, whatever the limits say.
            let _ = step;
            return Step::Finish {
                content: content.to_owned(),
                attachments: running.attached().to_vec(),
            };
        }
        Some((step, _, calls)) => (step, first_open(running, calls)),
    };

    if let Some((call, begun)) = open {
        return tool_step(running, situation, call, begun);
    }

    match exceeded(running, situation.held_ms) {
        Some(limit) => Step::Fail { limit },
        None if running.model_calls() >= running.limits.model_calls => Step::Fail { limit: "model_calls" },
        None => Step::Ask { step: asked + 1 },
    }
}

/// The first call without an end, and whether it was begun.
fn first_open<'a>(running: &Running, calls: &'a [ToolCall]) -> Option<(&'a ToolCall, bool)> {
    calls.iter().find_map(|call| match running.called(&call.call) {
        None => Some((call, false)),
        Some(None) => Some((call, true)),
        Some(Some(_)) => None,
    })
}

fn tool_step(running: &Running, situation: Situation, call: &ToolCall, begun: bool) -> Step {
    let call = call.clone();
    if begun {
        return Step::Recover { call };
    }

    if situation.steering {
        let reason = SKIPPED_FOR_NEWER.to_owned();
        return Step::Skip {
            call,
            outcome: ToolOutcome::Skipped { reason },
        };
    }

    match exceeded(running, situation.held_ms) {
        Some(limit) => Step::Fail { limit },
        None => Step::Run { call },
    }
}

/// The limit that a further effect would exceed.
fn exceeded(running: &Running, held_ms: u64) -> Option<&'static str> {
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
        .is_some_and(|most| running.usage.cost_usd >= most)
        .then_some("cost_usd")
}

/// The time that the turn has left, milliseconds, when its owner has held the session for `held_ms`. Every time-out of
/// the turn, of its model calls, its tools and its agent is at most this; [`super::used`] says what counts.
#[must_use]
pub fn left_ms(running: &Running, held_ms: u64) -> u64 {
    running.limits.wall_ms.saturating_sub(running.used.at(held_ms))
}

#[cfg(test)]
mod tests;
