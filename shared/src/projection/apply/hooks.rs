//! `INVOCATIONS` → `nexus_evaluations`, `hook_invocations`; `DISPATCHES` → `nexus_dispatches`.

use std::borrow::Cow;

use rusqlite::{Connection, params};

use super::health::write_circuits;
use super::json_text;
use crate::breaker::BreakerState;
use crate::model::dispatch::Dispatch;
use crate::model::hook::{HookRecord, HookState, HookStatus};
use crate::model::invocation::{EventInvocations, HookInvocation, HookOutcome};
use crate::model::session::QueueMode;
use crate::model::time::UnixMillis;
use crate::projection::applied::to_sql;

/// Microseconds in a millisecond.
const US_PER_MS: f64 = 1_000.0;

/// Writes `record`. Only the first record of an event counts, because its dispatches were made from it; of a later
/// one, only the outcomes of hooks that were deferred until then. Returns the part of `record` that counts.
pub(super) fn write_invocations<'a>(
    connection: &Connection,
    record: &'a EventInvocations,
) -> Result<Option<Cow<'a, EventInvocations>>, rusqlite::Error> {
    let event_id = record.event_id.as_str();
    let inserted = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO nexus_evaluations(event_id, evaluated_by, started_at, finished_at, passed)
             VALUES(?1,?2,?3,?4,?5)",
        )?
        .execute((
            event_id,
            &record.evaluated_by,
            record.started_at.0,
            record.finished_at.0,
            record.passed,
        ))?;

    // A second record of the event: only the parts that the first one left open may change.
    if inserted == 0 {
        return complete_deferred(connection, record);
    }

    for hook in &record.hooks {
        write_invocation(connection, record, hook)?;
    }

    Ok(Some(Cow::Borrowed(record)))
}

/// Writes the outcomes in `record` of hooks that were deferred until now. Hooks that passed have no row.
fn complete_deferred<'a>(
    connection: &Connection,
    record: &EventInvocations,
) -> Result<Option<Cow<'a, EventInvocations>>, rusqlite::Error> {
    let event_id = record.event_id.as_str();
    let mut owed = connection
        .prepare_cached("SELECT hook_id FROM hook_invocations WHERE event_id = ?1 AND outcome = 'deferred'")?;
    let owed: Vec<String> = owed
        .query_map([event_id], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let is_made = |id: &String| !record.deferred_hooks().any(|deferred| deferred == id);
    let made: Vec<String> = owed.into_iter().filter(is_made).collect();

    // A repetition of the record adds nothing.
    if made.is_empty() {
        return Ok(None);
    }

    let mut forget = connection.prepare_cached("DELETE FROM hook_invocations WHERE event_id = ?1 AND hook_id = ?2")?;
    for hook_id in &made {
        forget.execute((event_id, hook_id))?;
    }

    connection
        .prepare_cached("UPDATE nexus_evaluations SET finished_at = ?2, passed = ?3 WHERE event_id = ?1")?
        .execute((event_id, record.finished_at.0, record.passed))?;
    // The other hooks were counted with the first record.
    let mut news = record.clone();
    news.hooks.retain(|hook| made.contains(&hook.hook_id));

    for hook in &news.hooks {
        write_invocation(connection, record, hook)?;
    }

    Ok(Some(Cow::Owned(news)))
}

/// A hook according to the buckets of the registry.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedHook {
    /// Registered script and metadata of the hook.
    pub record: HookRecord,
    /// Current state of the hook.
    pub state: HookState,
    /// State of the hook's breaker.
    pub circuit: BreakerState,
}

impl ListedHook {
    /// Returns the value of `hook_health.circuit_state` (seed 003 §8.5). The buckets are watched one by one: the
    /// breaker of a paused hook may not be known yet.
    const fn circuit_state(&self) -> &'static str {
        match (&self.circuit, self.state.status) {
            (BreakerState::HalfOpen { .. }, _) => "half-open",
            (BreakerState::Open { .. }, _) | (BreakerState::Closed, HookStatus::Paused) => "open",
            (
                BreakerState::Closed,
                HookStatus::Active
                | HookStatus::Degraded
                | HookStatus::Waiting
                | HookStatus::Disabled
                | HookStatus::Errored,
            ) => "closed",
        }
    }
}

