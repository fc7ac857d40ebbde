//! What is told of a hook that ran: the ledger's entry and the record in `AUDIT`. *Pure.*

use serde_json::{Map, Value, json};
use shared::model::ledger::LedgerEntry;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::declared::{Action, Hook};
use super::outcome::{HookOutcome, MAX_CONTEXT_BYTES, RunHookError};
use super::point::Point;
use crate::fold::{Owed, shortened};

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
/// Key under which it names a turn that is over and one of whose last hooks has run.
pub const RAN: &str = "ran";
/// Key under which it names that hook; absent where the hooks behind a call have run.
pub const LAST_HOOK: &str = "last_hook";
/// Key under which it names a turn that is over and one of whose last hooks has failed.
pub const RETRIES: &str = "retries";
/// Key under which it says when that hook runs again, milliseconds.
pub const AT: &str = "at";

/// The last hooks of a turn are to run: written with its end, so that whoever takes the session over runs them.
#[must_use]
pub fn owes(owed: &Owed) -> LedgerEntry {
    after_turn(serde_json::to_value(owed).unwrap_or_default())
}

/// The hook `hook` has run behind `turn`; none = those behind its call have.
#[must_use]
pub fn ran(turn: Ulid, hook: Option<&str>) -> LedgerEntry {
    let mut outcome = json!({ RAN: turn });
    if let (Some(hook), Value::Object(outcome)) = (hook, &mut outcome) {
        outcome.insert(LAST_HOOK.to_owned(), json!(hook));
    }
    after_turn(outcome)
}

/// The next of the last hooks of `turn` has failed, and is to run again at `at`.
#[must_use]
pub fn retries(turn: Ulid, at: UnixMillis) -> LedgerEntry {
    after_turn(json!({RETRIES: turn, AT: at}))
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
                    RunHookError::TimedOut(_)
                    | RunHookError::Failed(_)
                    | RunHookError::Absent(_)
                    | RunHookError::Paused(_) => "failed",
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
