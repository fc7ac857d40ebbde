//! The command line, as data.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

mod approval;
mod backup;
mod bench;
mod hook;
mod intent;
mod owner;
mod top;

pub use approval::{ApprovalAction, Speaker};
pub use backup::{BackupOptions, RestoreOptions};
pub use bench::{BenchHooksOptions, BenchOptions, BenchPart, BenchReadModelOptions};
pub use hook::{BacktestOptions, HookAction, ImportOptions, Status, TestOptions};
pub use intent::{IntentAction, ListedIntents, ProposedIntent};
pub use owner::OwnerAction;
pub use top::TopOptions;

/// The event bus for AI agents.
#[derive(Debug, Parser)]
#[command(name = "nexus", version, propagate_version = true)]
pub struct Cli {
    /// What every command takes.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Default, Args)]
pub struct Common {
    /// Configuration file [default: ./nexus.toml if there is one, else that of a running `nexus up`].
    #[arg(long, global = true, help_heading = "Global options", value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// NATS address, instead of the configured ones.
    #[arg(long, global = true, help_heading = "Global options", value_name = "URL")]
    pub server: Option<String>,
    /// Machine-readable output.
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole Nexus on this machine, until `nexus down` or Ctrl-C.
    Up(UpOptions),
    /// Stop what `nexus up` runs.
    Down(DownOptions),
    /// Show one webhook and one chat message on their whole way, then exit.
    Demo(DemoOptions),
    /// Check this machine, the server, every service and the model's provider, and say what is wrong.
    Doctor(DoctorOptions),
    /// Copy every stream and bucket into a directory, while work goes on.
    Backup(BackupOptions),
    /// Restore a backup onto an empty server or into a data directory.
    Restore(RestoreOptions),
    /// Manage streams, consumers and buckets on the server.
    #[command(subcommand)]
    Topology(TopologyAction),
    /// Post an event to adapter-svc.
    Send(SendOptions),
    /// Stream live messages.
    Tail(TailOptions),
    /// Live dashboard of rates, backlogs and sessions.
    Top(TopOptions),
    /// Show everything that an event led to, with times, from the ledgers.
    Trace(TraceOptions),
    /// Search and show stored events.
    #[command(subcommand)]
    Events(EventsAction),
    /// Manage dead letters: messages that were given up.
    #[command(subcommand)]
    Dlq(DlqAction),
    /// Messages that are held: after a restore nobody can tell whether they were handled.
    #[command(subcommand)]
    Recover(RecoverAction),
    /// Manage breakers: hooks that were paused after failures.
    #[command(subcommand)]
    Breaker(BreakerAction),
    /// Manage sessions.
    #[command(subcommand)]
    Session(SessionAction),
    /// Manage hooks: write, test, replay history, push, enable, disable.
    #[command(subcommand)]
    Hook(HookAction),
    /// Manage schedules.
    #[command(subcommand)]
    Schedule(ScheduleAction),
    /// Manage scheduled intents of agents.
    #[command(subcommand)]
    Intent(IntentAction),
    /// Serve hooks and the search as tools to an agent, over MCP on standard input and output.
    Mcp(McpOptions),
    /// Manage pending approvals.
    #[command(subcommand)]
    Approval(ApprovalAction),
    /// Manage the chat pages that are the owner's.
    #[command(subcommand)]
    Owner(OwnerAction),
    /// Check or show the configuration.
    #[command(subcommand)]
    Config(ConfigAction),
    /// Measure this machine: throughput, latency, cost per event, beside raw JetStream.
    Bench(BenchOptions),
    /// Write a commented configuration.
    Init(InitOptions),
}

/// `nexus up`.
#[derive(Debug, Args)]
pub struct UpOptions {
    /// Data directory.
    #[arg(long, default_value = ".nexus", value_name = "DIR")]
    pub data: PathBuf,
    /// Replicas of each service.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub replicas: u16,
    /// Port of the NATS server (setting `nats.servers`).
    #[arg(long, default_value_t = 4222)]
    pub nats_port: u16,
    /// Port of the web chat, webhooks and events (setting `adapter.listen`).
    #[arg(long, default_value_t = 8080)]
    pub http_port: u16,
}

/// `nexus down`.
#[derive(Debug, Args)]
pub struct DownOptions {
    /// Data directory.
    #[arg(long, default_value = ".nexus", value_name = "DIR")]
    pub data: PathBuf,
}

/// `nexus doctor`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct DoctorOptions {
    /// Do not ask the model's provider.
    #[arg(long)]
    pub offline: bool,
}

