//! Lines about messages that were dropped, which the next turn reads. *Pure.*

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Maximum number of lines remembered for the next turn.
pub const MAX_NOTES: usize = 40;

/// Lines about messages that were dropped since the last turn began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DroppedNotes {
    /// The newest lines, oldest first; at most [`MAX_NOTES`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub lines: VecDeque<String>,
    /// Number of older lines that were removed for want of room.
    pub lost: u32,
}

impl DroppedNotes {
    /// Remembers `line` for the next turn; an empty line is ignored.
    pub(super) fn add(&mut self, line: &str) {
        if !line.is_empty() {
            let lost = push_bounded(&mut self.lines, line);
            self.lost = self.lost.saturating_add(u32::from(lost));
        }
    }

    /// Takes the lines for the context of a turn that begins; the first says how many were removed.
    pub(super) fn take(&mut self) -> Vec<String> {
        let Self { lines, lost } = std::mem::take(self);
        let lost = (lost > 0).then(|| format!("({lost} older ones, which only the ledger has)"));
        lost.into_iter().chain(lines).collect()
    }
}

/// Appends `line`, at most [`MAX_NOTES`] in all. Returns whether the oldest line was removed.
pub(super) fn push_bounded(lines: &mut VecDeque<String>, line: &str) -> bool {
    let is_full = lines.len() == MAX_NOTES;
    if is_full {
        lines.pop_front();
    }

    lines.push_back(line.to_owned());
    is_full
}
