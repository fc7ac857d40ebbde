//! Directories of pools whose processes died before they could remove them, and the workers that outlived them.

use std::path::Path;
use std::sync::Once;

/// Prefix of a pool's directory name; the process id and a dash follow.
pub(super) const PREFIX: &str = "nexus-hooks-";

/// Most directories removed by one process; the next process continues.
const MAX_REMOVED: usize = 256;

/// Removes the directories of dead processes from `parent`, once per process, and ends the workers that still run there:
/// without the launcher nothing ends a hook that computes without end when hook-svc is killed. Does nothing without `/proc`, which tells
/// which processes live.
pub(super) fn remove_once(parent: &Path) {
    static DONE: Once = Once::new();
    if Path::new("/proc/self").exists() {
        DONE.call_once(|| {
            let lives = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
            remove(parent, lives, end_workers);
        });
    }
}

fn remove(parent: &Path, lives: impl Fn(u32) -> bool, end_workers: impl Fn(&Path)) {
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
        end_workers(&path);
        match std::fs::remove_dir_all(&path) {
            Ok(()) => tracing::info!(path = %path.display(), "removed a stale worker directory"),
            Err(error) => tracing::debug!(path = %path.display(), %error, "failed to remove a directory"),
        }
    }
}

/// Kills the processes whose script is a file in `dir`. A process that may not be killed is another user's.
fn end_workers(dir: &Path) {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return;
    };
    for process in processes.filter_map(Result::ok) {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else {
            continue;
        };
        let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        if runs_in(&command, dir)
            && let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::KILL)
        {
            tracing::debug!(pid = pid.as_raw_nonzero(), %error, "failed to end a worker of a dead process");
        }
    }
}

/// Returns whether one of the arguments in `command`, which zero bytes end, is a file in `dir`.
fn runs_in(command: &[u8], dir: &Path) -> bool {
    let mut arguments = command.split(|byte| *byte == 0);
    arguments.any(|argument| std::str::from_utf8(argument).is_ok_and(|path| Path::new(path).starts_with(dir)))
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

        let ended = std::cell::RefCell::new(Vec::new());
        remove(
            parent.path(),
            |pid| pid == 8,
            |dir| ended.borrow_mut().push(dir.to_owned()),
        );
        assert_eq!(ended.into_inner(), [parent.path().join(names[0])]);
        let left: Vec<&str> = names
            .into_iter()
            .filter(|name| parent.path().join(name).exists())
            .collect();

        assert_eq!(left, names[1..]);
    }

    #[test]
    fn a_worker_is_known_by_its_script() {
        let dir = Path::new("/tmp/nexus-hooks-7-1-0");
        assert!(runs_in(
            b"bun\0run\0/tmp/nexus-hooks-7-1-0/shim/worker.ts\0note=x\0",
            dir
        ));
        for other in [
            &b"bun\0run\0/tmp/nexus-hooks-7-1-01/shim/worker.ts\0"[..],
            b"ls\0/tmp\0",
            b"",
        ] {
            assert!(!runs_in(other, dir));
        }
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
