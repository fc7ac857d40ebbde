//! `nexus init`: writes a commented first configuration.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::args::InitOptions;
use crate::launch::keys::cluster_key;
use crate::launch::token;
use crate::say;

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
pub fn execute(options: &InitOptions) -> Result<()> {
    let files: Vec<(&str, &str)> = FILES.into_iter().chain([HOOK]).collect();
    if !options.force {
        let taken: Vec<&str> = files
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| options.directory.join(name).exists())
            .collect();

        if !taken.is_empty() {
            bail!("{} there already (--force writes over)", taken.join(", "));
        }
    }

    for (name, text) in files {
        write(&options.directory.join(name), text)?;
    }

    let key = cluster_key(&options.directory)?;
    say!("wrote {} (a secret: the services seal events with it)", key.display());
    let path = token::file(&options.directory.join(DATA));
    let is_new = !path.exists();
    token::ensure(&path)?;

    if is_new {
        say!("wrote {} (this machine's token for /v1/events)", path.display());
    }

    say!("next: nexus config check; nexus up");
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    }
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    say!("wrote {}", path.display());
    Ok(())
}
