//! `nexus owner`.

use clap::Subcommand;
use shared::model::owner::LINK_MINUTES;

/// `nexus owner`.
#[derive(Debug, Clone, Subcommand)]
pub enum OwnerAction {
    /// Print a one-time link; the first browser that opens it belongs to the owner.
    Link {
        /// Validity of the link, minutes.
        #[arg(long, default_value_t = LINK_MINUTES, value_name = "N")]
        minutes: u32,
        /// Address of the chat page [default: address of the running `nexus up`, else `adapter.listen`].
        #[arg(long, value_name = "URL")]
        url: Option<String>,
    },
    /// List the browsers that belong to the owner.
    List,
    /// Remove a browser from the owner; it then counts as a stranger.
    Remove {
        /// Id of the browser, as `nexus owner list` prints it.
        visitor: String,
    },
}
