//! Arguments of `nexus session`.

use clap::{Args, Subcommand, ValueEnum};

/// `nexus session`.
#[derive(Debug, Subcommand)]
pub enum SessionAction {
    /// List sessions with the number of records in their ledgers.
    List {
        /// Only sessions of this persona.
        #[arg(long)]
        persona: Option<String>,
        /// Maximum number of entries, up to 1000.
        #[arg(long, default_value_t = 50, value_name = "N")]
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
        #[arg(long, value_name = "N")]
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
        #[arg(long)]
        mode: Option<BusyMode>,
        /// Time without a new message before a collected turn starts, milliseconds.
        #[arg(long, value_name = "N")]
        debounce_ms: Option<u64>,
        /// Maximum number of queued messages.
        #[arg(long, value_name = "N")]
        cap: Option<u32>,
        /// Messages to drop if more than `--cap` are queued.
        #[arg(long)]
        overflow: Option<Overflow>,
    },
    /// Set whether the replies of a session are sent, before any rule of the send policy.
    Send {
        /// The session.
        #[command(flatten)]
        order: SessionOrderOptions,
        /// What happens to the session's replies.
        decision: SendChoice,
    },
    /// Release a session from quarantine.
    Release(SessionName),
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
        #[arg(long, default_value_t = 60, value_name = "N")]
        seconds: u64,
    },
}

/// What happens to the replies of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SendChoice {
    /// They are sent.
    Allow,
    /// They are not sent; a receipt records each.
    Deny,
    /// The rules of the send policy decide.
    Default,
}

/// Effect of a message that arrives during a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BusyMode {
    /// The message gets a turn of its own afterwards.
    #[value(alias = "queue")]
    Followup,
    /// The message is buffered; one turn handles all buffered messages of the same target.
    Collect,
    /// The message is injected into the running turn before its next model call.
    Steer,
    /// As `steer`, and the message gets a turn of its own afterwards as well.
    SteerBacklog,
    /// The running turn is canceled, and the newest message runs.
    Interrupt,
}

/// Messages to drop if more are queued than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Overflow {
    /// Drop the oldest, and tell the agent in the next turn.
    Summarize,
    /// Drop the oldest.
    Old,
    /// Drop the newest.
    New,
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
