//! Backups in folders that are named after their time, of which the newest are kept: `nexus backup --keep`.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use shared::model::time::UnixMillis;

use super::manifest::{FolderState, state_of};

/// Returns the folder in `directory` of the backup that began at `begun_at`. Names sort by time.
pub(super) fn folder(directory: &Path, begun_at: UnixMillis) -> PathBuf {
    let seconds = UnixMillis::from_seconds(begun_at.seconds());
    directory.join(format!("nexus-{}", seconds.to_rfc3339().replace(':', "-")))
}

/// Removes the backups in `directory` that have not ended, except those that are being made in a folder of their own.
///
/// # Errors
/// Fails if one of them cannot be removed.
pub(super) fn remove_unfinished(directory: &Path) -> Result<()> {
    let mut unfinished = folders(directory, FolderState::Unfinished)?;
    unfinished.retain(|folder| !is_locked(folder));
    remove(unfinished)
}

/// Returns whether a process has locked `folder`.
fn is_locked(folder: &Path) -> bool {
    File::open(folder).is_ok_and(|handle| matches!(handle.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Removes the oldest backups in `directory`, so that `keep` of them are left.
///
/// # Errors
/// Fails if one of them cannot be removed.
pub(super) fn remove_oldest(directory: &Path, keep: u16) -> Result<()> {
    let mut complete = folders(directory, FolderState::Complete)?;
    complete.truncate(complete.len().saturating_sub(usize::from(keep)));
    remove(complete)
}

/// Returns the newest backup in `directory`, `None` if the directory is a backup itself or has none.
///
/// # Errors
/// Fails if the directory cannot be listed.
pub(super) fn newest(directory: &Path) -> Result<Option<PathBuf>> {
    match state_of(directory) {
        FolderState::Complete | FolderState::Unfinished => Ok(None),
        FolderState::Foreign => Ok(folders(directory, FolderState::Complete)?.pop()),
    }
}

/// Returns the other backups in the folder that has the one at `backup`, the oldest first.
///
/// # Errors
/// Fails if the folder cannot be listed.
pub(super) fn beside(backup: &Path) -> Result<Vec<PathBuf>> {
    let mut found = match backup.parent() {
        Some(directory) => folders(directory, FolderState::Complete)?,
        None => Vec::new(),
    };
    found.retain(|one| one != backup);
    Ok(found)
}

/// Returns the folders of `directory` that `--keep` has made and that are in `state`, the oldest first.
fn folders(directory: &Path, state: FolderState) -> Result<Vec<PathBuf>> {
    let failed = || format!("failed to list {}", directory.display());
    let mut found = Vec::new();
    if directory.exists() {
        for entry in std::fs::read_dir(directory).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            if entry.file_name().to_string_lossy().starts_with("nexus-") && state_of(&entry.path()) == state {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn remove(folders: Vec<PathBuf>) -> Result<()> {
    for folder in folders {
        std::fs::remove_dir_all(&folder).with_context(|| format!("failed to remove {}", folder.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path) {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, "").expect("a file");
    }

    #[test]
    fn the_newest_complete_backups_are_kept_and_nothing_else_is_touched() {
        let place = tempfile::tempdir().expect("a folder");
        let place = place.path();
        let complete: Vec<PathBuf> = (1..=4)
            .map(|day| folder(place, UnixMillis::from_seconds(day * 86_400)))
            .collect();
        for one in &complete {
            write(&one.join("manifest.json"));
        }
        let unfinished = folder(place, UnixMillis::from_seconds(5 * 86_400));
        write(&unfinished.join("UNFINISHED"));
        write(&place.join("by-hand/manifest.json"));
        write(&place.join("nexus-notes/notes.txt"));

        remove_oldest(place, 3).expect("removed");
        assert_eq!(newest(place).expect("listed"), complete.last().cloned());
        assert_eq!(newest(&complete[2]).expect("listed"), None, "it is a backup itself");
        assert_eq!(beside(&complete[3]).expect("listed"), complete[1..3]);
        assert_eq!(beside(&place.join("nexus-2020")).expect("listed"), complete[1..]);
        let left: Vec<bool> = complete.iter().map(|one| one.exists()).collect();
        assert_eq!(left, [false, true, true, true]);
        assert!(unfinished.exists() && place.join("by-hand").exists() && place.join("nexus-notes").exists());

        remove_unfinished(place).expect("removed");
        assert!(!unfinished.exists() && complete[3].exists());
        remove_unfinished(&place.join("none")).expect("nothing is there");
    }
}
