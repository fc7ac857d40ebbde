//! Request to stop a process: one token, passed to everything that waits.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Request to stop, as every part of a process sees it.
///
/// Cloning shares the request; a [`ShutdownSignal::child`] can be triggered alone and is triggered with its parent.
#[derive(Debug, Clone, Default)]
pub struct ShutdownSignal {
    token: CancellationToken,
}

impl ShutdownSignal {
    /// Waits until the process is asked to stop; returns at once if it was already.
    pub async fn requested(&self) {
        self.token.cancelled().await;
    }

    /// Returns whether the process was asked to stop.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Returns a request for one part: it is triggered with this one, and can be triggered alone.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            token: self.token.child_token(),
        }
    }

    /// Asks everything that holds this request, or a child of it, to stop.
    pub fn trigger(&self) {
        self.token.cancel();
    }
}

/// The two signals that ask a process to stop: SIGTERM from a supervisor, SIGINT from a terminal.
#[derive(Debug)]
pub(crate) struct StopSignals {
    term: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Replaces the operating system's default for both signals, which is to end the process.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal, and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_child_follows_its_parent_but_not_the_other_way() {
        let whole = ShutdownSignal::default();
        let (one, other) = (whole.child(), whole.child());
        one.trigger();
        assert!(one.is_requested() && !other.is_requested() && !whole.is_requested());
        whole.clone().trigger();
        other.requested().await;
    }
}
