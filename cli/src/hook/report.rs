//! Report of a replay of history about one hook.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use shared::model::event::{Event, EventId};
use shared::model::hook::HookResult;
use shared::model::hook_api::HookRun;
use shared::model::time::UnixMillis;

use crate::output::{Cell, Column, Table, View, Zone, brief_line};

/// Largest number of fires, and of failures, that are kept one by one.
const KEPT: usize = 10_000;

/// Results of a replay.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// Number of events that the hook would have seen.
    pub(super) events: u64,
    /// Number of times that the hook would have fired.
    pub(super) fires: u64,
    /// Number of times that the hook failed.
    pub(super) failures: u64,
    /// Event after which the hook would have been disabled, by its own return value or as a one-shot hook.
    pub(super) disabled_by: Option<EventId>,
    /// Number of fires by channel.
    pub(super) by_channel: BTreeMap<String, u64>,
    /// Number of fires by day (UTC).
    pub(super) by_day: BTreeMap<String, u64>,
    /// The first fires, oldest first.
    pub(super) fired: Vec<Fire>,
    /// The first failures, oldest first.
    pub(super) failed: Vec<Failure>,
    /// Time that the hook took per event.
    pub(super) latency: Latency,
    /// Model calls, tokens in, tokens out, US dollars.
    pub(super) llm: Llm,
    /// Number of searches.
    pub(super) search_calls: u64,
    /// Duration of the replay, in seconds.
    pub(super) seconds: f64,
    #[serde(skip)]
    latencies_us: Vec<u32>,
}

/// One fire of the hook.
#[derive(Debug, Serialize)]
pub(super) struct Fire {
    event_id: EventId,
    at: UnixMillis,
    channel: String,
    from: String,
    content: String,
    result: Option<HookResult>,
}

/// One failure of the hook.
#[derive(Debug, Serialize)]
pub(super) struct Failure {
    event_id: EventId,
    error: String,
}

/// Latencies in milliseconds.
#[derive(Debug, Default, Serialize)]
pub(super) struct Latency {
    avg_ms: f64,
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

/// Use of the model by the hook.
#[derive(Debug, Default, Serialize)]
pub(super) struct Llm {
    calls: u64,
    tokens_in: u64,
    tokens_out: u64,
    cost_usd: f64,
}

impl Report {
    /// Adds the run of the hook for `event`, after which the hook is disabled if `retires`.
    pub(super) fn take(&mut self, event: &Event, run: HookRun, retires: bool) {
        self.events += 1;
        self.latencies_us
            .push(u32::try_from(run.latency_us).unwrap_or(u32::MAX));
        self.llm.calls += u64::from(run.llm_calls);
        self.llm.tokens_in += run.llm_tokens_in;
        self.llm.tokens_out += run.llm_tokens_out;
        self.llm.cost_usd += run.llm_cost_usd;
        self.search_calls += u64::from(run.search_calls);

        if retires {
            self.disabled_by = Some(event.id.clone());
        }

        if let Some(error) = run.error {
            self.failures += 1;
            if self.failed.len() < KEPT {
                let event_id = event.id.clone();
                self.failed.push(Failure { event_id, error });
            }
        }

        if run.fired {
            self.fires += 1;
            *self.by_channel.entry(event.channel.clone()).or_default() += 1;
            *self.by_day.entry(Zone::utc().date(event.timestamp)).or_default() += 1;

            if self.fired.len() < KEPT {
                self.fired.push(Fire {
                    event_id: event.id.clone(),
                    at: event.timestamp,
                    channel: event.channel.clone(),
                    from: event.from.id.clone(),
                    content: brief_line(&event.content, 200),
                    result: run.result,
                });
            }
        }
    }

    /// Computes the sums of a replay that took `took`.
    pub(super) fn finish(&mut self, took: Duration) {
        self.seconds = took.as_secs_f64();
        let mut all = std::mem::take(&mut self.latencies_us);
        all.sort_unstable();
        let at = |share: f64| {
            let index = (all.len() as f64 * share) as usize;
            all.get(index.min(all.len().saturating_sub(1)))
                .map_or(0.0, |us| f64::from(*us) / 1_000.0)
        };

        let sum: u64 = all.iter().map(|us| u64::from(*us)).sum();
        self.latency = Latency {
            avg_ms: if all.is_empty() {
                0.0
            } else {
                sum as f64 / all.len() as f64 / 1_000.0
            },
            p50_ms: at(0.5),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            max_ms: at(1.0),
        };
    }

    /// Returns the report for people, with the last `show` fires.
    ///
    /// # Errors
    /// Fails if the report has no JSON form.
    pub(super) fn view(&self, show: usize) -> Result<View> {
        let share = if self.events == 0 {
            0.0
        } else {
            self.fires as f64 * 100.0 / self.events as f64
        };
        let latency = &self.latency;
        let failures = (self.failures > 0).then(|| self.failures.to_string());
        let llm = (self.llm.calls > 0).then(|| {
            let llm = &self.llm;
            format!(
                "{} calls, {} tokens in, {} out, ${:.4}",
                llm.calls, llm.tokens_in, llm.tokens_out, llm.cost_usd
            )
        });

        let mut fields: Vec<(&'static str, Cell)> = vec![
            ("events", format!("{} in {:.1} s", self.events, self.seconds).into()),
            ("fires", format!("{} ({share:.2} %)", self.fires).into()),
            ("failures", failures.into()),
            (
                "disabled",
                self.disabled_by.as_ref().map(|event| format!("after {event}")).into(),
            ),
            (
                "latency",
                format!(
                    "avg {:.3} ms, p50 {:.3}, p95 {:.3}, p99 {:.3}, max {:.3}",
                    latency.avg_ms, latency.p50_ms, latency.p95_ms, latency.p99_ms, latency.max_ms
                )
                .into(),
            ),
            ("llm", llm.into()),
        ];

        for (what, counts) in [("channel", &self.by_channel), ("day", &self.by_day)] {
            let lines = counts
                .iter()
                .map(|(name, count)| (what, format!("{name}: {count}").into()));
            fields.extend(lines);
        }
        for failure in self.failed.iter().take(3) {
            fields.push(("error", format!("{}: {}", failure.event_id, failure.error).into()));
        }

        let mut view = View::of(self)?
            .ids(self.fired.iter().map(|fire| fire.event_id.to_string()))
            .fields(fields);
        if !self.fired.is_empty() {
            view = view.table(fire_table(&self.fired[self.fired.len().saturating_sub(show)..]));
        }

        Ok(view.line("nothing was dispatched"))
    }
}

fn fire_table(fires: &[Fire]) -> Table {
    let columns = [
        Column::time("AT"),
        Column::id("EVENT"),
        Column::text("CHANNEL").extra(),
        Column::text("FROM"),
        Column::text("CONTENT"),
        Column::text("TO"),
    ];
    Table::new(&columns).with(fires, |fire| {
        [
            fire.at.into(),
            fire.event_id.as_str().into(),
            (&fire.channel).into(),
            (&fire.from).into(),
            (&fire.content).into(),
            fire.target_text().into(),
        ]
    })
}

impl Fire {
    /// Returns the persona, and the session if there is one, that the fire is for.
    fn target_text(&self) -> String {
        let routing = self.result.as_ref().and_then(|result| result.routing.as_ref());
        routing.map_or_else(String::new, |routing| {
            let persona = routing.persona.as_deref().unwrap_or("default");
            routing
                .session
                .as_ref()
                .map_or_else(|| persona.to_owned(), |session| format!("{persona}/{session}"))
        })
    }
}
