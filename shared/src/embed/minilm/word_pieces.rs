//! Splitting of texts into the pieces that BERT was trained with: cleaned, without accents and capitals, longest
//! pieces first. *Pure.*
//!
//! The result is that of `tokenizers` with a file of kind `BertNormalizer`, `BertPreTokenizer`, `WordPiece`, with one
//! exception: `[SEP]` in a text stands for these letters, not for the end of the text.

use std::collections::HashMap;

use icu_normalizer::DecomposingNormalizerBorrowed;
use icu_properties::CodePointMapData;
use icu_properties::props::{GeneralCategory, GeneralCategoryGroup};
use serde::Deserialize;

use super::super::LoadTokenizerError;

/// Pieces before the first and after the last piece of a text.
const BEGIN: &str = "[CLS]";
const END: &str = "[SEP]";

#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    normalizer: Option<Normalizer>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    unk_token: String,
    #[serde(default)]
    continuing_subword_prefix: String,
    #[serde(default)]
    max_input_chars_per_word: Option<usize>,
    #[serde(default)]
    vocab: HashMap<String, u32>,
}

#[derive(Deserialize)]
struct Normalizer {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    lowercase: bool,
    /// Whether accents are removed; `None` for the value of `lowercase`.
    #[serde(default)]
    strip_accents: Option<bool>,
}

/// Pieces by their text: those that begin a word, and those that continue one.
#[derive(Debug)]
pub(super) struct WordPieces {
    starts: HashMap<Box<str>, u32>,
    goes_on: HashMap<Box<str>, u32>,
    begin: u32,
    end: u32,
    unknown: u32,
    is_lowercase: bool,
    is_without_accents: bool,
    max_word_chars: usize,
    count: usize,
}

impl WordPieces {
    /// Parses the text of a `tokenizer.json`.
    pub(super) fn parse(text: &[u8]) -> Result<Self, LoadTokenizerError> {
        let File { model, normalizer } = serde_json::from_slice::<File>(text)?;
        let other = |found: &str| LoadTokenizerError::OtherKind {
            expected: "WordPiece with a BertNormalizer",
            found: found.to_owned(),
        };
        // A tokenizer of another kind would give pieces that the model was not trained on.
        if model.kind != "WordPiece" || model.continuing_subword_prefix.is_empty() {
            return Err(other(&model.kind));
        }

        let normalizer = normalizer.ok_or_else(|| other("one without a normalizer"))?;
        if normalizer.kind != "BertNormalizer" {
            return Err(other(&normalizer.kind));
        }

        let special = |piece: &str| {
            let found = model.vocab.get(piece).copied();
            found.ok_or_else(|| LoadTokenizerError::Special(piece.to_owned()))
        };
        let (begin, end, unknown) = (special(BEGIN)?, special(END)?, special(&model.unk_token)?);
        let max_word_chars = model.max_input_chars_per_word;
        let max_word_chars = max_word_chars.ok_or_else(|| other("one without max_input_chars_per_word"))?;

        let count = model.vocab.values().max().map_or(0, |&id| id as usize + 1);
        // Two tables, so that a lookup never has to build the prefixed spelling.
        let (mut starts, mut goes_on) = (HashMap::new(), HashMap::new());
        for (piece, id) in model.vocab {
            match piece.strip_prefix(&model.continuing_subword_prefix) {
                Some(rest) if !rest.is_empty() => goes_on.insert(rest.into(), id),
                Some(_) | None => starts.insert(piece.into(), id),
            };
        }

        Ok(Self {
            starts,
            goes_on,
            begin,
            end,
            unknown,
            is_lowercase: normalizer.lowercase,
            is_without_accents: normalizer.strip_accents.unwrap_or(normalizer.lowercase),
            max_word_chars,
            count,
        })
    }

    /// One more than the largest id of a piece.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Returns the pieces of `text` between the marks of its beginning and end, at most `most` in total.
    pub(super) fn encode(&self, text: &str, most: usize) -> Vec<u32> {
        let text = self.normalize_text(text);
        let mut pieces = vec![self.begin];

        let room = most.saturating_sub(1);
        for word in split_words(&text) {
            if pieces.len() >= room {
                break;
            }
            self.split(word, &mut pieces);
        }

        pieces.truncate(room);
        pieces.push(self.end);

        pieces
    }

