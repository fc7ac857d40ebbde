//! Arguments of `nexus channel`.

use clap::{Args, Subcommand};

/// `nexus channel`.
#[derive(Debug, Subcommand)]
pub enum ChannelAction {
    /// List the accounts of `channels.yaml` and their states.
    List,
    /// Show one account.
    Show(AccountName),
    /// Ask the platform about an account; exit code 1 if the account cannot work as configured.
    Check(AccountName),
    /// List the senders who are paired with an account, and those who were sent a code.
    Pairings {
        /// Only those of this account: CHANNEL/NAME.
        account: Option<String>,
    },
    /// Let the sender of a code write to the account.
    Pair {
        /// The account.
        #[command(flatten)]
        account: AccountName,
        /// Code that the sender passed on.
        code: String,
    },
    /// Withdraw a pairing, or a code that was not used yet.
    Unpair {
        /// The account.
        #[command(flatten)]
        account: AccountName,
        /// The platform's id of the sender, as `nexus channel pairings` prints it.
        sender: String,
    },
}

/// The account that a command is about.
#[derive(Debug, Args)]
pub struct AccountName {
    /// Account as CHANNEL/NAME, e.g. telegram/main.
    pub account: String,
}
