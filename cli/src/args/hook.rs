//! `nexus hook`, as data.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `nexus hook`.
#[derive(Debug, Subcommand)]
pub enum HookAction {
    /// Write a hook to begin with, and the types that an editor completes it by.
    New {
        /// Its name: the file's, without `.ts`.
        name: String,
        /// Directory to write into; in the hooks directory it would be in force at once.
        #[arg(long, default_value = "drafts", value_name = "DIR")]
        dir: PathBuf,
    },
    /// Run one hook file on one event, as hook-svc would, and dispatch nothing.
    Test(TestOptions),
    /// Replay stored events through a hook file that is not active, and say when it would have fired.
    Backtest(BacktestOptions),
    /// Write the hooks of a Claude Code settings file as a `hooks.yaml`, with a script for each command that needs a shell.
    ImportClaude(ImportOptions),
    /// Register a hook file, or all of a directory; it sees events at once.
    Push {
        /// The file or directory.
        path: PathBuf,
        /// Id of the hook [default: the file's name without `.ts`; in a directory, the path below it].
        #[arg(long)]
        id: Option<String>,
    },
    /// List hooks, one line each.
    List {
        /// Only those of this status.
        #[arg(long)]
        status: Option<Status>,
        /// Only those of this author.
        #[arg(long)]
        created_by: Option<String>,
    },
    /// Show a hook: its state, its last invocations and its source.
    Show {
        /// Its id.
        id: String,
    },
    /// Enable a hook; a one-shot hook that has fired may fire once more.
    Enable {
        /// Its id.
        id: String,
    },
    /// Disable a hook.
    Disable {
        /// Its id.
        id: String,
        /// Why.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Delete a hook that was pushed or made by a tool; its history stays.
    Rm {
        /// Its id.
        id: String,
    },
    /// List a hook's last invocations, the newest last.
    Logs {
        /// Its id.
        id: String,
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        last: u32,
        /// Go on with new ones.
        #[arg(long, short)]
        follow: bool,
    },
}

/// `nexus hook import-claude`.
#[derive(Debug, Args)]
pub struct ImportOptions {
    /// The settings file: `.claude/settings.json`.
    pub file: PathBuf,
    /// The `hooks.yaml` to write.
    #[arg(long, default_value = "hooks.yaml", value_name = "FILE")]
    pub out: PathBuf,
    /// Directory to write scripts into.
    #[arg(long, default_value = "claude-hooks", value_name = "DIR")]
    pub scripts: PathBuf,
}

/// A status to filter by.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Status {
    /// It sees events.
    Active,
    /// It sees events, and a quarter of what it was tried upon in the last hour failed.
    Degraded,
    /// Its breaker is open.
    Paused,
    /// A channel that it needs is not configured.
    Waiting,
    /// Switched off.
    Disabled,
    /// Its file does not parse.
    Errored,
}

/// `nexus hook test`.
#[derive(Debug, Args)]
pub struct TestOptions {
    /// The hook file.
    pub file: PathBuf,
    /// The event: a file with a whole one in JSON (`-` = standard input), or the id of a stored one.
    #[arg(long, required_unless_present = "text")]
    pub event: Option<String>,
    /// Instead of an event: a direct message with this text.
    #[arg(long, conflicts_with = "event")]
    pub text: Option<String>,
    /// Channel of that message.
    #[arg(long, default_value = "cli")]
    pub channel: String,
    /// Time that the hook reads as now, Unix milliseconds [default: now].
    #[arg(long)]
    pub now: Option<i64>,
}

/// `nexus hook backtest`.
#[derive(Debug, Args)]
pub struct BacktestOptions {
    /// The hook file.
    pub file: PathBuf,
    /// Events stored since then: `90m`, `12h`, `7d`, or `all`.
    #[arg(long, default_value = "7d")]
    pub since: String,
    /// Only events on this channel.
    #[arg(long)]
    pub channel: Option<String>,
    /// At most this many events.
    #[arg(long, default_value_t = 10_000_000)]
    pub limit: u64,
    /// Fires that are listed.
    #[arg(long, default_value_t = 20)]
    pub show: usize,
}
