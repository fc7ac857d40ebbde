//! Programs that the broker starts: what they keep of its environment, how much they are heard, and how all of them end.

use rustix::process::{Pid, Signal, kill_process_group};
use shared::process::Secret;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

/// What an operator's program keeps of our environment.
pub const KEPT: [&str; 5] = ["PATH", "HOME", "TMPDIR", "LANG", "USER"];

/// Hands the variables `names` on to `command`, where we have them.
pub fn keep(command: &mut Command, names: &[&str]) {
    for name in names {
        if let Ok(value) = Secret::resolve(&format!("env:{name}")) {
            command.env(name, value.reveal());
        }
    }
}

/// A process group that ends with this.
#[derive(Debug)]
pub struct Group(Option<Pid>);

impl Group {
    /// The group that `child` leads: it was started with a process group of its own.
    #[must_use]
    pub fn led_by(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0.take()
            && let Err(error) = kill_process_group(leader, Signal::KILL)
        {
            // It has ended, and nobody of it is left.
            tracing::debug!(?leader, %error, "process group is not killed");
        }
    }
}

/// The first `most` bytes that come out of `output`; the rest is read and forgotten, so that its writer is not held up.
pub async fn heard(mut output: impl AsyncRead + Unpin, most: u64) -> String {
    let mut kept = Vec::new();
    let _ = (&mut output).take(most).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&kept).into_owned()
}
