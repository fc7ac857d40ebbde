//! Processes that tests start: killed when dropped, so that none outlives its test.

use std::process::{Child, Command, ExitStatus};

use super::eventually::eventually;

/// A running program; killed and waited for when dropped.
#[derive(Debug)]
pub struct TestProcess(Child);

impl Drop for TestProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

impl TestProcess {
    /// Starts `command`.
    ///
    /// # Panics
    /// Panics if the program cannot be started.
    pub fn start(command: &mut Command) -> Self {
        match command.spawn() {
            Ok(child) => Self(child),
            Err(error) => panic!("{command:?} does not start: {error}"),
        }
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns the status with which it has ended; `None` while it runs.
    ///
    /// # Panics
    /// Panics if the status cannot be read.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a child can be waited for")
    }

    /// Kills it at once, like a crash, and waits until it has ended.
    pub fn kill(&mut self) {
        // Both fail only if the process has ended by itself, which is the purpose of this call.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Asks it to end and waits until it has. Returns whether it ended with success.
    ///
    /// # Panics
    /// Panics if it cannot be asked, or does not end within 120 s.
    pub async fn stop(&mut self) -> bool {
        let asked = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status();
        assert!(asked.is_ok_and(|status| status.success()), "no signal is sent");

        let mut status = None;
        eventually("the process ends", async || {
            status = self.ended();
            status.is_some()
        })
        .await;
        status.is_some_and(|status| status.success())
    }
}

/// Returns the memory of process `pid` by `field` of `/proc/{pid}/status`, such as `VmRSS`, in KiB; `None` if the
/// process is gone.
#[must_use]
pub fn memory_kib(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;

    value.split_whitespace().next()?.parse().ok()
}
