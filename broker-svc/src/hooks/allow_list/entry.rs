//! One entry of the allow-list: a pattern of commands that may run. *Pure.*

use serde::Deserialize;
use serde_json::Value;

use super::programs::{dangerous_option, is_harmless};
use super::words::{CommandRejection, WordPiece};

/// Token at the end of an entry that takes any further words.
const REST: &str = "...";

/// One part of an entry's word.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// This piece, whose value is known at the place where the command runs.
    Is(WordPiece),
    /// `?`: any one character.
    One,
    /// `*`: any number of characters.
    Any,
}

/// A pattern of commands that may run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AllowEntry {
    words: Vec<Vec<Token>>,
    /// Whether any further words may follow.
    rest: bool,
    /// Whether the operator is responsible for everything that a wildcard takes.
    is_unsafe: bool,
}

/// An entry as it is written in `hooks.yaml`.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Declared {
    Plain(String),
    Whole {
        command: String,
        #[serde(default)]
        r#unsafe: bool,
    },
}

impl AllowEntry {
    /// Reads an entry: a text, or `{command, unsafe}`.
    ///
    /// # Errors
    /// Returns the fault of the entry, for people.
    pub(super) fn from_declaration(value: &Value) -> Result<Self, String> {
        match Declared::deserialize(value) {
            Ok(Declared::Plain(command)) => Self::parse(&command, false),
            Ok(Declared::Whole { command, r#unsafe }) => Self::parse(&command, r#unsafe),
            Err(_) => Err(format!("{value}: expected a text or {{command, unsafe}}")),
        }
    }

    /// Parses words between blanks; within quotes, and behind a backslash, every character is literal, except the
    /// variables in double quotes.
    ///
    /// # Errors
    /// Returns the fault of the entry, for people.
    pub(super) fn parse(text: &str, is_unsafe: bool) -> Result<Self, String> {
        let mut words = parse_tokens(text)?;
        let rest: Vec<Token> = REST.chars().map(|c| Token::Is(WordPiece::Is(c))).collect();
        // Only at the end: in the middle it would allow any number of words before known ones.
        let rest = words.pop_if(|last| *last == rest).is_some();
        let entry = Self { words, rest, is_unsafe };

        let Some(name) = entry.words.first() else {
            return Err("an entry begins with the name of a program".to_owned());
        };
        if !name.iter().all(|token| matches!(token, Token::Is(_))) {
            return Err(format!("`{text}`: the name of a program has no wildcard"));
        }

        if !is_unsafe && entry.has_wildcards() && !is_harmless(&entry.literal_words()) {
            let name = entry.literal_words().into_iter().next().unwrap_or_default();
            return Err(format!(
                "`{text}`: `{name}` is not known to only read, so a wildcard may let it run programs or change files; list whole \
                 commands, name a script of your own by its path (`./hooks/check.sh ...`), or write \
                 {{command: …, unsafe: true}}"
            ));
        }

        Ok(entry)
    }

    fn has_wildcards(&self) -> bool {
        self.rest || self.words.iter().flatten().any(|token| !matches!(token, Token::Is(_)))
    }

    /// Returns the words before the first one with a wildcard.
    fn literal_words(&self) -> Vec<String> {
        let plain = self.words.iter().map_while(|word| {
            let letters = word.iter().map(|token| match token {
                Token::Is(WordPiece::Is(c)) => Some(*c),
                Token::Is(WordPiece::Project | WordPiece::Home) => Some('/'),
                Token::Is(WordPiece::Any | WordPiece::One | WordPiece::Class(_) | WordPiece::Bracket)
                | Token::One
                | Token::Any => None,
            });
            letters.collect::<Option<String>>()
        });
        plain.collect()
    }

    /// Checks that the entry takes the whole of `words`. Each element holds all that one word of the command became,
    /// and the entry's word at the same index must take every one. `text` returns the value of a variable.
    ///
    /// # Errors
    /// Returns [`CommandRejection::NoEntry`] if it does not, [`CommandRejection::Option`] if only a wildcard would take a dangerous
    /// option.
    pub(super) fn take(
        &self,
        words: &[Vec<String>],
        text: &impl Fn(&[WordPiece]) -> Option<String>,
    ) -> Result<(), CommandRejection> {
        // A trailing wildcard takes any number of further words.
        let enough = words.len() == self.words.len() || (self.rest && words.len() > self.words.len());
        let fit = |(word, became): (&Vec<Token>, &Vec<String>)| {
            let word = valued_word(word, text);
            word.is_some_and(|word| became.iter().all(|one| matches_word(&word, one)))
        };
        if !enough || !self.words.iter().zip(words).all(fit) {
            return Err(CommandRejection::NoEntry);
        }

        // The operator has declared that every option of this program is acceptable.
        if self.is_unsafe {
            return Ok(());
        }

        let whole: Vec<(&str, bool)> = words
            .iter()
            .enumerate()
            .flat_map(|(at, became)| {
                let named = self.words.get(at).is_some_and(|word| word.iter().all(is_literal));
                became.iter().map(move |one| (one.as_str(), named))
            })
            .collect();

        // A wildcard may stand for an option that writes files: only options that the entry names are allowed.
        match dangerous_option(&whole) {
            Some(option) => Err(CommandRejection::Option(option)),
            None => Ok(()),
        }
    }
}

const fn is_literal(token: &Token) -> bool {
    matches!(token, Token::Is(_))
}

fn parse_tokens(text: &str) -> Result<Vec<Vec<Token>>, String> {
    let mut words = Vec::new();
    let mut word: Option<Vec<Token>> = None;
    let mut rest = text;

    let mut quote = None;

    while let Some(c) = rest.chars().next() {
        let before = rest;
        rest = &rest[c.len_utf8()..];
        // The rules are a shell's, reduced to quotes, escapes, wildcards, variables and `~`.
        let token = match (quote, c) {
            (None, ' ' | '\t' | '\n') => {
                words.extend(word.take());
                continue;
            }
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
                continue;
            }
            (Some(open), close) if open == close => {
                quote = None;
                continue;
            }
            (None, '\\') => {
                let literal = rest.chars().next();
                let literal = literal.ok_or_else(|| format!("`{text}`: ends with a backslash"))?;
                rest = &rest[literal.len_utf8()..];
                Token::Is(WordPiece::Is(literal))
            }
            (None, '*') => Token::Any,
            (None, '?') => Token::One,
            (None | Some('"'), '$') => match leading_variable(before) {
                Some((piece, after)) => {
                    rest = after;
                    Token::Is(piece)
                }
                None => Token::Is(WordPiece::Is('$')),
            },
            (None, '~') if word.is_none() && (rest.is_empty() || rest.starts_with(['/', ' '])) => {
                Token::Is(WordPiece::Home)
            }
            (None | Some(_), other) => Token::Is(WordPiece::Is(other)),
        };

        word.get_or_insert_default().push(token);
    }

    // An open quote would make the last word swallow the rest of the entry.
    if quote.is_some() {
        return Err(format!("`{text}`: a quote is not closed"));
    }

    words.extend(word);
    Ok(words)
}

/// Returns the variable at the beginning of `text`, and the rest.
fn leading_variable(text: &str) -> Option<(WordPiece, &str)> {
    let known = [
        ("${CLAUDE_PROJECT_DIR}", WordPiece::Project),
        ("$CLAUDE_PROJECT_DIR", WordPiece::Project),
        ("$HOME", WordPiece::Home),
    ];

    known.into_iter().find_map(|(name, piece)| {
        let after = text.strip_prefix(name)?;
        let ends = name.ends_with('}') || !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        ends.then_some((piece, after))
    })
}

/// One token of an entry's word after its variables have values.
#[derive(Debug, Clone, Copy)]
enum Valued {
    Is(char),
    One,
    Any,
}

fn valued_word(word: &[Token], text: &impl Fn(&[WordPiece]) -> Option<String>) -> Option<Vec<Valued>> {
    let mut found = Vec::new();
    for token in word {
        match token {
            Token::One => found.push(Valued::One),
            Token::Any => found.push(Valued::Any),
            Token::Is(WordPiece::Is(c)) => found.push(Valued::Is(*c)),
            Token::Is(piece) => found.extend(text(std::slice::from_ref(piece))?.chars().map(Valued::Is)),
        }
    }

    Some(found)
}

/// Returns whether `pattern` matches the whole of `word`.
fn matches_word(pattern: &[Valued], word: &str) -> bool {
    let word: Vec<char> = word.chars().collect();
    // `reached[n]`: whether the pattern so far matches the first n characters.
    let mut reached = vec![false; word.len() + 1];
    reached[0] = true;

    for token in pattern {
        let mut next = vec![false; word.len() + 1];
        match token {
            Valued::Any => {
                if let Some(first) = reached.iter().position(|&reached| reached) {
                    next[first..].fill(true);
                }
            }
            Valued::Is(_) | Valued::One => {
                for (at, c) in word.iter().enumerate().filter(|(at, _)| reached[*at]) {
                    next[at + 1] |= match token {
                        Valued::Is(expected) => expected == c,
                        Valued::One | Valued::Any => true,
                    };
                }
            }
        }

        reached = next;
    }

    reached[word.len()]
}
