//! The hold on a data directory: one Nexus at a time, and the processes of one that was killed can be found.
//!
//! The directory is locked (`flock`) through a handle that every process of the stack has as its standard input. The
//! lock lasts as long as any of them, above all the server, no matter how the process ended that took it.
//! `run/nexus.pid` names that process, and `run/children/PID` the processes that it started, each with its start time.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use shared::clock::{Clock as _, SystemClock, pause};

use super::process::ProcessName;
use crate::exit::{Exit, failure};

/// File that names the process that holds the directory, below it.
pub const PID_FILE: &str = "run/nexus.pid";
/// Directory of the processes that the holder has started: a file each, named by process id.
const CHILDREN: &str = "run/children";
/// Longest time for the processes of a killed holder to end by themselves.
const REMAINS_DEADLINE: Duration = Duration::from_secs(10);
/// Interval at which that is checked.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// A data directory that is locked until this, and every process that was given [`Hold::handle`], is gone.
#[derive(Debug)]
pub struct Hold {
    data: PathBuf,
    handle: File,
}

/// The record of a process that was started; the file is removed when this is dropped.
#[derive(Debug)]
pub struct Recorded(PathBuf);

impl Drop for Recorded {
    fn drop(&mut self) {
        // The file may be gone with its directory.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Hold {
    /// Locks `data`, which must exist. Processes that a killed holder left end by themselves; this waits for them.
    ///
    /// # Errors
    /// Fails if another process holds the directory; the error names it.
    pub async fn take(data: &Path) -> Result<Self> {
        let data = data.canonicalize().context("failed to find the data directory")?;
        let handle = File::open(&data).with_context(|| format!("failed to open {}", data.display()))?;

        let begun = SystemClock.monotonic();
        loop {
            match handle.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("failed to lock {}", data.display()));
                }
                Err(TryLockError::WouldBlock) => {}
            }

            // A live holder is an error at once; the processes of a dead one end soon and are waited for.
            let shown = data.display();
            if let Some(holder) = holder(&data) {
                let text = format!(
                    "{shown} is in use by a running `nexus up` (process {}); run `nexus down --data {shown}` to stop it",
                    holder.pid
                );
                return Err(failure(Exit::Refused, text));
            }

            if SystemClock.monotonic().saturating_duration_since(begun) > REMAINS_DEADLINE {
                let pids: Vec<String> = remains(&data).iter().map(|left| left.pid.to_string()).collect();
                let text = format!(
                    "{shown} is in use by processes {} of a killed `nexus up`; run `nexus down --data {shown}` to end them",
                    pids.join(", ")
                );
                return Err(failure(Exit::Refused, text));
            }

            pause(LOOK_EVERY).await;
        }

        // No other process writes here while this one has the lock.
        let children = data.join(CHILDREN);
        match std::fs::remove_dir_all(&children) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context("failed to remove the records of former processes");
            }
            Ok(()) | Err(_) => {}
        }

        std::fs::create_dir_all(&children).context("failed to create the directory of process records")?;
        let own = format!("{}\n", ProcessName::own()?);
        std::fs::write(data.join(PID_FILE), own).context("failed to write the process id")?;

        Ok(Self { data, handle })
    }

    /// Returns a handle that a process of the stack gets as its standard input: the process holds the directory as long
    /// as it has the handle.
    ///
    /// # Errors
    /// Fails if the system has no descriptor left.
    pub fn handle(&self) -> Result<Stdio> {
        let copy = self
            .handle
            .try_clone()
            .context("failed to pass on the lock of the data directory")?;
        Ok(copy.into())
    }

    /// Records that process `pid` was started for this directory.
    ///
    /// # Errors
    /// Fails if the record cannot be written.
    pub fn record(&self, pid: u32) -> Result<Recorded> {
        let path = self.data.join(CHILDREN).join(pid.to_string());
        // A process that has ended already needs no record.
        if let Some(process) = ProcessName::find(pid) {
            std::fs::write(&path, format!("{process}\n")).context("failed to write a process record")?;
        }
        Ok(Recorded(path))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The lock goes with the last handle; until then no reader may take this process for the holder.
        let _ = std::fs::remove_file(self.data.join(PID_FILE));
    }
}

/// Returns the process that holds `data` and is in charge of it, if it runs.
#[must_use]
pub fn holder(data: &Path) -> Option<ProcessName> {
    let text = std::fs::read_to_string(data.join(PID_FILE)).ok()?;
    ProcessName::parse(&text).filter(ProcessName::is_running)
}

/// Returns the other processes that hold `data`: those that were started for it, and those that have its handle.
#[must_use]
pub fn remains(data: &Path) -> Vec<ProcessName> {
    let mut found: Vec<ProcessName> = recorded(data);
    for process in handle_owners(data) {
        if !found.contains(&process) {
            found.push(process);
        }
    }
    let (own, holder) = (std::process::id(), holder(data));
    found.retain(|process| process.pid != own && Some(process) != holder.as_ref());
    found
}

/// Returns the recorded processes that still run.
fn recorded(data: &Path) -> Vec<ProcessName> {
    let Ok(entries) = std::fs::read_dir(data.join(CHILDREN)) else {
        return Vec::new();
    };
    let texts = entries
        .flatten()
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let processes = texts.filter_map(|text| ProcessName::parse(&text));
    processes.filter(ProcessName::is_running).collect()
}

/// Returns the processes whose standard input is the directory itself, as far as the system lets us see.
fn handle_owners(data: &Path) -> Vec<ProcessName> {
    let Ok(directory) = std::fs::metadata(data) else {
        return Vec::new();
    };

    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let owns = |pid: &u32| {
        let input = std::fs::metadata(Path::new("/proc").join(pid.to_string()).join("fd/0"));
        input.is_ok_and(|input| input.is_dir() && (input.dev(), input.ino()) == (directory.dev(), directory.ino()))
    };

    pids.filter(owns).filter_map(ProcessName::find).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn a_directory_is_held_by_one_and_found_where_a_child_still_holds_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path();
        std::fs::create_dir(data.join("run")).expect("made");
        let hold = Hold::take(data).await.expect("taken");
        let second = Hold::take(data).await.expect_err("it is taken").to_string();

        assert!(second.contains(&format!("process {}", std::process::id())), "{second}");

        let mut child = Command::new("sleep")
            .arg("600")
            .stdin(hold.handle().expect("a handle"))
            .spawn()
            .expect("it starts");
        let record = hold.record(child.id()).expect("recorded");
        assert_eq!(
            remains(data).iter().map(|left| left.pid).collect::<Vec<_>>(),
            [child.id()]
        );

        drop(record);
        assert_eq!(remains(data).len(), 1, "found by its handle alone");

        drop(hold);
        assert!(holder(data).is_none());

        let handle = File::open(data).expect("opened");
        assert!(
            matches!(handle.try_lock(), Err(TryLockError::WouldBlock)),
            "the child holds it"
        );

        crate::launch::process::send(crate::launch::process::Signal::KILL, &remains(data)[0]);
        child.wait().expect("it ended");
        Hold::take(data).await.expect("free again");
    }
}
