//! Expansion of a command's words at the place where it runs: variables, and file name patterns.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use shared::process::SecretValue;

use super::words::{CommandRejection, MAX_MATCHES, WordPiece};

/// Options for matching names as a shell does: only a dot matches a leading dot.
const AS_A_SHELL: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// The place where commands run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandDirectories {
    /// Working directory, absolute: the project.
    pub project: PathBuf,
    /// Home directory of the user that the broker runs as; none = it is not known.
    pub home: Option<PathBuf>,
}

impl CommandDirectories {
    /// Returns the place where the broker runs, and with it every command.
    ///
    /// # Errors
    /// Returns [`CommandRejection::Nowhere`] if the working directory is gone.
    pub fn here() -> Result<Self, CommandRejection> {
        let home = SecretValue::resolve("env:HOME").ok();
        Ok(Self {
            project: std::env::current_dir().map_err(|_| CommandRejection::Nowhere)?,
            home: home.map(|home| PathBuf::from(home.reveal())),
        })
    }

    /// Returns the words that `word` expands to; a word that is no pattern, or that no file matches, stays as it is.
    ///
    /// # Errors
    /// Returns [`CommandRejection::Expansion`] if a variable has no value here; [`CommandRejection::Pattern`] and [`CommandRejection::Matches`]
    /// for patterns.
    pub(super) fn expand_word(&self, word: &[WordPiece]) -> Result<Vec<String>, CommandRejection> {
        let is_pattern = word.iter().any(is_wildcard);
        if !is_pattern {
            return Ok(vec![self.text(word)?]);
        }

        // The names would be options for any file names.
        if word.first() == Some(&WordPiece::Is('-')) {
            return Err(CommandRejection::Pattern);
        }

        let mut found = self.matching_names(word)?;
        if found.is_empty() {
            found.push(self.text(word)?);
        }

        Ok(found)
    }

    /// Returns `word` as text: variables have their values, wildcards stay as they are written.
    pub(super) fn text(&self, word: &[WordPiece]) -> Result<String, CommandRejection> {
        let mut text = String::new();
        for piece in word {
            match piece {
                WordPiece::Is(c) => text.push(*c),
                WordPiece::Bracket => text.push('['),
                WordPiece::Any => text.push('*'),
                WordPiece::One => text.push('?'),
                WordPiece::Class(class) => text.push_str(class),
                WordPiece::Project => text.push_str(value(Some(&self.project))?),
                WordPiece::Home => text.push_str(value(self.home.as_deref())?),
            }
        }

        Ok(text)
    }

    /// Returns the names that the pattern `word` matches, sorted, with their directories spelled as in the pattern.
    fn matching_names(&self, word: &[WordPiece]) -> Result<Vec<String>, CommandRejection> {
        let too_many = || CommandRejection::Matches(self.text(word).unwrap_or_default());
        let mut found = vec![String::new()];

        for (index, part) in word.split(|piece| *piece == WordPiece::Is('/')).enumerate() {
            let slash = if index > 0 { "/" } else { "" };
            // A part without a wildcard needs no directory to be read, and need not exist yet.
            if !part.iter().any(is_wildcard) {
                let text = self.text(part)?;
                found = found
                    .into_iter()
                    .map(|before| format!("{before}{slash}{text}"))
                    .collect();
                continue;
            }

            let pattern = self.part_pattern(part)?;
            let mut next = Vec::new();
            for before in found {
                let directory = format!("{before}{slash}");
                for name in directory_names(&self.project.join(&directory)) {
                    let name = name.to_str().ok_or_else(too_many)?.to_owned();
                    if pattern.matches_with(&name, AS_A_SHELL) {
                        // A name that starts with a dash would be read as an option: it is made a path.
                        next.push(escape_hyphen(format!("{directory}{name}")));
                    }
                }

                if next.len() > MAX_MATCHES {
                    return Err(too_many());
                }
            }

            found = next;
        }

        // The last part may be plain, so the path may still not exist.
        found.retain(|path| self.project.join(path).symlink_metadata().is_ok());
        found.sort();

        Ok(found)
    }

    /// Translates one directory's part of a pattern to the syntax of `glob`.
    fn part_pattern(&self, part: &[WordPiece]) -> Result<Pattern, CommandRejection> {
        let mut text = String::new();
        for piece in part {
            match piece {
                WordPiece::Any => text.push('*'),
                WordPiece::One => text.push('?'),
                WordPiece::Class(class) => text.push_str(&class.replacen("[^", "[!", 1)),
                WordPiece::Is(_) | WordPiece::Bracket | WordPiece::Project | WordPiece::Home => {
                    text.push_str(&Pattern::escape(&self.text(std::slice::from_ref(piece))?));
                }
            }
        }

        // Two stars in a row mean any depth of directories in `glob`, and one star in a shell.
        while text.contains("**") {
            text = text.replace("**", "*");
        }

        Pattern::new(&text).map_err(|_| CommandRejection::Matches(text))
    }
}

/// Spells a name that would be read as an option so that it is none.
fn escape_hyphen(name: String) -> String {
    if name.starts_with('-') {
        format!("./{name}")
    } else {
        name
    }
}

const fn is_wildcard(piece: &WordPiece) -> bool {
    match piece {
        WordPiece::Any | WordPiece::One | WordPiece::Class(_) => true,
        WordPiece::Is(_) | WordPiece::Bracket | WordPiece::Project | WordPiece::Home => false,
    }
}

/// Returns the value of a variable, which must be an absolute path: nothing else is safe as the beginning of a word.
fn value(path: Option<&Path>) -> Result<&str, CommandRejection> {
    path.filter(|path| path.is_absolute())
        .and_then(Path::to_str)
        .ok_or(CommandRejection::Expansion)
}

/// Returns the names in `directory`; none if it cannot be read.
fn directory_names(directory: &Path) -> Vec<OsString> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect()
}