/// Replaces the registry's rows by `hooks`.
pub(crate) fn list(connection: &Connection, hooks: &[ListedHook]) -> Result<(), rusqlite::Error> {
    connection.execute("DELETE FROM hooks", [])?;
    let mut statement = connection.prepare_cached(
        "INSERT OR REPLACE INTO hooks(id, name, description, script, enabled, mode, created_by, created_at, updated_at,
           trigger_count, last_triggered, last_error, status) VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)",
    )?;
    for ListedHook { record, state, .. } in hooks {
        statement.execute(params![
            record.id,
            record.metadata.name,
            record.metadata.description,
            // Scripts of all authors can read this table, so it must not contain the source of others.
            rusqlite::types::Null,
            record.enabled,
            name(&record.metadata.mode),
            record.created_by,
            record.created_at.0,
            record.updated_at.0,
            to_sql(state.trigger_count),
            state.last_triggered.map(|at| at.0),
            state.last_error.as_ref().or(record.parse_error.as_ref()),
            name(&state.status),
        ])?;
    }

    let circuits = hooks.iter().map(|hook| (hook.record.id.as_str(), hook.circuit_state()));
    write_circuits(connection, circuits)
}

/// Returns the name that serde gives a variant.
fn name(variant: &impl serde::Serialize) -> String {
    json_text(variant).trim_matches('"').to_owned()
}

/// Values of the columns for an outcome.
struct OutcomeColumns<'a> {
    outcome: &'static str,
    dispatch: Option<String>,
    result: Option<String>,
    reason: Option<&'a str>,
    error: Option<&'a str>,
    stack: Option<&'a str>,
}

fn outcome_columns(outcome: &HookOutcome) -> OutcomeColumns<'_> {
    let plain = |outcome| OutcomeColumns {
        outcome,
        dispatch: None,
        result: None,
        reason: None,
        error: None,
        stack: None,
    };

    match outcome {
        HookOutcome::Passed => plain("passed"),
        HookOutcome::Fired { dispatch, result, .. } => OutcomeColumns {
            dispatch: Some(dispatch.to_string()),
            result: Some(json_text(result)),
            ..plain("fired")
        },
        HookOutcome::Suppressed { reason } => OutcomeColumns {
            reason: Some(reason),
            ..plain("suppressed")
        },
        HookOutcome::Skipped { reason } => OutcomeColumns {
            reason: Some(reason),
            ..plain("skipped")
        },
        HookOutcome::Deferred => plain("deferred"),
        HookOutcome::Failed { error, stack } => OutcomeColumns {
            error: Some(error),
            stack: stack.as_deref(),
            ..plain("failed")
        },
    }
}

fn write_invocation(
    connection: &Connection,
    record: &EventInvocations,
    hook: &HookInvocation,
) -> Result<(), rusqlite::Error> {
    let columns = outcome_columns(&hook.outcome);
    let latency_ms = hook.latency_us as f64 / US_PER_MS;
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO hook_invocations(hook_id, event_id, started_at, finished_at, latency_ms, fired, result,
               llm_calls, llm_tokens_in, llm_tokens_out, search_calls, error, stack_trace, outcome, reason, dispatch_id,
               llm_cost_usd)
             VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17)",
        )?
        .execute(params![
            hook.hook_id,
            record.event_id.as_str(),
            record.started_at.0,
            record.finished_at.0,
            latency_ms,
            columns.dispatch.is_some() || columns.outcome == "suppressed",
            columns.result,
            hook.llm_calls,
            hook.llm_tokens_in,
            hook.llm_tokens_out,
            hook.search_calls,
            columns.error,
            columns.stack,
            columns.outcome,
            columns.reason,
            columns.dispatch,
            hook.llm_cost_usd,
        ])?;

    Ok(())
}

/// Writes `dispatch`. If it was published twice (its id is derived from event and hook), the first one counts.
pub(super) fn write_dispatch(
    connection: &Connection,
    sequence: u64,
    published_at: UnixMillis,
    dispatch: &Dispatch,
) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached(
            "INSERT OR IGNORE INTO nexus_dispatches(event_id, id, hook_id, sequence, session_id, queue_mode, priority, published_at)
             VALUES(?1,?2,?3,?4,?5,?6,?7,?8)",
        )?
        .execute(params![
            dispatch.event_id.as_str(),
            dispatch.id.to_string(),
            dispatch.hook_id,
            to_sql(sequence),
            dispatch.target.to_string(),
            dispatch.queue_mode.map_or("default", queue_mode),
            dispatch.priority,
            published_at.0,
        ])?;

    Ok(())
}

const fn queue_mode(mode: QueueMode) -> &'static str {
    match mode {
        QueueMode::Followup => "followup",
        QueueMode::Collect => "collect",
        QueueMode::Steer => "steer",
        QueueMode::Interrupt => "interrupt",
        QueueMode::SteerBacklog => "steer-backlog",
    }
}
