//! The gain of replicas of hook-svc after a time without any: events wait in the stream, then so many replicas start at
//! once, beside one of each other service.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use indicatif::ProgressBar;
use serde::Serialize;
use shared::bus::{Bus, CoreMessage};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::dispatch::Dispatch;
use shared::wire::envelope::decode;
use shared::wire::headers::CAUSATION;
use shared::wire::topology::streams::EVENTS;

use crate::args::BenchOptions;
use crate::complain;
use crate::launch::Stack;
use crate::output::{Column, Table, View};

use super::cpu::ProcessList;
use super::load::{Answers, Sender};
use super::report::machine;
use super::scale::{cpu_since, total};
use super::setting;
use super::throughput::{post_all, seconds};

/// Longest time from the acceptance of the last event until all are stored.
const STORED_WITHIN: Duration = Duration::from_secs(120);
/// Interval at which it is checked whether all are stored.
const LOOK: Duration = Duration::from_millis(20);

/// Figures of one number of replicas: of the run with the median time to the last dispatch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct BacklogFigures {
    /// Replicas of hook-svc.
    pub(super) replicas: u16,
    /// Number of events that waited.
    pub(super) events: u64,
    /// Times of the run.
    #[serde(flatten)]
    pub(super) times: BacklogTimes,
    /// Time from the start to the last dispatch, divided by that of the first number of replicas.
    pub(super) start_ratio: f64,
    /// Time from the first dispatch to the last one, divided by that of the first number of replicas.
    pub(super) drain_ratio: f64,
    /// Events dispatched per second, from the first dispatch to the last one.
    pub(super) events_per_s: f64,
    /// Processor time per event of all processes from the start to the last answer, in milliseconds.
    pub(super) cpu_ms_per_event: f64,
    /// The same time, by program: all replicas of a service together, and the workers of hooks as `bun`.
    pub(super) cpu_ms_by_process: Vec<(String, f64)>,
    /// Times of each run, in their order.
    pub(super) runs: Vec<BacklogTimes>,
}

/// Times of one run, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct BacklogTimes {
    /// Time from the start of the replicas to the first dispatch.
    pub(super) start_to_first_dispatch_s: f64,
    /// Time from the start of the replicas to the last dispatch.
    pub(super) start_to_last_dispatch_s: f64,
    /// Time from the start of the replicas to the last answer.
    pub(super) start_to_last_answer_s: f64,
    /// Time from the first dispatch to the last one.
    pub(super) first_to_last_dispatch_s: f64,
}

impl BacklogTimes {
    /// Returns the times of a run whose replicas started at `began`; `None` if nothing was dispatched or answered.
    fn of(began: Instant, dispatched: &[Instant], answered: &[Instant]) -> Option<Self> {
        let first = *dispatched.iter().min()?;
        let last = *dispatched.iter().max()?;
        let last_answer = *answered.iter().max()?;

        Some(Self {
            start_to_first_dispatch_s: seconds(began, first),
            start_to_last_dispatch_s: seconds(began, last),
            start_to_last_answer_s: seconds(began, last_answer),
            first_to_last_dispatch_s: seconds(first, last),
        })
    }
}

/// Results of `--backlog` with one durability.
#[derive(Debug, Serialize)]
pub(super) struct BacklogReport {
    /// Figures of each number of replicas.
    backlog: Vec<BacklogFigures>,
    /// Durability that an acknowledgement promises.
    durability: String,
    /// Processor of the machine and its number of cores.
    machine: String,
    /// Numbers of events, sessions and bytes.
    setting: String,
}

impl BacklogReport {
    pub(super) fn new(options: &BenchOptions, durability: &str, backlog: Vec<BacklogFigures>) -> Self {
        Self {
            backlog,
            durability: durability.to_owned(),
            machine: machine(),
            setting: format!(
                "{} events of {} bytes wait, {} sessions, one hook that fires; {} runs",
                options.events, options.size, options.sessions, options.runs
            ),
        }
    }

    /// Adds the report for people to `view`.
    pub(super) fn add_to(&self, view: View) -> View {
        let head = format!("durability {} on {}\n{}\n", self.durability, self.machine, self.setting);
        view.line(head)
            .table(times(&self.backlog))
            .line("")
            .table(by_program(&self.backlog))
    }
}

/// Measures the numbers of replicas in turn, `options.runs` times.
pub(super) async fn run(options: &BenchOptions, durability: &str, bar: &ProgressBar) -> Result<Vec<BacklogFigures>> {
    let mut measured: Vec<Vec<BacklogFigures>> = vec![Vec::new(); options.replicas.len()];
    for round in 1..=options.runs {
        for (replicas, runs) in options.replicas.iter().zip(&mut measured) {
            bar.set_message(format!(
                "{durability}: a backlog of {} events, {replicas} replicas of hook-svc, run {round} of {}",
                options.events, options.runs
            ));
            runs.push(measure_once(options, durability, *replicas).await?);
        }
    }

    let mut figures: Vec<BacklogFigures> = measured.into_iter().filter_map(median_of).collect();
    compare(&mut figures);

    Ok(figures)
}

