//! `nexus bench`: measures this machine, beside the figures of raw JetStream in the same run.
//!
//! End to end means all five services and NATS: events go in over HTTP (`/v1/events`), ten deterministic hooks see
//! each, one fires, the echo agent answers, channel `nats` delivers, and a plain subscriber receives the answer.

mod backlog;
mod bindings;
mod cpu;
mod evaluation;
mod figure;
mod floor;
mod hooks;
mod latency;
mod load;
mod queries;
mod raw;
mod read_model;
mod report;
mod scale;
mod scale_report;
mod setting;
mod steady;
mod throughput;
mod traffic;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::args::{BenchOptions, BenchPart, Common};
use crate::complain;
use crate::exit::{Exit, failure};
use crate::launch::Stack;
use crate::output::View;

use backlog::BacklogReport;
use report::{Latency, Report};
use scale_report::ScaleReport;

/// Runs the command.
///
/// # Errors
/// Fails if a process does not start, or if an answer is missing at the end.
pub async fn execute(common: &Common, options: BenchOptions) -> Result<()> {
    match &options.part {
        Some(BenchPart::Hooks(options)) => return hooks::execute(common, options).await,
        Some(BenchPart::ReadModel(options)) => return read_model::execute(common, options).await,
        Some(BenchPart::Queries(options)) => return queries::execute(common, options).await,
        None => {}
    }

    for durability in &options.durability {
        check_durability(durability)?;
    }

    if options.backlog {
        let mut reports = Vec::new();
        for durability in &options.durability {
            reports.push(run_backlog(&options, durability).await?);
        }
        return show(common, &options, &reports, BacklogReport::add_to);
    }

    if !options.replicas.is_empty() || options.steady.is_some() {
        let mut reports = Vec::new();
        for durability in &options.durability {
            reports.push(run_scale(&options, durability).await?);
        }
        return show(common, &options, &reports, ScaleReport::add_to);
    }

    let mut reports = Vec::new();
    for durability in &options.durability {
        reports.push(run(&options, durability).await?);
    }
    show(common, &options, &reports, Report::add_to)
}

/// Prints the report of each durability: one as an object, several as an array.
fn show<T: Serialize>(
    common: &Common,
    options: &BenchOptions,
    reports: &[T],
    add_to: impl Fn(&T, View) -> View,
) -> Result<()> {
    let view = match reports {
        [only] => View::of(only)?,
        all => View::of(all)?,
    };
    let view = view.ids(options.durability.iter().cloned());
    reports
        .iter()
        .fold(view, |view, report| add_to(report, view))
        .show(common)
}

fn check_durability(durability: &str) -> Result<()> {
    if ["process", "power", "replicated"].contains(&durability) {
        return Ok(());
    }
    let text = format!("--durability {durability}: one of process, power, replicated");
    Err(failure(Exit::Usage, text))
}

fn step(text: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_style(
        ProgressStyle::with_template("{spinner} {elapsed} {msg}").unwrap_or(ProgressStyle::default_spinner()),
    );
    bar.set_message(text.to_owned());
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

/// Measures the gain of replicas, and growth, as far as the options ask for it.
async fn run_scale(options: &BenchOptions, durability: &str) -> Result<ScaleReport> {
    let bar = step(&format!("{durability}: starting"));
    let figures = scale::run(options, durability, &bar).await?;

    let mut steady = Vec::new();
    if let Some(minutes) = options.steady {
        let one = [1];
        let numbers = if options.replicas.is_empty() {
            &one
        } else {
            options.replicas.as_slice()
        };
        for replicas in numbers {
            bar.set_message(format!(
                "{durability}: {replicas} replicas, {} events/s for {minutes} minutes",
                options.rate
            ));
            steady.push(steady::run(options, durability, *replicas, minutes).await?);
        }
    }

    bar.finish_and_clear();
    Ok(ScaleReport::new(options, durability, figures, steady))
}

/// Measures how fast replicas of hook-svc drain a backlog.
async fn run_backlog(options: &BenchOptions, durability: &str) -> Result<BacklogReport> {
    let bar = step(&format!("{durability}: starting"));
    let figures = backlog::run(options, durability, &bar).await?;
    bar.finish_and_clear();
    Ok(BacklogReport::new(options, durability, figures))
}

async fn run(options: &BenchOptions, durability: &str) -> Result<Report> {
    let directory = tempfile::Builder::new()
        .prefix("nexus-bench-")
        .tempdir()
        .context("failed to create a temporary directory")?;
    let bar = step(&format!("{durability}: starting"));
    let stack = Stack::start(setting::whole(directory.path(), options, durability)?).await?;

    bar.set_message(format!(
        "{durability}: latency at {} events/s for {} s",
        options.rate, options.seconds
    ));
    let measured = latency::run(&stack, options).await?;
    bar.set_message(format!("{durability}: throughput with {} events", options.events));
    let flood = throughput::run(&stack, options).await?;
    bar.set_message(format!("{durability}: raw JetStream"));

    let raw = raw::run(&stack, options).await?;
    stack.stop().await;

    bar.set_message(format!("{durability}: hook evaluation alone"));
    let evaluation = tempfile::Builder::new()
        .prefix("nexus-bench-")
        .tempdir()
        .context("failed to create a temporary directory")?;

    let hooks = evaluation::run(evaluation.path(), options, durability).await?;
    bar.finish_and_clear();

    if options.keep {
        complain!("kept: {} {}", directory.keep().display(), evaluation.keep().display());
    }

    Ok(Report::new(options, durability, &measured, &flood, raw, hooks))
}

/// Returns the value below which `share` (e.g. 0.99) of the ascending `sorted` lie; 0 if it is empty.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last as f64 * share).round() as usize)
        .copied()
        .unwrap_or(0.0)
}
