//! Figures of replicas and of steady runs, as tables and as JSON.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::args::BenchOptions;
use crate::output::{Column, Table, View};

use super::report::machine;
use super::scale::ScaleFigures;
use super::steady::{Growth, SteadyFigures};

/// Results of `--replicas` and `--steady` with one durability.
#[derive(Debug, Serialize)]
pub(super) struct ScaleReport {
    /// Figures of each number of replicas; empty without `--replicas`.
    pub(super) replicas: Vec<ScaleFigures>,
    /// Figures of the steady runs; empty without `--steady`.
    pub(super) steady: Vec<SteadyFigures>,
    /// Durability that an acknowledgement promises.
    pub(super) durability: String,
    /// Processor of the machine and its number of cores.
    pub(super) machine: String,
    /// Numbers of events, sessions and bytes.
    pub(super) setting: String,
}

impl ScaleReport {
    pub(super) fn new(
        options: &BenchOptions,
        durability: &str,
        replicas: Vec<ScaleFigures>,
        steady: Vec<SteadyFigures>,
    ) -> Self {
        Self {
            replicas,
            steady,
            durability: durability.to_owned(),
            machine: machine(),
            setting: format!(
                "{} events of {} bytes, {} sessions, one hook that fires; {} runs; accepted by the {}",
                options.events, options.size, options.sessions, options.runs, options.accept
            ),
        }
    }

    /// Adds the report for people to `view`.
    pub(super) fn add_to(&self, view: View) -> View {
        let head = format!("durability {} on {}\n{}\n", self.durability, self.machine, self.setting);
        let view = view.line(head);

        let view = if self.replicas.is_empty() {
            view
        } else {
            view.table(rates(&self.replicas))
                .line("")
                .table(by_program(&self.replicas))
                .line("")
                .table(by_stream(&self.replicas))
        };

        self.steady
            .iter()
            .fold(view, |view, figures| view.line("").table(growth(figures)))
    }
}

fn rates(all: &[ScaleFigures]) -> Table {
    let columns = [
        "REPLICAS",
        "EVENTS/S",
        "RATIO",
        "MS/EVENT",
        "RATIO",
        "IDLE MS/S",
        "STORED",
        "DELIVERED",
        "REQUESTS",
    ];
    Table::new(&columns.map(Column::number)).with(all, |one| {
        let delivered = one.delivered_per_event.as_ref();
        [
            one.replicas.to_string().into(),
            format!("{:.0}", one.events_per_s).into(),
            format!("{:.2}", one.events_ratio).into(),
            format!("{:.3}", one.cpu_ms_per_event).into(),
            format!("{:.2}", one.cpu_ratio).into(),
            format!("{:.1}", one.idle_ms_per_s).into(),
            format!("{:.1}", one.stored_per_event).into(),
            delivered.map(|traffic| format!("{:.1}", traffic.messages)).into(),
            delivered.map(|traffic| format!("{:.1}", traffic.requests)).into(),
        ]
    })
}

fn by_program(all: &[ScaleFigures]) -> Table {
    let columns = [
        Column::text("PROCESS"),
        Column::number("REPLICAS"),
        Column::number("MS/EVENT"),
        Column::number("IDLE MS/S"),
        Column::number("MIB"),
        Column::number("DELIVERED"),
    ];

    let names: BTreeSet<&String> = all
        .iter()
        .flat_map(|one| one.cpu_ms_by_process.iter().map(|(name, _)| name))
        .collect();
    let rows = names
        .into_iter()
        .flat_map(|name| all.iter().map(move |one| (name, one)));

    Table::new(&columns).with(rows, |(name, one)| {
        let of = |values: &[(String, f64)], decimals: usize| {
            let found = values.iter().find(|(program, _)| program == name);
            found.map(|(_, value)| format!("{value:.decimals$}"))
        };
        let delivered = one.delivered_per_event.as_ref();
        [
            name.into(),
            one.replicas.to_string().into(),
            of(&one.cpu_ms_by_process, 3).into(),
            of(&one.idle_ms_by_process, 1).into(),
            of(&one.resident_mib_by_process, 0).into(),
            delivered.and_then(|traffic| of(&traffic.by_client, 2)).into(),
        ]
    })
}

fn by_stream(all: &[ScaleFigures]) -> Table {
    let columns = [
        Column::text("STREAM"),
        Column::number("REPLICAS"),
        Column::number("MESSAGES/EVENT"),
        Column::number("BYTES KEPT/EVENT"),
    ];

    let names: BTreeSet<&str> = all
        .iter()
        .flat_map(|one| one.stored_by_stream.iter().map(|traffic| traffic.stream.as_str()))
        .collect();
    let rows = names.into_iter().flat_map(|name| {
        let of_stream = move |one: &ScaleFigures| {
            let found = one.stored_by_stream.iter().find(|traffic| traffic.stream == name);
            found.map(|traffic| (one.replicas, traffic.clone()))
        };
        all.iter().filter_map(of_stream)
    });

    Table::new(&columns).with(rows, |(replicas, traffic)| {
        [
            traffic.stream.into(),
            replicas.to_string().into(),
            format!("{:.2}", traffic.messages).into(),
            format!("{:.0}", traffic.bytes).into(),
        ]
    })
}

