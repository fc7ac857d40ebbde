//! The gain of replicas: the same flood to a new installation for each number of replicas of every service. One hook
//! fires on every event, so that an event costs the same work with any number of replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;
use serde::Serialize;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock, pause};

use crate::args::BenchOptions;
use crate::complain;
use crate::launch::Stack;

use super::cpu::{ProcessList, ProcessUse};
use super::setting;
use super::throughput::{STORED, send_flood};
use super::traffic::{DeliveredTraffic, StreamTraffic, TrafficMark, sum_of};

/// Number of events before the measured ones: workers compile, caches fill, partitions get their owners.
const WARM_UP: u64 = 2_000;
/// Rest before the idle time is measured.
const REST: Duration = Duration::from_secs(3);
/// Length of the measurement of an idle installation.
const IDLE: Duration = Duration::from_secs(5);
/// Length of a look at the processor time after the flood.
const LOOK: Duration = Duration::from_millis(500);
/// Longest time after the flood in which the work behind the answers is counted.
const SETTLE: Duration = Duration::from_secs(60);
/// Share of a processor above the idle time that still counts as idle.
const IDLE_MARGIN: f64 = 0.05;

/// Figures of one number of replicas: of the run with the median processor time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ScaleFigures {
    /// Replicas of every service.
    pub(super) replicas: u16,
    /// Events per second, the median of all runs.
    pub(super) events_per_s: f64,
    /// Events per second, divided by those of the first number of replicas.
    pub(super) events_ratio: f64,
    /// Processor time per event of all processes in milliseconds, the median of all runs.
    pub(super) cpu_ms_per_event: f64,
    /// Processor time per event, divided by that of the first number of replicas.
    pub(super) cpu_ratio: f64,
    /// The same time, by program: all replicas of a service together, and the workers of hooks as `bun`.
    pub(super) cpu_ms_by_process: Vec<(String, f64)>,
    /// Processor time per second of all processes without any event, in milliseconds.
    pub(super) idle_ms_per_s: f64,
    /// The same time, by program.
    pub(super) idle_ms_by_process: Vec<(String, f64)>,
    /// Resident memory at the end in MiB, by program.
    pub(super) resident_mib_by_process: Vec<(String, f64)>,
    /// Number of messages stored per event in the streams of an event's way, including the answer's own event.
    pub(super) stored_per_event: f64,
    /// Messages stored per event, by stream.
    pub(super) stored_by_stream: Vec<StreamTraffic>,
    /// Messages that the servers delivered per event.
    pub(super) delivered_per_event: Option<DeliveredTraffic>,
    /// Number of answers that a plain subscriber received twice.
    pub(super) repeated_answers: u64,
    /// Events per second and processor time per event of each run, in their order.
    pub(super) runs: Vec<RunFigures>,
}

/// Main figures of one run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct RunFigures {
    /// Events per second.
    pub(super) events_per_s: f64,
    /// Processor time per event of all processes, in milliseconds.
    pub(super) cpu_ms_per_event: f64,
}

/// Measures the numbers of replicas in turn, `options.runs` times.
pub(super) async fn run(options: &BenchOptions, durability: &str, bar: &ProgressBar) -> Result<Vec<ScaleFigures>> {
    let mut measured: Vec<Vec<ScaleFigures>> = vec![Vec::new(); options.replicas.len()];
    for round in 1..=options.runs {
        for (replicas, runs) in options.replicas.iter().zip(&mut measured) {
            bar.set_message(format!(
                "{durability}: {replicas} replicas, run {round} of {}, {} events",
                options.runs, options.events
            ));
            runs.push(measure_once(options, durability, *replicas).await?);
        }
    }

    let mut figures: Vec<ScaleFigures> = measured.into_iter().filter_map(median_of).collect();
    compare(&mut figures);

    Ok(figures)
}

