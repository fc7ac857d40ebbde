//! Hides directories and files from this process and from all that it starts, for good: Landlock, as an unprivileged
//! process may ask for it.
//!
//! Landlock knows no exceptions within what it allows, so everything beside the hidden paths is allowed, entry by entry.
//! In the directories around a hidden path nothing can be made therefore, and what others make there later is not seen;
//! their entries, as they are now, can be used as before.

use std::fs::{canonicalize, read_dir};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, Scope,
};

/// What the rules are written for; an older kernel enforces what it knows.
const LANDLOCK_ABI: ABI = ABI::V6;

/// Hides `paths`, and forbids signals to processes beyond this one and its children. A kernel without Landlock hides
/// nothing, and says nothing: whoever starts us knows.
///
/// # Errors
/// Why the kernel does not take the rules.
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
    let mut rules = allow(rules, directory, AccessFs::ReadDir.into())?;
    let Ok(entries) = read_dir(directory) else {
        return Ok(rules);
    };

    for entry in entries.flatten() {
        let path = entry.path();
        // A link is followed to where it leads, and what is allowed there counts.
        let Some(kind) = entry.file_type().ok().filter(|kind| !kind.is_symlink()) else {
            continue;
        };

        if hidden.contains(&path) {
            continue;
        }

        rules = if hidden.iter().any(|hidden| hidden.starts_with(&path)) {
            open(rules, &path, hidden)?
        } else if kind.is_dir() {
            allow(rules, &path, AccessFs::from_all(LANDLOCK_ABI))?
        } else {
            allow(rules, &path, AccessFs::from_file(LANDLOCK_ABI))?
        };
    }

    Ok(rules)
}

/// An entry that is gone, or that we may not reach, is nothing to allow.
fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, String> {
    let Ok(fd) = PathFd::new(path) else {
        return Ok(rules);
    };
    let added = rules.add_rule(PathBeneath::new(fd, access));
    added.map_err(|error| format!("{}: {error}", path.display()))
}
