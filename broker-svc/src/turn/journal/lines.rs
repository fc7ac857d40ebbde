//! The conversation of a running turn. *Pure.*

use super::{JournalEntry, RunningTurn};
use crate::agent::port::TurnMessage;

impl RunningTurn {
    /// Returns the turn's own conversation so far, without calls whose outcome is unknown.
    #[must_use]
    pub fn conversation_lines(&self) -> Vec<TurnMessage> {
        // A result carries only the id of its call; providers want the tool's name as well.
        let named = |id: &str| {
            let calls = self.passages.iter().filter_map(|passage| match passage {
                JournalEntry::Answered { tool_calls, .. } => Some(tool_calls),
                JournalEntry::Called { .. } | JournalEntry::Steered { .. } | JournalEntry::Injected { .. } => None,
            });
            let call = calls.flatten().find(|call| call.call == id);
            call.map(|call| call.name.clone()).unwrap_or_default()
        };

        let line = |passage: &JournalEntry| match passage {
            JournalEntry::Answered {
                step: _,
                content,
                tool_calls,
                opaque,
                attachments: _,
            } => Some(TurnMessage::Assistant {
                content: content.clone(),
                tool_calls: tool_calls.clone(),
                opaque: opaque.clone(),
            }),
            JournalEntry::Called { call, outcome, .. } => outcome.as_ref().map(|outcome| TurnMessage::Tool {
                call: call.clone(),
                name: named(call),
                outcome: outcome.clone(),
            }),
            JournalEntry::Steered { dispatch } => Some(TurnMessage::User {
                content: dispatch.content.clone(),
            }),
            JournalEntry::Injected { content, .. } => Some(TurnMessage::User {
                content: format!("[from the system, not from the person]\n{content}"),
            }),
        };

        let mut lines = Vec::new();
        // Results must follow their calls directly: texts that hooks added meanwhile come after the last result.
        let (mut open, mut held) = (0_usize, Vec::new());
        for passage in &self.passages {
            let Some(line) = line(passage) else { continue };
            match (passage, &line) {
                (_, TurnMessage::Assistant { tool_calls, .. }) => open = tool_calls.len(),
                (_, TurnMessage::Tool { .. }) => open = open.saturating_sub(1),
                (JournalEntry::Injected { .. }, _) if open > 0 => {
                    held.push(line);
                    continue;
                }
                (_, TurnMessage::User { .. }) => {}
            }

            lines.push(line);

            if open == 0 {
                lines.append(&mut held);
            }
        }

        lines.append(&mut held);
        lines
    }
}
