//! `EVENTS` of channel `aix` → the agent tables: turns of agents that other harnesses ran
//! (`docs/design/channels.md` §1.7).
//!
//! An event is one message of a turn, with the id `aix:turn:{turn}:{role}`. Our own agents' rows come from `LEDGER`
//! and never share an id with these.

use rusqlite::{Connection, params};
use serde_json::Value;

use super::json_text;
use crate::model::event::Event;

/// Name of the channel of these events.
pub(super) const CHANNEL: &str = "aix";

/// Prefix of their ids.
const PREFIX: &str = "aix:turn:";

/// Writes the session, the turn, the message and the tool calls of `event`.
pub(super) fn write(connection: &Connection, event: &Event) -> Result<(), rusqlite::Error> {
    let Some((turn, role)) = event
        .id
        .as_str()
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.rsplit_once(':'))
    else {
        return Ok(());
    };

    let text = |key: &str| event.metadata.get(key).and_then(Value::as_str);
    let count = |key: &str| event.metadata.get(key).and_then(Value::as_i64).unwrap_or(0);
    let harness = text("harness").unwrap_or(&event.source_adapter);
    let session = format!("{CHANNEL}:{harness}:{}", text("session_id").unwrap_or(&event.peer.id));
    // The prefix keeps these ids apart from those of our own agents.
    let turn = format!("{CHANNEL}:{turn}");

    // Messages may arrive in any order: each one moves the bounds of its session and turn outwards.
    connection
        .prepare_cached(
            "INSERT INTO agent_sessions(id, persona, thread_id, source, model, tokens_in, tokens_out, created_at, updated_at, head_turn_id)
             VALUES(?1,?2,?3,?2,?4,?5,?6,?7,?7,?8)
             ON CONFLICT(id) DO UPDATE SET head_turn_id = CASE WHEN excluded.updated_at >= updated_at THEN excluded.head_turn_id
               ELSE head_turn_id END, model = coalesce(excluded.model, model), tokens_in = tokens_in + excluded.tokens_in,
               tokens_out = tokens_out + excluded.tokens_out, created_at = min(created_at, excluded.created_at),
               updated_at = max(updated_at, excluded.updated_at)",
        )?
        .execute(params![
            session,
            harness,
            event.thread_id,
            text("model"),
            count("tokens_in"),
            count("tokens_out"),
            event.timestamp.0,
            turn,
        ])?;

    connection
        .prepare_cached(
            "INSERT INTO agent_turns(id, session_id, parent, status, event_id, started_at, finished_at) VALUES(?1,?2,?3,'completed',?4,?5,?5)
             ON CONFLICT(id) DO UPDATE SET parent = coalesce(parent, excluded.parent),
               event_id = CASE WHEN excluded.started_at < started_at THEN excluded.event_id ELSE event_id END,
               started_at = min(started_at, excluded.started_at), finished_at = max(finished_at, excluded.finished_at)",
        )?
        .execute(params![turn, session, text("parent_turn"), event.id.as_str(), event.timestamp.0])?;

    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO agent_messages(id, turn_id, role, content, created_at) VALUES(?1,?2,?3,?4,?5)",
        )?
        .execute((event.id.as_str(), &turn, role, &event.content, event.timestamp.0))?;
    let calls = event.metadata.get("tool_calls").and_then(Value::as_array);
    for call in calls.into_iter().flatten() {
        write_tool(connection, event, &turn, call)?;
    }

    Ok(())
}

fn write_tool(connection: &Connection, event: &Event, turn: &str, call: &Value) -> Result<(), rusqlite::Error> {
    let Some(id) = call.get("id").and_then(Value::as_str) else {
        return Ok(());
    };

    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO agent_tool_calls(id, turn_id, name, args_json, outcome, started_at, finished_at)
             VALUES(?1,?2,?3,?4,?5,?6,?6)",
        )?
        .execute(params![
            id,
            turn,
            call.get("name").and_then(Value::as_str),
            call.get("args").map(json_text),
            call.get("outcome").map(json_text),
            event.timestamp.0,
        ])?;

    Ok(())
}
