//! The command line, as data.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

mod approval;
mod bench;
mod hook;
mod intent;
mod top;

pub use approval::{ApprovalAction, Speaker};
pub use bench::{BenchHooksOptions, BenchOptions, BenchPart, BenchReadModelOptions};
pub use hook::{BacktestOptions, HookAction, Status, TestOptions};
pub use intent::{IntentAction, ListedIntents, ProposedIntent};
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
    /// Configuration file [default: ./nexus.toml where there is one, else that of a running `nexus up`].
    #[arg(long, global = true, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// NATS address, instead of the configured ones.
    #[arg(long, global = true, value_name = "URL")]
    pub server: Option<String>,
    /// Machine-readable output.
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole Nexus on this machine, until `nexus down` or Ctrl-C.
    Up(UpOptions),
    /// Stop what `nexus up` runs.
    Down(DownOptions),
    /// Show one webhook and one chat message on their whole way, and end.
    Demo(DemoOptions),
    /// Check this machine, the server and every service, and say what is wrong.
    Doctor,
    /// Streams, consumers and buckets on the server.
    #[command(subcommand)]
    Topology(TopologyAction),
    /// Publish an event.
    Send(SendOptions),
    /// Show what passes, as it passes.
    Tail(TailOptions),
    /// Show what is at work: rates, what waits where, sessions.
    Top(TopOptions),
    /// Show everything that an event led to, with times, from the ledgers.
    Trace(TraceOptions),
    /// Events in the read model.
    #[command(subcommand)]
    Events(EventsAction),
    /// Messages that were given up.
    #[command(subcommand)]
    Dlq(DlqAction),
    /// Hooks that keep failing.
    #[command(subcommand)]
    Breaker(BreakerAction),
    /// Sessions.
    #[command(subcommand)]
    Session(SessionAction),
    /// Hooks: write, test, replay history, put in force, switch.
    #[command(subcommand)]
    Hook(HookAction),
    /// What fires when.
    #[command(subcommand)]
    Schedule(ScheduleAction),
    /// What agents asked of their own future.
    #[command(subcommand)]
    Intent(IntentAction),
    /// Serve hooks and the search as tools to an agent, over MCP on standard input and output.
    Mcp(McpOptions),
    /// What waits for a human's word.
    #[command(subcommand)]
    Approval(ApprovalAction),
    /// The configuration.
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
    /// Where everything is kept.
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
    /// The server knows users and what each may do; their passwords are kept in the data directory.
    #[arg(long)]
    pub users: bool,
}

/// `nexus down`.
#[derive(Debug, Args)]
pub struct DownOptions {
    /// Where it is kept.
    #[arg(long, default_value = ".nexus", value_name = "DIR")]
    pub data: PathBuf,
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
    /// Print how the server differs from what is wanted; exit code 1 where it does.
    Plan,
    /// Make and change what differs.
    Apply,
}

/// `nexus send`.
#[derive(Debug, Args)]
pub struct SendOptions {
    /// The text; `-` = a whole Event in JSON from standard input.
    pub content: String,
    /// Channel of the event.
    #[arg(long, default_value = "cli")]
    pub channel: String,
    /// Conversation of the event.
    #[arg(long, default_value = "me")]
    pub peer: String,
    /// Id of the event [default: `cli:` and a fresh ULID].
    #[arg(long)]
    pub id: Option<String>,
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
    /// Publish one, or all, again where they first came in.
    Redrive {
        /// Its number in the list.
        #[arg(required_unless_present = "all")]
        number: Option<u64>,
        /// All of them.
        #[arg(long, conflicts_with = "number")]
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
    /// Let nothing fire until it is resumed.
    Pause {
        /// The schedule's id.
        id: String,
        /// Why.
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Go on; what lay in the pause is not made up for.
    Resume {
        /// The schedule's id.
        id: String,
    },
    /// Fire once, now.
    Fire {
        /// The schedule's id.
        id: String,
    },
    /// Fire what lies in a time past, at once and in order, at most 100.
    Backfill {
        /// The schedule's id.
        id: String,
        /// From this instant on: 2026-11-22T09:00:00Z.
        #[arg(long)]
        from: String,
        /// Before this instant; now where there is none.
        #[arg(long)]
        until: Option<String>,
    },
}

/// `nexus session`.
#[derive(Debug, Subcommand)]
pub enum SessionAction {
    /// Let a quarantined session run again, once its cause is mended.
    Release(SessionName),
    /// Which sessions there are, and how many records their ledgers have.
    List {
        /// Only those of this persona.
        #[arg(long)]
        persona: Option<String>,
        /// At most this many, up to 1000.
        #[arg(long, default_value_t = 50)]
        limit: usize,
    },
    /// Where a session stands.
    Show(SessionName),
    /// What is written into a session's ledger, as it is written; JSON lines.
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
    /// Begin history anew.
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
    /// Wait until nothing is left to do in a session; exit code 1 where something is.
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
    /// Say everything that is wrong with it; exit code 1 where something is.
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
