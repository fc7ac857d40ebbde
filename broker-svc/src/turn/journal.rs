//! The journal of a running turn: what its ledger entries add up to, and the conversation that it makes. *Pure.*
//!
//! Source: `docs/design/sessions.md` §3. The journal is part of the fold, so whoever takes the session over has the
//! same conversation and goes on at the same step.

mod asked;
mod calls;
mod lines;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::model::event::Attachment;
use shared::model::ledger::{DispatchRef, LedgerEntry, ToolCall, ToolOutcome, TurnLimits, Usage};
use shared::model::permission::PermissionSet;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use super::used::{Stamp, UsedTime};
pub use asked::{Asked, Awaited, Standing, stands};

/// One thing that happened in a running turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Passage {
    /// The model answered.
    Answered {
        /// Which model call; the first is 1.
        step: u32,
        /// What it said.
        content: String,
        /// What it wants done.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
        /// What its provider must see again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opaque: Option<Value>,
        /// What goes along with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        attachments: Vec<Attachment>,
    },
    /// A tool was called.
    Called {
        /// The call's id within the turn.
        call: String,
        /// What it runs with, where that is not what the model asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments: Option<Value>,
        /// How it ended; none = it started, and nobody knows yet.
        outcome: Option<ToolOutcome>,
        /// The hooks behind the call have not seen how.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unseen: bool,
        /// It was begun; one that was refused has an end alone.
        begun: bool,
    },
    /// A message was put in before the next model call.
    Steered {
        /// Which, with what it says.
        dispatch: DispatchRef,
    },
    /// A hook put text into the conversation.
    Injected {
        /// What.
        content: String,
        /// Which hook, and where.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        by: String,
    },
}

/// A turn that was begun and is not over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// The turn.
    pub turn: Ulid,
    /// What it answers.
    pub dispatches: Vec<DispatchRef>,
    /// What it may do.
    pub permissions: PermissionSet,
    /// What bounds it.
    pub limits: TurnLimits,
    /// When it began.
    pub began_at: UnixMillis,
    /// Lines about dispatches that were dropped for want of room before it; they are part of its context.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why intents of the turn before were refused; part of its context.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// What happened in it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passages: Vec<Passage>,
    /// Tools that hooks hide from the model call at hand: globs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hiding: Vec<String>,
    /// Tools that they hid from the last one that was answered, whose calls are not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
    /// What its model calls cost.
    pub usage: Usage,
    /// The approval that it waits for.
    pub awaits: Option<Awaited>,
    /// The time that it has used.
    pub used: UsedTime,
    /// What humans were asked in it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<Asked>,
}

impl Running {
    /// The model's last answer: which call it was, what it said, what it wants done.
    #[must_use]
    pub fn answered(&self) -> Option<(u32, &str, &[ToolCall])> {
        self.passages.iter().rev().find_map(|passage| match passage {
            Passage::Answered {
                step,
                content,
                tool_calls,
                opaque: _,
                attachments: _,
            } => Some((*step, content.as_str(), tool_calls.as_slice())),
            Passage::Called { .. } | Passage::Steered { .. } | Passage::Injected { .. } => None,
        })
    }

    /// What goes along with the model's last answer.
    #[must_use]
    pub fn attached(&self) -> &[Attachment] {
        let mut newest = self.passages.iter().rev();
        let attached = newest.find_map(|passage| match passage {
            Passage::Answered { attachments, .. } => Some(attachments.as_slice()),
            Passage::Called { .. } | Passage::Steered { .. } | Passage::Injected { .. } => None,
        });
        attached.unwrap_or_default()
    }

    /// Text that hooks put in.
    pub fn injected(&self) -> impl Iterator<Item = &str> {
        self.passages.iter().filter_map(|passage| match passage {
            Passage::Injected { content, .. } => Some(content.as_str()),
            Passage::Called { .. } | Passage::Answered { .. } | Passage::Steered { .. } => None,
        })
    }

