//! Which commands may run: the allow-list, and the matcher in front of a shell. *Pure.*
//!
//! A command passes as a whole or not at all. It is one command: no pipe, no list, no background, no line break outside
//! of quotes, no substitution or expansion, no assignment before it, no redirect but to `/dev/null` and to a descriptor
//! that is open. What is left are words, and those match an entry word by word from the first to the last. Options with
//! which a harmless program writes files or runs others are refused even where an entry's wildcard would take them.
//!
//! Source: `004_bf6295fcf892806e.txt` ("Allow-list gated"); `sessions.md` "Hook points inside a turn".

mod options;
mod words;

use std::collections::BTreeMap;

use super::declared::HookFault;
use options::dangerous;
pub use words::{Refusal, Spelled, spelled};

/// The mode whose entries hold in every mode.
pub const ALL_MODES: &str = "all";
/// Most entries of one mode.
const MAX_ENTRIES: usize = 1_000;
/// What stands for any further words at the end of an entry.
const REST: &str = "...";

/// One character of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    /// This one.
    Is(char),
    /// `?`: any but a line break.
    One,
    /// `*`: any number, none of them a line break.
    Line,
    /// `**`: any number, line breaks among them.
    Any,
}

/// One entry: what may be run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    words: Vec<Vec<Token>>,
    /// Whether any further words may follow.
    rest: bool,
}

/// The entries in force.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowList {
    entries: Vec<Entry>,
}

impl AllowList {
    /// The entries of `mode` and of `all`; those of other modes are checked as well.
    pub(super) fn declared(mode: &str, modes: &BTreeMap<String, Vec<String>>, faults: &mut Vec<HookFault>) -> Self {
        let mut entries = Vec::new();
        for (name, texts) in modes {
            let key = |index: usize| format!("allow.{name}[{index}]");
            if texts.len() > MAX_ENTRIES {
                faults.push(HookFault {
                    key: format!("allow.{name}"),
                    problem: format!("{} entries, at most {MAX_ENTRIES}", texts.len()),
                });
            }
            for (index, text) in texts.iter().enumerate() {
                match Entry::parse(text) {
                    Ok(entry) if name == mode || name == ALL_MODES => entries.push(entry),
                    Ok(_) => {}
                    Err(problem) => faults.push(HookFault {
                        key: key(index),
                        problem,
                    }),
                }
            }
        }
        Self { entries }
    }

    /// The list of `entries`.
    ///
    /// # Errors
    /// What is wrong with the first entry that cannot be read.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let entries = entries.into_iter().map(Entry::parse).collect::<Result<_, _>>()?;
        Ok(Self { entries })
    }

    /// Whether `command` may run, and what its words are.
    ///
    /// # Errors
    /// [`Refusal`] says why not.
    pub fn admit(&self, command: &str) -> Result<Spelled, Refusal> {
        let spelled = spelled(command)?;
        if !self.entries.iter().any(|entry| entry.matches(&spelled.words)) {
            return Err(Refusal::NoEntry);
        }
        match dangerous(&spelled.words) {
            Some(option) => Err(Refusal::Option(option)),
            None => Ok(spelled),
        }
    }
}

impl Entry {
    /// Words between blanks; within quotes, and behind a backslash, every character stands for itself.
    fn parse(text: &str) -> Result<Self, String> {
        let mut words = Vec::new();
        let mut word: Option<Vec<Token>> = None;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                ' ' | '\t' => words.extend(word.take()),
                '\'' | '"' => {
                    let word = word.get_or_insert_default();
                    loop {
                        match chars.next() {
                            Some(end) if end == c => break,
                            Some(inside) => word.push(Token::Is(inside)),
                            None => return Err(format!("`{text}`: a quote is not closed")),
                        }
                    }
                }
                '\\' => {
                    let literal = chars.next().ok_or_else(|| format!("`{text}`: ends with a backslash"))?;
                    word.get_or_insert_default().push(Token::Is(literal));
                }
                '*' if chars.next_if_eq(&'*').is_some() => word.get_or_insert_default().push(Token::Any),
                '*' => word.get_or_insert_default().push(Token::Line),
                '?' => word.get_or_insert_default().push(Token::One),
                other => word.get_or_insert_default().push(Token::Is(other)),
            }
        }
        words.extend(word);
        let rest: Vec<Token> = REST.chars().map(Token::Is).collect();
        let rest = words.pop_if(|last| *last == rest).is_some();
        match words.first() {
            None => Err("an entry begins with the name of a program".to_owned()),
            Some(name) if !name.iter().all(|token| matches!(token, Token::Is(_))) => {
                Err(format!("`{text}`: the name of a program has no wildcard"))
            }
            Some(_) => Ok(Self { words, rest }),
        }
    }

    fn matches(&self, words: &[String]) -> bool {
        let enough = words.len() == self.words.len() || (self.rest && words.len() > self.words.len());
        let fit = self.words.iter().zip(words).all(|(pattern, word)| fits(pattern, word));
        let rest = words.get(self.words.len()..).unwrap_or_default();
        enough && fit && rest.iter().all(|word| !word.contains('\n'))
    }
}

/// Whether the whole of `word` is what `pattern` says.
fn fits(pattern: &[Token], word: &str) -> bool {
    let word: Vec<char> = word.chars().collect();
    // Which lengths of the word the pattern so far can stand for.
    let mut reached = vec![false; word.len() + 1];
    reached[0] = true;
    for token in pattern {
        let mut next = vec![false; word.len() + 1];
        for (at, _) in reached.iter().enumerate().filter(|(_, reached)| **reached) {
            match token {
                Token::Is(c) => {
                    if word.get(at) == Some(c) {
                        next[at + 1] = true;
                    }
                }
                Token::One => {
                    if word.get(at).is_some_and(|&c| c != '\n') {
                        next[at + 1] = true;
                    }
                }
                Token::Line | Token::Any => {
                    let through = match token {
                        Token::Any => word.len(),
                        Token::Line | Token::Is(_) | Token::One => {
                            let broken = word[at..].iter().position(|&c| c == '\n');
                            broken.map_or(word.len(), |ahead| at + ahead)
                        }
                    };
                    next[at..=through].fill(true);
                }
            }
        }
        reached = next;
    }
    reached[word.len()]
}

#[cfg(test)]
mod tests;
