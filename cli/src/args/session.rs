//! Arguments of `nexus session`.

use clap::{Args, Subcommand};

/// `nexus session`.
#[derive(Debug, Subcommand)]
pub enum SessionAction {
    /// Release a session from quarantine.
    Release(SessionName),
    /// List sessions with the number of records in their ledgers.
    List {
        /// Only sessions of this persona.
        #[arg(long)]
        persona: Option<String>,
        /// Maximum number of entries, up to 1000.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Show the state of a session.
    Show(SessionName),
    /// Stream a session's ledger.
    Tail {
        /// The session.
        #[command(flatten)]
        name: SessionName,
        /// Maximum number of records; the command ends after the last one.
        #[arg(long)]
        limit: Option<u64>,
        /// Start at the first record of the ledger.
        #[arg(long)]
        all: bool,
    },
    /// Cancel the running turn and drop all queued messages.
    Abort(SessionOrderOptions),
    /// Cancel the running turn; queued messages run next.
    Interrupt(SessionOrderOptions),
    /// Start a new history for a session.
    Reset(SessionOrderOptions),
    /// Set the queue settings of a session; without options, remove them.
    Queue {
        /// The session.
        #[command(flatten)]
        order: SessionOrderOptions,
        /// Effect of a message that arrives during a turn.
        #[arg(long, value_parser = ["followup", "queue", "collect", "steer", "steer-backlog", "interrupt"])]
        mode: Option<String>,
        /// Time between the last message and the start of a collected turn, milliseconds.
        #[arg(long)]
        debounce_ms: Option<u64>,
        /// Maximum number of queued messages.
        #[arg(long)]
        cap: Option<u32>,
        /// Treatment of messages beyond `cap`.
        #[arg(long, value_parser = ["summarize", "old", "new"])]
        overflow: Option<String>,
    },
    /// Copy the history of a session into a new session.
    Fork {
        /// The session.
        #[command(flatten)]
        name: SessionName,
        /// Name of the new session.
        to: String,
        /// Last turn to copy [default: the newest].
        #[arg(long)]
        turn: Option<String>,
    },
    /// Wait until a session is idle; exit code 1 if it is still busy.
    Wait {
        /// The session.
        #[command(flatten)]
        name: SessionName,
        /// Maximum time to wait, seconds.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
}

/// Names a session.
#[derive(Debug, Clone, Args)]
pub struct SessionName {
    /// Persona of the session.
    pub persona: String,
    /// Name of the session.
    pub session: String,
}

/// An order to a session.
#[derive(Debug, Clone, Args)]
pub struct SessionOrderOptions {
    /// The session.
    #[command(flatten)]
    pub name: SessionName,
    /// Reason, kept in the ledger.
    #[arg(long, default_value = "")]
    pub reason: String,
}
