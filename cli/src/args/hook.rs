//! Arguments of `nexus hook`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `nexus hook`.
#[derive(Debug, Subcommand)]
pub enum HookAction {
    /// Write a new hook file and the type definitions for an editor.
    New {
        /// Name of the hook: the file name without `.ts`.
        name: String,
        /// Directory to write into; a file in the hooks directory becomes active at once.
        #[arg(long, default_value = "drafts", value_name = "DIR")]
        dir: PathBuf,
    },
    /// Run one hook file on one event as hook-svc does, without a dispatch.
    Test(TestOptions),
    /// Replay stored events through a hook file and print when it would have fired.
    Backtest(BacktestOptions),
    /// Write the hooks of a Claude Code settings file as a `hooks.yaml`, with a script for each command that needs a shell; exit code
    /// 1 if something was left out.
    ImportClaude(ImportOptions),
    /// Register a hook file or a directory of hooks; they become active at once.
    Push {
        /// File or directory.
        path: PathBuf,
        /// Id of the hook [default: the file's name without `.ts`; in a directory, the path below it].
        #[arg(long)]
        id: Option<String>,
    },
    /// List hooks.
    List {
        /// Only hooks with this status.
        #[arg(long)]
        status: Option<Status>,
        /// Only hooks of this author.
        #[arg(long)]
        created_by: Option<String>,
    },
    /// Show a hook: its state, its last invocations and its source.
    Show {
        /// Id of the hook.
        id: String,
    },
    /// Enable a hook; a one-shot hook that has fired may fire once more.
    Enable {
        /// Id of the hook.
        id: String,
    },
    /// Disable a hook.
    Disable {
        /// Id of the hook.
        id: String,
        /// Reason, kept with the hook's state.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Delete a hook that was pushed or created by a tool; its history is kept.
    Rm {
        /// Id of the hook.
        id: String,
    },
    /// List the last invocations of a hook, newest last.
    Logs {
        /// Id of the hook.
        id: String,
        /// Maximum number of earlier invocations.
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: u32,
        /// Continue with new invocations.
        #[arg(long, short)]
        follow: bool,
    },
}

/// `nexus hook import-claude`.
#[derive(Debug, Args)]
pub struct ImportOptions {
    /// Settings file: `.claude/settings.json`.
    pub file: PathBuf,
    /// `hooks.yaml` to write.
    #[arg(long, default_value = "hooks.yaml", value_name = "FILE")]
    pub out: PathBuf,
    /// Directory to write scripts into.
    #[arg(long, default_value = "claude-hooks", value_name = "DIR")]
    pub scripts: PathBuf,
}

/// Status of a hook, as a filter.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Status {
    /// Enabled and healthy.
    Active,
    /// Enabled; at least 25 % of its evaluations in the last hour failed.
    Degraded,
    /// Paused by its circuit breaker.
    Paused,
    /// Waiting for a channel that is not configured.
    Waiting,
    /// Disabled.
    Disabled,
    /// The file cannot be parsed.
    Errored,
}

/// `nexus hook test`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("choice").required(true).args(["event", "text"])))]
pub struct TestOptions {
    /// Hook file.
    pub file: PathBuf,
    /// Event: a file with one event as JSON (`-` reads standard input), or the id of a stored event.
    #[arg(long)]
    pub event: Option<String>,
    /// Text of a direct message, instead of an event.
    #[arg(long)]
    pub text: Option<String>,
    /// Channel of the direct message.
    #[arg(long, default_value = "cli")]
    pub channel: String,
    /// Current time as the hook sees it, Unix milliseconds [default: now].
    #[arg(long, value_name = "N")]
    pub now: Option<i64>,
}

/// `nexus hook backtest`.
#[derive(Debug, Args)]
pub struct BacktestOptions {
    /// Hook file.
    pub file: PathBuf,
    /// Time of the oldest event: an age (90s, 15m, 2h, 7d, 1w), an instant (2026-11-22T09:00:00Z), Unix milliseconds, or `all`.
    #[arg(long, default_value = "7d", value_name = "WHEN")]
    pub since: String,
    /// Only events on this channel.
    #[arg(long)]
    pub channel: Option<String>,
    /// Maximum number of events to replay.
    #[arg(long, default_value_t = 10_000_000, value_name = "N")]
    pub limit: u64,
    /// Maximum number of fires to list.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub show: usize,
}
