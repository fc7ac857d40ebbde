//! Starting processes that end with this one.
//!
//! `nexus-tether until=` has the kernel kill a process when the *thread* ends that started it. A runtime's threads may come
//! and go; the one here lives as long as this process.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};

/// The launcher, beside the services.
const TETHER: &str = "nexus-tether";

struct Wanted {
    command: Command,
    started: Sender<io::Result<Child>>,
}

/// A command that runs `program` until this process ends, however that ends; its launcher is in `services`. In a process
/// group of its own: what a terminal sends to this process's group (Ctrl-C, its end) is this process's to pass on.
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
/// The system's error if the command does not start.
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
        // Nobody waits for the answer if the caller has panicked.
        let _ = next.started.send(next.command.spawn());
    }
}
