//! The `nexus` command: one file per command group.
//!
//! [`launch`] starts a whole Nexus on this machine, for `up`, `demo`, `bench` and the tests; the other modules use a
//! running one over the bus alone. Each command makes one value, which [`output`] shows as a table, as JSON or as ids,
//! and ends with a code of [`exit`].

// `say!` and `complain!` print instead: the standard macros panic if the reader has gone.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod approval;
pub mod args;
pub mod audit;
pub mod auth;
pub mod backfill;
pub mod backup;
#[cfg(feature = "bench")]
pub mod bench;
pub mod breaker;
pub mod channel;
pub mod codes;
pub mod config;
pub mod connect;
pub mod demo;
pub mod dlq;
pub mod doctor;
pub mod down;
pub mod events;
pub mod exit;
pub mod gateway;
pub mod hook;
pub mod http;
pub mod init;
pub mod intent;
pub mod launch;
pub mod logs;
pub mod manual;
pub mod mcp;
pub mod output;
pub mod owner;
pub mod recover;
pub mod schedule;
pub mod send;
pub mod service;
pub mod session;
pub mod status;
pub mod system;
pub mod tail;
#[cfg(test)]
mod testing;
pub mod top;
pub mod topology;
pub mod trace;
pub mod up;
pub mod when;

use anyhow::Result;
use args::{Cli, Command};

/// Error of `nexus bench` in a build without it.
#[cfg(not(feature = "bench"))]
const WITHOUT_BENCH: &str = "this `nexus` was built without the benchmark: `make bench` builds one with it \
                             (`cargo build --release -p cli --features bench`)";

/// Runs the command of the command line.
///
/// # Errors
/// Fails with the fault, for people.
pub async fn execute(cli: Cli) -> Result<()> {
    let common = cli.common;
    connect::check_named_config(&common)?;

    match cli.command {
        Command::Up(options) => up::execute(&common, options).await,
        Command::Down(options) => down::execute(&common, &options).await,
        Command::Demo(options) => demo::execute(&common, options).await,
        Command::Doctor(options) => doctor::execute(&common, options).await,
        Command::Backup(options) => backup::take(&common, &options).await,
        Command::Restore(options) => backup::restore(&common, &options).await,
        Command::Topology(action) => topology::execute(&common, action).await,
        Command::Send(options) => send::execute(&common, options).await,
        Command::Tail(options) => tail::execute(&common, options).await,
        Command::Top(options) => top::execute(&common, options).await,
        Command::Trace(options) => trace::execute(&common, options).await,
        Command::Events(action) => events::execute(&common, action).await,
        Command::Dlq(action) => dlq::execute(&common, action).await,
        Command::Recover(action) => recover::execute(&common, action).await,
        Command::Breaker(action) => breaker::execute(&common, action).await,
        Command::Audit(options) => audit::execute(&common, options).await,
        Command::Session(action) => session::execute(&common, action).await,
        Command::Hook(action) => hook::execute(&common, action).await,
        Command::Schedule(action) => schedule::execute(&common, action).await,
        Command::Intent(action) => intent::execute(&common, action).await,
        Command::Mcp(options) => mcp::execute(&common, options).await,
        Command::Approval(action) => approval::execute(&common, action).await,
        Command::Channel(action) => channel::execute(&common, action).await,
        Command::Backfill(action) => backfill::execute(&common, action).await,
        Command::Owner(action) => owner::execute(&common, action).await,
        Command::Config(action) => config::execute(&common, action),
        #[cfg(feature = "bench")]
        Command::Bench(options) => bench::execute(&common, options).await,
        #[cfg(not(feature = "bench"))]
        Command::Bench(_) => Err(exit::failure(exit::Exit::Refused, WITHOUT_BENCH)),
        Command::Status => status::execute(&common).await,
        Command::Logs(options) => logs::execute(&common, &options).await,
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { directory } => manual::pages(&common, &directory),
        Command::Auth(action) => auth::execute(&common, action).await,
        Command::Init(options) => init::execute(&common, &options),
    }
}
