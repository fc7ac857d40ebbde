//! `nexus init`: writes a commented first configuration.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::args::{Common, InitOptions};
use crate::exit::{Exit, failure};
use crate::launch::keys::cluster_key;
use crate::launch::token;
use crate::output::View;

/// Data directory of `nexus up`, below the directory of the configuration.
const DATA: &str = ".nexus";

/// Files that are written, as path and text.
const FILES: [(&str, &str); 4] = [
    ("nexus.toml", include_str!("../templates/nexus.toml")),
    ("identities.yaml", include_str!("../templates/identities.yaml")),
    ("personas.yaml", include_str!("../templates/personas.yaml")),
    ("channels.yaml", include_str!("../templates/channels.yaml")),
];
/// The first hook, as path and text.
const HOOK: (&str, &str) = (
    "hooks/default-dm-routing.ts",
    include_str!("../../deploy/hooks/default-dm-routing.ts"),
);

/// Runs the command.
///
/// # Errors
/// Fails if one of the files exists already, or cannot be written.
pub fn execute(common: &Common, options: &InitOptions) -> Result<()> {
    let files: Vec<(&str, &str)> = FILES.into_iter().chain([HOOK]).collect();
    if !options.force {
        let taken: Vec<&str> = files
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| options.directory.join(name).exists())
            .collect();

        if !taken.is_empty() {
            let text = format!("{} exist already (--force overwrites them)", taken.join(", "));
            return Err(failure(Exit::Refused, text));
        }
    }

    let mut written = Vec::new();
    for (name, text) in files {
        let path = options.directory.join(name);
        write(&path, text)?;
        written.push((path, ""));
    }

    let key = cluster_key(&options.directory)?;
    written.push((key, " (a secret: the services seal events with it)"));
    let path = token::file(&options.directory.join(DATA));
    let is_new = !path.exists();
    token::ensure(&path)?;
    if is_new {
        written.push((path, " (this machine's token for /v1/events)"));
    }

    let paths: Vec<String> = written.iter().map(|(path, _)| path.display().to_string()).collect();
    let lines: Vec<String> = written
        .iter()
        .map(|(path, note)| format!("wrote {}{note}", path.display()))
        .collect();
    View::of(&json!({ "written": paths }))?
        .ids(paths)
        .line(lines.join("\n"))
        .line("next: nexus config check; nexus up")
        .show(common)
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("failed to create {}", directory.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
}
