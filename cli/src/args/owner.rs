//! `nexus owner`.

use clap::Subcommand;
use shared::model::owner::LINK_MINUTES;

/// `nexus owner`.
#[derive(Debug, Clone, Subcommand)]
pub enum OwnerAction {
    /// Make a link; the first browser that opens it is the owner's.
    Link {
        /// How long it can be used, minutes.
        #[arg(long, default_value_t = LINK_MINUTES)]
        minutes: u32,
        /// Address of the chat page.
        #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
        url: String,
    },
    /// List the chat pages that are the owner's.
    List,
    /// Let a chat page be a stranger's again.
    Remove {
        /// The visitor's id, as `nexus owner list` shows it.
        visitor: String,
    },
}
