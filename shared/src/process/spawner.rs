//! A thread that starts processes and lives as long as this process.
//!
//! A started process inherits the properties of the *thread* that starts it. The kernel kills a child at the end of
//! the thread that started it, if the child has requested that; and privileges that a thread has given up are missing
//! in its children. A runtime's threads come and go, and have given up none.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};

use tokio::process::{Child, Command};
use tokio::runtime::Handle;

/// A thread that starts processes, one after the other.
#[derive(Debug)]
pub struct ChildSpawner {
    /// Name of the thread.
    name: &'static str,
    requests: Sender<SpawnRequest>,
}

/// A process to be started.
#[derive(Debug)]
struct SpawnRequest {
    command: Command,
    /// The caller's runtime, which the child belongs to.
    runtime: Handle,
    started: Sender<io::Result<Child>>,
}

impl ChildSpawner {
    /// Starts the thread `name`, which starts each command by `spawn`.
    #[must_use]
    pub fn new(name: &'static str, spawn: impl FnMut(&mut Command) -> io::Result<Child> + Send + 'static) -> Self {
        let (sender, requests) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        // Without the thread the receiver is dropped, and every start fails.
        if let Err(error) = thread.spawn(move || serve(&requests, spawn)) {
            tracing::error!(%error, thread = name, "failed to start the thread that starts processes");
        }
        Self { name, requests: sender }
    }

    /// Starts `command`, within a runtime, and blocks until that has been done.
    ///
    /// # Errors
    /// Returns the system's error if the command does not start, or an error if there is no runtime or the thread has
    /// ended.
    pub fn start(&self, command: Command) -> io::Result<Child> {
        let gone = || io::Error::other(format!("the thread `{}`, which starts processes, has ended", self.name));
        let (started, child) = mpsc::channel();
        let request = SpawnRequest {
            command,
            runtime: Handle::try_current().map_err(io::Error::other)?,
            started,
        };

        self.requests.send(request).map_err(|_| gone())?;
        child.recv().map_err(|_| gone())?
    }
}

fn serve(requests: &Receiver<SpawnRequest>, mut spawn: impl FnMut(&mut Command) -> io::Result<Child>) {
    while let Ok(mut request) = requests.recv() {
        let _within = request.runtime.enter();
        // No caller receives the result if it has panicked.
        let _ = request.started.send(spawn(&mut request.command));
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn every_process_is_started_by_the_one_thread() {
        let (seen, threads) = mpsc::channel();
        let spawner = ChildSpawner::new("start-tests", move |command| {
            let current = thread::current();
            seen.send((current.name().map(str::to_owned), current.id())).unwrap();
            command.spawn()
        });

        for _ in 0..2 {
            let mut child = spawner.start(Command::new("true")).unwrap();
            assert!(child.wait().await.unwrap().success());
        }

        let (first, second) = (threads.recv().unwrap(), threads.recv().unwrap());
        assert_eq!(first, second);
        assert_eq!(first.0.as_deref(), Some("start-tests"));
        assert_ne!(first.1, thread::current().id());
        assert!(spawner.start(Command::new("/nonexistent")).is_err());
    }
}
