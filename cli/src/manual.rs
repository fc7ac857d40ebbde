//! `nexus completions` and `nexus man`: the command line itself, for shells and for `man`.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use serde_json::json;

use crate::args::{Cli, Common};
use crate::output::{View, print};

/// Prints the completions of `shell`.
///
/// # Errors
/// Returns `ReaderGone` if the reader has gone, and an error if the output cannot be written.
pub fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "nexus", &mut script);
    print(&String::from_utf8(script).context("failed to write the completions")?)
}

/// Writes a page for each command into `directory`: `nexus.1`, `nexus-up.1`, ….
///
/// # Errors
/// Fails if a page cannot be written.
pub fn pages(common: &Common, directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("failed to create {}", directory.display()))?;
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("failed to write into {}", directory.display()))?;

    let mut written = Vec::new();
    for entry in std::fs::read_dir(directory).context("failed to list the pages")? {
        let path = entry.context("failed to list the pages")?.path();
        if path.extension().is_some_and(|end| end == "1") {
            written.push(path.display().to_string());
        }
    }
    written.sort();

    let sentence = format!(
        "wrote {} pages; read the first with `man {}/nexus.1`",
        written.len(),
        directory.display()
    );
    View::of(&json!({ "written": written }))?
        .ids(written)
        .line(sentence)
        .show(common)
}
