//! Splitting of a Markdown text into pieces of a bounded size, at paragraph > line > word > grapheme. *Pure.*
//!
//! The pieces, joined, are the text: nothing is trimmed, so nothing is lost. But a code fence that is open where a
//! piece ends is closed there, and opened again in the next piece with its language. A grapheme (and with it a
//! surrogate pair) is split only if it alone is larger than the limit, and then between its characters. Source:
//! `docs/design/channels.md` §2.2.

use unicode_segmentation::UnicodeSegmentation;

/// The unit of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthUnit {
    /// UTF-8 bytes.
    Bytes,
    /// Unicode scalar values.
    Characters,
    /// UTF-16 code units.
    Utf16,
}

impl LengthUnit {
    /// Returns the length of `text` in this unit.
    #[must_use]
    pub fn count(self, text: &str) -> usize {
        match self {
            Self::Bytes => text.len(),
            Self::Characters => text.chars().count(),
            Self::Utf16 if text.is_ascii() => text.len(),
            Self::Utf16 => text.encode_utf16().count(),
        }
    }
}

/// The maximum size of a piece on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLimit {
    /// Maximum length of a piece; 0 counts as 1.
    pub max: usize,
    /// Unit of the length.
    pub unit: LengthUnit,
}

/// A better place is chosen only if the piece is at least this share (1 / n) of the longest possible one, so that an
/// early paragraph does not make a tiny piece.
const LEAST_SHARE: usize = 4;

/// Smallest limit with which code fences are closed and opened again, in any unit.
const LEAST_FENCED: usize = 100;

/// Maximum length of the line that opens a fence again, in bytes; of a longer one, only the mark is repeated.
const MAX_OPENING: usize = 32;

/// Returns the pieces of the Markdown text `text` in order, each within `limit`, except for a single character that
/// alone is larger. No piece is empty, except that an empty text has one empty piece.
#[must_use]
pub fn split(text: &str, limit: ChunkLimit) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut open: Option<Fence<'_>> = None;

    loop {
        let mut piece = String::new();
        if let Some(fence) = open {
            piece.push_str(fence.opening());
            piece.push('\n');
        }

        let room = ChunkLimit {
            max: limit.max.max(1).saturating_sub(limit.unit.count(&piece)),
            ..limit
        };
        let Some(at) = find_cut(rest, room) else {
            piece.push_str(rest);
            pieces.push(piece);
            return pieces;
        };

        let (at, fence) = if limit.max < LEAST_FENCED {
            (at, None)
        } else {
            cut_in_fence(rest, at, room, open)
        };
        let (taken, after) = rest.split_at(at);
        piece.push_str(taken);
        if let Some(fence) = fence {
            if !taken.ends_with('\n') {
                piece.push('\n');
            }
            piece.push_str(fence.mark);
        }

        pieces.push(piece);
        (rest, open) = (after, fence);
        if rest.is_empty() {
            return pieces;
        }
    }
}

/// A code fence that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fence<'a> {
    /// Its backticks or tildes.
    mark: &'a str,
    /// Line that opened it, without indentation.
    line: &'a str,
}

impl<'a> Fence<'a> {
    /// Returns the fence that `line` opens.
    fn of_line(line: &'a str) -> Option<Self> {
        let line = line.trim();
        let first = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
        let length = line.bytes().take_while(|byte| *byte == first as u8).count();
        let (mark, info) = line.split_at(length);
        let is_fence = length >= 3 && !(first == '`' && info.contains('`'));
        is_fence.then_some(Self { mark, line })
    }

    fn is_closed_by(self, line: &str) -> bool {
        let line = line.trim();
        line.len() >= self.mark.len() && line.trim_start_matches(&self.mark[..1]).is_empty()
    }

    fn opening(self) -> &'a str {
        if self.line.len() <= MAX_OPENING {
            self.line
        } else {
            self.mark
        }
    }

    /// Returns the fence that is open behind `text`, if `open` is before it.
    fn open_after(text: &'a str, open: Option<Self>) -> Option<Self> {
        text.split_inclusive('\n').fold(open, |open, line| match open {
            Some(fence) => Some(fence).filter(|fence| !fence.is_closed_by(line)),
            None => Self::of_line(line),
        })
    }
}

