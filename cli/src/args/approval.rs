//! Arguments of `nexus approval`.

use clap::{Args, Subcommand};

/// `nexus approval`.
#[derive(Debug, Subcommand)]
pub enum ApprovalAction {
    /// List approvals of tool calls and intents, newest first.
    List {
        /// Only approvals with this status: pending, approved, denied, expired, canceled, superseded, consumed.
        #[arg(long)]
        status: Option<String>,
        /// Maximum number of entries.
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: usize,
    },
    /// Show one approval.
    Show {
        /// Id of the approval.
        id: String,
    },
    /// Approve a tool call or an intent.
    Approve(Speaker),
    /// Deny a tool call or an intent.
    Deny(Speaker),
    /// Approve a tool call with edited arguments.
    Edit {
        /// All arguments of the call, as one JSON object.
        #[arg(long, value_name = "JSON")]
        arguments: String,
        /// The approval and the person who decides.
        #[command(flatten)]
        speaker: Speaker,
    },
}

/// The approval and the person who decides.
#[derive(Debug, Args)]
pub struct Speaker {
    /// Id of the approval.
    pub id: String,
    /// Person who decides: an id in `identities.yaml`.
    #[arg(long, default_value = "operator")]
    pub by: String,
    /// Reason, kept with the decision.
    #[arg(long)]
    pub reason: Option<String>,
}
