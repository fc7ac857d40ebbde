//! Identities of this machine's processes, so that a recycled process id is never taken for the process that had it
//! before.

use std::path::Path;

use anyhow::{Context as _, Result};

/// Index of the start time among the fields of `/proc/PID/stat` that follow the name.
const START_TIME: usize = 19;

/// Identity of one process: its id, its start time and the run of the system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessName {
    /// Id of the process.
    pub pid: u32,
    /// Start time, in clock ticks since the system's start.
    started: u64,
    /// Boot id of the system's run.
    boot: String,
}

impl ProcessName {
    /// Finds the process `pid`; `None` if there is none that has not ended.
    #[must_use]
    pub fn find(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
        // The name, in parentheses, may hold any characters; the state is the first field after it.
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        if matches!(fields.first().copied(), None | Some("Z" | "X")) {
            return None;
        }

        let started = fields.get(START_TIME)?.parse().ok()?;
        Some(Self {
            pid,
            started,
            boot: boot_id(),
        })
    }

    /// Returns the identity of this process.
    ///
    /// # Errors
    /// Fails if `/proc` has no entry of it.
    pub fn own() -> Result<Self> {
        Self::find(std::process::id()).context("failed to read the start time of this process from /proc")
    }

    /// Parses the text that `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        Some(Self {
            pid: words.next()?.parse().ok()?,
            started: words.next()?.parse().ok()?,
            boot: words.next()?.to_owned(),
        })
    }

    /// Returns whether this very process still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        Self::find(self.pid).as_ref() == Some(self)
    }
}

impl std::fmt::Display for ProcessName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.pid, self.started, self.boot)
    }
}

fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id = text.trim();
    if id.is_empty() { "unknown" } else { id }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_another_with_its_id() {
        let own = ProcessName::own().expect("this process");
        assert!(own.is_running());
        assert_eq!(ProcessName::parse(&own.to_string()), Some(own.clone()));

        let mut recycled = own.clone();
        recycled.started += 1;
        assert!(!recycled.is_running(), "started at another time");

        let mut elsewhere = own;
        elsewhere.boot = "another-run".to_owned();
        assert!(!elsewhere.is_running(), "before the system was started again");

        for text in ["", "12", "12 x boot", "x 1 boot"] {
            assert_eq!(ProcessName::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_process_that_has_ended_and_is_not_yet_waited_for_does_not_run() {
        let mut child = std::process::Command::new("true").spawn().expect("it starts");
        let named = ProcessName::find(child.id());
        assert!(child.wait().expect("it ends").success());
        assert!(named.is_none_or(|named| !named.is_running()));
    }
}
