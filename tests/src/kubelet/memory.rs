//! The memory limit of a container: one whose processes have more memory of their own than it allows is killed, as the
//! kernel does with a control group.
//!
//! It is kept by looking, since the control groups that a test may make differ from machine to machine, and `RLIMIT_AS`
//! bounds something else: the addresses of each single process, of which Bun reserves far more than it uses. So a peak
//! between two looks passes. Files that are mapped do not count: the kernel gives up their memory before it kills.

use std::path::PathBuf;

use crate::manifests::kinds::{Container, quantity};

/// Returns the limit of `container` in bytes, if it has one.
#[must_use]
pub fn limit(container: &Container) -> Option<f64> {
    container.resources.limits.get("memory").and_then(quantity)
}

/// Returns the memory in bytes that the processes of a container have of their own. `pid` is its first process: the others
/// see the same mounts, which are the container's alone.
#[must_use]
pub fn used(pid: u32) -> u64 {
    let own = mounts(&pid.to_string());
    // Its mounts are made first.
    if own.is_none() || own == mounts("self") {
        return 0;
    }

    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let pids = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    pids.filter(|pid| mounts(pid) == own)
        // It may have ended meanwhile.
        .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok())
        .map(|status| own_bytes(&status))
        .sum()
}

fn mounts(pid: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

/// Returns the memory that is no file's, by the file `status` of a process.
fn own_bytes(status: &str) -> u64 {
    let kib = status.lines().filter_map(|line| {
        let (name, size) = line.split_once(':')?;
        let size = size.trim().strip_suffix(" kB")?;
        ["RssAnon", "RssShmem"]
            .contains(&name)
            .then(|| size.trim().parse::<u64>().ok())?
    });
    kib.sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_files_does_not_count() {
        let status = "Name:\thook-svc\nVmRSS:\t   9000 kB\nRssAnon:\t    1200 kB\nRssFile:\t    7700 kB\nRssShmem:\t     100 kB\nThreads:\t3\n";
        assert_eq!(own_bytes(status), 1300 * 1024);
        assert_eq!(own_bytes("Name:\tkthreadd\n"), 0);
    }

    #[test]
    fn what_has_no_mounts_of_its_own_is_not_counted_with_all_others() {
        assert_eq!(used(std::process::id()), 0);
        let container = serde_json::from_str::<Container>(r#"{"resources": {"limits": {"memory": "2Gi"}}}"#);
        assert_eq!(limit(&container.expect("a container")), Some(2_147_483_648.0));
        assert_eq!(limit(&Container::default()), None);
    }
}
