//! The connection, and what is configured of it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::error::ConnectBusError;
use super::link::Link;
use super::pulse::{Beating, Pulse};
use super::sentry::Sentry;
use crate::process::secret::Secret;
use crate::wire::envelope::MIN_SERVER_PAYLOAD_BYTES;
use crate::wire::seal::Trust;

/// Publishes in flight at once, over the whole process.
pub(super) const MAX_IN_FLIGHT: usize = 4_096;
/// Messages that a slow core subscriber may lag behind before some are dropped.
const SUBSCRIPTION_CAPACITY: usize = 65_536;
/// How often a silent server is pinged; two missed pings end the connection.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// How long a JetStream API call may take.
pub(super) const API_TIMEOUT: Duration = Duration::from_secs(5);

/// What an ack promises (`wire.md` "Guarantees").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Survives the death of any process.
    #[default]
    Process,
    /// Survives power loss as well: the server syncs before it acks.
    Power,
    /// Survives the loss of a machine: three replicas.
    Replicated,
}

/// Section `[nats]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NatsConfig {
    /// Addresses, `nats://host:port`.
    pub servers: Vec<String>,
    /// What an accepted event survives; checked at start, as far as `monitors` say.
    pub durability: Durability,
    /// Where the servers tell about themselves, `http://host:port`: needed to check `power`; empty = not checked.
    pub monitors: Vec<String>,
    /// Copies of each stream: 1 or 3.
    pub replicas: usize,
    /// Create what is missing at start.
    pub ensure: bool,
    /// A `.creds` file; empty = none.
    pub credentials: String,
    /// The user, of a server that knows users; empty = none.
    pub user: String,
    /// Their password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
}

impl Default for NatsConfig {
    fn default() -> Self {
        Self {
            servers: vec!["nats://127.0.0.1:4222".to_owned()],
            durability: Durability::Process,
            monitors: Vec::new(),
            replicas: 1,
            ensure: true,
            credentials: String::new(),
            user: String::new(),
            password: None,
        }
    }
}

impl NatsConfig {
    /// Whether `server` is an address that a connection can be opened to.
    #[must_use]
    pub fn is_address(server: &str) -> bool {
        server.parse::<async_nats::ServerAddr>().is_ok()
    }

    /// Why the file of `credentials` cannot be used, `None` if it can or none is named. Reads the file.
    #[must_use]
    pub fn credentials_fault(&self) -> Option<String> {
        if self.credentials.is_empty() {
            return None;
        }
        let read = std::fs::read_to_string(&self.credentials);
        let taken = read.and_then(|text| async_nats::ConnectOptions::with_credentials(&text));
        let error = taken.err()?;

        Some(format!("`{}` cannot be read: {error}", self.credentials))
    }
}

/// A connection to the bus; cheap to clone.
#[derive(Debug, Clone)]
pub struct Bus {
    pub(super) client: async_nats::Client,
    pub(super) jetstream: async_nats::jetstream::Context,
    pub(super) in_flight: Arc<Semaphore>,
    pub(super) link: Arc<Link>,
    pub(super) pulse: Arc<Pulse>,
    /// None where nobody reads streams over this connection.
    sentry: Option<Arc<Sentry>>,
    /// As the sentry.
    beating: Option<Arc<Beating>>,
    trust: Arc<Trust>,
}

impl Bus {
    /// Connects as `name` and returns once a server has answered; reconnects by itself for ever afterwards.
    ///
    /// # Errors
    /// [`ConnectBusError`] where an address or a credential cannot be read, or nobody answers.
    pub async fn connect(config: &NatsConfig, name: &str) -> Result<Self, ConnectBusError> {
        Ok(Self::open(config, name, false).await?.watched(config))
    }

    /// As [`Bus::connect`], but returns at once and connects as soon as a server answers: for what can wait for it.
    ///
    /// # Errors
    /// [`ConnectBusError`] where an address or a credential cannot be read.
    pub async fn connect_later(config: &NatsConfig, name: &str) -> Result<Self, ConnectBusError> {
        Ok(Self::open(config, name, true).await?.watched(config))
    }

    /// As [`Bus::connect`], over a connection that nobody watches: for the one that watches the others.
    pub(super) async fn connect_plain(config: &NatsConfig, name: &str) -> Result<Self, ConnectBusError> {
        Self::open(config, name, false).await
    }

    fn watched(mut self, config: &NatsConfig) -> Self {
        self.sentry = Some(Arc::new(Sentry::post(
            self.client.clone(),
            Arc::clone(&self.link),
            config.clone(),
        )));
        let pulse = Arc::clone(&self.pulse);
        self.beating = Some(Arc::new(pulse.keep(self.client.clone())));
        self
    }

    async fn open(config: &NatsConfig, name: &str, later: bool) -> Result<Self, ConnectBusError> {
        let mut options = async_nats::ConnectOptions::new();
        if !config.credentials.is_empty() {
            options =
                options
                    .credentials_file(&config.credentials)
                    .await
                    .map_err(|source| ConnectBusError::Credentials {
                        path: config.credentials.clone(),
                        source,
                    })?;
        }

        if !config.user.is_empty() {
            let password = config.password.as_ref().map_or("", Secret::reveal);
            // The server keeps users from listening where another is answered.
            options = options
                .user_and_password(config.user.clone(), password.to_owned())
                .custom_inbox_prefix(format!("_INBOX_{}", config.user));
        }

        if later {
            options = options.retry_on_initial_connect();
        }

        let link: Arc<Link> = Arc::default();
        let telling = Arc::clone(&link);
        let options = options
            .name(name)
            .ping_interval(PING_INTERVAL)
            .connection_timeout(Duration::from_secs(2))
            .subscription_capacity(SUBSCRIPTION_CAPACITY)
            .reconnect_delay_callback(|attempt| Duration::from_millis(50 * (attempt as u64).clamp(1, 10)))
            .event_callback(move |event| {
                telling.hear(&event);
                std::future::ready(())
            });

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
        let in_flight = Arc::new(Semaphore::new(MAX_IN_FLIGHT));

        Ok(Self {
            client,
            jetstream,
            in_flight,
            link,
            pulse: Arc::default(),
            sentry: None,
            beating: None,
            trust: Arc::default(),
        })
    }

    /// The same connection, whose events are sealed and checked with `trust`; without it none is sealed or believed.
    #[must_use]
    pub fn trusting(mut self, trust: Arc<Trust>) -> Self {
        self.trust = trust;
        self
    }

    /// With what events are sealed and checked.
    #[must_use]
    pub const fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    /// Whether a server is there at this moment.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == async_nats::connection::State::Connected
    }

    /// The largest payload that the server takes, in bytes; what we ask of a server where none has answered yet.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        match self.client.server_info().max_payload {
            0 => MIN_SERVER_PAYLOAD_BYTES,
            told => told,
        }
    }

    /// Version of the server, as it says.
    #[must_use]
    pub fn server_version(&self) -> String {
        self.client.server_info().version
    }

    /// Waits until everything written so far has left this process.
    ///
    /// # Errors
    /// The client's word where the connection is gone.
    pub async fn flush(&self) -> Result<(), String> {
        self.client.flush().await.map_err(|error| error.to_string())
    }
}
