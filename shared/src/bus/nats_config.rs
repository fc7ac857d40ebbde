//! Configuration of the connection to NATS.

use serde::{Deserialize, Serialize};

use crate::process::secret::SecretValue;

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