/// Measures one new installation.
async fn measure_once(options: &BenchOptions, durability: &str, replicas: u16) -> Result<ScaleFigures> {
    let directory = tempfile::Builder::new()
        .prefix("nexus-bench-")
        .tempdir()
        .context("failed to create a temporary directory")?;
    let stack = Stack::start(setting::replicated(directory.path(), options, durability, replicas)?).await?;
    let bus = stack.bus("nexus-bench").await?;
    warm_up(&stack, options).await?;

    let processes = ProcessList::of_stack(&stack);
    pause(REST).await;
    let idle = measure_idle(&processes).await;
    let measured = measure_flood(&stack, &bus, options, replicas, (&processes, &idle)).await;
    stack.stop().await;

    if options.keep {
        complain!("kept: {}", directory.keep().display());
    }

    measured
}

/// Sends the first events, which are not measured.
pub(super) async fn warm_up(stack: &Stack, options: &BenchOptions) -> Result<()> {
    let few = BenchOptions {
        events: WARM_UP,
        ..options.clone()
    };
    send_flood(stack, "warm-up", &few).await?;
    Ok(())
}

/// Returns the processor time per second without events in milliseconds, by program.
async fn measure_idle(processes: &ProcessList) -> Vec<(String, f64)> {
    let before = processes.by_program();
    pause(IDLE).await;
    cpu_since(&before, &processes.by_program(), IDLE.as_secs_f64())
}

async fn measure_flood(
    stack: &Stack,
    bus: &Bus,
    options: &BenchOptions,
    replicas: u16,
    (processes, idle): (&ProcessList, &[(String, f64)]),
) -> Result<ScaleFigures> {
    let events = options.events as f64;
    let idle_ms_per_s = total(idle);
    let before = TrafficMark::read(stack, bus).await?;
    let used = processes.by_program();

    let answered = send_flood(stack, "flood", options).await?;
    settle(processes, idle_ms_per_s).await;

    let now = processes.by_program();
    let traffic = TrafficMark::read(stack, bus).await?.since(&before, events);
    let cpu = cpu_since(&used, &now, events);

    let main = RunFigures {
        events_per_s: answered.events_per_s,
        cpu_ms_per_event: total(&cpu),
    };
    Ok(ScaleFigures {
        replicas,
        events_per_s: main.events_per_s,
        events_ratio: 1.0,
        cpu_ms_per_event: main.cpu_ms_per_event,
        cpu_ratio: 1.0,
        cpu_ms_by_process: cpu,
        idle_ms_per_s,
        idle_ms_by_process: idle.to_vec(),
        resident_mib_by_process: resident_mib(&now),
        stored_per_event: sum_of(&traffic.streams, &STORED),
        stored_by_stream: traffic.streams,
        delivered_per_event: traffic.delivered,
        repeated_answers: answered.repeated,
        runs: vec![main],
    })
}

/// Waits until the processes use no more than in their idle time: read models lag behind the answers, and the work
/// that they still have to do is a price of the events too.
async fn settle(processes: &ProcessList, idle_ms_per_s: f64) {
    let deadline = SystemClock.monotonic() + SETTLE;
    let mut before = processes.by_program();

    while SystemClock.monotonic() < deadline {
        pause(LOOK).await;
        let now = processes.by_program();
        let ms_per_s = total(&cpu_since(&before, &now, LOOK.as_secs_f64()));
        if is_idle(ms_per_s, idle_ms_per_s) {
            return;
        }
        before = now;
    }
}

/// Returns whether processes that use `ms_per_s` of processor time do no more than they do without events.
fn is_idle(ms_per_s: f64, idle_ms_per_s: f64) -> bool {
    ms_per_s <= idle_ms_per_s * 1.5 + IDLE_MARGIN * 1_000.0
}

/// Returns the processor time between two moments in milliseconds, by program, divided by `count`.
pub(super) fn cpu_since(
    before: &BTreeMap<String, ProcessUse>,
    now: &BTreeMap<String, ProcessUse>,
    count: f64,
) -> Vec<(String, f64)> {
    let used = now.iter().map(|(name, now)| {
        let then = before.get(name).copied().unwrap_or_default();
        (name.clone(), (now.cpu_ms - then.cpu_ms) / count)
    });
    used.collect()
}

/// Returns the resident memory in MiB, by program.
pub(super) fn resident_mib(used: &BTreeMap<String, ProcessUse>) -> Vec<(String, f64)> {
    let of_program = |(name, used): (&String, &ProcessUse)| (name.clone(), used.resident as f64 / f64::from(1 << 20));
    used.iter().map(of_program).collect()
}

