//! Arguments of `nexus dlq`.

use clap::{Args, Subcommand};

/// `nexus dlq`.
#[derive(Debug, Subcommand)]
pub enum DlqAction {
    /// List dead letters, newest last.
    List {
        /// Only dead letters of this service.
        #[arg(long)]
        service: Option<String>,
        /// Maximum number of entries.
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: usize,
    },
    /// Show one dead letter.
    Show {
        /// Number of the dead letter, as `nexus dlq list` prints it.
        number: u64,
    },
    /// Republish one dead letter, or all, to the original subject.
    Redrive(LetterChoice),
    /// Delete one dead letter, or all, for good.
    Drop(LetterChoice),
}

/// One dead letter, or all.
#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("choice").required(true).args(["number", "all"])))]
pub struct LetterChoice {
    /// Number of the dead letter, as `nexus dlq list` prints it.
    pub number: Option<u64>,
    /// All of them.
    #[arg(long)]
    pub all: bool,
    /// With `--all`: only dead letters of this service.
    #[arg(long, conflicts_with = "number")]
    pub service: Option<String>,
}
