//! `nexus bench`, as data.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `nexus bench`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchOptions {
    /// Events of the throughput run.
    #[arg(long, default_value_t = 60_000)]
    pub events: u64,
    /// Sessions that they are spread over.
    #[arg(long, default_value_t = 1_000)]
    pub sessions: u64,
    /// Size of an event, bytes.
    #[arg(long, default_value_t = 1_024)]
    pub size: usize,
    /// Deterministic hooks; one of them fires.
    #[arg(long, default_value_t = 10)]
    pub hooks: usize,
    /// Rate of the latency run, events a second.
    #[arg(long, default_value_t = 500)]
    pub rate: u64,
    /// Length of the latency run, seconds.
    #[arg(long, default_value_t = 20)]
    pub seconds: u64,
    /// Which durabilities are run: process, power, replicated.
    #[arg(long, value_delimiter = ',', default_value = "process")]
    pub durability: Vec<String>,
    /// What a source's answer waits for: `spool` (on the disk, the default of adapter-svc) or `stream` (in JetStream).
    #[arg(long, value_parser = ["spool", "stream"], default_value = "spool")]
    pub accept: String,
    /// Keep the temporary directory with logs and data.
    #[arg(long)]
    pub keep: bool,
    /// Something else than the whole.
    #[command(subcommand)]
    pub part: Option<BenchPart>,
}

/// A part that is measured alone.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchPart {
    /// Hooks alone, without a server: as many as are said, confined or not, with `@match` or without, beside a bare Bun
    /// loop over the same hooks in the same run.
    Hooks(BenchHooksOptions),
    /// The read model alone, without a server: how fast it is made, and how soon `search()` answers.
    ReadModel(BenchReadModelOptions),
}

/// `nexus bench hooks`.
#[derive(Debug, Clone, Args)]
pub struct BenchHooksOptions {
    /// How many hooks.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000")]
    pub counts: Vec<usize>,
    /// How long each figure is measured, seconds.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Worker processes; 0 = one a core.
    #[arg(long, default_value_t = 0)]
    pub workers: usize,
}

/// `nexus bench read-model`.
#[derive(Debug, Clone, Args)]
pub struct BenchReadModelOptions {
    /// How many events; at least 100.
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000")]
    pub events: Vec<u64>,
    /// Folder of a model, word vectors or a network (`.tools/models/…`); without one `search()` goes by words alone.
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
}
