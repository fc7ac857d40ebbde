//! Users of a stack's servers: the same folder of keys as `nexus auth` makes, below the data directory.

use std::path::{Path, PathBuf};

use anyhow::Result;
use shared::bus::NatsConfig;
use shared::wire::rights::BusRole;

use crate::auth::folder::{AuthFolder, credentials_path};
use crate::auth::seconds_now;

/// Name of the folder below the data directory.
const FOLDER: &str = "auth";

/// Returns the folder of keys below the data directory `data`.
#[must_use]
pub fn folder(data: &Path) -> PathBuf {
    data.join(FOLDER)
}

/// Returns the path of the credentials of the user of `role` below the data directory `data`.
#[must_use]
pub fn credentials(data: &Path, role: BusRole) -> PathBuf {
    credentials_path(&folder(data), role.name())
}

/// What a server's configuration says about users.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerUsers {
    /// The operator and the accounts.
    pub section: String,
    /// Password of the routes.
    pub route_password: String,
}

/// Makes the users that do not exist yet, and returns what the servers are told.
pub(super) fn prepare(data: &Path) -> Result<ServerUsers> {
    let mut folder = AuthFolder::open(&folder(data), true)?;
    folder.complete(seconds_now())?;
    Ok(ServerUsers {
        section: folder.server_section()?,
        route_password: folder.route_password()?,
    })
}

/// Returns the connection settings of the user of `role` for the servers at `servers`.
#[must_use]
pub fn login(data: &Path, role: BusRole, servers: Vec<String>) -> NatsConfig {
    NatsConfig {
        servers,
        ensure: false,
        credentials: credentials(data, role).display().to_string(),
        ..NatsConfig::default()
    }
}
