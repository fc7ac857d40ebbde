//! `nexus down`: stops what `nexus up` runs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::clock::pause;

use crate::args::DownOptions;
use crate::launch::service::signal;
use crate::up::PID_FILE;

/// How long stopping may take: the services' drain and the server's end.
const DEADLINE: Duration = Duration::from_secs(40);

/// Runs the command.
///
/// # Errors
/// Where nothing runs there, or it does not end.
pub async fn execute(options: &DownOptions) -> Result<()> {
    let path = options.data.join(PID_FILE);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("nothing runs in {} (no {PID_FILE} there)", options.data.display()))?;
    let pid: u32 = text
        .trim()
        .parse()
        .with_context(|| format!("read {}", path.display()))?;
    let process = Path::new("/proc").join(pid.to_string());
    if !runs(&process) {
        // Left behind by a killed `nexus up`; its children died with it or are shown by `ps`.
        std::fs::remove_file(&path).context("remove the stale process id")?;
        println!("it was not running any more");
        return Ok(());
    }
    signal(pid, "TERM");
    let waited = tokio::time::timeout(DEADLINE, async {
        while runs(&process) {
            pause(Duration::from_millis(50)).await;
        }
    });
    if waited.await.is_err() {
        bail!("process {pid} has not ended after {} s", DEADLINE.as_secs());
    }
    println!("stopped");
    Ok(())
}

/// Whether the process of `/proc/PID` runs: one that has ended and that nobody has asked about yet does not.
fn runs(process: &Path) -> bool {
    let Ok(stat) = std::fs::read_to_string(process.join("stat")) else {
        return false;
    };
    // The name, in parentheses, may hold anything; the state follows it.
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, Some("Z" | "X"))
}