/// `nexus demo`.
#[derive(Debug, Args)]
pub struct DemoOptions {
    /// Keep the temporary directory with logs and data.
    #[arg(long)]
    pub keep: bool,
}

/// `nexus topology`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum TopologyAction {
    /// Print how the server differs from what is wanted; exit code 1 if it does.
    Plan,
    /// Create and update what differs.
    Apply,
}

/// `nexus send`.
#[derive(Debug, Args)]
pub struct SendOptions {
    /// The text; `-` = whole events in JSON, one or a list, from standard input.
    pub content: String,
    /// Channel of the event: `cli` or `http` with this machine's token.
    #[arg(long, default_value = "cli")]
    pub channel: String,
    /// Conversation of the event.
    #[arg(long, default_value = "me")]
    pub peer: String,
    /// Id of the event, stored as `local:ID` [default: a fresh ULID].
    #[arg(long)]
    pub id: Option<String>,
    /// Address of adapter-svc [default: that of a running `nexus up`, else `adapter.listen`].
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// File with the bearer token [default: this machine's own, in the data directory].
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
}

/// `nexus tail`.
#[derive(Debug, Args)]
pub struct TailOptions {
    /// Show only what contains this text: in a subject, an id or the content.
    pub filter: Option<String>,
    /// Which streams [default: events, dispatches, ledger, receipts].
    #[arg(long, value_delimiter = ',')]
    pub streams: Vec<String>,
    /// Begin this many messages back in each stream.
    #[arg(long, default_value_t = 0)]
    pub last: u64,
    /// End after this many messages.
    #[arg(long)]
    pub count: Option<u64>,
}

/// `nexus events`.
#[derive(Debug, Subcommand)]
pub enum EventsAction {
    /// Find events by words and by meaning.
    Search(SearchOptions),
    /// Show one event as JSON.
    Show {
        /// The event's id.
        event_id: String,
    },
}

/// `nexus events search`.
#[derive(Debug, Args)]
pub struct SearchOptions {
    /// What to look for.
    pub query: String,
    /// Only on this channel; may be given several times.
    #[arg(long, value_name = "CHANNEL")]
    pub channel: Vec<String>,
    /// Only what happened since then: 90s, 15m, 2h, 7d ago, or Unix milliseconds.
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// Only what happened before then.
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// At most this many.
    #[arg(long, value_name = "N")]
    pub limit: Option<u32>,
}

/// `nexus trace`.
#[derive(Debug, Args)]
pub struct TraceOptions {
    /// Id of the event.
    pub event_id: String,
    /// Wait until the chain is complete, at most this many seconds.
    #[arg(long, default_value_t = 0)]
    pub wait: u64,
}