/// Returns where to cut `text`, which would be cut at `at`, with room for the line that closes the fence that is open
/// there; `open` is the fence before the text.
fn cut_in_fence<'a>(text: &'a str, at: usize, room: ChunkLimit, open: Option<Fence<'a>>) -> (usize, Option<Fence<'a>>) {
    let at = before_mark(text, at, open);
    let Some(fence) = Fence::open_after(&text[..at], open) else {
        return (at, None);
    };

    let closing = 1 + room.unit.count(fence.mark);
    let smaller = ChunkLimit {
        max: room.max.saturating_sub(closing),
        ..room
    };
    let at = find_cut(text, smaller).map_or(at, |cut| before_mark(text, cut, open).min(at));
    let fence = Fence::open_after(&text[..at], open);

    // The text's own line that closes it, if that fits instead of ours.
    let line = text[at..].split_inclusive('\n').next().unwrap_or_default();
    let end = at + line.trim_end().len();
    let closes = |fence: Fence<'_>| fence.is_closed_by(line) && text[..at].ends_with('\n');
    if fence.is_some_and(closes) && room.unit.count(&text[..end]) <= room.max {
        (end, None)
    } else {
        (at, fence)
    }
}

/// Returns the start of the line in which `at` lies, or that ends there, if the line opens or closes a fence;
/// otherwise, and at the beginning of the text, `at`.
fn before_mark(text: &str, at: usize, open: Option<Fence<'_>>) -> usize {
    let taken = &text[..at];
    let start = taken
        .strip_suffix('\n')
        .unwrap_or(taken)
        .rfind('\n')
        .map_or(0, |before| before + 1);
    let line = text[start..].split_inclusive('\n').next().unwrap_or_default();

    let before = Fence::open_after(&text[..start], open);
    let is_whole = at == start + line.len();
    let is_mark = match before {
        Some(fence) => fence.is_closed_by(line) && !is_whole,
        None => Fence::of_line(line).is_some(),
    };
    if is_mark && start > 0 { start } else { at }
}

/// Returns the byte offset at which to split `text`; `None` if it fits whole.
fn find_cut(text: &str, limit: ChunkLimit) -> Option<usize> {
    let max = limit.max.max(1);
    // No unit counts more than bytes, so a text that is short enough in bytes fits.
    if text.len() <= max {
        return None;
    }

    let (mut used, mut fits) = (0, 0);
    // The last ends of a paragraph, a line and a word that fit.
    let (mut paragraph, mut line, mut word) = (0, 0, 0);

    let mut after_newline = false;
    for (start, grapheme) in text.grapheme_indices(true) {
        used += limit.unit.count(grapheme);

        if used > max {
            // A cut near the beginning would make many short messages, so a later place is preferred.
            let best = [paragraph, line, word]
                .into_iter()
                .find(|at| *at > 0 && *at >= fits / LEAST_SHARE);
            return Some(best.unwrap_or(if fits > 0 {
                fits
            } else {
                cut_grapheme(grapheme, max, limit.unit)
            }));
        }

        // Cut only between graphemes: half of one would show as another character.
        fits = start + grapheme.len();
        let newline = matches!(grapheme, "\n" | "\r\n");
        if newline && after_newline {
            paragraph = fits;
        }

        if newline {
            line = fits;
        }

        if grapheme.chars().all(char::is_whitespace) {
            word = fits;
        }

        after_newline = newline;
    }

    None
}

