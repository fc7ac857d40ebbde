//! `LEDGER` → `agent_sessions`, `agent_turns`, `agent_messages`, `agent_tool_calls`, `nexus_dispatch_ends`.
//!
//! Entries that were made together are one message. They are folded first, so that a turn that begins and ends in one
//! message is one row, written once.

use rusqlite::{Connection, OptionalExtension, params};

use super::json_text;
use crate::model::ledger::LedgerRecord;
use crate::model::session::SessionRef;
use crate::projection::applied::to_sql;
use crate::projection::turns::{self, ApprovalChange, IntentChange, MessageRow, SessionRows, ToolChange, TurnChange};

/// Value of `source` for our own agents' sessions; sessions read from elsewhere name their harness.
const OWN_SOURCE: &str = "nexus";

/// Writes the rows of one ledger message, stored under `subject`.
pub(super) fn write(
    connection: &Connection,
    subject: &str,
    session: Option<&SessionRef>,
    record: &LedgerRecord,
) -> Result<(), rusqlite::Error> {
    let opened = turns::opened_session(record);
    // The head is needed only if the message does not name its session, or continues a turn.
    let head = if session.or(opened).is_none() || turns::continues_turn(record) {
        read_head(connection, subject)?
    } else {
        None
    };

    let (known_session, running) = head.map_or((None, None), |head| (Some(head.session_id), head.running));
    let session_id = match session.or(opened) {
        Some(session) => session.to_string(),
        None => known_session.unwrap_or_else(|| subject.to_owned()),
    };

    let persona = session
        .or(opened)
        .map_or_else(|| persona_of(&session_id), |session| session.persona.as_str());
    let rows = turns::fold_record(record, running.as_deref());
    write_session(connection, &session_id, persona, record, &rows)?;

    for turn in &rows.turns {
        write_turn(connection, &session_id, record, turn)?;
    }

    for message in &rows.messages {
        write_message(connection, record, message)?;
    }

    for tool in &rows.tools {
        write_tool(connection, record, tool)?;
    }

    for end in &rows.ends {
        // A copy of a dispatch ends without a turn, and must not hide the turn of the first one.
        let statement = match end.replaces {
            true => "INSERT OR REPLACE INTO nexus_dispatch_ends(dispatch_id, turn_id, dropped, at) VALUES(?1,?2,?3,?4)",
            false => "INSERT OR IGNORE INTO nexus_dispatch_ends(dispatch_id, turn_id, dropped, at) VALUES(?1,?2,?3,?4)",
        };
        connection.prepare_cached(statement)?.execute((
            end.dispatch.to_string(),
            end.turn.as_deref(),
            end.dropped.as_deref(),
            record.at.0,
        ))?;
    }

    for approval in &rows.approvals {
        write_approval(connection, record, approval)?;
    }

    for intent in &rows.intents {
        write_intent(connection, record, intent)?;
    }

    // The head keeps the session of a shortened subject, and the turn that runs.
    let shortened = session.is_none() && opened.is_some();
    if shortened || rows.running.as_deref() != running.as_deref() {
        write_head(connection, subject, &session_id, rows.running.as_deref())?;
    }

    Ok(())
}

struct SessionHead {
    session_id: String,
    running: Option<String>,
}

fn read_head(connection: &Connection, subject: &str) -> Result<Option<SessionHead>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT session_id, running FROM nexus_ledger_heads WHERE subject = ?1")?
        .query_row([subject], |row| {
            Ok(SessionHead {
                session_id: row.get(0)?,
                running: row.get(1)?,
            })
        })
        .optional()
}

fn write_head(
    connection: &Connection,
    subject: &str,
    session_id: &str,
    running: Option<&str>,
) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO nexus_ledger_heads(subject, session_id, running) VALUES(?1,?2,?3)")?
        .execute((subject, session_id, running))?;
    Ok(())
}

/// Returns the persona of a session id whose subject and ledger do not name it: the part before the slash, as personas
/// have none in practice.
fn persona_of(session_id: &str) -> &str {
    session_id.split_once('/').map_or(session_id, |(persona, _)| persona)
}

fn write_session(
    connection: &Connection,
    session_id: &str,
    persona: &str,
    record: &LedgerRecord,
    rows: &SessionRows<'_>,
) -> Result<(), rusqlite::Error> {
    let thread = session_id.rsplit_once(":thread:").map(|(_, thread)| thread);
    // A record has only its own tokens, so they are added up. It may move the head to nothing, so `coalesce` does not
    // do for the head as it does for the model.
    connection
        .prepare_cached(
            "INSERT INTO agent_sessions(id, persona, thread_id, source, tokens_in, tokens_out, created_at, updated_at, model, head_turn_id)
             VALUES(?1,?2,?3,?4,?5,?6,?7,?7,?8,?9)
             ON CONFLICT(id) DO UPDATE SET tokens_in = tokens_in + excluded.tokens_in,
               tokens_out = tokens_out + excluded.tokens_out, updated_at = excluded.updated_at,
               model = coalesce(excluded.model, model), head_turn_id = CASE WHEN ?10 THEN excluded.head_turn_id ELSE head_turn_id END",
        )?
        .execute(params![
            session_id,
            persona,
            thread,
            OWN_SOURCE,
            to_sql(rows.tokens_in),
            to_sql(rows.tokens_out),
            record.at.0,
            rows.model,
            rows.head.as_ref().and_then(Option::as_deref),
            rows.head.is_some(),
        ])?;

    Ok(())
}

