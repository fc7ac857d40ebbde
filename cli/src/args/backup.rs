//! `nexus backup` and `nexus restore`.

use std::path::PathBuf;

use clap::Args;

/// `nexus backup`.
#[derive(Debug, Args)]
pub struct BackupOptions {
    /// Directory to write into; must be new or empty.
    pub directory: PathBuf,
    /// Write into a folder of the directory that is named after the time, and keep that many of the newest ones: older
    /// backups in it, and unfinished ones, are removed.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub keep: Option<u16>,
    /// Pause the services of the `nexus up` in this data directory during the backup, at most 30 s. If none runs there,
    /// no service may be connected to the server.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = ".nexus", require_equals = true)]
    pub quiesce: Option<PathBuf>,
}

/// `nexus restore`.
#[derive(Debug, Args)]
pub struct RestoreOptions {
    /// Directory of the backup; of one that `backup --keep` fills, the newest backup in it.
    #[arg(required_unless_present_any = ["list", "send", "drop"])]
    pub directory: Option<PathBuf>,
    /// Restore into this data directory of `nexus up` instead of onto a running server.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Number of replicas of the restored streams on a server: 1 or 3 [default: as in the backup].
    #[arg(long, value_name = "N", conflicts_with = "data", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub replicas: Option<u8>,
    /// Replace existing data: streams on a server are deleted, those in a data directory are moved aside.
    #[arg(long)]
    pub replace: bool,
    /// List the deliveries that are held since a restore because they may have been sent before.
    #[arg(long, conflicts_with_all = ["directory", "send", "drop"])]
    pub list: bool,
    /// Send the held deliveries.
    #[arg(long, conflicts_with_all = ["directory", "drop"])]
    pub send: bool,
    /// Drop the held deliveries; later ones are sent.
    #[arg(long, conflicts_with = "directory")]
    pub drop: bool,
}