pub(super) fn total(by_program: &[(String, f64)]) -> f64 {
    by_program.iter().map(|(_, value)| value).sum()
}

/// Returns the run with the median processor time, with the median rate of all runs; `None` if there is none.
fn median_of(runs: Vec<ScaleFigures>) -> Option<ScaleFigures> {
    let main: Vec<RunFigures> = runs.iter().flat_map(|run| run.runs.clone()).collect();
    let mut rates: Vec<f64> = main.iter().map(|run| run.events_per_s).collect();
    rates.sort_by(f64::total_cmp);

    let mut sorted = runs;
    sorted.sort_by(|one, other| one.cpu_ms_per_event.total_cmp(&other.cpu_ms_per_event));
    let middle = sorted.len() / 2;

    let median = sorted.into_iter().nth(middle)?;
    Some(ScaleFigures {
        events_per_s: rates.get(middle).copied().unwrap_or_default(),
        runs: main,
        ..median
    })
}

/// Sets the ratios of all figures to the first.
fn compare(figures: &mut [ScaleFigures]) {
    let Some(first) = figures.first().cloned() else {
        return;
    };
    for one in figures {
        one.events_ratio = one.events_per_s / first.events_per_s;
        one.cpu_ratio = one.cpu_ms_per_event / first.cpu_ms_per_event;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::bench) fn figures(replicas: u16, events_per_s: f64, cpu_ms_per_event: f64) -> ScaleFigures {
        ScaleFigures {
            replicas,
            events_per_s,
            events_ratio: 1.0,
            cpu_ms_per_event,
            cpu_ratio: 1.0,
            cpu_ms_by_process: vec![("bun".to_owned(), 0.1), ("hook-svc".to_owned(), 0.2)],
            idle_ms_per_s: 40.0,
            idle_ms_by_process: Vec::new(),
            resident_mib_by_process: Vec::new(),
            stored_per_event: 7.0,
            stored_by_stream: Vec::new(),
            delivered_per_event: None,
            repeated_answers: 0,
            runs: vec![RunFigures {
                events_per_s,
                cpu_ms_per_event,
            }],
        }
    }

    #[test]
    fn the_median_run_is_shown() {
        let runs = [(3_000.0, 0.9), (1_000.0, 0.7), (2_000.0, 0.8)];
        let median = median_of(runs.map(|(rate, cpu)| figures(1, rate, cpu)).to_vec()).expect("three runs");
        assert_eq!((median.events_per_s, median.cpu_ms_per_event), (2_000.0, 0.8));
        let order: Vec<f64> = median.runs.iter().map(|run| run.events_per_s).collect();
        assert_eq!(order, [3_000.0, 1_000.0, 2_000.0]);
        assert_eq!(median_of(Vec::new()), None);
    }

    #[test]
    fn ratios_are_to_the_first() {
        let mut all = [figures(1, 2_000.0, 0.5), figures(4, 1_000.0, 0.75)];
        compare(&mut all);
        assert_eq!(
            all.map(|one| (one.events_ratio, one.cpu_ratio)),
            [(1.0, 1.0), (0.5, 1.5)]
        );
        compare(&mut []);
    }

    #[test]
    fn processor_time_is_counted_from_before() {
        let used = |cpu_ms| ProcessUse {
            cpu_ms,
            resident: 1 << 21,
        };
        let before = BTreeMap::from([("a".to_owned(), used(100.0))]);
        let now = BTreeMap::from([("a".to_owned(), used(150.0)), ("b".to_owned(), used(10.0))]);
        let cpu = cpu_since(&before, &now, 10.0);
        assert_eq!(cpu, [("a".to_owned(), 5.0), ("b".to_owned(), 1.0)]);
        assert_eq!(total(&cpu), 6.0);
        assert_eq!(resident_mib(&now)[0], ("a".to_owned(), 2.0));
    }

    #[test]
    fn work_behind_the_answers_is_no_idle_time() {
        assert!(is_idle(60.0, 40.0) && is_idle(50.0, 0.0));
        assert!(!is_idle(400.0, 40.0));
    }
}
