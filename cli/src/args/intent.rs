//! The words of `nexus intent`.

use clap::{Args, Subcommand};

/// `nexus intent`.
#[derive(Debug, Subcommand)]
pub enum IntentAction {
    /// List intents, the oldest change first.
    List(ListedIntents),
    /// Show one intent and its audit.
    Show {
        /// Its id.
        id: String,
    },
    /// Cancel an intent that is not over.
    Cancel {
        /// Its id.
        id: String,
        /// Why, for the audit.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Reschedule a pending intent.
    Reschedule {
        /// Its id.
        id: String,
        /// The schedule in JSON: `{"type":"at","local":"2026-11-23T08:00","zone":"Europe/Berlin"}`.
        schedule: String,
        /// Why, for the audit.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Approve or decline an intent that needs approval.
    Approve {
        /// Its id.
        id: String,
        /// Say no.
        #[arg(long)]
        decline: bool,
        /// Who says so.
        #[arg(long, default_value = "operator")]
        by: String,
        /// What to note.
        #[arg(long)]
        note: Option<String>,
    },
    /// Propose an intent in an agent's name.
    Propose(ProposedIntent),
}

/// `nexus intent list`.
#[derive(Debug, Args)]
pub struct ListedIntents {
    /// Only this persona's.
    #[arg(long)]
    pub agent: Option<String>,
    /// Only those that this session asked for.
    #[arg(long)]
    pub session: Option<String>,
    /// Only this status: proposed, pending, running, completed, failed, canceled, rejected.
    #[arg(long)]
    pub status: Option<String>,
    /// Go on behind this place, as the list before said.
    #[arg(long, default_value_t = 0)]
    pub after: u64,
    /// At most this many.
    #[arg(long, default_value_t = 50)]
    pub limit: usize,
}

/// `nexus intent propose`.
#[derive(Debug, Args)]
pub struct ProposedIntent {
    /// The wish in JSON: `{"kind":"remind","parameters":{…},"schedule":{…}}`.
    pub wish: String,
    /// Its id [default: a fresh one].
    #[arg(long)]
    pub id: Option<String>,
    /// The persona that asks.
    #[arg(long, default_value = "default")]
    pub agent: String,
    /// The session that asks.
    #[arg(long, default_value = "main")]
    pub session: String,
    /// What the asking turn may do: full, restricted, group or minimal.
    #[arg(long, default_value = "full")]
    pub level: String,
    /// Channel of its answers.
    #[arg(long, default_value = "webchat")]
    pub channel: String,
    /// Conversation of its answers.
    #[arg(long, default_value = "me")]
    pub peer: String,
}
