//! Protection of a process's memory from other processes of the same system user.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Closes this process's memory and environment, which hold passwords and keys, to every other process that is not
/// root's. A program that an operator runs as our user can read neither `/proc/PID/environ` nor our memory, and there
/// are no core dumps. The processes that we start are as open as any other program.
///
/// # Errors
/// Returns the system's error if it cannot be done.
pub(super) fn close() -> std::io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
