//! Arguments of `nexus top`.

use clap::Args;

/// `nexus top`.
#[derive(Debug, Clone, Copy, Args)]
pub struct TopOptions {
    /// Seconds between two updates.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub every: u64,
    /// Maximum number of updates [default: until `q` or Ctrl-C].
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Maximum number of active sessions to show.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub sessions: usize,
    /// Print lines instead of a full screen; the default if the output is not a terminal.
    #[arg(long)]
    pub plain: bool,
}
