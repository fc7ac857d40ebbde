//! The journal of a running turn: the sum of its ledger entries, and the conversation that they make. *Pure.*
//!
//! Source: `docs/design/sessions.md` §3. The journal is part of the fold, so a broker that takes the session over has
//! the same conversation and continues at the same step.

mod asked;
mod calls;
mod lines;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::event::Attachment;
use shared::model::ledger::{DispatchRef, LedgerEntry, ToolCall, ToolOutcome, TurnLimits, TurnUsage};
use shared::model::permission::PermissionSet;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::used::{RecordTime, UsedTime};
pub use asked::{AskedApproval, AwaitedApproval, CallApproval, call_standing};

/// One event in a running turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum JournalEntry {
    /// The model answered a model call.
    Answered {
        /// Number of the model call; the first is 1.
        step: u32,
        /// Text of the answer.
        content: String,
        /// Tool calls that the model asks for.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
        /// Opaque part that the provider must get back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opaque: Option<Value>,
        /// Attachments of the answer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        attachments: Vec<Attachment>,
    },
    /// A tool was called, or its call was refused.
    Called {
        /// Id of the call within the turn.
        call: String,
        /// Arguments of the call if they differ from the model's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments: Option<Value>,
        /// Outcome of the call; none = it started, and its end is not known yet.
        outcome: Option<ToolOutcome>,
        /// Whether the hooks after the call have not seen its outcome.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unseen: bool,
        /// Whether the call was begun; a refused call has only an end.
        begun: bool,
    },
    /// A message was put in before the next model call.
    Steered {
        /// The dispatch with its text.
        dispatch: DispatchRef,
    },
    /// A hook added text to the conversation.
    Injected {
        /// Text that the hook added.
        content: String,
        /// Key of the hook, and its point.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        by: String,
    },
}

/// A turn that was begun and is not over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunningTurn {
    /// Id of the turn.
    pub turn: Ulid,
    /// Dispatches that the turn answers, steered ones included.
    pub dispatches: Vec<DispatchRef>,
    /// Permissions of the turn.
    pub permissions: PermissionSet,
    /// Limits of the turn.
    pub limits: TurnLimits,
    /// Time at which the turn began.
    pub began_at: UnixMillis,
    /// Lines about dispatches that were dropped for want of room before the turn; they are part of its context.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Reasons why intents of the turn before were refused; part of the context.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Events of the turn, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passages: Vec<JournalEntry>,
    /// Globs of the tools that hooks hide from the next model call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hiding: Vec<String>,
    /// Globs of the tools that were hidden from the last answered model call; calls of them are not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
    /// Tokens and cost of the turn's model calls.
    pub usage: TurnUsage,
    /// Cost reserved for the model call under way, US dollars; 0 if there is none, or the turn has no such limit.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub reserved_usd: f64,
    /// Cost of attempts at model calls that gave no answer and may have been paid for, US dollars.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub given_up_usd: f64,
    /// The approval that the turn waits for.
    pub awaits: Option<AwaitedApproval>,
    /// Time that the turn has used.
    pub used: UsedTime,
    /// Approvals that were asked for in the turn, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<AskedApproval>,
}

impl RunningTurn {
    /// Returns the model's last answer: its number, its text, and the calls that it asks for.
    #[must_use]
    pub fn last_answer(&self) -> Option<(u32, &str, &[ToolCall])> {
        self.passages.iter().rev().find_map(|passage| match passage {
            JournalEntry::Answered {
                step,
                content,
                tool_calls,
                opaque: _,
                attachments: _,
            } => Some((*step, content.as_str(), tool_calls.as_slice())),
            JournalEntry::Called { .. } | JournalEntry::Steered { .. } | JournalEntry::Injected { .. } => None,
        })
    }

    /// Returns the attachments of the model's last answer.
    #[must_use]
    pub fn last_attachments(&self) -> &[Attachment] {
        let mut newest = self.passages.iter().rev();
        let attached = newest.find_map(|passage| match passage {
            JournalEntry::Answered { attachments, .. } => Some(attachments.as_slice()),
            JournalEntry::Called { .. } | JournalEntry::Steered { .. } | JournalEntry::Injected { .. } => None,
        });
        attached.unwrap_or_default()
    }

    /// Returns the texts that hooks added.
    pub fn injected_texts(&self) -> impl Iterator<Item = &str> {
        self.passages.iter().filter_map(|passage| match passage {
            JournalEntry::Injected { content, .. } => Some(content.as_str()),
            JournalEntry::Called { .. } | JournalEntry::Answered { .. } | JournalEntry::Steered { .. } => None,
        })
    }

    /// Returns the dispatches that the turn was begun for, without those that were put in later.
    #[must_use]
    pub fn own_dispatches(&self) -> Vec<DispatchRef> {
        // By id: after a restore of the stream, one that was put in may have the sequence of one of these.
        let steered = |id: Ulid| {
            let mut passages = self.passages.iter();
            passages.any(|passage| matches!(passage, JournalEntry::Steered { dispatch } if dispatch.id == id))
        };
        let own = self.dispatches.iter().filter(|dispatch| !steered(dispatch.id));
        own.cloned().collect()
    }

    /// Returns the number of model calls that were answered.
    #[must_use]
    pub fn model_calls(&self) -> u32 {
        let answered = self
            .passages
            .iter()
            .filter(|p| matches!(p, JournalEntry::Answered { .. }));
        u32::try_from(answered.count()).unwrap_or(u32::MAX)
    }

