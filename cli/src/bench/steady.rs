//! Growth: memory, disk and time per event of an installation that gets events at a steady rate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::wire::headers::CAUSATION;

use crate::args::BenchOptions;
use crate::complain;
use crate::launch::Stack;

use super::cpu::{ProcessList, disk_use};
use super::latency::{self, Latencies};
use super::load::{Answers, Sender};
use super::report::Latency;
use super::scale::{resident_mib, warm_up};
use super::setting;

/// Number of samples in a run.
const SAMPLES: u32 = 120;
/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// A figure in the first and in the last third of the time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Growth {
    /// Figure in the first third.
    pub(super) first: f64,
    /// Figure in the last third.
    pub(super) last: f64,
}

/// Figures of a steady run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SteadyFigures {
    /// Replicas of every service.
    pub(super) replicas: u16,
    /// Length of the run, in minutes.
    pub(super) minutes: u64,
    /// Events per second.
    pub(super) rate: u64,
    /// Processor time per event of all processes, in milliseconds.
    pub(super) cpu_ms_per_event: Growth,
    /// Time from an event to its delivered reply in the first third.
    pub(super) first_reply: Latency,
    /// The same in the last third.
    pub(super) last_reply: Latency,
    /// Mean resident memory of all processes, in MiB.
    pub(super) resident_mib: Growth,
    /// The same, by program.
    pub(super) resident_mib_by_process: Vec<(String, Growth)>,
    /// Size of the data directory at the end of the third, in MiB of the disk.
    pub(super) disk_mib: Growth,
    /// Growth of the data directory in the third, in bytes per event.
    pub(super) disk_bytes_per_event: Growth,
}

/// State of an installation at one moment.
#[derive(Debug, Clone, Default)]
struct Sample {
    /// Time since the beginning of the measured part, in seconds.
    at: f64,
    /// Processor time of all processes so far, in milliseconds.
    cpu_ms: f64,
    /// Resident memory in MiB, by program.
    resident_mib: BTreeMap<String, f64>,
    /// Size of the data directory, in bytes of the disk.
    disk: u64,
}

/// Measures one new installation with `replicas` of every service for `minutes`.
pub(super) async fn run(
    options: &BenchOptions,
    durability: &str,
    replicas: u16,
    minutes: u64,
) -> Result<SteadyFigures> {
    let directory = tempfile::Builder::new()
        .prefix("nexus-bench-")
        .tempdir()
        .context("failed to create a temporary directory")?;
    let stack = Stack::start(setting::replicated(directory.path(), options, durability, replicas)?).await?;
    warm_up(&stack, options).await?;

    let paced = BenchOptions {
        seconds: minutes * 60,
        ..options.clone()
    };
    let measured = measure(&stack, &paced, replicas, minutes).await;
    stack.stop().await;

    if options.keep {
        complain!("kept: {}", directory.keep().display());
    }

    measured
}

async fn measure(stack: &Stack, options: &BenchOptions, replicas: u16, minutes: u64) -> Result<SteadyFigures> {
    let bus = stack.bus("nexus-bench").await?;
    let mut replies = Answers::listen(&bus, "nexus.out.bench.*").await?;
    let total = latency::paced(options);
    let answered = tokio::spawn(async move {
        let event_of = |message: &shared::bus::CoreMessage| message.headers.get(CAUSATION).map(str::to_owned);
        replies.until(total, event_of).await.map(|()| replies.heard)
    });

    let begin = SystemClock.monotonic() + latency::WARM_UP;
    let span = Duration::from_secs(options.seconds);
    let processes = ProcessList::of_stack(stack);
    let sampling = tokio::spawn(take_samples(processes, stack.directory().to_owned(), begin, span));

    let sender = Sender::new(stack)?;
    let post = move |event| {
        let sender = sender.clone();
        async move { sender.post(&[event]).await }
    };
    let sent = latency::send_all("steady", options, post).await?;
    let heard = answered.await.context("a listener panicked")??;
    let samples = sampling.await.context("the sampling panicked")?;

    let reply = |third: usize| {
        let in_third = |due: Instant| third_of(due.saturating_duration_since(begin), span) == third;
        let of_third = sent.iter().filter(|(_, due)| in_third(**due));
        let of_third = of_third.map(|(event, due)| (event.clone(), *due)).collect();
        Latencies::of(&latency::spans(&of_third, &heard))
    };

    Ok(SteadyFigures {
        replicas,
        minutes,
        rate: options.rate,
        first_reply: reply(0),
        last_reply: reply(2),
        ..figures_of(&samples, span, options.rate as f64)
    })
}

/// Takes [`SAMPLES`] samples from `begin` until `span` later.
async fn take_samples(processes: ProcessList, directory: PathBuf, begin: Instant, span: Duration) -> Vec<Sample> {
    let mut samples = Vec::new();
    for number in 0..=SAMPLES {
        let due = begin + span * number / SAMPLES;
        pause(due.saturating_duration_since(SystemClock.monotonic())).await;
        samples.push(sample(&processes, &directory, begin));
    }
    samples
}

