//! Arguments of `nexus auth`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `nexus auth`.
#[derive(Debug, Subcommand)]
pub enum AuthAction {
    /// Create what is missing: keys, accounts, a user for each service, certificates, and files for the servers.
    Init(InitAuth),
    /// Add a user: a person, an agent or an edge.
    Add(AddUser),
    /// Give a user another key; the former key is accepted until it is revoked.
    Rotate(RotateUser),
    /// Refuse a user from now on, and end its connections.
    Revoke(RevokeUser),
    /// List the users.
    List(AuthFiles),
    /// Show one user and its rights.
    Show(NamedUser),
}

/// Where the users are, and whether the servers are told.
#[derive(Debug, Args)]
pub struct AuthFiles {
    /// Folder of keys, tokens and credentials.
    #[arg(long, default_value = "nexus-auth", value_name = "DIR")]
    pub dir: PathBuf,
}

/// Options of a change.
#[derive(Debug, Args)]
pub struct AuthChange {
    /// The folder.
    #[command(flatten)]
    pub files: AuthFiles,
    /// Change the files alone, without telling the servers of the configuration.
    #[arg(long)]
    pub offline: bool,
}

/// `nexus auth init`.
#[derive(Debug, Args)]
pub struct InitAuth {
    /// Where, and how.
    #[command(flatten)]
    pub change: AuthChange,
    /// Name or address of a server, for its certificate and the routes; can be repeated.
    #[arg(long, value_name = "HOST")]
    pub host: Vec<String>,
    /// Directory in which the servers find the files [default: as before, at first /etc/nats/auth].
    #[arg(long, value_name = "DIR")]
    pub etc: Option<PathBuf>,
    /// Namespace of the Kubernetes Secrets [default: as before, at first nexus].
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
}

/// `nexus auth add`.
#[derive(Debug, Args)]
pub struct AddUser {
    /// Name of the user: a-z, 0-9 and -.
    pub name: String,
    /// Role of the user: operator, viewer, admin, agent, edge or another one of docs/rights.md.
    #[arg(long)]
    pub role: String,
    /// Channel on which an edge publishes.
    #[arg(long)]
    pub channel: Option<String>,
    /// Persona for which an agent answers; can be repeated [default: all].
    #[arg(long, value_name = "NAME")]
    pub persona: Vec<String>,
    /// Time after which the user is refused, for example 2h, 30d or 52w [default: never].
    #[arg(long, value_name = "TIME")]
    pub expires: Option<String>,
    /// Where the users are.
    #[command(flatten)]
    pub files: AuthFiles,
}

/// `nexus auth rotate`.
#[derive(Debug, Args)]
pub struct RotateUser {
    /// Name of the user.
    pub name: String,
    /// Time after which the user is refused, for example 2h, 30d or 52w, or never [default: as long as before].
    #[arg(long, value_name = "TIME")]
    pub expires: Option<String>,
    /// Refuse the former key at once: for a user whose file is read from this folder.
    #[arg(long)]
    pub revoke_former: bool,
    /// Where, and how.
    #[command(flatten)]
    pub change: AuthChange,
}

/// `nexus auth revoke`.
#[derive(Debug, Args)]
pub struct RevokeUser {
    /// Name of the user.
    pub name: String,
    /// Refuse the keys that the user had before `nexus auth rotate`, and no others.
    #[arg(long)]
    pub former: bool,
    /// Where, and how.
    #[command(flatten)]
    pub change: AuthChange,
}

/// `nexus auth show`.
#[derive(Debug, Args)]
pub struct NamedUser {
    /// Name of the user.
    pub name: String,
    /// Where the users are.
    #[command(flatten)]
    pub files: AuthFiles,
}
