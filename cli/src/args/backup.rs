//! `nexus backup` and `nexus restore`.

use std::path::PathBuf;

use clap::Args;

/// `nexus backup`.
#[derive(Debug, Args)]
pub struct BackupOptions {
    /// Directory to write into; it must be new or empty.
    pub directory: PathBuf,
    /// Let the services of the `nexus up` in this data directory finish what is under way and stand still meanwhile, at
    /// most 30 s; where none runs there, no service may run on the server.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = ".nexus", require_equals = true)]
    pub quiesce: Option<PathBuf>,
}

/// `nexus restore`.
#[derive(Debug, Args)]
pub struct RestoreOptions {
    /// Directory of the backup.
    #[arg(required_unless_present_any = ["list", "send", "drop"])]
    pub directory: Option<PathBuf>,
    /// Restore into this data directory of `nexus up` instead of onto a running server.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Replace what is there: streams on a server are destroyed, those in a data directory are moved aside.
    #[arg(long)]
    pub replace: bool,
    /// List the deliveries that wait since a restore, as they may have been made before.
    #[arg(long, conflicts_with_all = ["directory", "send", "drop"])]
    pub list: bool,
    /// Let them leave.
    #[arg(long, conflicts_with_all = ["directory", "drop"])]
    pub send: bool,
    /// Let those that are there by now not leave; what is made later leaves.
    #[arg(long, conflicts_with = "directory")]
    pub drop: bool,
}
