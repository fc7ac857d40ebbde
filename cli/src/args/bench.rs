//! Arguments of `nexus bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `nexus bench`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchOptions {
    /// Number of events in the throughput run.
    #[arg(long, default_value_t = 60_000, value_name = "N")]
    pub events: u64,
    /// Number of sessions that receive the events.
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    pub sessions: u64,
    /// Size of an event, bytes.
    #[arg(long, default_value_t = 1_024, value_name = "N")]
    pub size: usize,
    /// Number of deterministic hooks; one of them fires.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub hooks: usize,
    /// Rate of the latency run, events per second.
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub rate: u64,
    /// Length of the latency run, seconds.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub seconds: u64,
    /// Durability levels to measure: process, power, replicated.
    #[arg(long, value_delimiter = ',', default_value = "process")]
    pub durability: Vec<String>,
    /// Acceptance to wait for: `spool` (stored on disk, the default of adapter-svc) or `stream` (stored in JetStream).
    #[arg(long, value_parser = ["spool", "stream"], default_value = "spool")]
    pub accept: String,
    /// Measure only what replicas add: for each of these numbers of replicas of every service, the throughput,
    /// processor time and messages of a new installation with one hook.
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub replicas: Vec<u16>,
    /// Number of times that the list of `--replicas` is measured, in turn; medians are shown.
    #[arg(long, default_value_t = 1, requires = "replicas", value_parser = clap::value_parser!(u16).range(1..=99), value_name = "N")]
    pub runs: u16,
    /// Measure only growth: memory, disk and time per event, at `--rate` for this long, with each of `--replicas` or one.
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=1_440))]
    pub steady: Option<u64>,
    /// Measure only a backlog: `--events` events wait while no hook-svc runs, then so many replicas of hook-svc as
    /// `--replicas` says start at once beside one of each other service.
    #[arg(long, requires = "replicas", conflicts_with = "steady")]
    pub backlog: bool,
    /// Keep the temporary directory with logs and data.
    #[arg(long)]
    pub keep: bool,
    /// Measure one part alone.
    #[command(subcommand)]
    pub part: Option<BenchPart>,
}

/// One part of the benchmark.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchPart {
    /// Measure hook evaluation without a server, sandboxed and not, with and without `@match`, next to a plain Bun loop.
    Hooks(BenchHooksOptions),
    /// Measure the read model without a server: time to build it and latency of `search()`.
    ReadModel(BenchReadModelOptions),
    /// Measure a hook's queries of the read model without a server: over the worker's protocol, next to a plain Bun loop
    /// that opens the file.
    Queries(BenchQueriesOptions),
}

/// `nexus bench hooks`.
#[derive(Debug, Clone, Args)]
pub struct BenchHooksOptions {
    /// Numbers of hooks.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000")]
    pub counts: Vec<usize>,
    /// Duration of each measurement, seconds.
    #[arg(long, default_value_t = 3.0, value_name = "N")]
    pub seconds: f64,
    /// Number of worker processes; 0 starts one for each core.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub workers: usize,
}

/// `nexus bench read-model`.
#[derive(Debug, Clone, Args)]
pub struct BenchReadModelOptions {
    /// Numbers of events, each at least 100.
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000")]
    pub events: Vec<u64>,
    /// Directory of an embedding model (`.tools/models/…`); without one, `search()` uses words only.
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
}

/// Options of `nexus bench queries`.
#[derive(Debug, Clone, Args)]
pub struct BenchQueriesOptions {
    /// Numbers of queries that one hook makes for each event.
    #[arg(long, value_delimiter = ',', default_value = "0,1,10,100")]
    pub counts: Vec<usize>,
    /// Number of events in the read model.
    #[arg(long, default_value_t = 30_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub history: u64,
    /// Duration of each measurement, seconds.
    #[arg(long, default_value_t = 3.0, value_name = "N")]
    pub seconds: f64,
}
