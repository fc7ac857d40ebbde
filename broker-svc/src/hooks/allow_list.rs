//! The allow-list of commands that may run, and the reader of commands in front of it.
//!
//! A command passes as a whole or not at all. It must be one command: no pipe, no list, no background, no line break
//! outside of quotes, no substitution, no assignment before it, no redirect except those of the two outputs to
//! `/dev/null` and to one another. The rest are words. They are expanded here, matched against an entry word by word,
//! and executed as they were matched: no shell reads them again.
//!
//! An entry with a wildcard is a fault unless its program is known to only read (file `programs`), or is a script
//! that the entry names by its path, or the entry says `unsafe: true`. For the harmless programs, a wildcard takes no
//! option with which they write files or run other programs.
//!
//! Source: seed 004 §3; `docs/design/sessions.md` §7.4; `docs/design/trust.md` §6.

mod entry;
mod place;
mod programs;
mod words;

use std::collections::BTreeMap;

use serde_json::Value;
use shared::process::config::KeyFault;

use entry::AllowEntry;
pub use place::CommandDirectories;
pub use words::{CommandRedirects, CommandRejection, StderrTarget};
use words::{WordPiece, parse_command};

/// Name of the mode whose entries hold in every mode.
pub const ALL_MODES: &str = "all";
/// Maximum number of entries of one mode.
const MAX_ENTRIES: usize = 1_000;

/// A command that may run, as its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainCommand {
    /// The program and its arguments, as they are executed; at least one.
    pub words: Vec<String>,
    /// Destinations of the command's two outputs.
    pub redirects: CommandRedirects,
}

/// The entries in force in one mode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowList {
    entries: Vec<AllowEntry>,
}

impl AllowList {
    /// Reads the entries of `mode` and of `all`; entries of other modes are checked as well.
    pub(super) fn from_declaration(
        mode: &str,
        modes: &BTreeMap<String, Vec<Value>>,
        faults: &mut Vec<KeyFault>,
    ) -> Self {
        let mut entries = Vec::new();
        for (name, declared) in modes {
            if declared.len() > MAX_ENTRIES {
                faults.push(KeyFault {
                    key: format!("allow.{name}"),
                    problem: format!("{} entries, at most {MAX_ENTRIES}", declared.len()),
                });
            }

            // Entries of other modes are checked as well: their faults would otherwise appear with the mode.
            for (index, value) in declared.iter().enumerate() {
                match AllowEntry::from_declaration(value) {
                    Ok(entry) if name == mode || name == ALL_MODES => entries.push(entry),
                    Ok(_) => {}
                    Err(problem) => faults.push(KeyFault {
                        key: format!("allow.{name}[{index}]"),
                        problem,
                    }),
                }
            }
        }

        Self { entries }
    }

    /// Creates the list of `entries`.
    ///
    /// # Errors
    /// Returns the fault of the first entry that is invalid.
    pub fn from_entries<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let entries = entries.into_iter().map(|entry| AllowEntry::parse(entry, false));
        Ok(Self {
            entries: entries.collect::<Result<_, _>>()?,
        })
    }

    /// Decides whether `command` may run at `place`, and returns the command to execute. Reads the directories that
    /// patterns name.
    ///
    /// # Errors
    /// Returns [`CommandRejection`] if the command may not run.
    pub fn admit_command(&self, command: &str, place: &CommandDirectories) -> Result<PlainCommand, CommandRejection> {
        let written = parse_command(command)?;
        let words = written.words.iter().map(|word| place.expand_word(word));
        let words: Vec<Vec<String>> = words.collect::<Result<_, _>>()?;

        self.take(&words, |variable| place.text(variable).ok())?;
        Ok(PlainCommand {
            words: words.into_iter().flatten().collect(),
            redirects: written.redirects,
        })
    }

    /// Decides whether `command` may be handed to another program's shell, at an unknown place. Nothing is expanded
    /// here, so no variable or substitution passes; a file name pattern passes only if its names can never be
    /// options.
    ///
    /// # Errors
    /// Returns [`CommandRejection`] if the command may not be handed over.
    pub fn admit_text(&self, command: &str) -> Result<(), CommandRejection> {
        let written = parse_command(command)?;
        let words: Vec<Vec<String>> = written
            .words
            .iter()
            .map(|word| Ok(vec![remote_word(word)?]))
            .collect::<Result<_, _>>()?;
        self.take(&words, |variable| remote_word(variable).ok())
    }

    /// Checks that an entry takes the whole of `words`; each element holds all that one word of the command became.
    /// `text` returns the value of an entry's variables.
    fn take(
        &self,
        words: &[Vec<String>],
        text: impl Fn(&[WordPiece]) -> Option<String>,
    ) -> Result<(), CommandRejection> {
        let mut refusal = CommandRejection::NoEntry;
        for entry in &self.entries {
            match entry.take(words, &text) {
                Ok(()) => return Ok(()),
                Err(CommandRejection::NoEntry) => {}
                Err(other) => refusal = other,
            }
        }
        Err(refusal)
    }
}

/// Returns `word` for a shell elsewhere. The names that a pattern becomes there begin as the pattern does: without a
/// leading wildcard or hyphen they are no options.
fn remote_word(word: &[WordPiece]) -> Result<String, CommandRejection> {
    let mut text = String::new();
    for piece in word {
        match piece {
            WordPiece::Is(c) => text.push(*c),
            WordPiece::Home if text.is_empty() => text.push('~'),
            WordPiece::Home | WordPiece::Project => return Err(CommandRejection::Expansion),
            WordPiece::Bracket => return Err(CommandRejection::Pattern),
            WordPiece::Any | WordPiece::One | WordPiece::Class(_) if text.is_empty() || text.starts_with('-') => {
                return Err(CommandRejection::Pattern);
            }
            WordPiece::Any => text.push('*'),
            WordPiece::One => text.push('?'),
            WordPiece::Class(class) => text.push_str(class),
        }
    }

    Ok(text)
}

#[cfg(test)]
mod tests;
