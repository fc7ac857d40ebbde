//! The command line, as data.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

mod approval;
mod audit;
mod auth;
mod backfill;
mod backup;
mod bench;
mod channel;
mod dlq;
mod hook;
mod intent;
mod logs;
mod owner;
mod schedule;
mod session;
mod top;

pub use approval::{ApprovalAction, Speaker};
pub use audit::AuditOptions;
pub use auth::{AddUser, AuthAction, AuthChange, AuthFiles, InitAuth, NamedUser, RevokeUser, RotateUser};
pub use backfill::{BackfillAction, StartBackfillOptions};
pub use backup::{BackupOptions, RestoreOptions};
pub use bench::{BenchHooksOptions, BenchOptions, BenchPart, BenchQueriesOptions, BenchReadModelOptions};
pub use channel::{AccountName, ChannelAction};
pub use dlq::{DlqAction, LetterChoice};
pub use hook::{BacktestOptions, HookAction, ImportOptions, Status, TestOptions};
pub use intent::{IntentAction, ListedIntents, ProposedIntent};
pub use logs::LogsOptions;
pub use owner::OwnerAction;
pub use schedule::ScheduleAction;
pub use session::{BusyMode, Overflow, SendChoice, SessionAction, SessionName, SessionOrderOptions};
pub use top::TopOptions;

/// The event bus for AI agents.
#[derive(Debug, Parser)]
#[command(name = "nexus", version, propagate_version = true)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub common: Common,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Default, Args)]
pub struct Common {
    /// Configuration file [default: ./nexus.toml if there is one, else that of a running `nexus up`].
    #[arg(long, global = true, help_heading = "Global options", value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Address of the NATS server; overrides the configuration.
    #[arg(long, global = true, help_heading = "Global options", value_name = "URL")]
    pub server: Option<String>,
    /// Print JSON: an array for a list, one object for one thing, one object per line for a stream.
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// Print ids only, one per line.
    #[arg(long, short, global = true, help_heading = "Global options", conflicts_with = "json")]
    pub quiet: bool,
    /// Do not cut tables to the width of the terminal (80 columns without one); show all columns.
    #[arg(long, global = true, help_heading = "Global options")]
    pub wide: bool,
    /// Show times in UTC instead of the local time zone.
    #[arg(long, global = true, help_heading = "Global options")]
    pub utc: bool,
}

