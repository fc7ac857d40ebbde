//! `nexus bench hooks`: measures the runner alone, with events to workers and back as hook-svc sends them. The runs
//! have many hooks and few, confined or not, with all hooks called or only those whose `@match` fits, beside
//! [`super::floor`] in the same run. Also measures the cost of routing bindings.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use hook_svc::config::HooksConfig;
use hook_svc::dry_run::{DryRun, pool_config};
use hook_svc::registry::metadata;
use hook_svc::runner::{
    EvaluationJob, EvaluationStep, HeldSlots, HookSet, HookSource, NoHost, PoolConfig, SandboxMode, WorkerPools,
};
use serde::Serialize;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::event::{Event, EventId};
use shared::model::time::UnixMillis;

use super::figure::Figure;
use super::{bindings, floor, percentile, step};
use crate::args::{BenchHooksOptions, Common};
use crate::exit::{Exit, failure};
use crate::output::{Column, Table, View};

/// Number of events that are sent again and again.
const EVENTS: usize = 1_024;
/// Number of events in flight while throughput is measured.
const WINDOW: usize = 512;
/// Length of an event's text, in bytes.
const TEXT: usize = 200;
/// Longest time for workers to start.
const COME_UP: Duration = Duration::from_secs(60);

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    hooks: usize,
    floor: Figure,
    /// Figures if every hook is called for every event.
    all: Figure,
    all_confined: Figure,
    /// Figures if one hook is called for every event, because the others' `@match` does not fit.
    matched: Figure,
    matched_confined: Figure,
}

/// Results of a whole run.
#[derive(Debug, Serialize)]
struct Figures {
    hooks: Vec<Row>,
    bindings: bindings::Figure,
}

/// Runs the command.
///
/// # Errors
/// Fails if Bun or the sandbox is missing, or if a worker does not answer.
pub(super) async fn execute(common: &Common, options: &BenchHooksOptions) -> Result<()> {
    let span = Duration::try_from_secs_f64(options.seconds).context("--seconds")?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let workers = if options.workers == 0 { cores } else { options.workers };

    let mut rows = Vec::new();
    for &count in &options.counts {
        if count == 0 {
            return Err(failure(Exit::Usage, "--counts: expected at least 1 hook"));
        }
        rows.push(row(count, workers, span).await?);
    }

    let bindings = bindings::run(span)?;
    let sentence = bindings.sentence();
    let shown = figure_table(&rows);
    View::of(&Figures { hooks: rows, bindings })?
        .line(format!(
            "{workers} workers; events a second, and one event alone p50/p99"
        ))
        .table(shown)
        .line(sentence)
        .show(common)
}

async fn row(count: usize, workers: usize, span: Duration) -> Result<Row> {
    let bar = step(&format!("{count} hooks: a bare Bun loop"));
    let folder = tempfile::tempdir().context("failed to create a temporary directory")?;
    for (number, text) in (0..count).map(|number| (number, source(number, false))) {
        std::fs::write(folder.path().join(format!("bench-{number}.ts")), text).context("failed to write a hook")?;
    }

    let events = events(count)?;
    let texts = events
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<Vec<_>, _>>()?;

    let floor = floor::run(folder.path(), count, workers, &texts, span).await?;
    let mut figures = [Figure::default(); 4];

    let arranged = [
        (false, SandboxMode::Absent),
        (false, SandboxMode::Enforce),
        (true, SandboxMode::Absent),
        (true, SandboxMode::Enforce),
    ];

    for (figure, (matching, sandbox)) in figures.iter_mut().zip(arranged) {
        bar.set_message(format!("{count} hooks: @match {matching}, sandbox {sandbox:?}"));
        *figure = arrangement(count, matching, sandbox, workers, &events, span).await?;
    }

    bar.finish_and_clear();
    let [all, all_confined, matched, matched_confined] = figures;

    Ok(Row {
        hooks: count,
        floor,
        all,
        all_confined,
        matched,
        matched_confined,
    })
}

/// Returns the source of hook `number`, which checks the text with a regular expression and almost never fires.
fn source(number: usize, matching: bool) -> String {
    let tag = if matching {
        format!("\n * @match channel=bench-{number}")
    } else {
        String::new()
    };
    format!(
        "/** @name bench {number}{tag} */\nexport default (ctx) => {{\n  const e = ctx.event;\n  \
         const urgent = /\\b(invoice|deploy-{number}|alarm)\\b/.test(e.content);\n  \
         return {{ fire: urgent && e.from.id === \"nobody-{number}\" }};\n}};\n"
    )
}

/// Returns events on the channels of `count` hooks in turn.
pub(super) fn events(count: usize) -> Result<Vec<Event>> {
    let one = |number: usize| {
        let id = EventId::parse(format!("bench:{number}")).context("failed to create an event id")?;
        let at = UnixMillis(1_769_000_000_000 + i64::try_from(number)?);
        let mut event = Event::new(id, &format!("bench-{}", number % count), "p", at);
        event.content = format!("message {number} ")
            .chars()
            .chain("lorem ipsum ".chars().cycle())
            .take(TEXT)
            .collect();

        Ok(event)
    };

    (0..EVENTS).map(one).collect()
}

