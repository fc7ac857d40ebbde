//! The thread that starts workers.
//!
//! The kernel ends a worker together with the *thread* that started it (`nexus-jail`, `parent=`), so that no hook
//! outlives a hook-svc that was killed. The runtime's threads may come and go; this one lives as long as the process.

use std::io::{self, PipeReader};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::{FdFlags, fcntl_setfd};
use shared::process::spawner::ChildSpawner;
use tokio::process::{Child, Command};

/// Starts `command`, within a runtime, and blocks until that is done. The worker inherits `inherited` under the same
/// descriptor number, and no other worker does: workers are started one at a time.
pub(super) fn start(command: Command, inherited: &PipeReader) -> io::Result<Child> {
    static SPAWNER: OnceLock<ChildSpawner> = OnceLock::new();
    static ONE: Mutex<()> = Mutex::new(());

    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);

    fcntl_setfd(inherited, FdFlags::empty())?;
    let started = SPAWNER
        .get_or_init(|| ChildSpawner::new("start-workers", Command::spawn))
        .start(command);
    fcntl_setfd(inherited, FdFlags::CLOEXEC)?;

    started
}