/// The commands of `nexus`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start NATS and all services on this machine; run until Ctrl-C or `nexus down`.
    Up(UpOptions),
    /// Stop everything that `nexus up` started.
    Down(DownOptions),
    /// Start Nexus, send one webhook and one chat message, print their traces, and stop.
    Demo(DemoOptions),
    /// Show whether the server and every replica of every service are ready; exit code 1 if one is not.
    Status,
    /// Show the logs of a `nexus up` on this machine, merged by time.
    Logs(LogsOptions),
    /// Check this machine, the NATS server, every service and the model provider.
    Doctor(DoctorOptions),
    /// Copy every stream and bucket into a directory while the services run.
    Backup(BackupOptions),
    /// Restore a backup onto an empty server or into a data directory.
    Restore(RestoreOptions),
    /// Manage streams, consumers and buckets on the server.
    #[command(subcommand)]
    Topology(TopologyAction),
    /// Send an event through adapter-svc.
    Send(SendOptions),
    /// Stream live messages.
    Tail(TailOptions),
    /// Live dashboard of rates, backlogs and sessions.
    Top(TopOptions),
    /// Show everything that an event caused, with times.
    Trace(TraceOptions),
    /// Search or show stored events.
    #[command(subcommand)]
    Events(EventsAction),
    /// Manage dead letters: messages that could not be processed.
    #[command(subcommand)]
    Dlq(DlqAction),
    /// Manage held messages, for which it is unknown whether they were processed (deliveries: `nexus restore --list`).
    #[command(subcommand)]
    Recover(RecoverAction),
    /// Manage circuit breakers: hooks that are paused after repeated errors.
    #[command(subcommand)]
    Breaker(BreakerAction),
    /// List what was decided and changed, and by whom, newest last.
    Audit(AuditOptions),
    /// Manage sessions.
    #[command(subcommand)]
    Session(SessionAction),
    /// Manage hooks: create, test, backtest, push, enable, disable.
    #[command(subcommand)]
    Hook(HookAction),
    /// Manage schedules.
    #[command(subcommand)]
    Schedule(ScheduleAction),
    /// Manage scheduled intents.
    #[command(subcommand)]
    Intent(IntentAction),
    /// Run an MCP server on standard input and output: hooks and search as tools.
    Mcp(McpOptions),
    /// Manage pending approvals.
    #[command(subcommand)]
    Approval(ApprovalAction),
    /// Manage the accounts on platforms, and who may write to them.
    #[command(subcommand)]
    Channel(ChannelAction),
    /// Read what accounts' conversations on platforms kept, and store it as events.
    #[command(subcommand)]
    Backfill(BackfillAction),
    /// Manage the web chat browsers that belong to the owner.
    #[command(subcommand)]
    Owner(OwnerAction),
    /// Manage the users of the bus: keys, credentials, certificates.
    #[command(subcommand)]
    Auth(AuthAction),
    /// Check or show the configuration.
    #[command(subcommand)]
    Config(ConfigAction),
    /// Measure throughput, latency and processor time per event on this machine.
    Bench(BenchOptions),
    /// Write configuration files with comments.
    Init(InitOptions),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands.
    Man {
        /// Directory to write into.
        directory: PathBuf,
    },
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
    /// Port of the NATS server; overrides `nats.servers`.
    #[arg(long, default_value_t = 4222, value_name = "N")]
    pub nats_port: u16,
    /// Port for the web chat, webhooks and events; overrides `adapter.listen`.
    #[arg(long, default_value_t = 8080, value_name = "N")]
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
    /// Skip the check of the model provider.
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
    /// Print the differences between the server and the required topology; exit code 1 if there are any.
    Plan,
    /// Create missing streams, consumers and buckets, and update those that differ.
    Apply,
}

/// `nexus send`.
#[derive(Debug, Args)]
pub struct SendOptions {
    /// Text of the message; `-` reads complete events as JSON (one object or an array) from standard input.
    pub content: String,
    /// Channel of the event; this machine's token allows `cli` and `http`.
    #[arg(long, default_value = "cli")]
    pub channel: String,
    /// Conversation (peer) of the event.
    #[arg(long, default_value = "me")]
    pub peer: String,
    /// Id of the event, stored as `local:ID` [default: a new ULID].
    #[arg(long)]
    pub id: Option<String>,
    /// Address of adapter-svc [default: address of the running `nexus up`, else `adapter.listen`].
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// File with the bearer token [default: the local token in the data directory].
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<PathBuf>,
}

/// `nexus tail`.
#[derive(Debug, Args)]
pub struct TailOptions {
    /// Show only messages that contain this text in their subject, id or description.
    pub filter: Option<String>,
    /// Streams to read [default: events, dispatches, ledger, receipts].
    #[arg(long, value_delimiter = ',')]
    pub streams: Vec<String>,
    /// Start with the last N messages of each stream.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub last: u64,
    /// Maximum number of messages; the command ends after the last one.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
}

/// `nexus events`.
#[derive(Debug, Subcommand)]
pub enum EventsAction {
    /// Search events by words and by meaning.
    Search(SearchOptions),
    /// Show one event.
    Show {
        /// Id of the event.
        event_id: String,
    },
}

/// `nexus events search`.
#[derive(Debug, Args)]
pub struct SearchOptions {
    /// Search text.
    pub query: String,
    /// Only events on this channel; can be repeated.
    #[arg(long, value_name = "CHANNEL")]
    pub channel: Vec<String>,
    /// Only events since this time: an age (90s, 15m, 2h, 7d, 1w), an instant (2026-11-22T09:00:00Z) or Unix milliseconds.
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// Only events before this time, in the same form as `--since`.
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// Maximum number of entries.
    #[arg(long, value_name = "N")]
    pub limit: Option<u32>,
}