/// `nexus dlq`.
#[derive(Debug, Subcommand)]
pub enum DlqAction {
    /// One line each, the newest last.
    List {
        /// Only those of this service.
        #[arg(long)]
        service: Option<String>,
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// One of them, whole.
    Show {
        /// Its number in the list.
        number: u64,
    },
    /// Republish one dead letter, or all, to the original subject.
    Redrive {
        /// Its number in the list.
        #[arg(required_unless_present = "all")]
        number: Option<u64>,
        /// All of them.
        #[arg(long, conflicts_with = "number")]
        all: bool,
    },
}

/// `nexus recover`.
#[derive(Debug, Subcommand)]
pub enum RecoverAction {
    /// One line each, the oldest first.
    List {
        /// Also those that were decided.
        #[arg(long)]
        all: bool,
    },
    /// Handle one, or all, once more. What was handled before is then handled twice.
    Redo {
        /// Its id in the list.
        #[arg(required_unless_present = "all")]
        id: Option<String>,
        /// All of them.
        #[arg(long, conflicts_with = "id")]
        all: bool,
    },
    /// Count one, or all, as handled. What was not handled then never is.
    Skip {
        /// Its id in the list.
        #[arg(required_unless_present = "all")]
        id: Option<String>,
        /// All of them.
        #[arg(long, conflicts_with = "id")]
        all: bool,
    },
}

/// `nexus breaker`.
#[derive(Debug, Subcommand)]
pub enum BreakerAction {
    /// One line each.
    List {
        /// Also those of hooks that failed long ago and work now.
        #[arg(long)]
        all: bool,
    },
    /// Let a paused hook run again at once, once its cause is mended.
    Reset {
        /// The hook's id.
        hook: String,
    },
}

/// `nexus schedule`.
#[derive(Debug, Subcommand)]
pub enum ScheduleAction {
    /// One line each.
    List {
        /// Only ids that begin so: `hook:`, `persona:`, `config:`.
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Everything about one.
    Show {
        /// The schedule's id.
        id: String,
    },
    /// The next times of a schedule, or of a text such as "cron 0 9 * * MON-FRI".
    Next {
        /// The schedule's id, or the text.
        schedule: String,
        /// The zone of a text's times.
        #[arg(long, value_name = "ZONE")]
        zone: Option<String>,
        /// How many.
        #[arg(long, default_value_t = 10)]
        count: usize,
    },
    /// Pause a schedule until it is resumed.
    Pause {
        /// The schedule's id.
        id: String,
        /// Why.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Resume; firings missed during the pause are not made up for.
    Resume {
        /// The schedule's id.
        id: String,
    },
    /// Fire once, now.
    Fire {
        /// The schedule's id.
        id: String,
    },
    /// Fire what a past period missed, at once and in order, at most 100.
    Backfill {
        /// The schedule's id.
        id: String,
        /// From this instant on: 2026-11-22T09:00:00Z.
        #[arg(long)]
        from: String,
        /// Before this instant [default: now].
        #[arg(long)]
        until: Option<String>,
    },
}

/// `nexus session`.
#[derive(Debug, Subcommand)]
pub enum SessionAction {
    /// Let a quarantined session run again, once its cause is mended.
    Release(SessionName),
    /// List sessions, with the number of records in their ledgers.
    List {
        /// Only those of this persona.
        #[arg(long)]
        persona: Option<String>,
        /// At most this many, up to 1000.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Show the state of a session.
    Show(SessionName),
    /// Stream a session's ledger as JSON lines.
    Tail {
        /// Which.
        #[command(flatten)]
        name: SessionName,
        /// End after this many records.
        #[arg(long)]
        count: Option<u64>,
        /// Begin at the ledger's beginning.
        #[arg(long)]
        all: bool,
    },
    /// Cancel the running turn and drop what waits.
    Abort(SessionOrderOptions),
    /// Cancel the running turn; what waits goes on.
    Interrupt(SessionOrderOptions),
    /// Start a new history.
    Reset(SessionOrderOptions),
    /// Give a session queue settings of its own; without any it has none.
    Queue {
        /// Which.
        #[command(flatten)]
        order: SessionOrderOptions,
        /// How a message meets a turn that runs.
        #[arg(long, value_parser = ["followup", "queue", "collect", "steer", "steer-backlog", "interrupt"])]
        mode: Option<String>,
        /// How long after the last message a collected turn begins, milliseconds.
        #[arg(long)]
        debounce_ms: Option<u64>,
        /// Messages that may wait behind a running turn.
        #[arg(long)]
        cap: Option<u32>,
        /// What becomes of messages beyond `cap`.
        #[arg(long, value_parser = ["summarize", "old", "new"])]
        overflow: Option<String>,
    },
    /// Make a new session of a session's history.
    Fork {
        /// Which.
        #[command(flatten)]
        name: SessionName,
        /// The new one's name.
        to: String,
        /// The last turn that it has; absent = the newest.
        #[arg(long)]
        turn: Option<String>,
    },
    /// Wait until nothing is left to do in a session; exit code 1 if something still is.
    Wait {
        /// Which.
        #[command(flatten)]
        name: SessionName,
        /// At most this many seconds.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
}

/// Names a session.
#[derive(Debug, Clone, Args)]
pub struct SessionName {
    /// Its persona.
    pub persona: String,
    /// Its name.
    pub session: String,
}

/// An order to a session.
#[derive(Debug, Clone, Args)]
pub struct SessionOrderOptions {
    /// Which.
    #[command(flatten)]
    pub name: SessionName,
    /// Why; it stands in the ledger.
    #[arg(long, default_value = "")]
    pub reason: String,
}

/// `nexus config`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ConfigAction {
    /// Print every fault and warning; exit code 1 if there is a fault.
    Check,
    /// Print it with all defaults, secrets as references.
    Show,
}

/// `nexus init`.
#[derive(Debug, Args)]
pub struct InitOptions {
    /// Directory to write into.
    #[arg(default_value = ".")]
    pub directory: PathBuf,
    /// Write over what is there.
    #[arg(long)]
    pub force: bool,
}

/// `nexus mcp`.
#[derive(Debug, Args)]
pub struct McpOptions {
    /// Author of the hooks that are made.
    #[arg(long, default_value = "mcp")]
    pub created_by: String,
}
