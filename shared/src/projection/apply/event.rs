//! `EVENTS` → `events`, `events_fts`, and with [`details`], [`super::people`], [`super::threads`] and [`harness`] every other
//! row of an event.

use rusqlite::{Connection, params};

use super::people::ContactTable;
use super::threads::ThreadChanges;
use super::{FirstRecord, details, harness, json_text};
use crate::model::event::{Event, EventDirection};
use crate::model::time::UnixMillis;
use crate::projection::applied::to_sql;
use crate::projection::seen::fingerprint;

/// Writes `event`. The first occurrence of an id creates its row; a later one changes the row only if the source
/// reports that the item was updated or deleted (`docs/design/wire.md` §1.3). An updated item keeps its direction,
/// time and place in the conversation. Returns the event if this is its first occurrence.
pub(super) fn write<'a>(
    connection: &Connection,
    people: &mut ContactTable,
    threads: &mut ThreadChanges<'a>,
    sequence: u64,
    published_at: UnixMillis,
    event: &'a Event,
) -> Result<Option<FirstRecord>, rusqlite::Error> {
    let content_types = json_text(&event.content_types);
    let metadata = json_text(&event.metadata);
    let inserted = connection
        .prepare_cached(
            "INSERT OR IGNORE INTO events(id, timestamp, channel, content_types, content, direction, thread_id, reply_to,
               source_adapter, source_id, metadata_json, sequence, account, peer_kind, peer_id, from_id, hops, published_at, origin,
               target, edited_at, mention)
             VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22)",
        )?
        .execute(params![
            event.id.as_str(),
            event.timestamp.0,
            event.channel,
            content_types,
            event.content,
            event.direction.name(),
            details::thread_of(event),
            event.reply_to,
            event.source_adapter,
            event.source_id,
            metadata,
            to_sql(sequence),
            event.account(),
            event.peer.kind.name(),
            event.peer.id,
            event.from.id,
            event.hops,
            published_at.0,
            event.origin.to_string(),
            event.target,
            event.edited_at.map(|at| at.0),
            mention_name(event),
        ])?;

    if inserted == 1 {
        // The text of a deleted item must not be found.
        if event.direction != EventDirection::Deleted {
            index(connection, to_sql(sequence), &event.content)?;
        }

        people.write_contacts(connection, event)?;
        threads.note(event);
        details::write(connection, event)?;
        details::write_state(connection, published_at, event)?;

        // Messages of coding agents on this machine also fill the tables of agents' turns.
        if event.channel == harness::CHANNEL {
            harness::write(connection, event)?;
        }

        write_cause(connection, event)?;
        return Ok(Some(FirstRecord {
            fingerprint: fingerprint(event.id.as_str()),
            sequence,
        }));
    }

    // A repetition of any other kind is a copy of the stored event.
    match event.direction {
        EventDirection::Updated | EventDirection::Deleted => {
            revise_event(connection, published_at, event, &content_types, &metadata)?;
        }
        EventDirection::Received | EventDirection::Sent | EventDirection::Observed | EventDirection::Created => {}
    }

    Ok(None)
}

/// Returns how `event` addresses the installation's account; `None` if it does not, or its source does not say.
fn mention_name(event: &Event) -> Option<&'static str> {
    event
        .mention
        .filter(|mention| mention.me)
        .map(|mention| mention.how.name())
}

/// Channels whose events name the turn that caused them: messages between agents, and firings of intents.
const CAUSED: [&str; 2] = ["agent", "timer"];

/// Stores the turn that caused `event`, if its channel has such turns and it names one.
fn write_cause(connection: &Connection, event: &Event) -> Result<(), rusqlite::Error> {
    let turn = event.metadata.get("turn").and_then(serde_json::Value::as_str);
    let Some(turn) = turn.filter(|_| CAUSED.contains(&event.channel.as_str())) else {
        return Ok(());
    };
    connection
        .prepare_cached("INSERT OR IGNORE INTO nexus_caused(turn_id, event_id) VALUES(?1, ?2)")?
        .execute((turn, event.id.as_str()))
        .map(drop)
}

/// Adds `content` to the index of words, under the row `sequence`.
fn index(connection: &Connection, sequence: i64, content: &str) -> Result<(), rusqlite::Error> {
    if !content.is_empty() {
        connection
            .prepare_cached("INSERT INTO events_fts(rowid, content) VALUES(?1, ?2)")?
            .execute((sequence, content))?;
    }
    Ok(())
}

/// Removes the row of `id`, an item that is not deleted, from the index of words. Returns its sequence. The index holds
/// no text of its own, so it must be given the text that it indexed.
fn remove_from_index(connection: &Connection, id: &str) -> Result<i64, rusqlite::Error> {
    let (sequence, content): (i64, String) = connection
        .prepare_cached("SELECT sequence, content FROM events WHERE id = ?1")?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if !content.is_empty() {
        connection
            .prepare_cached("INSERT INTO events_fts(events_fts, rowid, content) VALUES('delete', ?1, ?2)")?
            .execute((sequence, content))?;
    }
    Ok(sequence)
}

/// Returns whether the row of `event` is of a later version, or of a deleted item: a file that was fetched late brings the
/// text of its version along.
fn is_outdated(connection: &Connection, event: &Event) -> Result<bool, rusqlite::Error> {
    let (deleted, edited_at): (bool, Option<i64>) = connection
        .prepare_cached("SELECT direction = 'deleted', edited_at FROM events WHERE id = ?1")?
        .query_row([event.id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let is_older = event.direction == EventDirection::Updated && event.edited_at.map(|at| at.0) < edited_at;
    Ok(deleted || is_older)
}

fn revise_event(
    connection: &Connection,
    published_at: UnixMillis,
    event: &Event,
    content_types: &str,
    metadata: &str,
) -> Result<(), rusqlite::Error> {
    if is_outdated(connection, event)? {
        return details::write_state(connection, published_at, event);
    }

    // The index needs the old text, so this comes before the update.
    let sequence = remove_from_index(connection, event.id.as_str())?;
    connection
        .prepare_cached(
            "UPDATE events SET content = ?2, content_types = ?3, metadata_json = ?4, revised_at = ?5,
               direction = CASE WHEN ?6 THEN 'deleted' ELSE direction END, edited_at = coalesce(?7, edited_at),
               target = coalesce(?8, target), mention = ?9 WHERE id = ?1",
        )?
        .execute(params![
            event.id.as_str(),
            event.content,
            content_types,
            metadata,
            published_at.0,
            event.direction == EventDirection::Deleted,
            event.edited_at.map(|at| at.0),
            event.target,
            mention_name(event),
        ])?;

    if event.direction != EventDirection::Deleted {
        index(connection, sequence, &event.content)?;
    }

    // The stored vector is of the old text.
    connection
        .prepare_cached("INSERT OR IGNORE INTO nexus_reembed(sequence) VALUES(?1)")?
        .execute([sequence])?;
    details::rewrite_details(connection, event)?;

    details::write_state(connection, published_at, event)
}