/// Returns the offset at which to split a grapheme that is too large: after the characters that fit, at least one.
fn cut_grapheme(grapheme: &str, max: usize, unit: LengthUnit) -> usize {
    let mut used = 0;
    for (start, character) in grapheme.char_indices() {
        used += unit.count(character.encode_utf8(&mut [0; 4]));
        if used > max && start > 0 {
            return start;
        }
    }
    grapheme.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, max: usize, expected: &[&str]) {
        assert_eq!(
            split(
                text,
                ChunkLimit {
                    max,
                    unit: LengthUnit::Characters
                }
            ),
            expected
        );
    }

    #[test]
    fn whole_where_it_fits() {
        check("", 5, &[""]);
        check("hello", 5, &["hello"]);
    }

    #[test]
    fn paragraph_before_line_before_word() {
        check("one\n\ntwo\nthree four", 14, &["one\n\n", "two\nthree four"]);
        check("one two\nthree four", 12, &["one two\n", "three four"]);
        check("one two three", 9, &["one two ", "three"]);
        check("abcdefghij", 4, &["abcd", "efgh", "ij"]);
    }

    #[test]
    fn no_crumbs() {
        check(
            "a\n\nbbbbbbbbbb ccccccccccccc",
            20,
            &["a\n\nbbbbbbbbbb ", "ccccccccccccc"],
        );
    }

    #[test]
    fn graphemes_stay_whole() {
        let family = "👨‍👩‍👧";
        let text = format!("ab{family}");
        assert_eq!(
            split(
                &text,
                ChunkLimit {
                    max: 5,
                    unit: LengthUnit::Characters
                }
            ),
            ["ab", family]
        );

        assert_eq!(
            split(
                "e\u{301}e\u{301}",
                ChunkLimit {
                    max: 3,
                    unit: LengthUnit::Utf16
                }
            ),
            ["e\u{301}", "e\u{301}"]
        );

        assert_eq!(
            split(
                "😀😀",
                ChunkLimit {
                    max: 3,
                    unit: LengthUnit::Utf16
                }
            ),
            ["😀", "😀"]
        );
    }

    #[test]
    fn a_grapheme_larger_than_the_limit_is_cut_between_characters() {
        check("e\u{301}\u{302}\u{303}", 2, &["e\u{301}", "\u{302}\u{303}"]);
    }

    fn code_of(lines: usize) -> String {
        let code: String = (0..lines).map(|line| format!("let line_{line} = {line};\n")).collect();
        format!("Before:\n\n```rust\n{code}```\n\nAfter.\n")
    }

    const fn characters(max: usize) -> ChunkLimit {
        ChunkLimit {
            max,
            unit: LengthUnit::Characters,
        }
    }

    #[test]
    fn a_fence_is_closed_and_opened_again_with_its_language() {
        let pieces = split(&code_of(12), characters(120));
        assert_eq!(
            pieces,
            [
                "Before:\n\n```rust\nlet line_0 = 0;\nlet line_1 = 1;\nlet line_2 = 2;\nlet line_3 = 3;\nlet line_4 = \
                 4;\nlet line_5 = 5;\n```",
                "```rust\nlet line_6 = 6;\nlet line_7 = 7;\nlet line_8 = 8;\nlet line_9 = 9;\nlet line_10 = \
                 10;\nlet line_11 = 11;\n```\n\nAfter.\n",
            ]
        );
    }

    /// Text without white space and without the lines of fences.
    fn without_fences(text: &str) -> String {
        let lines = text.lines().filter(|line| Fence::of_line(line).is_none());
        lines
            .flat_map(|line| line.chars().filter(|c| !c.is_whitespace()))
            .collect()
    }

    #[test]
    fn fences_are_balanced_in_every_piece() {
        for text in [
            code_of(60),
            code_of(60).replace("```", "~~~~"),
            code_of(9).repeat(7),
            format!("- item\n{}", code_of(50).replace('\n', "\n  ")),
            format!("```\n{}\n```", "x".repeat(2_000)),
            format!("````md\n{}````\n", "```\nx\n```\n".repeat(40)),
        ] {
            for max in 100..300 {
                let pieces = split(&text, characters(max));
                for piece in &pieces {
                    assert!(piece.chars().count() <= max, "{max}: {piece:?}");
                    assert_eq!(Fence::open_after(piece, None), None, "{max}: {piece:?}");
                }
                assert_eq!(without_fences(&pieces.join("\n")), without_fences(&text), "{max}");
            }
        }
    }

    proptest! {
        #[test]
        fn fences_anywhere(text in "(```[a-z]{0,3}\n|~~~|`|[a-z]{1,30}|\n| ){0,120}", max in 1_usize..200) {
            let pieces = split(&text, characters(max));
            for piece in &pieces {
                prop_assert!(piece.chars().count() <= max, "{:?}", piece);
            }
            prop_assert!(pieces.concat().len() >= text.len());
        }

        #[test]
        fn nothing_is_lost_and_everything_fits(text in "(\\PC|\n| ){0,200}", max in 1_usize..40) {
            for unit in [LengthUnit::Bytes, LengthUnit::Characters, LengthUnit::Utf16] {
                let pieces = split(&text, ChunkLimit { max, unit });
                prop_assert_eq!(pieces.concat(), text.clone());
                for piece in &pieces {
                    prop_assert!(unit.count(piece) <= max || piece.chars().count() == 1, "{:?}", piece);
                    prop_assert!(!piece.is_empty() || text.is_empty());
                }
            }
        }
    }
}
