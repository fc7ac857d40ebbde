//! The connection to NATS.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::error::ConnectBusError;
use super::link::ServerLink;
use super::login::login_options;
use super::nats_config::NatsConfig;
use super::pulse::ClockPulse;
use crate::wire::envelope::MIN_SERVER_PAYLOAD_BYTES;
use crate::wire::seal::TrustKeys;

/// Maximum number of publishes in flight, over the whole process.
pub(super) const MAX_IN_FLIGHT: usize = 4_096;
/// Number of messages that a slow core subscriber may lag behind before messages are dropped.
const SUBSCRIPTION_CAPACITY: usize = 65_536;
/// Interval at which a silent server is pinged; two missed pings end the connection.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Timeout of a JetStream API call.
pub(super) const API_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to the bus; cheap to clone.
#[derive(Debug, Clone)]
pub struct Bus {
    pub(super) client: async_nats::Client,
    pub(super) jetstream: async_nats::jetstream::Context,
    pub(super) in_flight: Arc<Semaphore>,
    pub(super) link: Arc<ServerLink>,
    pub(super) pulse: Arc<ClockPulse>,
    /// Tasks that watch the connection, none if no streams are read over it; they end with the last clone of the bus.
    watches: Arc<JoinSet<()>>,
    trust: Arc<TrustKeys>,
}

impl Bus {
    /// Opens a connection as `name` that nothing watches. Unless `later`, waits until a server has answered. A lost
    /// connection is reconnected without limit.
    pub(super) async fn open(config: &NatsConfig, name: &str, later: bool) -> Result<Self, ConnectBusError> {
        let mut options = login_options(config)?;

        // A process that can start without the server keeps trying in the background.
        if later {
            options = options.retry_on_initial_connect();
        }

        // The callback outlives this function, so it gets a share of the link's state.
        let link: Arc<ServerLink> = Arc::default();
        let telling = Arc::clone(&link);
        let options = options
            .name(name)
            .ping_interval(PING_INTERVAL)
            .connection_timeout(Duration::from_secs(2))
            .subscription_capacity(SUBSCRIPTION_CAPACITY)
            .reconnect_delay_callback(|attempt| Duration::from_millis(50 * (attempt as u64).clamp(1, 10)))
            .event_callback(move |event| {
                telling.handle_event(&event);
                std::future::ready(())
            });

        // Parsed here, so that the error names the wrong address.
        let addresses = config
            .servers
            .iter()
            .map(|server| {
                server
                    .parse::<async_nats::ServerAddr>()
                    .map_err(|_| ConnectBusError::Address(server.clone()))
            })
            .collect::<Result<Vec<_>, _>>()?;

        let client = options
            .connect(addresses)
            .await
            .map_err(|error| ConnectBusError::Unreachable {
                servers: config.servers.join(", "),
                detail: error.to_string(),
            })?;

        let jetstream = async_nats::jetstream::context::ContextBuilder::new()
            .timeout(API_TIMEOUT)
            .build(client.clone());
        // All clones share it, because the bound holds for the whole process.
        let in_flight = Arc::new(Semaphore::new(MAX_IN_FLIGHT));

        Ok(Self {
            client,
            jetstream,
            in_flight,
            link,
            pulse: Arc::default(),
            watches: Arc::default(),
            trust: Arc::default(),
        })
    }

    /// Returns the same connection with `watches` as the tasks that watch it.
    pub(super) fn with_watches(mut self, watches: JoinSet<()>) -> Self {
        self.watches = Arc::new(watches);
        self
    }

    /// Returns the same connection with `trust` as the key ring that seals and checks its events. Without it, no event
    /// is sealed and no seal is accepted.
    #[must_use]
    pub fn with_trust(mut self, trust: Arc<TrustKeys>) -> Self {
        self.trust = trust;
        self
    }

    /// Keys and rules with which events are sealed and checked.
    #[must_use]
    pub const fn trust(&self) -> &Arc<TrustKeys> {
        &self.trust
    }

    /// Whether the connection to a server is up at this moment.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == async_nats::connection::State::Connected
    }

    /// Returns the largest payload that the server accepts, in bytes. Before a server has answered, returns the
    /// minimum that we require of every server.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        match self.client.max_payload() {
            0 => MIN_SERVER_PAYLOAD_BYTES,
            told => told,
        }
    }

    /// Version that the server reports.
    #[must_use]
    pub fn server_version(&self) -> String {
        self.client.server_info().version
    }

    /// Waits until everything written so far has left this process.
    ///
    /// # Errors
    /// Returns the client's error text if the connection is gone.
    pub async fn flush(&self) -> Result<(), String> {
        self.client.flush().await.map_err(|error| error.to_string())
    }
}