/// Returns hook `number` with the source `text`.
pub(super) fn hook_source(number: usize, text: &str) -> Result<HookSource> {
    let id = format!("bench-{number}");
    let metadata = metadata::parse(&id, text)?;
    Ok(DryRun::from_file(&id, text, &metadata, UnixMillis(0)).hook)
}

async fn arrangement(
    count: usize,
    matching: bool,
    sandbox: SandboxMode,
    workers: usize,
    events: &[Event],
    span: Duration,
) -> Result<Figure> {
    let hooks = (0..count)
        .map(|number| hook_source(number, &source(number, matching)))
        .collect::<Result<Vec<_>>>()?;
    let config = PoolConfig {
        workers,
        sandbox,
        // On a busy machine a slow hook is not a looping one.
        hard_budget_ms: 10_000,
        ..pool_config(
            &HooksConfig::default(),
            Path::new("/nowhere/read-model.sqlite"),
            Arc::new(NoHost),
        )
    };

    let pool = WorkerPools::start(config, Arc::new(SystemClock)).await?;
    pool.load(Arc::new(HookSet::new(hooks))).await?;
    let measured = measure(&pool, workers, events, span).await;
    pool.stop().await;

    measured
}

/// Measures `pool` with `events`: first single ones, and then as many as it takes in `span`.
pub(super) async fn measure(pool: &WorkerPools, workers: usize, events: &[Event], span: Duration) -> Result<Figure> {
    let deadline = SystemClock.monotonic() + COME_UP;
    while pool.ready_workers() < workers {
        if SystemClock.monotonic() > deadline {
            bail!("the workers do not come up");
        }
        pause(Duration::from_millis(5)).await;
    }

    // This first flood warms every worker up.
    flood(pool, events, span / 2).await?;
    let mut alone = Vec::new();

    let end = SystemClock.monotonic() + span / 2;
    for event in events.iter().cycle() {
        let began = SystemClock.monotonic();
        if began > end {
            break;
        }
        evaluate(pool, event).await?;
        alone.push(SystemClock.monotonic().duration_since(began).as_secs_f64() * 1e6);
    }

    alone.sort_by(f64::total_cmp);
    let began = SystemClock.monotonic();
    let done = flood(pool, events, span).await?;
    let seconds = SystemClock.monotonic().duration_since(began).as_secs_f64();

    Ok(Figure {
        events_per_s: done as f64 / seconds,
        p50_us: percentile(&alone, 0.5),
        p99_us: percentile(&alone, 0.99),
    })
}

/// Returns the number of events that are evaluated in `span`, with many in flight.
async fn flood(pool: &WorkerPools, events: &[Event], span: Duration) -> Result<u64> {
    let end = SystemClock.monotonic() + span;
    let mut done = 0;
    let again = stream::iter(events.iter().cycle()).take_while(|_| std::future::ready(SystemClock.monotonic() < end));
    let mut runs = again.map(|event| evaluate(pool, event)).buffer_unordered(WINDOW);
    while let Some(run) = runs.next().await {
        run?;
        done += 1;
    }
    Ok(done)
}

/// Evaluates one event as hook-svc sends it.
async fn evaluate(pool: &WorkerPools, event: &Event) -> Result<()> {
    let in_force = pool.current_hooks();
    let job = EvaluationJob {
        event_id: event.id.clone(),
        event_json: Bytes::from(serde_json::to_vec(event)?),
        sequence: 0,
        now: event.timestamp,
        only: in_force.set().hooks_seeing(event),
    };

    let mut evaluation = pool.evaluate_event(&in_force, &job, &HeldSlots::default());
    while let Some(step) = evaluation.next().await {
        match step {
            EvaluationStep::Verdict(verdict) => {
                bail!("{} had an unexpected outcome: {:?}", verdict.hook.id, verdict.outcome)
            }
            EvaluationStep::Waiting(_) => {}
            EvaluationStep::Done(_) => return Ok(()),
        }
    }

    bail!("an event was not evaluated")
}

/// Returns a figure as a cell of a table.
pub(super) fn figure_cell(figure: Figure) -> String {
    format!(
        "{:.0}/s {:.0}/{:.0} µs",
        figure.events_per_s, figure.p50_us, figure.p99_us
    )
}

/// Returns the figures of all arrangements.
fn figure_table(rows: &[Row]) -> Table {
    let columns = [
        Column::number("HOOKS"),
        Column::text("BARE BUN"),
        Column::text("ALL CALLED"),
        Column::text("ALL CALLED, CONFINED"),
        Column::text("@MATCH: ONE CALLED"),
        Column::text("@MATCH, CONFINED"),
    ];
    Table::new(&columns).with(rows, |row| {
        [
            row.hooks.into(),
            figure_cell(row.floor).into(),
            figure_cell(row.all).into(),
            figure_cell(row.all_confined).into(),
            figure_cell(row.matched).into(),
            figure_cell(row.matched_confined).into(),
        ]
    })
}
