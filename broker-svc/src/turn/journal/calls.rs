//! The tool calls of a running turn: whether they were begun, how they ended, and whether hooks have seen it. *Pure.*

use serde_json::Value;
use shared::model::ledger::{ToolCall, ToolOutcome};

use super::{JournalEntry, RunningTurn};

impl RunningTurn {
    /// Returns the outcome of the call `call`, if it is known; the outer `None` means that the call was not begun.
    #[must_use]
    pub fn call_outcome(&self, call: &str) -> Option<Option<&ToolOutcome>> {
        self.passages.iter().rev().find_map(|passage| match passage {
            JournalEntry::Called { call: id, outcome, .. } if id == call => Some(outcome.as_ref()),
            JournalEntry::Called { .. }
            | JournalEntry::Answered { .. }
            | JournalEntry::Steered { .. }
            | JournalEntry::Injected { .. } => None,
        })
    }

    /// Returns whether the call `call` was begun, with any end.
    #[must_use]
    pub fn was_begun(&self, call: &str) -> bool {
        let begun = |passage: &JournalEntry| matches!(passage, JournalEntry::Called { call: id, begun: true, .. } if id == call);
        self.passages.iter().any(begun)
    }

    /// Returns the arguments with which the call `call` was begun, if they differ from the model's.
    #[must_use]
    pub fn begun_with(&self, call: &str) -> Option<&Value> {
        self.passages.iter().rev().find_map(|passage| match passage {
            JournalEntry::Called {
                call: id, arguments, ..
            } if id == call => arguments.as_ref(),
            JournalEntry::Called { .. }
            | JournalEntry::Answered { .. }
            | JournalEntry::Steered { .. }
            | JournalEntry::Injected { .. } => None,
        })
    }

    /// Returns the ended call that the hooks after it have not seen, with the arguments that it ran with, and its
    /// outcome.
    #[must_use]
    pub fn unseen_call(&self) -> Option<(ToolCall, &ToolOutcome)> {
        let (_, _, calls) = self.last_answer()?;
        calls.iter().find_map(|call| {
            let outcome = self.passages.iter().rev().find_map(|passage| match passage {
                JournalEntry::Called {
                    call: id,
                    outcome,
                    unseen: true,
                    ..
                } if *id == call.call => outcome.as_ref(),
                JournalEntry::Called { .. }
                | JournalEntry::Answered { .. }
                | JournalEntry::Steered { .. }
                | JournalEntry::Injected { .. } => None,
            })?;

            // The call may have begun with other arguments than the model's, if a hook or a human changed them.
            let begun_with = self.begun_with(&call.call).cloned();
            let arguments = begun_with.unwrap_or_else(|| self.arguments_of(call));
            let call = ToolCall {
                arguments,
                ..call.clone()
            };

            Some((call, outcome))
        })
    }

    /// Returns the names of the tools that were begun, in order.
    #[must_use]
    pub fn begun_calls(&self) -> Vec<String> {
        let calls = self.passages.iter().filter_map(|passage| match passage {
            JournalEntry::Answered { tool_calls, .. } => Some(tool_calls),
            JournalEntry::Called { .. } | JournalEntry::Steered { .. } | JournalEntry::Injected { .. } => None,
        });
        let ran = |call: &&ToolCall| self.was_begun(&call.call);
        calls.flatten().filter(ran).map(|call| call.name.clone()).collect()
    }

    /// Returns the number of failed tool calls in a row, the newest among them.
    #[must_use]
    pub fn failures_in_row(&self) -> u32 {
        let ended = self.passages.iter().rev().filter_map(|passage| match passage {
            JournalEntry::Called { outcome, .. } => outcome.as_ref(),
            JournalEntry::Answered { .. } | JournalEntry::Steered { .. } | JournalEntry::Injected { .. } => None,
        });
        let failed = |outcome: &&ToolOutcome| match outcome {
            ToolOutcome::Error { .. } | ToolOutcome::Unknown { .. } => true,
            ToolOutcome::Ok { .. } | ToolOutcome::Skipped { .. } => false,
        };
        u32::try_from(ended.take_while(failed).count()).unwrap_or(u32::MAX)
    }

    /// Records how the call `id` ended.
    pub(super) fn apply_finished(&mut self, id: &str, ended: &ToolOutcome, is_unseen: bool) {
        let begun = self.passages.iter_mut().rev().find_map(|passage| match passage {
            JournalEntry::Called {
                call, outcome, unseen, ..
            } if call == id => Some((outcome, unseen)),
            JournalEntry::Called { .. }
            | JournalEntry::Answered { .. }
            | JournalEntry::Steered { .. }
            | JournalEntry::Injected { .. } => None,
        });

        match begun {
            Some((outcome, unseen)) => {
                *outcome = Some(ended.clone());
                *unseen = is_unseen;
            }
            // A call that was refused has an outcome without having begun.
            None => self.passages.push(JournalEntry::Called {
                call: id.to_owned(),
                arguments: None,
                outcome: Some(ended.clone()),
                unseen: is_unseen,
                begun: false,
            }),
        }
    }
}
