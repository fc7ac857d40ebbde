//! Arguments of `nexus auth`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `nexus auth`.
#[derive(Debug, Args)]
pub struct AuthOptions {
    /// Folder of keys, tokens and credentials.
    #[arg(long, global = true, default_value = "nexus-auth", value_name = "DIR")]
    pub dir: PathBuf,
    /// Change the files alone, without telling the servers of the configuration.
    #[arg(long, global = true)]
    pub offline: bool,
    /// What to do.
    #[command(subcommand)]
    pub action: AuthAction,
}

/// What `nexus auth` does.
#[derive(Debug, Subcommand)]
pub enum AuthAction {
    /// Create what is missing: keys, accounts, a user for each service, certificates, and files for the servers.
    Init(AuthInit),
    /// Add a user: a person, an agent or an edge.
    Add {
        /// Name of the user: a-z, 0-9, - and _.
        name: String,
        /// Role of the user: operator, viewer, admin, agent, edge or another one of docs/rights.md.
        #[arg(long)]
        role: String,
        /// Channel on which an edge publishes.
        #[arg(long)]
        channel: Option<String>,
        /// Time after which the user is refused: 90s, 15m, 2h, 30d or 52w [default: never].
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
    },
    /// Give a user another key; the former key is accepted until it is revoked.
    Rotate {
        /// Name of the user.
        name: String,
        /// Time after which the user is refused: 90s, 15m, 2h, 30d or 52w [default: never].
        #[arg(long, value_name = "TIME")]
        expires: Option<String>,
        /// Refuse the former key at once: for a user whose file is read from this folder.
        #[arg(long)]
        revoke_former: bool,
    },
    /// Refuse a user from now on, and end its connections.
    Revoke {
        /// Name of the user.
        name: String,
        /// Refuse the keys that the user had before `nexus auth rotate`, and no others.
        #[arg(long)]
        former: bool,
    },
    /// List the users.
    List,
    /// Show one user and its rights.
    Show {
        /// Name of the user.
        name: String,
    },
}

/// `nexus auth init`.
#[derive(Debug, Args)]
pub struct AuthInit {
    /// Name or address of a server, for its certificate and the routes; can be repeated.
    #[arg(long, value_name = "HOST")]
    pub host: Vec<String>,
    /// Directory in which the servers find the files.
    #[arg(long, default_value = "/etc/nats/auth", value_name = "DIR")]
    pub etc: PathBuf,
    /// Namespace of the Kubernetes Secrets.
    #[arg(long, default_value = "nexus", value_name = "NAME")]
    pub namespace: String,
}