    /// Sequences of the dispatches that it was begun for: those that were put in later aside.
    #[must_use]
    pub fn answers(&self) -> Vec<u64> {
        let steered = |sequence: u64| {
            let mut passages = self.passages.iter();
            passages.any(|passage| matches!(passage, Passage::Steered { dispatch } if dispatch.sequence == sequence))
        };
        let sequences = self.dispatches.iter().map(|dispatch| dispatch.sequence);
        sequences.filter(|&sequence| !steered(sequence)).collect()
    }

    /// Model calls that were answered.
    #[must_use]
    pub fn model_calls(&self) -> u32 {
        let answered = self.passages.iter().filter(|p| matches!(p, Passage::Answered { .. }));
        u32::try_from(answered.count()).unwrap_or(u32::MAX)
    }

    /// Whether a message was put in that no model call has seen.
    #[must_use]
    pub fn ends_steered(&self) -> bool {
        let mut passages = self.passages.iter().rev();
        let last = passages.find(|passage| !matches!(passage, Passage::Injected { .. }));
        matches!(last, Some(Passage::Steered { .. }))
    }

    /// Takes in an entry of the running turn, written at `now`; those of other kinds change nothing.
    pub fn apply(&mut self, entry: &LedgerEntry, now: Stamp) {
        match entry {
            LedgerEntry::ModelAnswered {
                step,
                content,
                tool_calls,
                usage,
                opaque,
                attachments,
                model: _,
            } => {
                self.usage = sum(&self.usage, usage);
                self.hidden = std::mem::take(&mut self.hiding);
                self.passages.push(Passage::Answered {
                    step: *step,
                    content: content.clone(),
                    tool_calls: tool_calls.clone(),
                    opaque: opaque.clone(),
                    attachments: attachments.clone(),
                });
            }
            LedgerEntry::ToolStarted { call, arguments, .. } => self.passages.push(Passage::Called {
                call: call.clone(),
                arguments: arguments.clone(),
                outcome: None,
                unseen: false,
                begun: true,
            }),
            LedgerEntry::ContextAdded { hook, point, text } => self.inject(text.clone(), format!("{point}/{hook}")),
            LedgerEntry::ToolsHidden { hook: _, tools } => self.hide(tools),
            LedgerEntry::ToolFinished { call, outcome, unseen } => self.finished(call, outcome, *unseen),
            LedgerEntry::ApprovalRequested { request } => self.ask(request, now),
            LedgerEntry::ApprovalDecided { decision, .. } => self.decide(decision, now),
            LedgerEntry::Steered { dispatch, backlog } => {
                self.passages.push(Passage::Steered {
                    dispatch: dispatch.clone(),
                });
                if !backlog {
                    self.dispatches.push(dispatch.clone());
                }
            }
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

    /// Hides `tools` from the next model call.
    fn hide(&mut self, tools: &[String]) {
        for tool in tools {
            if !self.hiding.contains(tool) {
                self.hiding.push(tool.clone());
            }
        }
    }

    /// Puts text in. Whoever takes a turn over runs the hooks of its step once more: what one says again stands in place
    /// of what it said.
    fn inject(&mut self, content: String, by: String) {
        let newest = self.passages.iter_mut().rev();
        let mut injected = newest.map_while(|passage| match passage {
            Passage::Injected { content, by } => Some((content, by)),
            Passage::Answered { .. } | Passage::Called { .. } | Passage::Steered { .. } => None,
        });
        match injected.find(|(_, known)| **known == by) {
            Some((said, _)) => *said = content,
            None => self.passages.push(Passage::Injected { content, by }),
        }
    }
}

/// The sum of two bills; a cost that is no number counts as nothing.
#[must_use]
pub fn sum(one: &Usage, other: &Usage) -> Usage {
    let cost = if other.cost_usd.is_finite() {
        other.cost_usd
    } else {
        0.0
    };

    Usage {
        tokens_in: one.tokens_in.saturating_add(other.tokens_in),
        tokens_out: one.tokens_out.saturating_add(other.tokens_out),
        cost_usd: one.cost_usd + cost,
    }
}

#[cfg(test)]
mod tests;
