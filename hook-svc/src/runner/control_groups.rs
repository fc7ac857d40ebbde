//! Control groups of the authors' workers, where systemd has delegated a group to this service (`Delegate=`).
//!
//! A group adds bounds that limits of single processes cannot give: memory that processes share counts, an author's
//! processes have one bound together, and operators' hooks get processors before those of agents. Without a delegated
//! group, in pods among others, each worker's own limits hold alone ([`sandbox`](super::sandbox)).
//!
//! A group with processes may not divide itself, so this process moves into a group of its own below the delegated one;
//! `DelegateSubgroup=` has done that already. Source: `docs/design/trust.md` §7; the kernel's page on control groups,
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html>.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Controllers that bound a group; those that were not delegated are left out.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// Name of this process's own group, and beginning of the name of the group of all its workers.
const SERVICE: &str = "service";
const HOOKS: &str = "hooks-";

/// Memory of one worker in MiB, with the memory it shares: a quarter above the bound of each process.
const MEMORY_MB: u64 = 800;

/// Threads of one worker: Bun has about twenty.
const THREADS: u64 = 128;

/// Weights of the operators' workers and of each other author's.
const OPERATOR_WEIGHT: u64 = 100;
const AUTHOR_WEIGHT: u64 = 20;

/// Mark of a group that systemd has delegated: to root, or to another user.
const MARKS: [&str; 2] = ["trusted.delegate", "user.delegate"];

/// The group of all workers of this process, below the delegated one.
#[derive(Debug)]
pub(super) struct WorkersGroup {
    path: PathBuf,
    /// Number of groups that were made below, so that none has the name of one that is still in use.
    made: AtomicU64,
}

/// The group of one author's workers. Its processes are ended and it is removed when this is dropped.
#[derive(Debug)]
pub(super) struct AuthorGroup {
    path: PathBuf,
    /// Keeps the group above until all groups below are removed.
    _within: Arc<WorkersGroup>,
}

/// Author whose workers a group is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupOwner {
    /// The operators.
    Operator,
    /// The author in this seat.
    Author(u32),
}

/// Error while a delegated group is divided.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the delegated control group {}: {source}", path.display())]
pub(super) struct DivideGroupError {
    path: PathBuf,
    source: io::Error,
}

impl WorkersGroup {
    /// Divides the group that systemd delegated to this process. Returns `None` if it delegated none.
    ///
    /// # Errors
    /// Returns [`DivideGroupError`] if there is one and it cannot be divided: other processes are in it.
    pub(super) fn take_delegated() -> Result<Option<Self>, DivideGroupError> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let Some(own) = own_group(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup")) else {
            return Ok(None);
        };
        // One further up is another unit's, a user's manager for example, and its limits are not this service's.
        let mut near = own.ancestors().take(2);
        let Some(delegated) = near.find(|path| is_delegated(path)) else {
            return Ok(None);
        };

        let number = std::process::id();
        let divided = Self::divide(delegated, own == delegated, number);
        let divided = divided.map_err(|source| DivideGroupError {
            path: delegated.to_owned(),
            source,
        })?;
        Ok(Some(divided))
    }

    /// Divides the group at `delegated`. `is_own`: this process, `number`, is in it and moves into a group below first.
    fn divide(delegated: &Path, is_own: bool, number: u32) -> io::Result<Self> {
        if is_own {
            let service = delegated.join(SERVICE);
            make_group(&service)?;
            write_value(&service.join("cgroup.procs"), &number.to_string())?;
        }
        remove_stale(delegated)?;

        let path = delegated.join(format!("{HOOKS}{number}"));
        make_group(&path)?;
        pass_controllers(delegated)?;
        pass_controllers(&path)?;
        Ok(Self { path, made: 0.into() })
    }

    /// Makes the group of `owner`, who has at most `workers` processes.
    ///
    /// # Errors
    /// Returns the error if the group cannot be made or bounded.
    pub(super) fn make_author_group(self: &Arc<Self>, owner: GroupOwner, workers: usize) -> io::Result<AuthorGroup> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let name = match owner {
            GroupOwner::Operator => format!("operator-{number}"),
            GroupOwner::Author(seat) => format!("author-{seat}-{number}"),
        };
        let group = AuthorGroup {
            path: self.path.join(name),
            _within: Arc::clone(self),
        };

        make_group(&group.path)?;
        for (file, value) in bounds(owner, workers) {
            let written = write_value(&group.path.join(file), &value.to_string());
            // A controller that was not delegated has no files here.
            if let Err(error) = written
                && error.kind() != ErrorKind::NotFound
            {
                return Err(error);
            }
        }

        Ok(group)
    }
}

impl AuthorGroup {
    /// Returns the group's folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for AuthorGroup {
    fn drop(&mut self) {
        remove_group(&self.path);
    }
}

impl Drop for WorkersGroup {
    fn drop(&mut self) {
        remove_group(&self.path);
    }
}

/// Returns the bounds of the group of `owner`, who has at most `workers` processes: names of files and their values.
fn bounds(owner: GroupOwner, workers: usize) -> [(&'static str, u64); 4] {
    let workers = u64::try_from(workers.max(1)).unwrap_or(u64::MAX);
    let weight = match owner {
        GroupOwner::Operator => OPERATOR_WEIGHT,
        GroupOwner::Author(_) => AUTHOR_WEIGHT,
    };
    [
        ("memory.max", workers.saturating_mul(MEMORY_MB * 1024 * 1024)),
        // Swapped memory is memory: the host would be slow for everybody.
        ("memory.swap.max", 0),
        ("pids.max", workers.saturating_mul(THREADS)),
        ("cpu.weight", weight),
    ]
}

/// Returns the folder of this process's group from `/proc/self/mountinfo` and `/proc/self/cgroup`; `None` if the kernel
/// has no groups of version 2.
fn own_group(mounts: &str, groups: &str) -> Option<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        after.starts_with("cgroup2 ").then(|| before.split(' ').nth(4))?
    })?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(group))
}

