//! Lines about messages that were dropped, which the next turn reads. *Pure.*

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Lines remembered for the next turn.
pub const MAX_NOTES: usize = 40;

/// Lines about messages that were dropped since the last turn began.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DroppedNotes {
    /// The newest lines, oldest first; at most [`MAX_NOTES`].
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub lines: VecDeque<String>,
    /// How many older lines there is no room for.
    pub lost: u32,
}

impl DroppedNotes {
    /// Remembers `line`; an empty one is nothing to tell.
    pub(super) fn add(&mut self, line: &str) {
        if !line.is_empty() {
            let lost = push_bounded(&mut self.lines, line);
            self.lost = self.lost.saturating_add(u32::from(lost));
        }
    }

    /// Takes the lines for the context of a turn that begins; the first says how many there is no room for.
    pub(super) fn take(&mut self) -> Vec<String> {
        let Self { lines, lost } = std::mem::take(self);
        let lost = (lost > 0).then(|| format!("({lost} older ones, which only the ledger has)"));
        lost.into_iter().chain(lines).collect()
    }
}

/// Appends `line`, at most [`MAX_NOTES`] in all. Returns whether the oldest line had to go.
pub(super) fn push_bounded(lines: &mut VecDeque<String>, line: &str) -> bool {
    let is_full = lines.len() == MAX_NOTES;
    if is_full {
        lines.pop_front();
    }

    lines.push_back(line.to_owned());
    is_full
}
