//! Arguments of `nexus intent`.

use clap::{Args, Subcommand};

/// `nexus intent`.
#[derive(Debug, Subcommand)]
pub enum IntentAction {
    /// List intents, least recently changed first.
    List(ListedIntents),
    /// Show one intent and its audit records.
    Show {
        /// Id of the intent.
        id: String,
    },
    /// Cancel an intent that has not ended.
    Cancel {
        /// Id of the intent.
        id: String,
        /// Reason, kept in the audit.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Reschedule a pending intent.
    Reschedule {
        /// Id of the intent.
        id: String,
        /// New schedule as JSON: `{"type":"at","local":"2026-11-23T08:00","zone":"Europe/Berlin"}`.
        schedule: String,
        /// Reason, kept in the audit.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Approve or deny an intent that needs approval.
    Approve {
        /// Id of the intent.
        id: String,
        /// Deny instead of approve.
        #[arg(long)]
        deny: bool,
        /// Person who decides.
        #[arg(long, default_value = "operator")]
        by: String,
        /// Reason, kept with the decision.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Propose an intent on behalf of an agent.
    Propose(ProposedIntent),
}

/// `nexus intent list`.
#[derive(Debug, Args)]
pub struct ListedIntents {
    /// Only intents of this persona.
    #[arg(long = "persona", alias = "agent", value_name = "PERSONA")]
    pub agent: Option<String>,
    /// Only intents that this session proposed.
    #[arg(long)]
    pub session: Option<String>,
    /// Only intents with this status: proposed, pending, running, completed, failed, canceled, rescheduled, rejected.
    #[arg(long)]
    pub status: Option<String>,
    /// Continue after this position, as printed by the previous list.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub after: u64,
    /// Maximum number of entries.
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub limit: usize,
}

/// `nexus intent propose`.
#[derive(Debug, Args)]
pub struct ProposedIntent {
    /// Intent as JSON: `{"kind":"remind","parameters":{…},"schedule":{…}}`.
    #[arg(value_name = "INTENT")]
    pub wish: String,
    /// Id of the intent [default: a new one].
    #[arg(long)]
    pub id: Option<String>,
    /// Persona that proposes the intent.
    #[arg(long = "persona", alias = "agent", value_name = "PERSONA", default_value = "default")]
    pub agent: String,
    /// Session that proposes the intent.
    #[arg(long, default_value = "main")]
    pub session: String,
    /// Permission level of the proposing turn: full, restricted, group or minimal.
    #[arg(long, default_value = "full")]
    pub level: String,
    /// Channel of the replies.
    #[arg(long, default_value = "webchat")]
    pub channel: String,
    /// Conversation (peer) of the replies.
    #[arg(long, default_value = "me")]
    pub peer: String,
}