fn growth(figures: &SteadyFigures) -> Table {
    let columns = [
        Column::text("STEADY"),
        Column::number("FIRST THIRD"),
        Column::number("LAST THIRD"),
        Column::number("RATIO"),
    ];
    let mut table = Table::new(&columns);
    let mut row = |what: &str, grown: Growth, decimals: usize| {
        table.add([
            what.into(),
            format!("{:.decimals$}", grown.first).into(),
            format!("{:.decimals$}", grown.last).into(),
            (grown.first > 0.0)
                .then(|| format!("{:.2}", grown.last / grown.first))
                .into(),
        ]);
    };

    let head = format!(
        "{} replicas, {} events/s for {} minutes: ms per event",
        figures.replicas, figures.rate, figures.minutes
    );
    row(&head, figures.cpu_ms_per_event, 3);

    let (first, last) = (&figures.first_reply, &figures.last_reply);
    let pair = |first, last| Growth { first, last };
    row("event to reply p50, ms", pair(first.p50_ms, last.p50_ms), 1);
    row("event to reply p99, ms", pair(first.p99_ms, last.p99_ms), 1);
    row("memory, MiB", figures.resident_mib, 0);
    for (program, grown) in &figures.resident_mib_by_process {
        row(&format!("  {program}"), *grown, 0);
    }
    row("disk, MiB", figures.disk_mib, 0);
    row("disk, bytes per event", figures.disk_bytes_per_event, 0);

    table
}

#[cfg(test)]
mod tests {
    use super::super::traffic::{DeliveredTraffic, StreamTraffic};
    use super::super::{scale, steady};
    use super::*;

    fn report() -> ScaleReport {
        let one = ScaleFigures {
            stored_by_stream: vec![StreamTraffic {
                stream: "EVENTS".to_owned(),
                messages: 2.0,
                bytes: 900.0,
            }],
            delivered_per_event: Some(DeliveredTraffic {
                messages: 20.0,
                bytes: 9_000.0,
                requests: 1.5,
                by_client: vec![("hook-svc".to_owned(), 6.0)],
            }),
            ..scale::tests::figures(1, 3_000.0, 0.6)
        };
        ScaleReport {
            replicas: vec![one, scale::tests::figures(2, 1_700.0, 1.2)],
            steady: vec![steady::tests::figures()],
            durability: "process".to_owned(),
            machine: "a machine".to_owned(),
            setting: "a setting".to_owned(),
        }
    }

    #[test]
    fn a_stream_has_a_row_for_each_number_of_replicas_that_stored_into_it() {
        let expected = Table::new(&[
            Column::text("STREAM"),
            Column::number("REPLICAS"),
            Column::number("MESSAGES/EVENT"),
            Column::number("BYTES KEPT/EVENT"),
        ]);
        let row = ["EVENTS".into(), "1".into(), "2.00".into(), "900".into()];
        assert_eq!(by_stream(&report().replicas), expected.with([row], |row| row));
    }

    #[test]
    fn a_program_has_a_row_for_each_number_of_replicas() {
        let expected = Table::new(&[
            Column::text("PROCESS"),
            Column::number("REPLICAS"),
            Column::number("MS/EVENT"),
            Column::number("IDLE MS/S"),
            Column::number("MIB"),
            Column::number("DELIVERED"),
        ]);
        let rows = [
            ["bun", "1", "0.100", "", "", ""],
            ["bun", "2", "0.100", "", "", ""],
            ["hook-svc", "1", "0.200", "", "", "6.00"],
            ["hook-svc", "2", "0.200", "", "", ""],
        ];
        assert_eq!(
            by_program(&report().replicas),
            expected.with(rows, |row| row.map(Into::into))
        );
    }

    #[test]
    fn the_names_of_the_figures_are_those_of_the_plain_run() {
        let json = serde_json::to_value(report()).expect("JSON");
        for key in [
            "events_per_s",
            "cpu_ms_per_event",
            "cpu_ms_by_process",
            "stored_per_event",
        ] {
            assert!(!json["replicas"][0][key].is_null(), "{key}: {json}");
        }
        assert_eq!(json["replicas"][0]["stored_by_stream"][0]["stream"], "EVENTS");
        assert_eq!(json["steady"][0]["cpu_ms_per_event"]["last"], 1.0);
    }
}