    /// Returns the cost of the turn that counts against its limit, US dollars, without the model call under way.
    #[must_use]
    pub fn spent_usd(&self) -> f64 {
        self.usage.cost_usd + self.given_up_usd
    }

    /// Returns whether a message was put in that no model call has seen.
    #[must_use]
    pub fn ends_steered(&self) -> bool {
        let mut passages = self.passages.iter().rev();
        let last = passages.find(|passage| !matches!(passage, JournalEntry::Injected { .. }));
        matches!(last, Some(JournalEntry::Steered { .. }))
    }

    /// Applies an entry of the running turn, written at `now`; entries of other kinds change nothing.
    pub fn apply(&mut self, entry: &LedgerEntry, now: RecordTime) {
        match entry {
            LedgerEntry::CostReserved {
                step: _,
                cost_usd,
                given_up_usd,
            } => {
                self.given_up_usd += given_up_usd;
                self.reserved_usd = *cost_usd;
            }
            LedgerEntry::ModelAnswered {
                step,
                content,
                tool_calls,
                usage,
                opaque,
                attachments,
                model: _,
            } => {
                self.usage = sum_usage(&self.usage, usage);
                self.reserved_usd = 0.0;
                // The tools that were hidden from this model call decide which of its calls must not run.
                self.hidden = std::mem::take(&mut self.hiding);
                self.passages.push(JournalEntry::Answered {
                    step: *step,
                    content: content.clone(),
                    tool_calls: tool_calls.clone(),
                    opaque: opaque.clone(),
                    attachments: attachments.clone(),
                });
            }
            LedgerEntry::ToolStarted { call, arguments, .. } => self.passages.push(JournalEntry::Called {
                call: call.clone(),
                arguments: arguments.clone(),
                outcome: None,
                unseen: false,
                begun: true,
            }),
            LedgerEntry::ContextAdded { hook, point, text } => {
                self.inject_text(text.clone(), format!("{point}/{hook}"));
            }
            LedgerEntry::ToolsHidden { hook: _, tools } => self.hide(tools),
            LedgerEntry::ToolFinished { call, outcome, unseen } => self.apply_finished(call, outcome, *unseen),
            LedgerEntry::ApprovalRequested { request } => self.apply_asked(request, now),
            LedgerEntry::ApprovalDecided { decision, .. } => self.apply_decided(decision, now),
            LedgerEntry::Steered { dispatch, backlog } => self.apply_steered(dispatch, *backlog),
            LedgerEntry::SessionOpened { .. }
            | LedgerEntry::Owned { .. }
            | LedgerEntry::TurnStarted { .. }
            | LedgerEntry::TurnCompleted { .. }
            | LedgerEntry::ReplyPublished { .. }
            | LedgerEntry::Checkpoint { .. }
            | LedgerEntry::TurnFailed { .. }
            | LedgerEntry::TurnInterrupted { .. }
            | LedgerEntry::DispatchDropped { .. }
            | LedgerEntry::Compacted { .. }
            | LedgerEntry::SessionReset { .. }
            | LedgerEntry::Ordered { .. }
            | LedgerEntry::HookRan { .. }
            | LedgerEntry::ReminderShown { .. }
            | LedgerEntry::IntentRefused { .. }
            | LedgerEntry::IntentOwed { .. }
            | LedgerEntry::IntentSettled { .. }
            | LedgerEntry::PostHooksDue { .. }
            | LedgerEntry::UnseenCallShown { .. }
            | LedgerEntry::PostHookRan { .. }
            | LedgerEntry::PostHookFailed { .. }
            | LedgerEntry::PostHooksSettled { .. } => {}
        }
    }

    /// Adds a message that came while the turn ran.
    fn apply_steered(&mut self, dispatch: &DispatchRef, backlog: bool) {
        self.passages.push(JournalEntry::Steered {
            dispatch: dispatch.clone(),
        });

        // A message of the backlog gets a turn of its own, which consumes it.
        if !backlog {
            self.dispatches.push(dispatch.clone());
        }
    }

    /// Hides `tools` from the next model call.
    fn hide(&mut self, tools: &[String]) {
        for tool in tools {
            if !self.hiding.contains(tool) {
                self.hiding.push(tool.clone());
            }
        }
    }

    /// Adds a hook's text. An owner that takes a turn over runs the hooks of its step once more: a text that a hook
    /// adds again replaces the former one.
    fn inject_text(&mut self, content: String, by: String) {
        let newest = self.passages.iter_mut().rev();
        let mut injected = newest.map_while(|passage| match passage {
            JournalEntry::Injected { content, by } => Some((content, by)),
            JournalEntry::Answered { .. } | JournalEntry::Called { .. } | JournalEntry::Steered { .. } => None,
        });
        match injected.find(|(_, known)| **known == by) {
            Some((said, _)) => *said = content,
            None => self.passages.push(JournalEntry::Injected { content, by }),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_nothing(usd: &f64) -> bool {
    *usd == 0.0
}

/// Returns the sum of two usages; a cost that is not finite counts as nothing.
#[must_use]
pub fn sum_usage(one: &TurnUsage, other: &TurnUsage) -> TurnUsage {
    let cost = if other.cost_usd.is_finite() {
        other.cost_usd
    } else {
        0.0
    };

    TurnUsage {
        tokens_in: one.tokens_in.saturating_add(other.tokens_in),
        tokens_out: one.tokens_out.saturating_add(other.tokens_out),
        cost_usd: one.cost_usd + cost,
    }
}

#[cfg(test)]
mod tests;
