//! The thread that starts workers.
//!
//! The kernel ends a worker together with the *thread* that started it (`nexus-jail`, `parent=`), so that no hook
//! outlives a hook-svc that was killed. The runtime's threads may come and go; this one lives as long as the process.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};

use tokio::process::{Child, Command};
use tokio::runtime::Handle;

/// A process to be started.
struct Wanted {
    command: Command,
    runtime: Handle,
    started: Sender<io::Result<Child>>,
}

/// Starts `command`, within a runtime, and waits until that has been done.
pub(super) fn start(command: Command) -> io::Result<Child> {
    static STARTER: OnceLock<Sender<Wanted>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, wanted) = mpsc::channel();
        let thread = std::thread::Builder::new().name("start-workers".to_owned());
        if let Err(error) = thread.spawn(move || serve(&wanted)) {
            tracing::error!(%error, "no thread to start hook workers with");
        }
        sender
    });
    let gone = || io::Error::other("the thread that starts hook workers is gone");
    let (started, child) = mpsc::channel();
    let wanted = Wanted {
        command,
        runtime: Handle::try_current().map_err(io::Error::other)?,
        started,
    };
    starter.send(wanted).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

fn serve(wanted: &Receiver<Wanted>) {
    while let Ok(mut next) = wanted.recv() {
        let _within = next.runtime.enter();
        // Nobody waits for the answer where the caller has panicked.
        let _ = next.started.send(next.command.spawn());
    }
}
