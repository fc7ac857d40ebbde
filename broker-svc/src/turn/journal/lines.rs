//! The conversation of a running turn. *Pure.*

use super::{Passage, Running};
use crate::agent::port::Line;

impl Running {
    /// Returns the turn's own conversation so far, without calls whose outcome is unknown.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        // A result carries only the id of its call; providers want the tool's name as well.
        let named = |id: &str| {
            let calls = self.passages.iter().filter_map(|passage| match passage {
                Passage::Answered { tool_calls, .. } => Some(tool_calls),
                Passage::Called { .. } | Passage::Steered { .. } | Passage::Injected { .. } => None,
            });
            let call = calls.flatten().find(|call| call.call == id);
            call.map(|call| call.name.clone()).unwrap_or_default()
        };

        let line = |passage: &Passage| match passage {
            Passage::Answered {
                step: _,
                content,
                tool_calls,
                opaque,
                attachments: _,
            } => Some(Line::Assistant {
                content: content.clone(),
                tool_calls: tool_calls.clone(),
                opaque: opaque.clone(),
            }),
            Passage::Called { call, outcome, .. } => outcome.as_ref().map(|outcome| Line::Tool {
                call: call.clone(),
                name: named(call),
                outcome: outcome.clone(),
            }),
            Passage::Steered { dispatch } => Some(Line::User {
                content: dispatch.content.clone(),
            }),
            Passage::Injected { content, .. } => Some(Line::User {
                content: format!("[from the system, not from the person]\n{content}"),
            }),
        };

        let mut lines = Vec::new();
        // Results must follow their calls directly: texts that hooks added meanwhile come after the last result.
        let (mut open, mut held) = (0_usize, Vec::new());
        for passage in &self.passages {
            let Some(line) = line(passage) else { continue };
            match (passage, &line) {
                (_, Line::Assistant { tool_calls, .. }) => open = tool_calls.len(),
                (_, Line::Tool { .. }) => open = open.saturating_sub(1),
                (Passage::Injected { .. }, _) if open > 0 => {
                    held.push(line);
                    continue;
                }
                (_, Line::User { .. }) => {}
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