fn write_turn(
    connection: &Connection,
    session_id: &str,
    record: &LedgerRecord,
    turn: &TurnChange<'_>,
) -> Result<(), rusqlite::Error> {
    let started = turn.started.as_ref();
    let ended = turn.ended.as_ref();
    let first = started.and_then(|started| started.dispatches.first());

    connection
        .prepare_cached(
            "INSERT INTO agent_turns(id, session_id, parent, status, event_id, dispatch_id, started_at, finished_at, replied, outcome)
             VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)
             ON CONFLICT(id) DO UPDATE SET status = excluded.status, parent = coalesce(parent, excluded.parent),
               event_id = coalesce(event_id, excluded.event_id), dispatch_id = coalesce(dispatch_id, excluded.dispatch_id),
               started_at = coalesce(started_at, excluded.started_at), finished_at = excluded.finished_at,
               replied = excluded.replied, outcome = excluded.outcome",
        )?
        .execute(params![
            turn.id,
            session_id,
            started.and_then(|started| started.parent.as_deref()),
            ended.map_or("running", |ended| ended.status),
            first.map(|dispatch| dispatch.event_id.as_str()),
            first.map(|dispatch| dispatch.id.to_string()),
            started.map(|_| record.at.0),
            ended.map(|_| record.at.0),
            ended.is_some_and(|ended| ended.replied),
            ended.and_then(|ended| ended.outcome.as_deref()),
        ])?;

    Ok(())
}

fn write_message(
    connection: &Connection,
    record: &LedgerRecord,
    message: &MessageRow<'_>,
) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO agent_messages(id, turn_id, role, content, created_at) VALUES(?1,?2,?3,?4,?5)",
        )?
        .execute((&message.id, &message.turn, message.role, message.content, record.at.0))?;
    Ok(())
}

fn write_tool(connection: &Connection, record: &LedgerRecord, tool: &ToolChange<'_>) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached(
            "INSERT INTO agent_tool_calls(id, turn_id, name, args_json, outcome, started_at, finished_at)
             VALUES(?1,?2,?3,?4,?5,?6,?7)
             ON CONFLICT(turn_id, id) DO UPDATE SET name = coalesce(excluded.name, name),
               args_json = coalesce(excluded.args_json, args_json), outcome = coalesce(excluded.outcome, outcome),
               started_at = coalesce(excluded.started_at, started_at), finished_at = coalesce(excluded.finished_at, finished_at)",
        )?
        .execute(params![
            tool.call,
            tool.turn,
            tool.name,
            tool.arguments.map(json_text),
            tool.outcome.map(json_text),
            tool.started.then_some(record.at.0),
            tool.ended.then_some(record.at.0),
        ])?;

    Ok(())
}

/// Writes one change of an approval. The two entries of one approval may come in one record or in two; a decision
/// without a recorded request is stored without its tool.
fn write_approval(
    connection: &Connection,
    record: &LedgerRecord,
    approval: &ApprovalChange<'_>,
) -> Result<(), rusqlite::Error> {
    match approval {
        ApprovalChange::Asked { request } => {
            let turn = request.asked_in.as_deref().map(|asked| asked.turn.to_string());
            connection
                .prepare_cached(
                    "INSERT INTO nexus_approvals(id, turn_id, tool, status, asked_at) VALUES(?1,?2,?3,'pending',?4)
                     ON CONFLICT(id) DO NOTHING",
                )?
                .execute((&request.id, turn, &request.tool, record.at.0))?;
        }
        ApprovalChange::Decided { id, status } => {
            connection
                .prepare_cached(
                    "INSERT INTO nexus_approvals(id, status, decided_at) VALUES(?1,?2,?3)
                     ON CONFLICT(id) DO UPDATE SET status = excluded.status, decided_at = excluded.decided_at",
                )?
                .execute((id, status.name(), record.at.0))?;
        }
    }

    Ok(())
}

fn write_intent(connection: &Connection, record: &LedgerRecord, intent: &IntentChange) -> Result<(), rusqlite::Error> {
    match intent {
        IntentChange::Owed(owed) => {
            let (Some(id), Some(turn)) = (owed.id, owed.turn) else {
                return Ok(());
            };

            connection
                .prepare_cached(
                    "INSERT OR IGNORE INTO nexus_owed_intents(id, turn_id, kind, since) VALUES(?1,?2,?3,?4)",
                )?
                .execute((id.to_string(), turn.to_string(), &owed.wish.kind, record.at.0))?;
        }
        IntentChange::Settled(id) => {
            connection
                .prepare_cached("DELETE FROM nexus_owed_intents WHERE id = ?1")?
                .execute([id])?;
        }
    }

    Ok(())
}
