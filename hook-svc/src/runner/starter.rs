//! The thread that starts workers.
//!
//! The kernel ends a worker together with the *thread* that started it (`nexus-jail`, `parent=`), so that no hook
//! outlives a hook-svc that was killed. The runtime's threads may come and go; this one lives as long as the process.

use std::io;
use std::sync::OnceLock;

use shared::process::spawner::Spawner;
use tokio::process::{Child, Command};

/// Starts `command`, within a runtime, and blocks until that has been done.
pub(super) fn start(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Spawner> = OnceLock::new();
    SPAWNER
        .get_or_init(|| Spawner::new("start-workers", Command::spawn))
        .start(command)
}
