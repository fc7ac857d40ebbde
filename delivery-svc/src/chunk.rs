//! Splitting of a text into pieces of a bounded size, at paragraph > line > word > grapheme. *Pure.*
//!
//! The pieces, joined, are the text: nothing is trimmed, so nothing is lost. A grapheme (and with it a surrogate
//! pair) is split only if it alone is larger than the limit, and then between its characters. Source:
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

/// Returns the pieces of `text` in order, each within `limit`, except for a single character that alone is larger. No
/// piece is empty, except that an empty text has one empty piece.
#[must_use]
pub fn split(text: &str, limit: ChunkLimit) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = find_cut(rest, limit) {
        let (piece, after) = rest.split_at(at);
        pieces.push(piece);
        rest = after;
    }

    if !rest.is_empty() || pieces.is_empty() {
        pieces.push(rest);
    }

    pieces
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

    proptest! {
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
