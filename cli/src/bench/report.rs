//! The figures of a run, as table and as JSON, with the targets of `docs/performance.md` beside them.

use serde::Serialize;

use crate::args::BenchOptions;
use crate::output::{Column, Table, View};

use super::latency::Latencies;
use super::throughput::Flood;
use super::traffic::StreamTraffic;

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Latency {
    /// Median: half of the events are faster.
    pub p50_ms: f64,
    /// 99th percentile: all but one in a hundred are faster.
    pub p99_ms: f64,
}

/// Figures of events from HTTP to the delivered answer.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Throughput {
    /// Events per second in the flood.
    pub events_per_s: f64,
    /// Latency at the fixed rate.
    #[serde(flatten)]
    pub latency: Latency,
}

/// Figures of raw JetStream.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Raw {
    /// Messages per second, divided by the messages that Nexus stores per event.
    pub events_per_s: f64,
    /// Messages per second of raw JetStream.
    pub messages_per_s: f64,
}

/// Figures of hook-svc alone.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Evaluation {
    /// Events per second if no hook fires.
    pub events_per_s: f64,
    /// Events per second if one hook fires on every event.
    pub firing_events_per_s: f64,
    /// Time from event to record at the fixed rate, with one hook that queries the read model.
    pub asking: Latency,
    /// The same with two replicas, of which one keeps a copy of the read model: half of the events are evaluated by the
    /// other, which asks that copy over NATS.
    pub asking_another: Latency,
}

/// Results of a whole run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// From HTTP to the delivered answer.
    pub end_to_end: Throughput,
    /// Time from HTTP to the stored dispatch, at the fixed rate.
    pub event_to_dispatch: Latency,
    /// Raw JetStream in the same run.
    pub raw_jetstream: Raw,
    /// Events per second of Nexus, divided by those of raw JetStream.
    pub ratio: f64,
    /// Figures of hook-svc alone.
    pub hook_svc: Evaluation,
    /// Processor time per event of all five services, Bun and NATS in the flood, in milliseconds.
    pub cpu_ms_per_event: f64,
    /// The same time, by process.
    pub cpu_ms_by_process: Vec<(String, f64)>,
    /// Number of messages stored per event, including the answer's own event.
    pub stored_per_event: f64,
    /// Messages stored per event, by stream: of all streams and buckets.
    pub stored_by_stream: Vec<StreamTraffic>,
    /// Number of answers that a plain subscriber received twice.
    pub repeated_answers: u64,
    /// Durability that an acknowledgement promises.
    pub durability: String,
    /// Processor of the machine and its number of cores.
    pub machine: String,
    /// Numbers of events, sessions, bytes and hooks.
    pub setting: String,
}

/// Returns the name of the processor and its number of cores.
pub(super) fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|rest| rest.split_once(": "));

    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{} cores, {}",
        cores,
        model.map_or("unknown processor", |(_, name)| name)
    )
}

impl Report {
    pub(super) fn new(
        options: &BenchOptions,
        durability: &str,
        latencies: &Latencies,
        flood: &Flood,
        raw: f64,
        hook_svc: Evaluation,
    ) -> Self {
        let raw_jetstream = Raw {
            events_per_s: raw / flood.stored_per_event.max(1.0),
            messages_per_s: raw,
        };

        Self {
            end_to_end: Throughput {
                events_per_s: flood.events_per_s,
                latency: Latencies::of(&latencies.reply),
            },
            event_to_dispatch: Latencies::of(&latencies.dispatch),
            ratio: flood.events_per_s / raw_jetstream.events_per_s.max(1.0),
            raw_jetstream,
            hook_svc,
            cpu_ms_per_event: flood.cpu_ms_per_event,
            cpu_ms_by_process: flood.cpu_by_process.clone(),
            stored_per_event: flood.stored_per_event,
            stored_by_stream: flood.stored_by_stream.clone(),
            repeated_answers: flood.repeated,
            durability: durability.to_owned(),
            machine: machine(),
            setting: format!(
                "{} events of {} bytes, {} sessions, {} hooks; latency at {}/s for {} s; accepted by the {}",
                options.events,
                options.size,
                options.sessions,
                options.hooks,
                options.rate,
                options.seconds,
                options.accept
            ),
        }
    }

    /// Adds the report for people to `view`.
    pub(super) fn add_to(&self, view: View) -> View {
        let mut rows = Table::new(&[Column::text("FIGURE"), Column::text("MEASURED"), Column::text("TARGET")]);
        let (e2e, dispatch) = (&self.end_to_end, &self.event_to_dispatch);
        let targets = self.durability == "process";
        let mut row = |what: &str, measured: String, target: &str| {
            let target = if targets { target } else { "" };
            rows.add([what.into(), measured.into(), target.into()]);
        };
        row(
            "end to end",
            format!("{:.0} events/s", e2e.events_per_s),
            "5,000 (at least 2,500)",
        );

        row(
            "raw JetStream",
            format!("{:.0} events/s", self.raw_jetstream.events_per_s),
            "",
        );
        row("ratio", format!("{:.2}", self.ratio), "0.50");
        row(
            "event to dispatch p50, p99",
            format!("{:.1}, {:.1} ms", dispatch.p50_ms, dispatch.p99_ms),
            "3, 15 ms",
        );

        row(
            "event to reply p50, p99",
            format!("{:.1}, {:.1} ms", e2e.latency.p50_ms, e2e.latency.p99_ms),
            "8, 40 ms",
        );
        row(
            "hook-svc alone",
            format!("{:.0} events/s", self.hook_svc.events_per_s),
            "20,000",
        );

        row(
            "hook-svc alone, one hook fires",
            format!("{:.0} events/s", self.hook_svc.firing_events_per_s),
            "",
        );
        let asking = &self.hook_svc.asking;
        row(
            "evaluation where a hook asks the read model p50, p99",
            format!("{:.1}, {:.1} ms", asking.p50_ms, asking.p99_ms),
            "p99 25 ms",
        );
        let another = &self.hook_svc.asking_another;
        row(
            "the same, half of the events on a replica without a copy",
            format!("{:.1}, {:.1} ms", another.p50_ms, another.p99_ms),
            "p99 30 ms",
        );

        row(
            "processor per event",
            format!("{:.3} ms", self.cpu_ms_per_event),
            "0.25 ms",
        );

        for (name, ms) in &self.cpu_ms_by_process {
            row(&format!("  {name}"), format!("{ms:.3} ms"), "");
        }

        row("stored messages per event", format!("{:.1}", self.stored_per_event), "");
        for traffic in &self.stored_by_stream {
            row(&format!("  {}", traffic.stream), format!("{:.2}", traffic.messages), "");
        }

        let head = format!("durability {} on {}\n{}\n", self.durability, self.machine, self.setting);
        view.line(head).table(rows)
    }
}
