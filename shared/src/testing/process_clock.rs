//! Clock of real processes, set by a test.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Sets the clocks of processes that were started with [`TEST_CLOCK`](crate::clock::TEST_CLOCK) naming its file.
///
/// A process sees a change within a millisecond, and as the first thing after it was stopped: write, then continue it.
/// Servers of NATS, and waits inside the runtime other than [`pause`](crate::clock::pause), keep the host's time.
#[derive(Debug, Clone)]
pub struct ProcessClock {
    path: PathBuf,
}

impl ProcessClock {
    /// Builds the clock with the file `path`. Without the file, processes have the host's time.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Returns the variable and its value, for a process's environment.
    #[must_use]
    pub fn variable(&self) -> (String, String) {
        let value = self.path.to_string_lossy().into_owned();
        (crate::clock::TEST_CLOCK.to_owned(), value)
    }

    /// Sets every process `ahead_ms` ahead of the host, wall clock and boot time alike, as if that time had passed.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn set_ahead(&self, ahead_ms: u64) {
        let wall = i64::try_from(ahead_ms).unwrap_or(i64::MAX);
        self.write(&self.path, &format!("wall={wall}ms boot={ahead_ms}ms\n"));
    }

    /// Sets the clocks of replica `instance` alone back to where they were `stopped` ago, as on a machine that was paused for so
    /// long: write, then continue the process.
    ///
    /// # Panics
    /// Where the file cannot be written.
    pub fn set_behind(&self, instance: &str, stopped: Duration) {
        let ms = stopped.as_millis();
        self.write(&self.path_of(instance), &format!("wall=-{ms}ms stood={ms}ms\n"));
    }

    /// Sets the clocks of replica `instance` alone, as on a host of its own. A boot time less than before counts as
    /// before.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn set(&self, instance: &str, wall_ahead_ms: i64, boot_ahead_ms: u64) {
        let text = format!("wall={wall_ahead_ms}ms boot={boot_ahead_ms}ms\n");
        self.write(&self.path_of(instance), &text);
    }

    fn path_of(&self, instance: &str) -> PathBuf {
        PathBuf::from(format!("{}.{instance}", self.path.display()))
    }

    fn write(&self, path: &Path, text: &str) {
        // Renamed into its place, so that no process reads a partial file.
        let half = path.with_extension("half");
        std::fs::write(&half, text).expect("the clock's file is written");
        std::fs::rename(&half, path).expect("the clock's file is in its place");
    }
}
