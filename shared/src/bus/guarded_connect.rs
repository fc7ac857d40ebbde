//! Connections that are watched: against messages that the client cannot read, and after times in which the process
//! did not run.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::connect::Bus;
use super::error::ConnectBusError;
use super::nats_config::NatsConfig;
use super::poison_guard::guard_connection;

impl Bus {
    /// Connects as `name` and returns as soon as a server has answered. A lost connection is reconnected without
    /// limit.
    ///
    /// # Errors
    /// Returns [`ConnectBusError`] if an address or a credential cannot be read, or if no server answers.
    pub async fn connect(config: &NatsConfig, name: &str) -> Result<Self, ConnectBusError> {
        Ok(Self::open(config, name, false).await?.watched(config))
    }

    /// Connects as [`Bus::connect`] does, but returns at once and connects as soon as a server answers. For callers
    /// that can work without a server at first.
    ///
    /// # Errors
    /// Returns [`ConnectBusError`] if an address or a credential cannot be read.
    pub async fn connect_later(config: &NatsConfig, name: &str) -> Result<Self, ConnectBusError> {
        Ok(Self::open(config, name, true).await?.watched(config))
    }

    /// Starts the tasks that watch this connection, which was opened with `config`.
    fn watched(self, config: &NatsConfig) -> Self {
        let mut watches = JoinSet::new();
        watches.spawn(guard_connection(
            self.client.clone(),
            Arc::clone(&self.link),
            config.clone(),
        ));
        watches.spawn(Arc::clone(&self.pulse).keep_watch(self.client.clone()));

        self.with_watches(watches)
    }
}
