//! Names that comments and how-to pages mention: a file, or an item, that is there.

use std::collections::BTreeSet;

use crate::check;
use crate::pages::pages;
use crate::source::{Source, sources};

/// A file of the NATS client's, and the word for any room.
const OTHER_FILES: [&str; 2] = ["connection.rs", "room.rs"];

/// Folder of the pages that say which files a change touches.
const HOW_TO: &str = "docs/contribute/";

/// What stands in backticks in `text`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_file_name(word: &str) -> bool {
    let stem = word.strip_suffix(".rs").unwrap_or_default();
    !stem.is_empty()
        && stem
            .chars()
            .all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())
}

/// The crate of the file at `path`.
fn crate_of(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

#[test]
fn files_that_comments_name_exist() {
    let sources = sources();
    let is_there = |member: &str, name: &str| {
        let end = format!("/{name}");
        sources
            .iter()
            .any(|source| crate_of(&source.path) == member && source.path.ends_with(&end))
    };

    let mut faults = Vec::new();
    for source in &sources {
        let comments = source
            .text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.trim_start().starts_with("//"));
        for (index, line) in comments {
            let names = quoted(line).filter(|word| is_file_name(word) && !OTHER_FILES.contains(word));
            let lost = names.filter(|name| !is_there(crate_of(&source.path), name));
            faults.extend(lost.map(|name| format!("{}:{}: no file {name} in this crate", source.path, index + 1)));
        }
    }
    check("files that comments name exist", faults);
}

/// The words of code in `source`: what is defined is used or named there.
fn code_words(source: &Source) -> BTreeSet<&str> {
    let words = source.code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| !word.is_empty()).collect()
}

/// Whether `word` looks like an item of Rust: a path, a constant, a type of several words, or `snake_case`.
fn is_item(word: &str) -> bool {
    let is_plain = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let is_camel = word.chars().next().is_some_and(char::is_uppercase) && word.chars().any(char::is_lowercase);
    is_plain && (word.contains("::") || word.contains('_') || is_camel)
}

#[test]
fn items_that_how_to_pages_name_exist() {
    let sources = sources();
    let known: BTreeSet<&str> = sources.iter().flat_map(code_words).collect();
    let mut faults = Vec::new();
    for page in pages()
        .into_iter()
        .filter(|page| page.path.starts_with(HOW_TO) && !page.path.ends_with("renames.md"))
    {
        for (number, line) in page.prose() {
            // Behind a path to a file, a word in backticks is an item of this repository.
            if !line.contains(".rs`") {
                continue;
            }

            for word in quoted(line)
                .map(|word| word.split('(').next().unwrap_or(word))
                .filter(|word| is_item(word))
            {
                let lost = word.split("::").find(|part| !part.is_empty() && !known.contains(part));
                faults.extend(
                    lost.map(|part| format!("{}:{number}: {part} of `{word}` is no word of the code", page.path)),
                );
            }
        }
    }
    check("items that how-to pages name exist", faults);
}

#[test]
fn words_are_told_from_names() {
    assert!(is_file_name("work_queue.rs") && !is_file_name("WORK.rs") && !is_file_name(".rs"));
    assert!(is_item("RetrySchedule") && is_item("judge_call") && is_item("CallOutcome::Withheld"));
    assert!(!is_item("nexus up") && !is_item("send") && !is_item("a-b") && !is_item("_bytes"));
}
