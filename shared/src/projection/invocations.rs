//! Query of a hook's last invocations.

use rusqlite::{Connection, Row};

use super::applied::from_sql;
use crate::model::event::EventId;
use crate::model::hook_api::InvocationRow;
use crate::model::time::UnixMillis;

/// Returns the last `limit` invocations of `hook_id`, the newest first.
pub(super) fn of_hook(
    connection: &Connection,
    hook_id: &str,
    limit: u32,
) -> Result<Vec<InvocationRow>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT hook_id, event_id, started_at, latency_ms, outcome, reason, result, dispatch_id, error,
               llm_calls, llm_tokens_in + llm_tokens_out, llm_cost_usd, search_calls
             FROM hook_invocations WHERE hook_id = ?1 ORDER BY started_at DESC, event_id DESC LIMIT ?2",
        )?
        .query_map((hook_id, limit), read_row)?
        .collect()
}

fn read_row(row: &Row<'_>) -> Result<InvocationRow, rusqlite::Error> {
    let unreadable = |column, error: Box<dyn std::error::Error + Send + Sync>| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error)
    };
    let event_id: String = row.get(1)?;
    let result: Option<String> = row.get(6)?;

    Ok(InvocationRow {
        hook_id: row.get(0)?,
        event_id: EventId::parse(event_id).map_err(|error| unreadable(1, Box::new(error)))?,
        started_at: UnixMillis(row.get(2)?),
        latency_ms: row.get(3)?,
        outcome: row.get(4)?,
        reason: row.get(5)?,
        result: result
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|error| unreadable(6, Box::new(error)))?,
        dispatch_id: row.get(7)?,
        error: row.get(8)?,
        llm_calls: row.get(9)?,
        llm_tokens: from_sql(row.get(10)?),
        llm_cost_usd: row.get::<_, Option<f64>>(11)?.unwrap_or(0.0),
        search_calls: row.get(12)?,
    })
}