fn sample(processes: &ProcessList, directory: &Path, begin: Instant) -> Sample {
    let at = SystemClock.monotonic().saturating_duration_since(begin).as_secs_f64();
    let used = processes.by_program();
    Sample {
        at,
        cpu_ms: used.values().map(|used| used.cpu_ms).sum(),
        resident_mib: resident_mib(&used).into_iter().collect(),
        disk: disk_use(directory),
    }
}

/// Returns the number of the third of `span`, from 0, in which `since` is.
fn third_of(since: Duration, span: Duration) -> usize {
    let third = since.as_secs_f64() / span.as_secs_f64() * 3.0;
    (third as usize).min(2)
}

/// Returns the samples of third number `third`, from 0, of a run of length `span`.
fn samples_of(samples: &[Sample], span: Duration, third: usize) -> Vec<&Sample> {
    let is_in = |sample: &&Sample| third_of(Duration::from_secs_f64(sample.at), span) == third;
    samples.iter().filter(is_in).collect()
}

/// Returns the figures of `samples` at `rate` events a second, without those of the replies.
fn figures_of(samples: &[Sample], span: Duration, rate: f64) -> SteadyFigures {
    let thirds = [0, 2].map(|third| samples_of(samples, span, third));
    let growth = |figure: &dyn Fn(&[&Sample]) -> f64| Growth {
        first: figure(&thirds[0]),
        last: figure(&thirds[1]),
    };

    let per_event = |third: &[&Sample], value: fn(&Sample) -> f64| {
        let (Some(from), Some(to)) = (third.first(), third.last()) else {
            return 0.0;
        };
        (value(to) - value(from)) / ((to.at - from.at) * rate).max(1.0)
    };
    let mean = |third: &[&Sample], value: &dyn Fn(&Sample) -> f64| {
        third.iter().map(|sample| value(sample)).sum::<f64>() / (third.len() as f64).max(1.0)
    };

    let programs = samples.last().map(|sample| sample.resident_mib.keys().cloned());
    let by_process = programs.into_iter().flatten().map(|program| {
        let of_program = |sample: &Sample| sample.resident_mib.get(&program).copied().unwrap_or_default();
        let grown = growth(&|third| mean(third, &of_program));
        (program, grown)
    });

    let nothing = Latencies::of(&[]);
    SteadyFigures {
        replicas: 0,
        minutes: 0,
        rate: 0,
        cpu_ms_per_event: growth(&|third| per_event(third, |sample| sample.cpu_ms)),
        first_reply: nothing,
        last_reply: nothing,
        resident_mib: growth(&|third| mean(third, &|sample| sample.resident_mib.values().sum())),
        resident_mib_by_process: by_process.collect(),
        disk_mib: growth(&|third| third.last().map_or(0.0, |sample| sample.disk as f64 / MIB)),
        disk_bytes_per_event: growth(&|third| per_event(third, |sample| sample.disk as f64)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Samples of a run of 90 s in which everything grows, faster in the last third.
    fn growing() -> Vec<Sample> {
        let sample = |number: u32| {
            let at = f64::from(number) * 10.0;
            let late = (at - 60.0).max(0.0);
            Sample {
                at,
                cpu_ms: at * 50.0 + late * 50.0,
                resident_mib: BTreeMap::from([("a".to_owned(), 100.0 + at), ("b".to_owned(), 7.0)]),
                disk: (at as u64) << 20,
            }
        };
        (0..=9).map(sample).collect()
    }

    pub(in crate::bench) fn figures() -> SteadyFigures {
        figures_of(&growing(), Duration::from_secs(90), 100.0)
    }

    #[test]
    fn the_last_third_is_set_against_the_first() {
        let figures = figures();
        assert_eq!(figures.cpu_ms_per_event, Growth { first: 0.5, last: 1.0 });
        // The thirds' samples are at 0, 10, 20 and at 60, 70, 80, 90 s.
        assert_eq!(
            figures.resident_mib_by_process,
            [
                (
                    "a".to_owned(),
                    Growth {
                        first: 110.0,
                        last: 175.0
                    }
                ),
                ("b".to_owned(), Growth { first: 7.0, last: 7.0 })
            ]
        );
        assert_eq!(
            figures.resident_mib,
            Growth {
                first: 117.0,
                last: 182.0
            }
        );
        assert_eq!(
            figures.disk_mib,
            Growth {
                first: 20.0,
                last: 90.0
            }
        );
        assert_eq!(figures.disk_bytes_per_event.first, MIB / 100.0);
    }

    #[test]
    fn a_run_without_samples_has_no_figures() {
        let figures = figures_of(&[], Duration::from_secs(60), 10.0);
        assert_eq!(figures.cpu_ms_per_event, Growth { first: 0.0, last: 0.0 });
        assert_eq!(figures.resident_mib_by_process, []);
    }

    #[test]
    fn the_end_belongs_to_the_last_third() {
        let span = Duration::from_secs(60);
        let thirds = [0, 19, 20, 40, 60, 61].map(|at| third_of(Duration::from_secs(at), span));
        assert_eq!(thirds, [0, 0, 1, 2, 2, 2]);
    }
}
