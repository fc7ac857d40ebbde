//! The words of `nexus approval`.

use clap::{Args, Subcommand};

/// `nexus approval`.
#[derive(Debug, Subcommand)]
pub enum ApprovalAction {
    /// List approvals, newest first; those of agents' intents among them.
    List {
        /// Only this status: pending, approved, rejected, expired, cancelled, superseded, consumed.
        #[arg(long)]
        status: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Show one approval.
    Show {
        /// The approval's id.
        id: String,
    },
    /// Approve.
    Approve(Speaker),
    /// Deny.
    Deny(Speaker),
    /// Approve with edited arguments.
    Edit {
        /// The arguments in JSON, whole.
        #[arg(long, value_name = "JSON")]
        arguments: String,
        /// Which, and who says so.
        #[command(flatten)]
        speaker: Speaker,
    },
}

/// Which approval, and who speaks.
#[derive(Debug, Args)]
pub struct Speaker {
    /// The approval's id.
    pub id: String,
    /// Who says so: a person's id in `identities.yaml`.
    #[arg(long, default_value = "operator")]
    pub by: String,
    /// What to note.
    #[arg(long)]
    pub note: Option<String>,
}
