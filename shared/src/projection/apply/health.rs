//! `INVOCATIONS` → `hook_health`: statistics of each hook's last 100 invocations (seed 003 §8.5).
//!
//! Collected over a transaction and written once per hook at its end, so that a hook that sees every event costs one
//! row per batch. Passes are reported in sums about once a second, so they are consecutive among the last 100.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _};
use serde::{Deserialize, Serialize};

use crate::model::invocation::{EventInvocations, HookInvocation, HookOutcome, HookPasses};
use crate::projection::applied::to_sql;

/// Number of invocations that the statistics cover.
const WINDOW: usize = 100;

/// Microseconds in a millisecond.
const US_PER_MS: f64 = 1_000.0;

/// Outcome of an invocation, as the window stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Passed,
    Fired,
    Failed,
}

/// One invocation: its outcome, its duration in microseconds, its cost in dollars, and the time at which its event's
/// evaluation ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct HookRunRow(Kind, u64, f64, i64);

/// Invocations of one transaction's records, by hook.
#[derive(Debug, Default)]
pub(in crate::projection) struct Health(BTreeMap<String, Vec<HookRunRow>>);

impl Health {
    /// Collects the invocations in `record`: the first record of its event, or the part of a later one about deferred
    /// hooks.
    pub(super) fn take(&mut self, record: &EventInvocations) {
        let at = record.finished_at.0;
        for hook in &record.hooks {
            if let Some(kind) = kind(&hook.outcome) {
                self.note_run(hook, HookRunRow(kind, hook.latency_us, hook.llm_cost_usd, at));
            }
        }
        for passes in &record.passes {
            self.note_passes(passes, at);
        }
    }

    fn note_run(&mut self, hook: &HookInvocation, ran: HookRunRow) {
        self.0.entry(hook.hook_id.clone()).or_default().push(ran);
    }

    /// Collects passes. If there are more passes than reported latencies, the others get the first reported latency.
    fn note_passes(&mut self, passes: &HookPasses, at: i64) {
        let count = (passes.count as usize).min(WINDOW);
        let told = &passes.latencies_us;
        let untold = count.saturating_sub(told.len());
        let first = told.first().copied().unwrap_or_default();
        let all = std::iter::repeat_n(first, untold).chain(told.iter().copied());
        let all = all.map(|latency_us| HookRunRow(Kind::Passed, latency_us.into(), 0.0, at));
        self.0.entry(passes.hook_id.clone()).or_default().extend(all);
    }

    /// Writes the rows of the hooks that ran.
    pub(in crate::projection) fn write(self, connection: &Connection) -> Result<(), rusqlite::Error> {
        for (hook_id, ran) in self.0 {
            let mut read = connection.prepare_cached("SELECT ran FROM nexus_hook_window WHERE hook_id = ?1")?;
            let known: Option<String> = read.query_row([&hook_id], |row| row.get(0)).optional()?;
            let mut window: Vec<HookRunRow> = known
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default();
            window.extend(ran);
            // Taken before the window is cut, which may drop the last failure.
            let failure = window.iter().rev().find(|ran| ran.0 == Kind::Failed).map(|ran| ran.3);
            window.drain(..window.len().saturating_sub(WINDOW));
            connection
                .prepare_cached("INSERT OR REPLACE INTO nexus_hook_window(hook_id, ran) VALUES(?1, ?2)")?
                .execute((&hook_id, super::json_text(&window)))?;

            write_row(connection, &hook_id, &window, failure)?;
        }

        Ok(())
    }
}

/// Returns the kind of an invocation; `None` if the hook did not run, because it was skipped or deferred.
const fn kind(outcome: &HookOutcome) -> Option<Kind> {
    match outcome {
        HookOutcome::Passed => Some(Kind::Passed),
        HookOutcome::Fired { .. } | HookOutcome::Suppressed { .. } => Some(Kind::Fired),
        HookOutcome::Failed { .. } => Some(Kind::Failed),
        HookOutcome::Skipped { .. } | HookOutcome::Deferred => None,
    }
}

fn count(window: &[HookRunRow], kind: Kind) -> i64 {
    window.iter().map(|ran| i64::from(ran.0 == kind)).sum()
}

/// Writes one hook's row; `failure` is the time of the last failure known here.
fn write_row(
    connection: &Connection,
    hook_id: &str,
    window: &[HookRunRow],
    failure: Option<i64>,
) -> Result<(), rusqlite::Error> {
    let length = to_sql(window.len() as u64);
    let all = window.len().max(1) as f64;
    let mut latencies: Vec<u64> = window.iter().map(|ran| ran.1).collect();
    latencies.sort_unstable();
    let cost: f64 = window.iter().map(|ran| ran.2).sum();
    let failed = count(window, Kind::Failed);
    let in_a_row = window.iter().rev().take_while(|ran| ran.0 == Kind::Failed);
    let in_a_row: i64 = in_a_row.map(|_| 1).sum();

    // The state of the circuit breaker comes from another record, so it is set only for a new row.
    connection
        .prepare_cached(
            "INSERT INTO hook_health(hook_id, invocation_count, success_count, error_count, fire_count, avg_latency_ms,
               p95_latency_ms, p99_latency_ms, total_cost_usd, avg_cost_per_invocation, consecutive_errors, circuit_state,
               last_error_at) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,'closed',?12)
             ON CONFLICT(hook_id) DO UPDATE SET invocation_count = ?2, success_count = ?3, error_count = ?4, fire_count = ?5,
               avg_latency_ms = ?6, p95_latency_ms = ?7, p99_latency_ms = ?8, total_cost_usd = ?9,
               avg_cost_per_invocation = ?10, consecutive_errors = ?11, last_error_at = coalesce(?12, last_error_at)",
        )?
        .execute((
            hook_id,
            length,
            length - failed,
            failed,
            count(window, Kind::Fired),
            latencies.iter().map(|&us| us as f64).sum::<f64>() / all / US_PER_MS,
            percentile(&latencies, 95),
            percentile(&latencies, 99),
            cost,
            cost / all,
            in_a_row,
            failure,
        ))?;

    Ok(())
}

/// Returns the nearest rank among `sorted` microseconds, in milliseconds.
fn percentile(sorted: &[u64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(0.0, |&us| us as f64 / US_PER_MS)
}

/// Gives every hook of the registry a row, and writes the states of the breakers: `circuits` has the id and the state of
/// each hook.
pub(super) fn write_circuits<'a>(
    connection: &Connection,
    circuits: impl Iterator<Item = (&'a str, &'static str)>,
) -> Result<(), rusqlite::Error> {
    connection.execute(
        "INSERT OR IGNORE INTO hook_health SELECT id, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 'closed', NULL FROM hooks",
        [],
    )?;
    connection.execute(
        "UPDATE hook_health SET circuit_state = 'closed' WHERE circuit_state <> 'closed'",
        [],
    )?;

    let mut write = connection.prepare_cached("UPDATE hook_health SET circuit_state = ?2 WHERE hook_id = ?1")?;
    for (hook_id, circuit_state) in circuits.filter(|(_, state)| *state != "closed") {
        write.execute((hook_id, circuit_state))?;
    }

    Ok(())
}
