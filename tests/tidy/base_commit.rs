//! `tests/base-commit`: the commit that later versions are compared with, and what it froze. `tests/earlier-release`:
//! the commit whose programs run beside those of this one in `tests/chaos/upgrade.rs`.

use std::process::Command;

use crate::check;
use crate::source::{read, root};

/// File that holds the id of the commit.
const FILE: &str = "tests/base-commit";
/// File that holds the id of the commit whose programs stand for the earlier release.
const EARLIER: &str = "tests/earlier-release";
/// Number of hexadecimal digits of a commit's id.
const ID_DIGITS: usize = 40;
/// Folder that holds the same files as in that commit, and newer ones.
const FROZEN: &str = "tests/golden";

/// Runs `git` in the repository, and returns its output; the error is what it wrote, or why it did not run.
fn run_git(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").arg("-C").arg(root()).args(arguments).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{}: {}", output.status, text(&output.stderr)))
    }
}

/// Whether the whole history is at hand. An archive of the source has none, and a shallow copy not all of it.
fn has_history() -> bool {
    let is_shallow = run_git(&["rev-parse", "--is-shallow-repository"]);
    let is_whole = root().join(".git").exists() && is_shallow.as_deref() == Ok("false");
    if !is_whole {
        println!("SKIPPED: the history of the repository is not at hand: {is_shallow:?}");
    }
    is_whole
}

/// Returns the faults of `id`, the content of `file`, as the id of a commit of the history.
fn find_id_faults(file: &str, id: &str) -> Vec<String> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if id.len() != ID_DIGITS || !id.bytes().all(is_digit) {
        return vec![format!(
            "{file}: expected {ID_DIGITS} lower-case hexadecimal digits, found `{id}`"
        )];
    }

    if !has_history() {
        return Vec::new();
    }

    if let Err(reason) = run_git(&["merge-base", "--is-ancestor", id, "HEAD"]) {
        return vec![format!("{file}: {id} is no ancestor of HEAD ({reason})")];
    }

    Vec::new()
}

/// Returns the faults of `id` as the content of `tests/base-commit`.
fn find_faults(id: &str) -> Vec<String> {
    let faults = find_id_faults(FILE, id);
    if !faults.is_empty() || !has_history() {
        return faults;
    }

    // Files that were added since are left out.
    let diff = ["diff", "--no-renames", "--name-status", "--diff-filter=a"];
    match run_git(&[&diff[..], &[id, "--", FROZEN]].concat()) {
        Ok(changes) => changes
            .lines()
            .map(|change| format!("changed since {id}: {}", change.replace('\t', " ")))
            .collect(),
        Err(reason) => vec![format!("git diff: {reason}")],
    }
}

#[test]
fn frozen_files_are_those_of_the_base_commit() {
    let text = read(&root().join(FILE));
    check(
        "a golden file is never edited or removed: a change of shape is a new version and a new file",
        find_faults(text.strip_suffix('\n').unwrap_or(&text)),
    );
}

#[test]
fn the_earlier_release_is_a_commit_of_the_history() {
    let text = read(&root().join(EARLIER));
    check(
        "the earlier release is built from a commit before this one",
        find_id_faults(EARLIER, text.strip_suffix('\n').unwrap_or(&text)),
    );
}

#[test]
fn another_text_than_a_commit_of_the_history_is_a_fault() {
    for id in ["", "ea56896f", "EA56896F07ACF9DD1D7FB19B7612F122EA0A6334"] {
        assert_eq!(find_faults(id).len(), 1, "{id}");
    }
    assert_eq!(find_faults(&"0".repeat(ID_DIGITS)).len(), usize::from(has_history()));
}
