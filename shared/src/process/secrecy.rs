//! What a process keeps from others of the same system user.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Closes this process's memory and environment, where passwords and keys are, to every other process that is not root's:
/// what an operator's program runs as our user reads neither `/proc/PID/environ` nor our memory, and there are no core
/// dumps. What we start is as open as any other program.
///
/// # Errors
/// The system's word where it cannot be done.
pub(super) fn close() -> std::io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
