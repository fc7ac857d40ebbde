//! The words of `nexus top`.

use clap::Args;

/// `nexus top`.
#[derive(Debug, Clone, Copy, Args)]
pub struct TopOptions {
    /// Seconds between two looks.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub every: u64,
    /// Looks, then it ends [default: until `q` or Ctrl-C].
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Sessions at work that are shown.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub sessions: usize,
    /// Lines instead of a screen, as where the output is not a terminal.
    #[arg(long)]
    pub plain: bool,
}
