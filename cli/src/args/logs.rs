//! Arguments of `nexus logs`.

use std::path::PathBuf;

use clap::Args;

/// `nexus logs`.
#[derive(Debug, Args)]
pub struct LogsOptions {
    /// Service (`hook-svc`), replica (`hook-svc-0`), `nats` or `up` [default: all].
    pub service: Option<String>,
    /// Continue with new lines.
    #[arg(long, short)]
    pub follow: bool,
    /// Maximum number of earlier lines.
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub limit: usize,
    /// Only lines since this time: an age (90s, 15m, 2h, 7d, 1w), an instant (2026-11-22T09:00:00Z) or Unix milliseconds.
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// Data directory of `nexus up`.
    #[arg(long, default_value = ".nexus", value_name = "DIR")]
    pub data: PathBuf,
}
