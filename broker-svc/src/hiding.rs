//! Hides directories and files from this process and from all processes that it starts, permanently, with Landlock,
//! which an unprivileged process may use.
//!
//! Landlock knows no exceptions within an allowed directory, so everything beside the hidden paths is allowed, entry
//! by entry. Therefore nothing can be created in the directories around a hidden path, and files that other processes
//! create there later are not visible; the present entries can be used as before.

use std::fs::{canonicalize, read_dir};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, Scope,
};

/// Landlock version of the rules; an older kernel enforces the part that it knows.
const LANDLOCK_ABI: ABI = ABI::V6;

/// Hides `paths`, and forbids signals to processes beyond this one and its children. A kernel without Landlock hides
/// nothing and reports no error: the parent process knows about it.
///
/// # Errors
/// Returns the reason if the kernel does not accept the rules.
pub(crate) fn hide(paths: &[PathBuf]) -> Result<(), String> {
    let hidden: Vec<PathBuf> = paths
        .iter()
        .map(|path| canonicalize(path).unwrap_or_else(|_| path.clone()))
        .collect();
    let text = |error: landlock::RulesetError| error.to_string();
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK_ABI))
        .and_then(|rules| rules.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .map_err(text)?;

    let rules = open(rules, Path::new("/"), &hidden)?;
    rules.restrict_self().map(|_| ()).map_err(text)
}

/// Allows everything in `directory` that is not hidden.
fn open(rules: RulesetCreated, directory: &Path, hidden: &[PathBuf]) -> Result<RulesetCreated, String> {
    let mut rules = allow_path(rules, directory, AccessFs::ReadDir.into())?;
    let Ok(entries) = read_dir(directory) else {
        return Ok(rules);
    };

    for entry in entries.flatten() {
        let path = entry.path();
        // A link is followed to its target, whose own rule decides.
        let Some(kind) = entry.file_type().ok().filter(|kind| !kind.is_symlink()) else {
            continue;
        };

        if hidden.contains(&path) {
            continue;
        }

        rules = if hidden.iter().any(|hidden| hidden.starts_with(&path)) {
            open(rules, &path, hidden)?
        } else if kind.is_dir() {
            allow_path(rules, &path, AccessFs::from_all(LANDLOCK_ABI))?
        } else {
            allow_path(rules, &path, AccessFs::from_file(LANDLOCK_ABI))?
        };
    }

    Ok(rules)
}

/// Allows `access` to `path`; an entry that is gone or out of reach needs no rule.
fn allow_path(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, String> {
    let Ok(fd) = PathFd::new(path) else {
        return Ok(rules);
    };
    let added = rules.add_rule(PathBeneath::new(fd, access));
    added.map_err(|error| format!("{}: {error}", path.display()))
}
