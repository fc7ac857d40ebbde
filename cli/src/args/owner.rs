//! `nexus owner`.

use clap::Subcommand;
use shared::model::owner::LINK_MINUTES;

/// `nexus owner`.
#[derive(Debug, Clone, Subcommand)]
pub enum OwnerAction {
    /// Print a one-time link; the first browser that opens it belongs to the owner.
    Link {
        /// Validity of the link, minutes.
        #[arg(long, default_value_t = LINK_MINUTES)]
        minutes: u32,
        /// Address of the chat page.
        #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
        url: String,
    },
    /// List the browsers that belong to the owner.
    List,
    /// Remove a browser from the owner; it becomes a stranger's.
    Remove {
        /// Id of the browser, as `nexus owner list` prints it.
        visitor: String,
    },
}
