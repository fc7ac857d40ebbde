//! Signals to processes of this machine, which never reach a later process with the same id.

use rustix::process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal};

pub use rustix::process::Signal;
pub use shared::process::ProcessName;

/// Sends `signal` to exactly this process; does nothing if it has ended.
pub fn send(signal: Signal, process: &ProcessName) {
    let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else {
        return;
    };

    // The descriptor names the process from here on, so its identity is checked before the signal is sent.
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };

    if process.is_running() {
        // The process may have ended since, which is the aim.
        let _ = pidfd_send_signal(descriptor, signal);
    }
}

/// Returns whether SIGHUP was ignored when this process began (`nohup`): listening for it would undo that.
#[must_use]
pub fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit 0 is signal 1.
    ignored.is_some_and(|mask| mask & 1 == 1)
}
