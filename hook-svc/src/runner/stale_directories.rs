//! Directories of pools whose processes died before they could remove them.

use std::path::Path;
use std::sync::Once;

/// Prefix of a pool's directory name; the process id and a dash follow.
pub(super) const PREFIX: &str = "nexus-hooks-";

/// Most directories removed by one process; the next process continues.
const MAX_REMOVED: usize = 256;

/// Removes the directories of dead processes from `parent`, once per process. Does nothing without `/proc`, which tells
/// which processes live.
pub(super) fn remove_once(parent: &Path) {
    static DONE: Once = Once::new();
    if Path::new("/proc/self").exists() {
        DONE.call_once(|| remove(parent, |pid| Path::new("/proc").join(pid.to_string()).exists()));
    }
}

fn remove(parent: &Path, lives: impl Fn(u32) -> bool) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    let dead = entries.filter_map(Result::ok).filter(|entry| {
        entry
            .file_name()
            .to_str()
            .and_then(owner_pid)
            .is_some_and(|pid| !lives(pid))
    });

    for entry in dead.take(MAX_REMOVED) {
        let path = entry.path();
        match std::fs::remove_dir_all(&path) {
            Ok(()) => tracing::info!(path = %path.display(), "removed a stale worker directory"),
            Err(error) => tracing::debug!(path = %path.display(), %error, "failed to remove a directory"),
        }
    }
}

/// Returns the id of the process to which the directory `name` belongs.
fn owner_pid(name: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dead_process_left_is_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let names = [
            "nexus-hooks-7-1700000000000-0",
            "nexus-hooks-8-1700000000000-0",
            "nexus-hooks-x-1",
            "nexus-hooks-9",
            "other-9-1",
        ];

        for name in names {
            let dir = parent.path().join(name);
            std::fs::create_dir(&dir).expect("made");
            std::fs::write(dir.join("worker.ts"), "x").expect("written");
        }

        remove(parent.path(), |pid| pid == 8);
        let left: Vec<&str> = names
            .into_iter()
            .filter(|name| parent.path().join(name).exists())
            .collect();

        assert_eq!(left, names[1..]);
    }

    #[test]
    fn this_process_lives() {
        let parent = tempfile::tempdir().expect("a folder");
        let own = parent.path().join(format!("{PREFIX}{}-1-0", std::process::id()));
        std::fs::create_dir(&own).expect("made");
        remove_once(parent.path());
        assert!(own.exists());
    }
}