/// `nexus trace`.
#[derive(Debug, Args)]
pub struct TraceOptions {
    /// Id of the event.
    pub event_id: String,
    /// Wait until the trace is complete, at most this many seconds.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub wait: u64,
}

/// `nexus recover`.
#[derive(Debug, Subcommand)]
pub enum RecoverAction {
    /// List held messages, oldest first.
    List {
        /// Include messages that were decided.
        #[arg(long)]
        all: bool,
    },
    /// Process one held message, or all, again; a message that was already processed is processed twice.
    #[command(group(clap::ArgGroup::new("choice").required(true).args(["id", "all"])))]
    Redo {
        /// Id of the held message, as `nexus recover list` prints it.
        id: Option<String>,
        /// All of them.
        #[arg(long)]
        all: bool,
    },
    /// Mark one held message, or all, as processed; a message that was not processed is lost.
    #[command(group(clap::ArgGroup::new("choice").required(true).args(["id", "all"])))]
    Skip {
        /// Id of the held message, as `nexus recover list` prints it.
        id: Option<String>,
        /// All of them.
        #[arg(long)]
        all: bool,
    },
}

/// `nexus breaker`.
#[derive(Debug, Subcommand)]
pub enum BreakerAction {
    /// List circuit breakers.
    List {
        /// Include hooks whose last error is long ago.
        #[arg(long)]
        all: bool,
    },
    /// Close the breaker of a paused hook, so that it runs again at once.
    Reset {
        /// Id of the hook.
        hook: String,
    },
}

/// `nexus config`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ConfigAction {
    /// Check the configuration; exit code 1 if it has a fault.
    Check,
    /// Print the configuration with all defaults; secrets are printed as references.
    Show,
}

/// `nexus init`.
#[derive(Debug, Args)]
pub struct InitOptions {
    /// Directory to write into.
    #[arg(default_value = ".")]
    pub directory: PathBuf,
    /// Overwrite existing files.
    #[arg(long)]
    pub force: bool,
}

/// `nexus mcp`.
#[derive(Debug, Args)]
pub struct McpOptions {
    /// Author of hooks that are created through this server.
    #[arg(long, default_value = "mcp")]
    pub created_by: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Command, String> {
        let whole = std::iter::once("nexus").chain(words.iter().copied());
        let parsed = Cli::try_parse_from(whole).map_err(|error| error.to_string())?;
        Ok(parsed.command)
    }

    #[test]
    fn a_missing_choice_names_both_ways() {
        for (words, told) in [
            (vec!["dlq", "redrive"], "<NUMBER|--all>"),
            (vec!["dlq", "drop"], "<NUMBER|--all>"),
            (vec!["recover", "redo"], "<ID|--all>"),
            (vec!["recover", "skip"], "<ID|--all>"),
            (vec!["hook", "test", "a.ts"], "<--event <EVENT>|--text <TEXT>>"),
        ] {
            let error = parse(&words).expect_err("neither is given");
            assert!(error.contains(told), "{words:?}: {error}");
        }

        assert!(parse(&["dlq", "redrive", "1", "--all"]).is_err(), "both are given");
        assert!(parse(&["dlq", "redrive", "--all", "--service", "hook-svc"]).is_ok());
    }

    #[test]
    fn former_names_of_options_and_values_are_accepted_but_not_shown() {
        let queue = parse(&["session", "queue", "a", "b", "--mode", "queue"]);
        let Ok(Command::Session(SessionAction::Queue { mode, .. })) = queue else {
            panic!("{queue:?}");
        };
        assert_eq!(mode, Some(BusyMode::Followup));

        let other = parse(&["session", "queue", "a", "b", "--mode", "quick"]).expect_err("there is no such mode");
        assert!(
            other.contains("[possible values: followup, collect, steer, steer-backlog, interrupt]"),
            "{other}"
        );

        for option in ["--agent", "--persona"] {
            let listed = parse(&["intent", "list", option, "atlas"]);
            let Ok(Command::Intent(IntentAction::List(listed))) = listed else {
                panic!("{listed:?}");
            };
            assert_eq!(listed.agent.as_deref(), Some("atlas"));
        }
    }
}
