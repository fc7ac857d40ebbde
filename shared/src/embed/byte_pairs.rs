//! Splitting of words into pieces: byte-pair encoding with byte fallback, as the tokenizer file of a Llama model
//! describes it. *Pure.*
//!
//! Such a model marks the beginning of a word with `▁` and never merges across it, so each word is encoded by itself,
//! and the caller can keep the pieces of frequent words.

use std::collections::HashMap;

use serde::Deserialize;

/// Mark of the beginning of a word.
const WORD: char = '▁';

/// Number of characters of a word that are encoded together; merging costs their number squared.
const MAX_WORD_CHARS: usize = 48;

/// Reason why a file is not a tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum LoadTokenizerError {
    /// The file is not JSON of the expected form.
    #[error("failed to read the tokenizer file")]
    Json(#[from] serde_json::Error),
    /// The tokenizer is of another kind.
    #[error("expected a tokenizer of kind {expected}, found `{found}`")]
    OtherKind {
        /// Kind that this embedder supports.
        expected: &'static str,
        /// Kind that the file states.
        found: String,
    },
    /// A piece that every text needs is missing.
    #[error("the piece `{0}` is missing")]
    Special(String),
    /// A merge rule names pieces that are not listed.
    #[error("the merge rule `{0}` names unknown pieces")]
    Merge(String),
}

#[derive(Deserialize)]
struct File {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    byte_fallback: bool,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
}

/// A merge rule: one text in older files, a pair in newer ones.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

/// Pieces by their text, and the rules by which neighbours are merged.
#[derive(Debug)]
pub(super) struct BpeTokenizer {
    chars: HashMap<char, u32>,
    bytes: Vec<Option<u32>>,
    /// Rank of the rule and merged piece, by left and right piece.
    merges: HashMap<(u32, u32), (u32, u32)>,
    pieces: usize,
}

impl BpeTokenizer {
    /// Parses the text of a `tokenizer.json`.
    pub(super) fn parse(text: &[u8]) -> Result<Self, LoadTokenizerError> {
        let Model {
            kind,
            byte_fallback,
            vocab,
            merges: rules,
        } = serde_json::from_slice::<File>(text)?.model;

        // Another kind of tokenizer would cut texts into pieces that the model was not trained on.
        if kind != "BPE" || !byte_fallback {
            return Err(LoadTokenizerError::OtherKind {
                expected: "BPE with byte fallback",
                found: kind,
            });
        }

        let mut merges = HashMap::with_capacity(rules.len());
        for (rank, rule) in (0_u32..).zip(&rules) {
            let (left, right) = match rule {
                Merge::Text(text) => text.split_once(' ').unwrap_or((text, "")),
                Merge::Pair(left, right) => (left.as_str(), right.as_str()),
            };
            let known = |piece: &str| vocab.get(piece).copied();
            let (Some(l), Some(r), Some(both)) = (known(left), known(right), known(&format!("{left}{right}"))) else {
                return Err(LoadTokenizerError::Merge(format!("{left} {right}")));
            };

            // The first rule of a pair has the lowest rank.
            merges.entry((l, r)).or_insert((rank, both));
        }

        // Texts are cut into characters first, and those are merged by the rules.
        let single = |(piece, &id): (&String, &u32)| {
            let mut chars = piece.chars();
            chars.next().filter(|_| chars.next().is_none()).map(|c| (c, id))
        };
        let bytes = (0..=u8::MAX)
            .map(|byte| vocab.get(&format!("<0x{byte:02X}>")).copied())
            .collect();

        Ok(Self {
            chars: vocab.iter().filter_map(single).collect(),
            bytes,
            merges,
            pieces: vocab.values().max().map_or(0, |&id| id as usize + 1),
        })
    }

    /// One more than the largest id of a piece.
    pub(super) const fn piece_limit(&self) -> usize {
        self.pieces
    }

    /// Returns the pieces of one word, which must contain no white space.
    pub(super) fn encode(&self, word: &str) -> Vec<u32> {
        let marked: Vec<char> = std::iter::once(WORD).chain(word.chars()).collect();
        marked
            .chunks(MAX_WORD_CHARS)
            .flat_map(|part| self.merge(self.split(part)))
            .collect()
    }

    fn split(&self, part: &[char]) -> Vec<u32> {
        let mut pieces = Vec::with_capacity(part.len());
        for &c in part {
            if let Some(&id) = self.chars.get(&c) {
                pieces.push(id);
                continue;
            }

            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).bytes();
            pieces.extend(bytes.filter_map(|byte| self.bytes[usize::from(byte)]));
        }

        pieces
    }

    fn merge(&self, mut pieces: Vec<u32>) -> Vec<u32> {
        loop {
            let rule = |(at, pair): (usize, &[u32])| {
                let (rank, both) = self.merges.get(&(pair[0], pair[1]))?;
                Some((*rank, at, *both))
            };
            let Some((_, at, both)) = pieces.windows(2).enumerate().filter_map(rule).min() else {
                return pieces;
            };

            pieces[at] = both;
            pieces.remove(at + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(merges: &str) -> Result<BpeTokenizer, LoadTokenizerError> {
        let vocab = r#"{"<0xC3>":0,"<0xA9>":1,"▁":2,"a":3,"b":4,"ab":5,"▁a":6,"▁ab":7,"bb":8}"#;
        BpeTokenizer::parse(
            format!(r#"{{"model":{{"type":"BPE","byte_fallback":true,"vocab":{vocab},"merges":{merges}}}}}"#)
                .as_bytes(),
        )
    }

    #[test]
    fn earlier_rules_come_first() {
        let first = tokenizer(r#"["a b","▁ ab"]"#).expect("valid");
        assert_eq!(first.encode("ab"), [7]);
        let other = tokenizer(r#"[["▁","a"],["b","b"]]"#).expect("valid");
        assert_eq!(other.encode("ab"), [6, 4]);
        assert_eq!(other.encode("abbb"), [6, 8, 4], "from left to right");
        assert_eq!(first.piece_limit(), 9);
    }

    #[test]
    fn unknown_characters_become_bytes() {
        let tokenizer = tokenizer("[]").expect("valid");
        assert_eq!(tokenizer.encode("é"), [2, 0, 1]);
        assert_eq!(tokenizer.encode("😀"), [2], "bytes without a piece are left out");
        assert_eq!(tokenizer.encode(&"a".repeat(100)).len(), 101);
    }

    #[test]
    fn another_kind_is_refused() {
        assert!(matches!(
            BpeTokenizer::parse(br#"{"model":{"type":"WordPiece","vocab":{},"merges":[]}}"#),
            Err(LoadTokenizerError::OtherKind { .. })
        ));
        assert!(matches!(tokenizer(r#"["a z"]"#), Err(LoadTokenizerError::Merge(_))));
    }
}
