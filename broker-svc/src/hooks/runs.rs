//! One run of one hook, as the ledger and `AUDIT` record it. *Pure.*

use serde_json::{Map, Value, json};
use shared::model::ledger::{HookRunOutcome, HookRunResult, LedgerEntry};

use super::declared::{DeclaredAction, DeclaredHook};
use super::outcome::{HookOutcome, MAX_CONTEXT_BYTES, RunHookError};
use crate::agent::message_text::shorten_text;

/// Longest error text of a hook that is kept, bytes.
const MAX_ERROR_BYTES: usize = 2_000;

/// One run of one hook that changed something, reported something, or failed.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnHookRun {
    /// The hook's key.
    pub hook: String,
    /// The point at which it ran.
    pub point: &'static str,
    /// How the run ended.
    pub outcome: HookRunOutcome,
    /// Text that it adds to the conversation.
    pub context: Option<String>,
    /// Glob patterns of the tools that it hides from the next model call.
    pub hidden_tools: Vec<String>,
    /// Whether the run is a reminder that a session gets only once.
    pub is_single_reminder: bool,
}

impl TurnHookRun {
    /// Returns the run of `hook` that ended with `said`; `None` if it let everything pass without comment.
    #[must_use]
    pub fn from_outcome(hook: &DeclaredHook, said: &Result<HookOutcome, RunHookError>) -> Option<Self> {
        let said = match said {
            // Most hooks let everything pass: they leave no entry.
            Ok(said) if said.is_silent() => return None,
            Ok(said) => said,
            Err(error) => return Some(Self::failed(hook, error)),
        };

        // A hook that is not waited for must not change the turn.
        let acts_on = said.context.as_ref().filter(|_| hook.blocking);
        let is_single_reminder = match &hook.action {
            DeclaredAction::Reminder(reminder) => reminder.trigger.is_once(),
            DeclaredAction::Builtin(_) | DeclaredAction::Command { .. } | DeclaredAction::Script { .. } => false,
        };

        Some(Self {
            hook: hook.key(),
            point: hook.point.name(),
            outcome: HookRunOutcome {
                result: result_of(said),
                error: said.error.as_deref().map(|error| shorten_text(error, MAX_ERROR_BYTES)),
                side_effects: said.side_effects.clone(),
            },
            context: acts_on.map(|context| shorten_text(context, MAX_CONTEXT_BYTES)),
            hidden_tools: if hook.blocking {
                said.hidden_tools.clone()
            } else {
                Vec::new()
            },
            is_single_reminder,
        })
    }

    fn failed(hook: &DeclaredHook, error: &RunHookError) -> Self {
        let result = match error {
            RunHookError::OffList(_) => HookRunResult::Skipped,
            RunHookError::TimedOut(_) | RunHookError::Failed(_) | RunHookError::Absent(_) | RunHookError::Paused(_) => {
                HookRunResult::Failed
            }
        };

        Self {
            hook: hook.key(),
            point: hook.point.name(),
            outcome: HookRunOutcome {
                result,
                error: Some(shorten_text(&error.to_string(), MAX_ERROR_BYTES)),
                side_effects: Vec::new(),
            },
            context: None,
            hidden_tools: Vec::new(),
            is_single_reminder: false,
        }
    }

    /// Returns the run as ledger entries, which belong into one record: the run itself, then its effects on the turn.
    #[must_use]
    pub fn entries(self) -> Vec<LedgerEntry> {
        let Self {
            hook,
            point,
            outcome,
            context,
            hidden_tools,
            is_single_reminder,
        } = self;

        let mut entries = vec![LedgerEntry::HookRan {
            hook: hook.clone(),
            point: point.to_owned(),
            outcome,
        }];

        entries.extend(context.map(|text| LedgerEntry::ContextAdded {
            hook: hook.clone(),
            point: point.to_owned(),
            text,
        }));

        if !hidden_tools.is_empty() {
            entries.push(LedgerEntry::ToolsHidden {
                hook: hook.clone(),
                tools: hidden_tools,
            });
        }

        if is_single_reminder {
            entries.push(LedgerEntry::ReminderShown { hook });
        }

        entries
    }

    /// Returns the run as fields of its `AUDIT` record, without hook and point.
    #[must_use]
    pub fn audit_fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("result".to_owned(), json!(self.outcome.result));

        if let Some(error) = &self.outcome.error {
            fields.insert("error".to_owned(), json!(error));
        }

        if !self.outcome.side_effects.is_empty() {
            fields.insert("side_effects".to_owned(), json!(self.outcome.side_effects));
        }

        if let Some(context) = &self.context {
            fields.insert("context".to_owned(), json!(context));
        }

        if !self.hidden_tools.is_empty() {
            fields.insert("hidden_tools".to_owned(), json!(self.hidden_tools));
        }

        if self.is_single_reminder {
            fields.insert("reminded".to_owned(), json!(self.hook));
        }

        fields
    }
}

/// Returns the effect of `said` on the turn, the strongest if there are several.
const fn result_of(said: &HookOutcome) -> HookRunResult {
    if !said.allow {
        HookRunResult::Denied
    } else if said.ask.is_some() {
        HookRunResult::Asks
    } else if said.modified_args.is_some() || said.modified_result.is_some() {
        HookRunResult::Rewrote
    } else if said.context.is_some() {
        HookRunResult::Injected
    } else {
        HookRunResult::Allowed
    }
}
