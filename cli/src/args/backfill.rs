//! Arguments of `nexus backfill`.

use clap::{Args, Subcommand};

use super::AccountName;

/// `nexus backfill`.
#[derive(Debug, Subcommand)]
pub enum BackfillAction {
    /// Read what the account's conversations kept, and store it as events; goes on without this command.
    Start(StartBackfillOptions),
    /// List the last backfill of each account.
    List,
    /// Show how far the last backfill of an account is.
    Show {
        /// The account.
        #[command(flatten)]
        account: AccountName,
        /// Wait for its end, with a progress bar; exit code 1 if it ended before it was done.
        #[arg(long, short)]
        follow: bool,
    },
    /// Stop the backfill of an account; what was read stays.
    Stop(AccountName),
}

/// `nexus backfill start`.
#[derive(Debug, Args)]
pub struct StartBackfillOptions {
    /// The account.
    #[command(flatten)]
    pub account: AccountName,
    /// Time of the first messages: an age (90s, 15m, 2h, 7d, 1w), an instant (2026-11-22T09:00:00Z) or Unix milliseconds.
    #[arg(long, value_name = "WHEN")]
    pub since: String,
    /// Time of the last messages, in the same form as `--since` [default: now].
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// Only this conversation, by the platform's id; may be repeated.
    #[arg(long = "conversation", value_name = "ID")]
    pub conversations: Vec<String>,
    /// Wait for its end, with a progress bar; exit code 1 if it ended before it was done.
    #[arg(long, short)]
    pub follow: bool,
}
