//! What is told of a hook that ran: the ledger's entry and the record in `AUDIT`. *Pure.*

use serde_json::{Map, Value, json};
use shared::model::ledger::LedgerEntry;
use ulid::Ulid;

use super::declared::{Action, Hook};
use super::outcome::{HookOutcome, MAX_CONTEXT_BYTES, RunHookError};
use super::point::Point;
use crate::fold::shortened;

/// Longest word on a failure or a refusal that is kept, bytes.
const MAX_WORD_BYTES: usize = 2_000;
/// Key under which a ledger entry holds text for the conversation.
pub const CONTEXT: &str = "context";
/// Key under which it holds the tools that are hidden from the next model call.
pub const HIDDEN: &str = "hidden_tools";
/// Key under which it says that a reminder was put in.
pub const REMINDED: &str = "reminded";

/// Key under which it names a turn that is over and whose last hooks are to run.
pub const OWES: &str = "owes";
/// Key under which it names a turn whose last hooks have run.
pub const SETTLED: &str = "settled";
/// Key under which it says how that turn ended.
pub const ENDED: &str = "ended";

/// The last hooks of `turn`, which ended as `ended`, are to run: written with its end, so that whoever takes the
/// session over runs them.
#[must_use]
pub fn owes(turn: Ulid, ended: &str) -> LedgerEntry {
    after_turn(json!({OWES: turn, ENDED: ended}))
}

/// The last hooks of `turn` have run.
#[must_use]
pub fn settled(turn: Ulid) -> LedgerEntry {
    after_turn(json!({ SETTLED: turn }))
}

fn after_turn(outcome: Value) -> LedgerEntry {
    LedgerEntry::HookRan {
        hook: String::new(),
        point: Point::PostSession.name().to_owned(),
        outcome,
    }
}

/// One run of one hook.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    /// Which.
    pub hook: String,
    /// Where.
    pub point: &'static str,
    /// What it said, and what came of it.
    pub told: Map<String, Value>,
}

impl Ran {
    /// What is told of `hook`, which said `said`; none where it let everything be, without a word.
    #[must_use]
    pub fn of(hook: &Hook, said: &Result<HookOutcome, RunHookError>) -> Option<Self> {
        let mut told = Map::new();
        let result = match said {
            Ok(said) if said.is_silent() => return None,
            Ok(said) => {
                keep(&mut told, "error", said.error.as_deref());
                if !said.side_effects.is_empty() {
                    told.insert("side_effects".to_owned(), json!(said.side_effects));
                }
                if !said.hidden_tools.is_empty() && hook.blocking {
                    told.insert(HIDDEN.to_owned(), json!(said.hidden_tools));
                }
                if let Some(context) = said.context.as_ref().filter(|_| hook.blocking) {
                    told.insert(CONTEXT.to_owned(), json!(shortened(context, MAX_CONTEXT_BYTES)));
                }
                if let Action::Reminder(reminder) = &hook.action
                    && reminder.trigger.is_once()
                {
                    told.insert(REMINDED.to_owned(), json!(hook.key()));
                }
                word(said)
            }
            Err(error) => {
                keep(&mut told, "error", Some(&error.to_string()));
                match error {
                    RunHookError::OffList(_) => "skipped",
                    RunHookError::TimedOut(_) | RunHookError::Failed(_) | RunHookError::Paused(_) => "failed",
                }
            }
        };
        told.insert("result".to_owned(), json!(result));
        Some(Self {
            hook: hook.key(),
            point: hook.point.name(),
            told,
        })
    }

    /// As the ledger has it.
    #[must_use]
    pub fn entry(self) -> LedgerEntry {
        LedgerEntry::HookRan {
            hook: self.hook,
            point: self.point.to_owned(),
            outcome: Value::Object(self.told),
        }
    }
}

fn keep(told: &mut Map<String, Value>, key: &str, text: Option<&str>) {
    told.extend(text.map(|text| (key.to_owned(), json!(shortened(text, MAX_WORD_BYTES)))));
}

/// What came of it, in a word.
fn word(said: &HookOutcome) -> &'static str {
    if !said.allow {
        "denied"
    } else if said.ask.is_some() {
        "asks"
    } else if said.modified_args.is_some() || said.modified_result.is_some() {
        "rewrote"
    } else if said.context.is_some() {
        "injected"
    } else {
        "allowed"
    }
}
