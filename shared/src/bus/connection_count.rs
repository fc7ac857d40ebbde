//! Notices of new connections, for users of positions.

use tokio::sync::watch;

use super::connect::Bus;
use super::link::stands_anew;

/// Notifies of new connections, and of streams that turned out to be replaced: users of positions must then check
/// whether they are still valid.
#[derive(Debug)]
pub struct ConnectionCount(watch::Receiver<u64>);

impl ConnectionCount {
    /// Ignores connections made so far.
    pub fn count_from_now(&mut self) {
        self.0.mark_unchanged();
    }

    /// Waits until the connection was lost and a new one lasts.
    pub async fn stands_anew(&mut self) {
        stands_anew(&mut self.0).await;
    }
}

impl Bus {
    /// Returns the number of the current connection, counted from 1; 0 if there was none yet.
    #[must_use]
    pub fn connection_number(&self) -> u64 {
        self.link.number()
    }

    /// Returns a receiver of the connections made from now on.
    #[must_use]
    pub fn connections(&self) -> ConnectionCount {
        ConnectionCount(self.link.connections())
    }
}
