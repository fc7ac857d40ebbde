//! `nexus down`: stops a running `nexus up`, and the processes that a killed one has left.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use shared::clock::{Clock as _, SystemClock, pause};

use crate::args::DownOptions;
use crate::launch::hold::{holder, remains};
use crate::launch::process::{ProcessName, Signal, send};
use crate::say;

/// Longest time that stopping may take: the services' drain and the server's end.
const DEADLINE: Duration = Duration::from_secs(40);
/// Longest time for processes that were left to end after SIGTERM, and then again after SIGKILL.
const REMAINS_DEADLINE: Duration = Duration::from_secs(12);
/// Interval at which it is checked whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs the command.
///
/// # Errors
/// Fails if no process runs there, or if one does not end.
pub async fn execute(options: &DownOptions) -> Result<()> {
    let data = options.data.as_path();
    let Ok(data) = data.canonicalize() else {
        bail!("nothing runs in {}: there is no such directory", data.display());
    };

    let up = holder(&data);
    if let Some(up) = &up {
        send(Signal::TERM, up);

        if !ended(std::slice::from_ref(up), DEADLINE).await {
            bail!(
                "process {} has not ended after {} s; `kill -9 {}` ends it with all that it runs",
                up.pid,
                DEADLINE.as_secs(),
                up.pid
            );
        }

        say!("stopped");
    }

    let left = end_remains(&data).await?;
    if !left.is_empty() {
        say!(
            "ended {} processes that a killed Nexus left: {}",
            left.len(),
            pids(&left)
        );
    } else if up.is_none() {
        bail!("nothing runs in {}", data.display());
    }

    Ok(())
}

/// Ends the processes that were left in `data`, and returns them.
async fn end_remains(data: &Path) -> Result<Vec<ProcessName>> {
    let left = remains(data);
    for signal in [Signal::TERM, Signal::KILL] {
        for process in &left {
            send(signal, process);
        }
        if ended(&left, REMAINS_DEADLINE).await {
            return Ok(left);
        }
    }

    let stuck: Vec<ProcessName> = left.into_iter().filter(ProcessName::is_running).collect();
    bail!("processes {} do not end", pids(&stuck));
}

/// Waits until all of `processes` have ended, at most `deadline`. Returns whether they have.
async fn ended(processes: &[ProcessName], deadline: Duration) -> bool {
    let begun = SystemClock.monotonic();
    while processes.iter().any(ProcessName::is_running) {
        if SystemClock.monotonic().saturating_duration_since(begun) > deadline {
            return false;
        }
        pause(LOOK_EVERY).await;
    }
    true
}

fn pids(processes: &[ProcessName]) -> String {
    let pids: Vec<String> = processes.iter().map(|process| process.pid.to_string()).collect();
    pids.join(", ")
}
