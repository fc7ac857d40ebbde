//! A server with the users of a folder of keys, and its streams.

use std::path::PathBuf;

use cli::auth::folder::{AuthFolder, credentials_path};
use cli::auth::registry::WantedUser;
use cli::auth::{certificates, push_accounts, seconds_now, server_files};
use shared::bus::{Bus, NatsConfig};
use shared::testing::connect;
use shared::testing::nats::{NatsOptions, NatsServer};
use shared::wire::rights::BusRole;
use shared::wire::topology::topology;
use tempfile::TempDir;

/// Name of the edge, and its channel.
pub(super) const EDGE: (&str, &str) = ("mac1", "imessage");
/// Name of the viewer.
pub(super) const VIEWER: &str = "vera";

/// Largest message that the server takes, in bytes, as in the configurations of `deploy/nats`.
pub(super) const SERVER_PAYLOAD: usize = 8_000_000;

/// A server, and the folder of its users.
pub(super) struct WalledServer {
    pub(super) server: NatsServer,
    pub(super) keys: TempDir,
    is_encrypted: bool,
}

impl WalledServer {
    /// Starts a server without streams that knows the standard users, an edge and a viewer.
    pub(super) async fn start() -> Self {
        Self::with(false).await
    }

    /// Starts it with certificates.
    pub(super) async fn encrypted() -> Self {
        Self::with(true).await
    }

    async fn with(is_encrypted: bool) -> Self {
        let keys = tempfile::tempdir().expect("a folder");
        let now = seconds_now();
        let mut folder = AuthFolder::open(&keys.path().join("auth"), true).expect("a folder of keys");
        folder.complete(now).expect("the users");
        for (name, role, channel) in [(EDGE.0, BusRole::Edge, Some(EDGE.1)), (VIEWER, BusRole::Viewer, None)] {
            let wanted = WantedUser {
                name: name.to_owned(),
                role,
                channel: channel.map(str::to_owned),
                personas: Vec::new(),
                expires: None,
            };
            folder.add(wanted, now).expect("added");
        }
        if is_encrypted {
            certificates::ensure(&mut folder, &["127.0.0.1".to_owned()], now).expect("certificates");
        }

        let mut walled = Self {
            server: NatsServer::with(NatsOptions {
                max_payload: Some(SERVER_PAYLOAD),
                extra: configuration(&folder, &keys, is_encrypted),
                ..NatsOptions::default()
            })
            .await,
            keys,
            is_encrypted,
        };
        walled
            .server
            .configure(configuration(&folder, &walled.keys, is_encrypted));
        walled
    }

    /// The folder of keys; nobody else may have it open.
    pub(super) fn folder(&self) -> AuthFolder {
        AuthFolder::open(&self.keys.path().join("auth"), false).expect("the folder of keys")
    }

    /// File of the credentials of `name`.
    pub(super) fn credentials(&self, name: &str) -> PathBuf {
        credentials_path(&self.keys.path().join("auth"), name)
    }

    /// Settings of the user `name`.
    pub(super) fn config(&self, name: &str) -> NatsConfig {
        let authority = self.keys.path().join("auth/tls/ca.pem");
        NatsConfig {
            servers: vec![self.server.url()],
            ensure: false,
            credentials: self.credentials(name).display().to_string(),
            ca: if self.is_encrypted {
                authority.display().to_string()
            } else {
                String::new()
            },
            ..NatsConfig::default()
        }
    }

    /// Connects as the user of `role`.
    pub(super) async fn bus(&self, role: BusRole) -> Bus {
        connect(&self.config(role.name()), role.name()).await
    }

    /// Creates the streams, as the user who may.
    pub(super) async fn with_streams(self) -> Self {
        let bus = self.bus(BusRole::Topology).await;
        bus.ensure_topology(&topology(1), false).await.expect("the streams");
        self
    }

    /// Tells the server the accounts as the folder has them.
    pub(super) async fn push(&self) {
        push_accounts(&mut self.folder(), &self.config(BusRole::System.name()), seconds_now())
            .await
            .expect("told");
    }
}

/// What a server's configuration has from `folder`, with what it is told later in `keys`.
fn configuration(folder: &AuthFolder, keys: &TempDir, is_encrypted: bool) -> String {
    let kept = keys.path().join("accounts");
    let section = folder.server_section().expect("the accounts");
    let tls = if is_encrypted {
        server_files::tls_block(&folder.path().join("tls"), false)
    } else {
        String::new()
    };
    format!("resolver {{ type: full, dir: {kept:?}, allow_delete: false, interval: \"2m\" }}\n{section}{tls}")
}

/// The user of each role.
pub(super) fn user_of(role: BusRole) -> &'static str {
    match role {
        BusRole::Edge => EDGE.0,
        BusRole::Viewer => VIEWER,
        BusRole::Adapter
        | BusRole::Hook
        | BusRole::Broker
        | BusRole::Delivery
        | BusRole::Scheduler
        | BusRole::Topology
        | BusRole::Backup
        | BusRole::Restore
        | BusRole::Admin
        | BusRole::Operator
        | BusRole::Agent
        | BusRole::System => role.name(),
    }
}
