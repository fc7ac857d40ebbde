//! The connection to NATS and its configuration.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::error::ConnectBusError;
use super::link::ServerLink;
use super::login::login_options;
use super::pulse::ClockPulse;
use crate::process::secret::SecretValue;
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

/// Level of failure that an acknowledged event survives (`docs/design/wire.md` §8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamDurability {
    /// An acked event survives the death of any process.
    #[default]
    Process,
    /// An acked event survives power loss as well: the server syncs before it acks.
    Power,
    /// An acked event survives the loss of a machine: the stream has three replicas.
    Replicated,
}

/// Configuration section `[nats]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsConfig {
    /// Addresses of the servers, each `nats://host:port`.
    pub servers: Vec<String>,
    /// Level of failure that an accepted event survives; checked at start, as far as `monitors` allow.
    pub durability: StreamDurability,
    /// Monitoring addresses of the servers, each `http://host:port`. Needed to check `power`; an empty list skips the
    /// check.
    pub monitors: Vec<String>,
    /// Number of replicas of each stream: 1 or 3.
    pub replicas: usize,
    /// Whether missing streams and consumers are created at start.
    pub ensure: bool,
    /// Path of a `.creds` file; empty if none is used. It is read again for each new connection.
    pub credentials: String,
    /// User name, for a server with users; empty if there is none.
    pub user: String,
    /// Password of that user, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretValue>,
    /// Seed of the key of `user`, `SU…`, for a server that knows its users by their keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nkey: Option<SecretValue>,
    /// Path of the certificates that the server's must come from, in PEM; the connection is encrypted then. Empty if
    /// those of the host decide.
    pub ca: String,
    /// Path of the certificate that is shown to the server, in PEM; empty if none is.
    pub certificate: String,
    /// Path of its key, in PEM.
    pub key: String,
}

impl Default for NatsConfig {
    fn default() -> Self {
        Self {
            servers: vec!["nats://127.0.0.1:4222".to_owned()],
            durability: StreamDurability::Process,
            monitors: Vec::new(),
            replicas: 1,
            ensure: true,
            credentials: String::new(),
            user: String::new(),
            password: None,
            nkey: None,
            ca: String::new(),
            certificate: String::new(),
            key: String::new(),
        }
    }
}

impl NatsConfig {
    /// Whether `server` is an address that a connection can be opened to.
    #[must_use]
    pub fn is_address(server: &str) -> bool {
        server.parse::<async_nats::ServerAddr>().is_ok()
    }
}

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
        match self.client.server_info().max_payload {
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