/// Measures one new installation.
async fn measure_once(options: &BenchOptions, durability: &str, replicas: u16) -> Result<BacklogFigures> {
    let directory = tempfile::Builder::new()
        .prefix("nexus-bench-")
        .tempdir()
        .context("failed to create a temporary directory")?;
    let plan = setting::without_hook_svc(directory.path(), options, durability)?;
    let mut stack = Stack::start(plan).await?;

    let measured = measure(&mut stack, options, replicas).await;
    stack.stop().await;

    if options.keep {
        complain!("kept: {}", directory.keep().display());
    }

    measured
}

/// Fills the stream, starts hook-svc and waits for the last answer.
async fn measure(stack: &mut Stack, options: &BenchOptions, replicas: u16) -> Result<BacklogFigures> {
    let bus = stack.bus("nexus-bench").await?;
    post_all(Sender::new(stack)?, "backlog", options.clone()).await?;
    wait_stored(&bus, options.events).await?;

    let dispatches = Answers::listen(&bus, "nexus.dispatch.>").await?;
    let answers = Answers::listen(&bus, "nexus.out.bench.*").await?;
    let dispatched = tokio::spawn(collect(dispatches, options.events, dispatched_event));
    let answered = tokio::spawn(collect(answers, options.events, answered_event));

    let used = ProcessList::of_stack(stack).by_program();
    let began = SystemClock.monotonic();
    for replica in 0..replicas {
        stack.launch("hook-svc", replica)?;
    }
    stack.ready().await?;

    let dispatched = dispatched.await.context("a listener panicked")??;
    let answered = answered.await.context("a listener panicked")??;
    let cpu = cpu_since(
        &used,
        &ProcessList::of_stack(stack).by_program(),
        options.events.max(1) as f64,
    );

    let times = BacklogTimes::of(began, &dispatched, &answered).context("--events 0: a backlog needs an event")?;
    Ok(BacklogFigures {
        replicas,
        events: options.events,
        times,
        start_ratio: 1.0,
        drain_ratio: 1.0,
        events_per_s: options.events as f64 / times.first_to_last_dispatch_s,
        cpu_ms_per_event: total(&cpu),
        cpu_ms_by_process: cpu,
        runs: vec![times],
    })
}

/// Waits until `count` events, which were accepted, are in the stream: an adapter may have them on its disk first.
async fn wait_stored(bus: &Bus, count: u64) -> Result<()> {
    let deadline = SystemClock.monotonic() + STORED_WITHIN;
    loop {
        let stored = bus.stream_state(EVENTS).await?.messages;
        if stored >= count {
            return Ok(());
        }

        if SystemClock.monotonic() > deadline {
            bail!(
                "{stored} of {count} events were stored in {} s",
                STORED_WITHIN.as_secs()
            );
        }

        pause(LOOK).await;
    }
}

/// Returns when the message of each event came first, once it has come for `count` events.
async fn collect(
    mut messages: Answers,
    count: u64,
    event_of: fn(&CoreMessage) -> Option<String>,
) -> Result<Vec<Instant>> {
    messages.until(count, event_of).await?;
    Ok(messages.heard.into_values().collect())
}

fn dispatched_event(message: &CoreMessage) -> Option<String> {
    let dispatch: Dispatch = decode(&message.headers, &message.payload).ok()?;
    Some(dispatch.event_id.as_str().to_owned())
}

fn answered_event(message: &CoreMessage) -> Option<String> {
    message.headers.get(CAUSATION).map(str::to_owned)
}

/// Returns the run with the median time to the last dispatch; `None` if there is none.
fn median_of(runs: Vec<BacklogFigures>) -> Option<BacklogFigures> {
    let all: Vec<BacklogTimes> = runs.iter().flat_map(|run| run.runs.clone()).collect();

    let mut sorted = runs;
    let time = |run: &BacklogFigures| run.times.start_to_last_dispatch_s;
    sorted.sort_by(|one, other| time(one).total_cmp(&time(other)));
    let middle = sorted.len() / 2;

    let median = sorted.into_iter().nth(middle)?;
    Some(BacklogFigures { runs: all, ..median })
}

/// Sets the ratios of all figures to the first.
fn compare(figures: &mut [BacklogFigures]) {
    let Some(first) = figures.first().map(|first| first.times) else {
        return;
    };
    for one in figures {
        one.start_ratio = one.times.start_to_last_dispatch_s / first.start_to_last_dispatch_s;
        one.drain_ratio = one.times.first_to_last_dispatch_s / first.first_to_last_dispatch_s;
    }
}

fn times(all: &[BacklogFigures]) -> Table {
    let columns = [
        "REPLICAS",
        "FIRST DISPATCH S",
        "LAST DISPATCH S",
        "RATIO",
        "LAST ANSWER S",
        "DRAINED IN S",
        "RATIO",
        "EVENTS/S",
        "MS/EVENT",
    ];
    Table::new(&columns.map(Column::number)).with(all, |one| {
        [
            one.replicas.to_string().into(),
            format!("{:.2}", one.times.start_to_first_dispatch_s).into(),
            format!("{:.2}", one.times.start_to_last_dispatch_s).into(),
            format!("{:.2}", one.start_ratio).into(),
            format!("{:.2}", one.times.start_to_last_answer_s).into(),
            format!("{:.2}", one.times.first_to_last_dispatch_s).into(),
            format!("{:.2}", one.drain_ratio).into(),
            format!("{:.0}", one.events_per_s).into(),
            format!("{:.3}", one.cpu_ms_per_event).into(),
        ]
    })
}