    fn normalize_text(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '\u{fffd}' => {}
                '\t' | '\n' | '\r' => clean.push(' '),
                c if is_control(c) => {}
                c if c.is_whitespace() => clean.push(' '),
                c if is_ideograph(c) => clean.extend([' ', c, ' ']),
                c => clean.push(c),
            }
        }

        if self.is_without_accents {
            let decomposed = DecomposingNormalizerBorrowed::new_nfd().normalize(&clean).into_owned();
            clean = decomposed
                .chars()
                .filter(|&c| c.is_ascii() || general_category(c) != GeneralCategory::NonspacingMark)
                .collect();
        }

        if self.is_lowercase {
            // Letter by letter: a sigma at the end of a word is converted like any other.
            clean = clean.chars().flat_map(char::to_lowercase).collect();
        }

        clean
    }

    /// Adds the longest piece that begins `word`, then the longest that continues it, and so on. A word that cannot be
    /// split completely becomes one unknown piece.
    fn split(&self, word: &str, pieces: &mut Vec<u32>) {
        let before = pieces.len();
        let mut rest = word;

        if word.chars().count() > self.max_word_chars {
            return pieces.push(self.unknown);
        }

        while !rest.is_empty() {
            // Pieces that begin a word and pieces that continue one are separate vocabularies.
            let known = if rest.len() == word.len() {
                &self.starts
            } else {
                &self.goes_on
            };
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let found = ends.filter_map(|end| Some((end, *known.get(&rest[..end])?))).next();
            let Some((end, id)) = found else {
                pieces.truncate(before);
                return pieces.push(self.unknown);
            };

            pieces.push(id);
            rest = &rest[end..];
        }
    }
}

/// Returns the parts between white space, with each punctuation mark as a part of its own.
fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().flat_map(|part| {
        let mut rest = part;
        std::iter::from_fn(move || {
            let first = rest.chars().next()?;
            let end = if is_punctuation(first) {
                first.len_utf8()
            } else {
                rest.find(is_punctuation).unwrap_or(rest.len())
            };

            let (word, after) = rest.split_at(end);
            rest = after;
            Some(word)
        })
    })
}

fn general_category(c: char) -> GeneralCategory {
    CodePointMapData::<GeneralCategory>::new().get(c)
}

fn is_control(c: char) -> bool {
    let hidden = GeneralCategoryGroup::Control
        .union(GeneralCategoryGroup::Format)
        .union(GeneralCategoryGroup::PrivateUse);
    if c.is_ascii() {
        c.is_ascii_control()
    } else {
        hidden.contains(general_category(c))
    }
}

fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || !c.is_ascii() && GeneralCategoryGroup::Punctuation.contains(general_category(c))
}

/// Returns whether `c` is from a script without blanks between words, so that it is a word by itself. Kana and Hangul
/// are not included.
const fn is_ideograph(c: char) -> bool {
    matches!(c,
        '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2a6df}' | '\u{2a700}'..='\u{2b73f}'
        | '\u{2b740}'..='\u{2b81f}' | '\u{2b920}'..='\u{2ceaf}' | '\u{f900}'..='\u{faff}' | '\u{2f800}'..='\u{2fa1f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(normalizer: &str) -> Result<WordPieces, LoadTokenizerError> {
        let vocab = r###"{"[UNK]":0,"[CLS]":1,"[SEP]":2,"run":3,"##ning":4,"##n":5,"##ing":6,"[":7,"]":8,"sep":9,"r":10,"É":11}"###;
        let model = format!(
            r###""model":{{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##",
            "max_input_chars_per_word":8,"vocab":{vocab}}}"###
        );
        WordPieces::parse(format!(r#"{{{model},"normalizer":{normalizer}}}"#).as_bytes())
    }

    const UNCASED: &str = r#"{"type":"BertNormalizer","lowercase":true,"strip_accents":null}"#;

    #[test]
    fn the_longest_pieces_come_first() {
        let pieces = pieces(UNCASED).expect("valid");
        assert_eq!(pieces.encode("Running rùn", 16), [1, 3, 4, 3, 2]);
        assert_eq!(
            pieces.encode("runner", 16),
            [1, 0, 2],
            "a word that does not come out even"
        );
        assert_eq!(pieces.encode("runninging", 16), [1, 0, 2], "a word that is too long");
        assert_eq!(pieces.count(), 12);
    }

    #[test]
    fn a_text_is_cut_and_never_ends_itself() {
        let pieces = pieces(UNCASED).expect("valid");
        assert_eq!(pieces.encode("[SEP] run", 16), [1, 7, 9, 8, 3, 2]);
        assert_eq!(pieces.encode("run running run", 4), [1, 3, 3, 2]);
        assert_eq!(pieces.encode("run run run", 1), [2]);
        assert_eq!(pieces.encode("\u{200b}\u{0}", 16), [1, 2]);
    }

    #[test]
    fn capitals_and_accents_stay_where_the_file_says_so() {
        let pieces = pieces(r#"{"type":"BertNormalizer","lowercase":false}"#).expect("valid");
        assert_eq!(pieces.encode("É Run", 16), [1, 11, 0, 2]);
    }

    #[test]
    fn another_kind_is_refused() {
        for normalizer in ["null", r#"{"type":"Lowercase"}"#] {
            assert!(matches!(pieces(normalizer), Err(LoadTokenizerError::OtherKind { .. })));
        }

        let bytes = br#"{"model":{"type":"BPE","vocab":{},"merges":[]}}"#;
        assert!(matches!(
            WordPieces::parse(bytes),
            Err(LoadTokenizerError::OtherKind { .. })
        ));

        let lacking = br###"{"normalizer":{"type":"BertNormalizer"},"model":{"type":"WordPiece","continuing_subword_prefix":"##"}}"###;
        assert!(matches!(
            WordPieces::parse(lacking),
            Err(LoadTokenizerError::Special(_))
        ));
    }
}
