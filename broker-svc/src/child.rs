//! Programs that the broker starts: their environment, the part of their output that is kept, and their end.
//!
//! They end with the broker, however it ends: `nexus-tether` runs them, and kills them once its input is closed.

pub mod walls;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::LazyLock;

use rustix::process::{Pid, Signal, kill_process_group};
use shared::process::SecretValue;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

/// Environment variables that an operator's program inherits.
pub const KEPT: [&str; 5] = ["PATH", "HOME", "TMPDIR", "LANG", "USER"];

/// Name of the launcher, beside our own program or one directory above it.
const TETHER: &str = "nexus-tether";

/// Part of the launcher's input that the program gets.
#[derive(Debug, Clone, Copy)]
pub enum InputLimit {
    /// This many bytes, then the end of input.
    Bytes(usize),
    /// All input, without an end of its own.
    All,
}

/// A program to be started, in a process group of its own and with its three pipes.
#[derive(Debug)]
pub struct SupervisedCommand {
    /// The command to start.
    pub command: Command,
    /// Whether the input must be held open as long as the program runs; else the caller must close it.
    pub is_held: bool,
}

impl SupervisedCommand {
    /// Creates a command for `program`, which gets the part `handed` of its input.
    #[must_use]
    pub fn new(program: &str, handed: InputLimit) -> Self {
        // A missing program is started directly, because that gives the best error.
        let tether = find_launcher().filter(|_| is_there(program));
        let is_held = tether.is_some();
        let mut command = match tether {
            Some(tether) => {
                let mut command = Command::new(tether);
                // The paths are hidden by the supervisor, after the fork: the broker itself must still read them.
                for path in walls::hidden_paths() {
                    let mut hidden = OsString::from("hide=");
                    hidden.push(path);
                    command.arg(hidden);
                }

                match handed {
                    InputLimit::Bytes(bytes) => command.arg(bytes.to_string()),
                    InputLimit::All => command.arg("all"),
                };
                command.args(["--", program]);

                command
            }
            None => Command::new(program),
        };

        // A group of its own, so that the children that the program starts can be killed with it.
        command
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);

        Self { command, is_held }
    }
}

/// Returns the path of the launcher; without it a program outlives a broker that is killed.
fn find_launcher() -> Option<PathBuf> {
    static FOUND: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let program = std::env::current_exe().ok()?;
        let directories = program.ancestors().skip(1).take(2);
        let found = directories
            .map(|directory| directory.join(TETHER))
            .find(|path| path.is_file());
        if found.is_none() {
            tracing::warn!(
                program = TETHER,
                "nexus-tether not found: programs survive the broker and can read its files"
            );
        }

        found
    });

    FOUND.clone()
}

/// Returns whether `program` is found. A missing one is started directly, because that gives the best error.
fn is_there(program: &str) -> bool {
    if program.contains('/') {
        return true;
    }
    let path = SecretValue::resolve("env:PATH").map(|path| path.reveal().to_owned());
    std::env::split_paths(&path.unwrap_or_default()).any(|directory| directory.join(program).is_file())
}

/// Sets the variables `names` of our environment, as far as they exist, for `command`.
pub fn pass_variables(command: &mut Command, names: &[&str]) {
    for name in names {
        if let Ok(value) = SecretValue::resolve(&format!("env:{name}")) {
            command.env(name, value.reveal());
        }
    }
}

/// A process group that is killed when this is dropped.
#[derive(Debug)]
pub struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// Returns the group that `child` leads; it was started with a process group of its own.
    #[must_use]
    pub fn led_by(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0.take()
            && let Err(error) = kill_process_group(leader, Signal::KILL)
        {
            // The group has ended already, with all its processes.
            tracing::debug!(?leader, %error, "failed to kill a process group");
        }
    }
}

/// Reads the first `most` bytes of `output`; the rest is read and discarded, so that its writer is not blocked.
pub async fn read_output(mut output: impl AsyncRead + Unpin, most: u64) -> String {
    let mut kept = Vec::new();
    let _ = (&mut output).take(most).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&kept).into_owned()
}