fn by_program(all: &[BacklogFigures]) -> Table {
    let columns = [
        Column::text("PROCESS"),
        Column::number("REPLICAS"),
        Column::number("MS/EVENT"),
    ];

    let names: BTreeSet<&String> = all
        .iter()
        .flat_map(|one| one.cpu_ms_by_process.iter().map(|(name, _)| name))
        .collect();
    let rows = names
        .into_iter()
        .flat_map(|name| all.iter().map(move |one| (name, one)));

    Table::new(&columns).with(rows, |(name, one)| {
        let found = one.cpu_ms_by_process.iter().find(|(program, _)| program == name);
        [
            name.into(),
            one.replicas.to_string().into(),
            found.map(|(_, ms)| format!("{ms:.3}")).into(),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures whose first dispatch came a second after the start, and whose last answer a second after the last
    /// dispatch.
    fn figures(replicas: u16, last_dispatch_s: f64) -> BacklogFigures {
        let times = BacklogTimes {
            start_to_first_dispatch_s: 1.0,
            start_to_last_dispatch_s: last_dispatch_s,
            start_to_last_answer_s: last_dispatch_s + 1.0,
            first_to_last_dispatch_s: last_dispatch_s - 1.0,
        };
        BacklogFigures {
            replicas,
            events: 1_000,
            times,
            start_ratio: 1.0,
            drain_ratio: 1.0,
            events_per_s: 1_000.0 / times.first_to_last_dispatch_s,
            cpu_ms_per_event: 0.3,
            cpu_ms_by_process: vec![("bun".to_owned(), 0.1), ("hook-svc".to_owned(), 0.2)],
            runs: vec![times],
        }
    }

    #[test]
    fn times_are_from_the_start_and_from_the_first_dispatch() {
        let began = SystemClock.monotonic();
        let after = |ms: u64| began + Duration::from_millis(ms);
        let times = BacklogTimes::of(began, &[after(4_000), after(1_000), after(2_000)], &[after(6_000)]);
        assert_eq!(
            times,
            Some(BacklogTimes {
                start_to_first_dispatch_s: 1.0,
                start_to_last_dispatch_s: 4.0,
                start_to_last_answer_s: 6.0,
                first_to_last_dispatch_s: 3.0,
            })
        );
        assert_eq!(BacklogTimes::of(began, &[], &[after(1)]), None);
        assert_eq!(BacklogTimes::of(began, &[after(1)], &[]), None);
    }

    #[test]
    fn the_median_run_is_shown_with_the_times_of_all() {
        let median = median_of([9.0, 3.0, 5.0].map(|last| figures(4, last)).to_vec()).expect("three runs");
        assert_eq!(median.times.start_to_last_dispatch_s, 5.0);
        let order: Vec<f64> = median.runs.iter().map(|run| run.start_to_last_dispatch_s).collect();
        assert_eq!(order, [9.0, 3.0, 5.0]);
        assert_eq!(median_of(Vec::new()), None);
    }

    #[test]
    fn ratios_are_to_the_first() {
        let mut all = [figures(1, 9.0), figures(4, 4.5)];
        compare(&mut all);
        assert_eq!(
            all.map(|one| (one.start_ratio, one.drain_ratio)),
            [(1.0, 1.0), (0.5, 0.4375)]
        );
        compare(&mut []);
    }

    #[test]
    fn a_program_has_a_row_for_each_number_of_replicas() {
        let expected = Table::new(&[
            Column::text("PROCESS"),
            Column::number("REPLICAS"),
            Column::number("MS/EVENT"),
        ]);
        let rows = [
            ["bun", "1", "0.100"],
            ["bun", "4", "0.100"],
            ["hook-svc", "1", "0.200"],
            ["hook-svc", "4", "0.200"],
        ];
        assert_eq!(
            by_program(&[figures(1, 9.0), figures(4, 4.5)]),
            expected.with(rows, |row| row.map(Into::into))
        );
    }

    #[test]
    fn the_names_of_the_figures_are_documented() {
        let report = BacklogReport {
            backlog: vec![figures(1, 9.0)],
            durability: "process".to_owned(),
            machine: "a machine".to_owned(),
            setting: "a setting".to_owned(),
        };
        let json = serde_json::to_value(report).expect("JSON");
        assert_eq!(json["backlog"][0]["start_to_last_dispatch_s"], 9.0, "{json}");
        assert_eq!(json["backlog"][0]["runs"][0]["first_to_last_dispatch_s"], 8.0, "{json}");
        for key in ["replicas", "start_ratio", "drain_ratio", "cpu_ms_by_process"] {
            assert!(!json["backlog"][0][key].is_null(), "{key}: {json}");
        }
    }
}
