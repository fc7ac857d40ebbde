//! Report of a replay of history about one hook.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use shared::model::event::{Event, EventId};
use shared::model::hook::HookResult;
use shared::model::hook_api::HookRun;
use shared::model::time::UnixMillis;

use crate::output::{brief, clock, plain, table};
use crate::say;

/// Largest number of fires, and of failures, that are kept one by one.
const KEPT: usize = 10_000;

/// Milliseconds in a day.
const DAY_MS: i64 = 86_400_000;

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
            *self.by_day.entry(day(event.timestamp)).or_default() += 1;

            if self.fired.len() < KEPT {
                self.fired.push(Fire {
                    event_id: event.id.clone(),
                    at: event.timestamp,
                    channel: event.channel.clone(),
                    from: event.from.id.clone(),
                    content: brief(&event.content, 200),
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

    /// Prints the report for people, with the last `show` fires.
    pub(super) fn print(&self, show: usize) {
        let share = if self.events == 0 {
            0.0
        } else {
            self.fires as f64 * 100.0 / self.events as f64
        };
        say!("events    {} in {:.1} s", self.events, self.seconds);
        say!("fires     {} ({share:.2} %)", self.fires);

        if self.failures > 0 {
            say!("failures  {}", self.failures);
        }

        if let Some(event) = &self.disabled_by {
            say!("disabled  after {}", plain(&event.to_string()));
        }

        let latency = &self.latency;
        say!(
            "latency   avg {:.3} ms, p50 {:.3}, p95 {:.3}, p99 {:.3}, max {:.3}",
            latency.avg_ms,
            latency.p50_ms,
            latency.p95_ms,
            latency.p99_ms,
            latency.max_ms
        );

        if self.llm.calls > 0 {
            let llm = &self.llm;
            say!(
                "llm       {} calls, {} tokens in, {} out, ${:.4}",
                llm.calls,
                llm.tokens_in,
                llm.tokens_out,
                llm.cost_usd
            );
        }

        for (what, counts) in [("channel", &self.by_channel), ("day", &self.by_day)] {
            for (name, count) in counts {
                say!("{what:<9} {}: {count}", plain(name));
            }
        }

        for failure in self.failed.iter().take(3) {
            say!(
                "error     {}: {}",
                plain(&failure.event_id.to_string()),
                brief(&failure.error, 120)
            );
        }

        if !self.fired.is_empty() {
            let mut rows = table(&["at (UTC)", "event", "channel", "from", "content", "to"]);
            for fire in &self.fired[self.fired.len().saturating_sub(show)..] {
                rows.add_row(fire.line());
            }
            say!("{rows}");
        }

        say!("nothing was dispatched");
    }
}

impl Fire {
    fn line(&self) -> [String; 6] {
        let routing = self.result.as_ref().and_then(|result| result.routing.as_ref());
        let to = routing.map_or_else(String::new, |routing| {
            let persona = routing.persona.as_deref().unwrap_or("default");
            routing
                .session
                .as_ref()
                .map_or_else(|| persona.to_owned(), |session| format!("{persona}/{session}"))
        });

        [
            format!("{} {}", day(self.at), clock(self.at)),
            plain(&self.event_id.to_string()),
            plain(&self.channel),
            plain(&self.from),
            brief(&self.content, 40),
            plain(&to),
        ]
    }
}

/// Returns the day of `at`, as `2026-01-31`, by the proleptic Gregorian calendar (Howard Hinnant, "days from civil").
fn day(at: UnixMillis) -> String {
    let days = at.0.div_euclid(DAY_MS) + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;

    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (at, expected) in [
            (0, "1970-01-01"),
            (1_772_236_800_000, "2026-02-28"),
            (1_709_164_800_000, "2024-02-29"),
            (-1, "1969-12-31"),
        ] {
            assert_eq!(day(UnixMillis(at)), expected);
        }
    }
}
