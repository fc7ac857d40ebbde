//! Filters an answer while it is being made: an element that asks for an intent is not shown to its reader. *Pure.*
//!
//! Text that might become the beginning of an element is held back until it is clear. Source:
//! `docs/design/schedules.md` §3.1 (wire form).

use shared::model::intent::extract::{CLOSING, NAME};

/// Position in one answer, with the text that is held back.
#[derive(Debug, Default)]
pub(super) struct StreamRedactor {
    held: String,
    hides: bool,
}

impl StreamRedactor {
    /// Returns the part of `text`, and of the text held back, that may be shown.
    pub(super) fn filter_text(&mut self, text: &str) -> String {
        self.held.push_str(text);
        let mut shown = String::new();
        loop {
            let (mark, keeps) = if self.hides { (CLOSING, false) } else { (NAME, true) };
            let found = self.held.find(mark);
            // The beginning of a mark may be at the end of a piece: it is held back until the next one.
            let upto = found.unwrap_or_else(|| self.held.len() - partial_mark_bytes(&self.held, mark));
            let rest = self.held.split_off(upto);

            if keeps {
                shown.push_str(&self.held);
            }

            self.held = rest;

            if found.is_none() {
                return shown;
            }

            self.held.drain(..mark.len());
            self.hides = !self.hides;
        }
    }

    /// Returns the text that is still held back when the answer ends.
    pub(super) fn take_rest(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        if self.hides { String::new() } else { rest }
    }
}

/// Returns the number of bytes at the end of `text` that are the beginning of `mark`.
fn partial_mark_bytes(text: &str, mark: &str) -> usize {
    let mut longest_first = (1..mark.len()).rev();
    longest_first.find(|&bytes| text.ends_with(&mark[..bytes])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the shown text of `answer`, for any split into pieces.
    fn check(answer: &str, expected: &str) {
        for size in [1, 2, 3, 7, answer.len().max(1)] {
            let mut veil = StreamRedactor::default();
            let characters: Vec<char> = answer.chars().collect();

            let mut shown = String::new();
            for piece in characters.chunks(size) {
                shown.push_str(&veil.filter_text(&piece.iter().collect::<String>()));
            }
            shown.push_str(&veil.take_rest());

            assert_eq!(shown, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn elements_are_not_shown_and_all_else_is() {
        check("a < b, <hook> – and <b>c</b>", "a < b, <hook> – and <b>c</b>");
        check(
            "yes\n\n<hook-intent>{\"kind\": \"x < y\"}</hook-intent>\n\nno",
            "yes\n\n\n\nno",
        );
        check("<hook-intent a=\"1\">{}</hook-intent>é<hook-intent>{", "é");
        check("it ends with <hook-int", "it ends with <hook-int");
    }
}
