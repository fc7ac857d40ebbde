//! Starts processes that end with this one.
//!
//! `nexus-tether until=` has the kernel kill a process when the *thread* ends that started it. The threads of an async
//! runtime may come and go; the thread here lives as long as this process.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};

/// Name of the launcher, beside the services.
const TETHER: &str = "nexus-tether";

struct Wanted {
    command: Command,
    started: Sender<io::Result<Child>>,
}

/// Returns a command that runs `program` until this process ends, for any reason; its launcher is in `services`. The
/// command gets a process group of its own: this process passes on the signals that a terminal sends to its own group
/// (Ctrl-C, the terminal's end).
#[must_use]
pub(super) fn tethered(services: &Path, program: &Path) -> Command {
    let mut command = Command::new(services.join(TETHER));
    command
        .arg(format!("until={}", std::process::id()))
        .arg("--")
        .arg(program)
        .process_group(0);
    command
}

/// Starts `command` on the thread that lives as long as this process.
///
/// # Errors
/// Returns the system's error if the command does not start.
pub(super) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Wanted>> = OnceLock::new();

    let spawner = SPAWNER.get_or_init(|| {
        let (sender, wanted) = mpsc::channel();
        // Without the thread the receiver is dropped, and every start fails with the error below.
        let _ = std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || serve(&wanted));
        sender
    });

    let gone = || io::Error::other("the thread that starts processes is gone");
    let (started, child) = mpsc::channel();
    spawner.send(Wanted { command, started }).map_err(|_| gone())?;

    child.recv().map_err(|_| gone())?
}

fn serve(wanted: &Receiver<Wanted>) {
    while let Ok(mut next) = wanted.recv() {
        // The receiver is gone if the caller has panicked.
        let _ = next.started.send(next.command.spawn());
    }
}
