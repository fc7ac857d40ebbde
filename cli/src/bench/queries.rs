//! `nexus bench queries`: the cost of a hook's queries of the read model. Events go to workers as hook-svc sends them,
//! with a hook that makes a number of queries for each event, beside hooks that pass. The same queries on the same file by
//! a bare Bun loop that opens it, in the same run, are the measure for the way over the worker's protocol.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hook_svc::config::HooksConfig;
use hook_svc::dry_run::pool_config;
use hook_svc::runner::{HookSet, HookSource, NoHost, PoolConfig, SandboxMode, WorkerPools};
use serde::Serialize;
use shared::clock::SystemClock;
use shared::model::event::Event;
use shared::projection::Projection;

use super::figure::Figure;
use super::{floor, hooks, read_model, step};
use crate::args::{BenchQueriesOptions, Common};
use crate::output::{Column, Table, View};

/// Number of hooks that pass every event, beside the one that asks.
const PASSING: usize = 9;

/// Number of different events that are looked up.
const MAX_IDS: u64 = 1_000;

/// Processor time that an event may take, in milliseconds: on a busy machine a hook with many queries is not a looping
/// one.
const HARD_BUDGET_MS: u64 = 10_000;

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    /// Queries that one hook makes for each event.
    queries: usize,
    /// Figures of a bare Bun process that opens the file itself.
    file: Figure,
    /// Figures of one worker, whose queries hook-svc answers.
    protocol: Figure,
}

/// Runs the command.
///
/// # Errors
/// Fails if the file cannot be written, if Bun is missing, or if a worker does not answer.
pub(super) async fn execute(common: &Common, options: &BenchQueriesOptions) -> Result<()> {
    let span = Duration::try_from_secs_f64(options.seconds).context("--seconds")?;

    let folder = tempfile::tempdir().context("failed to create a temporary directory")?;
    let path = folder.path().join("read-model.sqlite");
    let bar = step(&format!("{} events are taken in", options.history));
    let projection = Projection::open(&path)?;
    read_model::take_in(&projection, options.history).await?;

    let events = hooks::events(1)?;
    let mut rows = Vec::new();
    for &queries in &options.counts {
        bar.set_message(format!("{queries} queries an event: a bare Bun loop with the file"));
        let history = options.history;
        let file = measure_file(&path, queries, history, &events, span).await?;

        bar.set_message(format!("{queries} queries an event: a worker"));
        let protocol = measure_protocol(&path, queries, history, &events, span).await?;
        rows.push(Row {
            queries,
            file,
            protocol,
        });
    }

    bar.finish_and_clear();
    projection.close().await;

    View::list(&rows, figure_table(&rows))?
        .line(format!(
            "one hook that queries a read model of {} events, and {PASSING} that pass; one worker: events a second, and \
             one event alone p50/p99",
            options.history
        ))
        .show(common)
}

/// Returns the source of a hook that looks up `queries` of `history` events by their ids, and fails if one is not found.
/// `file` is the expression that names the read model.
fn asking_source(queries: usize, history: u64, file: &str) -> String {
    let first_ids: Vec<String> = (1..=history.min(MAX_IDS)).map(read_model::id).collect();
    format!(
        "/** @name bench asking */\nimport {{ Database }} from \"bun:sqlite\";\n\n\
         const ids = {first_ids:?};\nlet n = 0, one;\n\n\
         export default (ctx) => {{\n  \
         one ??= new Database({file}, {{ readonly: true }}).prepare(\"SELECT timestamp FROM events WHERE id = ?\");\n  \
         for (let i = 0; i < {queries}; i++) {{\n    \
         if (!one.get(ids[n++ % ids.length])) throw new Error(\"no row\");\n  }}\n  \
         return {{ fire: false }};\n}};\n"
    )
}

/// Returns the sources of all hooks: the one that asks, and those that pass.
fn sources(queries: usize, history: u64, file: &str) -> Vec<String> {
    let passing = (1..=PASSING).map(|number| {
        format!(
            "/** @name bench {number} */\nexport default (ctx) => ({{ fire: ctx.event.content === \"{number}\" }});\n"
        )
    });
    std::iter::once(asking_source(queries, history, file))
        .chain(passing)
        .collect()
}

/// Measures a bare Bun process whose hook opens the file at `path`.
async fn measure_file(path: &Path, queries: usize, history: u64, events: &[Event], span: Duration) -> Result<Figure> {
    let folder = tempfile::tempdir().context("failed to create a temporary directory")?;
    let sources = sources(queries, history, &format!("{path:?}"));
    for (number, text) in sources.iter().enumerate() {
        std::fs::write(folder.path().join(format!("bench-{number}.ts")), text).context("failed to write a hook")?;
    }

    let texts = events.iter().map(serde_json::to_string);
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    floor::run(folder.path(), sources.len(), 1, &texts, span).await
}

/// Measures one worker, whose hook names the read model at `path` and is answered over the protocol.
async fn measure_protocol(
    path: &Path,
    queries: usize,
    history: u64,
    events: &[Event],
    span: Duration,
) -> Result<Figure> {
    let sources = sources(queries, history, "ctx.dbPath");
    let numbered = sources.iter().enumerate();
    let hooks = numbered
        .map(|(number, text)| hooks::hook_source(number, text))
        .collect::<Result<Vec<HookSource>>>()?;

    let config = PoolConfig {
        workers: 1,
        sandbox: SandboxMode::Degraded,
        hard_budget_ms: HARD_BUDGET_MS,
        ..pool_config(&HooksConfig::default(), path, Arc::new(NoHost))
    };
    let pool = WorkerPools::start(config, Arc::new(SystemClock)).await?;
    pool.load(Arc::new(HookSet::new(hooks))).await?;
    let measured = hooks::measure(&pool, 1, events, span).await;
    pool.stop().await;

    measured
}

/// Returns the figures of all numbers of queries.
fn figure_table(rows: &[Row]) -> Table {
    let columns = [
        Column::number("QUERIES"),
        Column::text("THE FILE, BARE BUN"),
        Column::text("THE PROTOCOL"),
    ];
    Table::new(&columns).with(rows, |row| {
        [
            row.queries.into(),
            hooks::figure_cell(row.file).into(),
            hooks::figure_cell(row.protocol).into(),
        ]
    })
}
