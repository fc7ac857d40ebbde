//! `nexus down`: stops a running `nexus up`, and the processes that a killed one has left.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use shared::clock::{Clock as _, SystemClock, pause};

use crate::args::{Common, DownOptions};
use crate::exit::{Exit, failure};
use crate::launch::hold::{holder, remains};
use crate::launch::process::{ProcessName, Signal, send};
use crate::output::View;

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
pub async fn execute(common: &Common, options: &DownOptions) -> Result<()> {
    let data = options.data.as_path();
    let Ok(data) = data.canonicalize() else {
        let text = format!("nothing runs in {}: there is no such directory", data.display());
        return Err(failure(Exit::NotFound, text));
    };

    let up = holder(&data);
    let mut lines = Vec::new();
    if let Some(up) = &up {
        send(Signal::TERM, up);

        if !ended(std::slice::from_ref(up), DEADLINE).await {
            bail!(
                "process {} did not stop within {} s; run `kill -9 {}`",
                up.pid,
                DEADLINE.as_secs(),
                up.pid
            );
        }

        lines.push("stopped".to_owned());
    }

    let left = end_remains(&data).await?;
    if !left.is_empty() {
        lines.push(format!(
            "ended {} processes of a killed `nexus up`: {}",
            left.len(),
            list_pids(&left)
        ));
    } else if up.is_none() {
        return Err(failure(Exit::NotFound, format!("nothing runs in {}", data.display())));
    }

    let stopped = up.map(|up| up.pid);
    let left: Vec<u32> = left.iter().map(|process| process.pid).collect();
    let pids = stopped.iter().chain(&left).map(ToString::to_string);
    View::of(&json!({ "stopped": stopped, "left": left }))?
        .ids(pids)
        .line(lines.join("\n"))
        .show(common)
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
    bail!("processes {} did not end", list_pids(&stuck));
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

fn list_pids(processes: &[ProcessName]) -> String {
    let pids: Vec<String> = processes.iter().map(|process| process.pid.to_string()).collect();
    pids.join(", ")
}
