//! The Rust files of the workspace, and what of them is code. *Pure* but for the walk.

use std::fs;
use std::path::{Path, PathBuf};

/// Every crate of the workspace.
pub(crate) const MEMBERS: [&str; 8] = [
    "shared",
    "adapter-svc",
    "hook-svc",
    "broker-svc",
    "delivery-svc",
    "scheduler-svc",
    "cli",
    "tests",
];

/// One Rust file of the workspace.
pub(crate) struct Source {
    /// Relative to the root of the repository, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with comments and the insides of literals blanked; line breaks kept.
    pub(crate) code: String,
}

impl Source {
    /// Lines of code outside the trailing `#[cfg(test)]` module, numbered from one.
    pub(crate) fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines()
            .take_while(|(_, line)| !line.trim_start().starts_with("#[cfg(test)]"))
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Whether the file is `room.rs` or lies under `room/`.
    pub(crate) fn is_in(&self, room: &str) -> bool {
        self.path
            .strip_prefix(room)
            .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
    }

    pub(crate) fn says_pure(&self) -> bool {
        self.text
            .lines()
            .take_while(|line| line.starts_with("//"))
            .any(|line| line.contains("*Pure.*"))
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests lies in the workspace")
        .to_path_buf()
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

/// Every file of the repository below `folder` whose name ends in one of `endings`: its path from the root, and its text.
pub(crate) fn files_below(folder: &str, endings: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let mut pending = vec![root.join(folder)];
    let mut found = Vec::new();

    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("list {}: {error}", folder.display())) {
            let path = entry.expect("folder entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && name != "node_modules" {
                    pending.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let relative = path.strip_prefix(&root).expect("under the root");
                found.push((relative.to_string_lossy().replace('\\', "/"), read(&path)));
            }
        }
    }

    found.sort();
    found
}

/// Every Rust file of every member.
pub(crate) fn sources() -> Vec<Source> {
    let files = MEMBERS.iter().flat_map(|member| files_below(member, &[".rs"]));
    let found: Vec<Source> = files
        .map(|(path, text)| Source {
            path,
            code: blank_comments_and_literals(&text),
            text,
        })
        .collect();

    assert!(
        found.len() >= MEMBERS.len(),
        "the walk found only {} files",
        found.len()
    );

    found
}

/// What ends the stretch of text that is not code.
enum Skipped {
    LineComment,
    BlockComment { depth: usize },
    Quoted { quote: char },
    RawText { hashes: usize },
}

/// Blanks comments and the insides of string and character literals, so that what remains is code.
fn blank_comments_and_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());

    let mut at = 0;
    while at < chars.len() {
        match skipped_at(&chars, at) {
            Some((skipped, opening)) => {
                let end = end_of(&chars, at + opening, &skipped);
                code.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
                at = end;
            }
            None => {
                code.push(chars[at]);
                at += 1;
            }
        }
    }

    code
}

/// Whether something that is not code begins here, and how long its opening is.
fn skipped_at(chars: &[char], at: usize) -> Option<(Skipped, usize)> {
    let next = |ahead: usize| chars.get(at + ahead).copied();
    let after_name = at > 0 && is_name_char(chars[at - 1]);
    match (chars[at], next(1)) {
        ('/', Some('/')) => Some((Skipped::LineComment, 2)),
        ('/', Some('*')) => Some((Skipped::BlockComment { depth: 1 }, 2)),
        ('"', _) => Some((Skipped::Quoted { quote: '"' }, 1)),
        ('r', Some('"' | '#')) if !after_name || chars[at - 1] == 'b' => {
            let hashes = (1..).take_while(|&ahead| next(ahead) == Some('#')).count();
            (next(1 + hashes) == Some('"')).then_some((Skipped::RawText { hashes }, 2 + hashes))
        }
        // A character literal, not a lifetime; others than these two cannot hold a quote that would mislead.
        ('\'', Some('\\')) => Some((Skipped::Quoted { quote: '\'' }, 1)),
        ('\'', Some('"')) if next(2) == Some('\'') => Some((Skipped::Quoted { quote: '\'' }, 1)),
        _ => None,
    }
}

/// The index just behind what began before `at`.
fn end_of(chars: &[char], mut at: usize, skipped: &Skipped) -> usize {
    let mut depth = match skipped {
        Skipped::BlockComment { depth } => *depth,
        Skipped::LineComment | Skipped::Quoted { .. } | Skipped::RawText { .. } => 0,
    };
    while at < chars.len() {
        let next = chars.get(at + 1).copied();
        match skipped {
            Skipped::LineComment if chars[at] == '\n' => return at,
            Skipped::BlockComment { .. } if chars[at] == '/' && next == Some('*') => (depth, at) = (depth + 1, at + 1),
            Skipped::BlockComment { .. } if chars[at] == '*' && next == Some('/') => {
                (depth, at) = (depth - 1, at + 1);
                if depth == 0 {
                    return at + 1;
                }
            }
            Skipped::Quoted { .. } if chars[at] == '\\' => at += 1,
            Skipped::Quoted { quote } if chars[at] == *quote => return at + 1,
            Skipped::RawText { hashes } if chars[at] == '"' => {
                if chars[at + 1..].iter().take_while(|&&c| c == '#').count() >= *hashes {
                    return at + 1 + hashes;
                }
            }
            Skipped::LineComment | Skipped::BlockComment { .. } | Skipped::Quoted { .. } | Skipped::RawText { .. } => {}
        }

        at += 1;
    }

    chars.len()
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether the line contains `word`, and not as a part of a longer name.
pub(crate) fn contains_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let runs_on_before = word.starts_with(is_name_char) && line[..at].ends_with(is_name_char);
        let runs_on_after = word.ends_with(is_name_char) && line[at + word.len()..].starts_with(is_name_char);
        !runs_on_before && !runs_on_after
    })
}

/// Whether the line uses the crate: its name as a whole word, at the head of a path or in a `use`.
pub(crate) fn names_crate(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].trim_end();
        let after = line[at + name.len()..].trim_start();
        let starts_word = !line[..at].ends_with(is_name_char);
        let heads_path = after.starts_with("::") && !before.ends_with("::");
        let imported = before.ends_with("use") && after.starts_with([';', ' ', 'a']);
        starts_word && (heads_path || imported)
    })
}

#[test]
fn blanking_keeps_code_and_lines() {
    let text = "let a = \"todo!\"; // async_nats::x\n/* /* sled:: */ */ let c = '\"'; let d = '\\\"'; let r = r#\"x\"y\"#;\nfn f<'a>() {}\n";
    let code = blank_comments_and_literals(text);
    assert_eq!(code.lines().count(), 3);
    assert!(
        !code.contains("todo!") && !code.contains("async_nats") && !code.contains("sled"),
        "{code}"
    );
    assert!(
        code.contains("let c =") && code.contains("let r =") && code.contains("fn f<'a>() {}"),
        "{code}"
    );

    assert!(contains_word("x.await?", ".await") && !contains_word("turn.awaits", ".await"));
    assert!(names_crate("use sled::Db;", "sled") && names_crate("    let db = sled::open(p)?;", "sled"));
    assert!(!names_crate("let backoff = 3;", "backoff") && !names_crate("crate::retry::backoff::x()", "backoff"));
}