/// Returns whether systemd has marked the group at `path` as delegated. A writable group alone is none: systemd manages
/// those of root.
fn is_delegated(path: &Path) -> bool {
    MARKS.iter().any(|mark| {
        let mut value = [0_u8; 8];
        let length = rustix::fs::getxattr(path, *mark, &mut value);
        length.is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}

/// Makes the group at `path`, or takes one that a process of the same number left.
fn make_group(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Lets groups below `path` be bounded by those of [`CONTROLLERS`] that `path` has.
fn pass_controllers(path: &Path) -> io::Result<()> {
    let has = fs::read_to_string(path.join("cgroup.controllers"))?;
    for controller in CONTROLLERS
        .iter()
        .filter(|name| has.split_whitespace().any(|one| one == **name))
    {
        write_value(&path.join("cgroup.subtree_control"), &format!("+{controller}"))?;
    }
    Ok(())
}

/// Writes `value` into a file that the kernel has made.
fn write_value(path: &Path, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    file.write_all(value.as_bytes())
}

/// Removes the groups below `delegated` of processes that were killed.
fn remove_stale(delegated: &Path) -> io::Result<()> {
    for entry in fs::read_dir(delegated)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(number) = name.strip_prefix(HOOKS) else {
            continue;
        };
        if Path::new("/proc").join(number).exists() {
            continue;
        }

        for below in fs::read_dir(&path)? {
            let below = below?.path();
            if below.is_dir() {
                remove_group(&below);
            }
        }
        remove_group(&path);
    }
    Ok(())
}

/// Ends the processes in the group at `path` and removes it. They mostly have ended before, so an error is only told.
fn remove_group(path: &Path) {
    let ended = write_value(&path.join("cgroup.kill"), "1");
    let removed = fs::remove_dir(path);
    if let Err(error) = removed.and(ended) {
        tracing::debug!(group = %path.display(), %error, "failed to remove a control group");
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const MOUNTS: &str = "24 1 0:22 / /proc rw - proc proc rw\n\
        30 24 0:26 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup rw\n";

    #[test]
    fn the_own_group_is_below_the_mount_of_version_2() {
        let found = own_group(MOUNTS, "4:memory:/a\n0::/system.slice/nexus.service\n");
        assert_eq!(
            found.as_deref(),
            Some(Path::new("/sys/fs/cgroup/unified/system.slice/nexus.service"))
        );

        assert_eq!(own_group("24 1 0:22 / /proc rw - proc proc rw\n", "0::/\n"), None);
        assert_eq!(own_group(MOUNTS, "4:memory:/a\n"), None);
    }

    #[test]
    fn operators_come_before_authors_and_each_process_has_its_share() {
        let operator = bounds(GroupOwner::Operator, 3);
        assert_eq!(
            operator,
            [
                ("memory.max", 2_400 * 1024 * 1024),
                ("memory.swap.max", 0),
                ("pids.max", 384),
                ("cpu.weight", 100)
            ]
        );
        assert_eq!(bounds(GroupOwner::Author(7), 1)[3], ("cpu.weight", 20));
    }

    /// Returns a fresh group of version 2 in which this test may make groups; `None`, said aloud, if there is none.
    fn fresh_group(name: &str) -> Option<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let root = own_group(&mounts, "0::/")?;
        let path = root.join(format!("nexus-test-{name}-{}", std::process::id()));
        let made = fs::create_dir(&path);
        if let Err(error) = &made {
            println!("not tested with the kernel: {}: {error}", path.display());
        }
        made.ok().map(|()| path)
    }

    #[test]
    fn a_group_ends_with_its_processes_and_those_of_killed_services_go_at_a_start() {
        let Some(delegated) = fresh_group("ends") else { return };
        let stale = delegated.join("hooks-4194305/author-1");
        fs::create_dir_all(&stale).expect("a group");

        let workers = WorkersGroup::divide(&delegated, false, std::process::id()).expect("divided");
        assert!(!stale.exists());
        let workers = Arc::new(workers);
        let group = workers.make_author_group(GroupOwner::Author(3), 2).expect("made");
        let mut worker = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .expect("started");
        write_value(&group.path().join("cgroup.procs"), &worker.id().to_string()).expect("joined");
        let within = fs::read_to_string(format!("/proc/{}/cgroup", worker.id())).expect("readable");
        assert!(within.contains("/author-3-0"), "{within}");

        write_value(&group.path().join("cgroup.kill"), "1").expect("ended");
        assert!(!worker.wait().expect("ended").success());

        // The seat's next author may come while the former group is still held.
        let next = workers.make_author_group(GroupOwner::Author(3), 2).expect("made");
        drop(group);
        assert!(next.path().exists());
        drop((next, workers));
        fs::remove_dir(&delegated).expect("nothing is left in it");
    }

    #[test]
    fn only_a_group_that_systemd_marked_is_delegated() {
        let Some(delegated) = fresh_group("marked") else { return };
        assert!(!is_delegated(&delegated));
        let marked = rustix::fs::setxattr(&delegated, MARKS[1], b"1", rustix::fs::XattrFlags::empty());
        match marked {
            Ok(()) => assert!(is_delegated(&delegated)),
            Err(error) => println!("not tested with the kernel: {}: {error}", delegated.display()),
        }
        fs::remove_dir(&delegated).expect("nothing is in it");
    }
}
