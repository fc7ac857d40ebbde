//! `EVENTS` → `event_state`, `event_tags`, `attachments`, `platform_ids`.

use std::borrow::Cow;

use rusqlite::{Connection, params};
use serde_json::{Map, Value};

use crate::model::event::{AttachmentState, Event, EventDirection, PlatformIds};
use crate::model::origin::EventOrigin;
use crate::model::time::UnixMillis;
use crate::projection::api::own_thread;
use crate::projection::applied::to_sql;

/// Writes the rows beside the first occurrence of `event`.
pub(super) fn write(connection: &Connection, event: &Event) -> Result<(), rusqlite::Error> {
    if event.origin.speaks_on(event) {
        write_platform_ids(connection, event)?;
    }
    write_tags(connection, event)?;
    write_attachments(connection, event)
}

/// Returns the thread of `event`; if its platform names none, its conversation is the thread.
pub(super) fn thread_of(event: &Event) -> Cow<'_, str> {
    match &event.thread_id {
        Some(thread) => Cow::Borrowed(thread),
        None => {
            let (channel, account, peer) = event.conversation();
            Cow::Owned(own_thread(channel, account, peer))
        }
    }
}

/// Replaces the tags and attachments of an updated or deleted item by those it has now, and adds its new platform ids.
pub(super) fn rewrite_details(connection: &Connection, event: &Event) -> Result<(), rusqlite::Error> {
    let id = event.id.as_str();
    connection
        .prepare_cached("DELETE FROM event_tags WHERE event_id = ?1")?
        .execute([id])?;
    connection
        .prepare_cached("DELETE FROM attachments WHERE event_id = ?1")?
        .execute([id])?;
    if event.origin.speaks_on(event) {
        write_platform_ids(connection, event)?;
    }
    write_tags(connection, event)?;
    write_attachments(connection, event)
}

fn write_tags(connection: &Connection, event: &Event) -> Result<(), rusqlite::Error> {
    if event.tags.is_empty() {
        return Ok(());
    }
    let mut statement = connection
        .prepare_cached("INSERT OR IGNORE INTO event_tags(event_id, tag, source, created_at) VALUES(?1,?2,?3,?4)")?;
    for tag in &event.tags {
        statement.execute((event.id.as_str(), tag, &event.source_adapter, event.received_at.0))?;
    }
    Ok(())
}

/// Stores which event each of the platform's ids of `event` means. The first event that names an id keeps it, unless
/// Nexus itself sent the message.
///
/// What Nexus sent is stored for the chat that the id names as well: a message to a person (`U5`) is in a conversation
/// with an id of its own (`D1/17.5`), under which the platform brings replies and reactions.
fn write_platform_ids(connection: &Connection, event: &Event) -> Result<(), rusqlite::Error> {
    let Some(platform) = PlatformIds::from_event(event) else {
        return Ok(());
    };

    let (channel, account, chat) = event.conversation();
    let is_own = event.origin == EventOrigin::System;
    let mut statement = connection.prepare_cached(
        "INSERT INTO platform_ids(channel, account, chat, platform_id, event_id, part) VALUES(?1,?2,?3,?4,?5,?6)
         ON CONFLICT DO UPDATE SET event_id = excluded.event_id, part = excluded.part WHERE ?7",
    )?;
    for id in &platform.ids {
        // Only Nexus's own word counts for another chat than the event's.
        let named = id.rsplit_once('/').map(|(named, _)| named);
        let named = named.filter(|named| is_own && !named.is_empty() && *named != chat);
        for chat in [Some(chat), named].into_iter().flatten() {
            statement.execute((channel, account, chat, id, event.id.as_str(), platform.part, is_own))?;
        }
    }

    Ok(())
}

fn write_attachments(connection: &Connection, event: &Event) -> Result<(), rusqlite::Error> {
    if event.attachments.is_empty() {
        return Ok(());
    }

    let mut statement = connection.prepare_cached(
        "INSERT OR REPLACE INTO attachments(id, event_id, filename, mime_type, size_bytes, media_type, storage_uri, content_hash,
           metadata_json, created_at, state, refused, duration_ms, transcript)
         VALUES(?1,?2,?3,?4,?5,?6,?7,?8,'{}',?9,?10,?11,?12,?13)",
    )?;
    for (index, attachment) in event.attachments.iter().enumerate() {
        let refused = match attachment.state {
            AttachmentState::Refused(why) => Some(why.name()),
            AttachmentState::Remote | AttachmentState::Stored => None,
        };
        statement.execute(params![
            format!("{}#{index}", event.id),
            event.id.as_str(),
            attachment.filename,
            attachment.mime_type,
            attachment.size_bytes.map(to_sql),
            attachment.media_type,
            attachment.storage_uri,
            attachment.content_hash,
            event.timestamp.0,
            attachment.state.name(),
            refused,
            attachment.duration_ms.map(to_sql),
            attachment.transcript,
        ])?;
    }

    Ok(())
}

/// State of an item as its source reports it; `None` if the source does not report it.
#[derive(Debug, Default, PartialEq, Eq)]
struct DetailState<'a> {
    read_state: Option<&'a str>,
    flagged: Option<bool>,
    archived: Option<bool>,
    status: Option<&'a str>,
}

/// Writes the item's state if its source reports one. Fields that are not reported keep their values.
pub(super) fn write_state(
    connection: &Connection,
    published_at: UnixMillis,
    event: &Event,
) -> Result<(), rusqlite::Error> {
    let mut state = state(&event.metadata);
    if event.direction == EventDirection::Deleted {
        state.status = Some("deleted");
    }

    // Most events have no state, and need no row.
    if state == DetailState::default() {
        return Ok(());
    }

    connection
        .prepare_cached(
            "INSERT INTO event_state(event_id, read_state, flagged, archived, status, updated_at) VALUES(?1,?2,?3,?4,?5,?6)
             ON CONFLICT(event_id) DO UPDATE SET read_state = coalesce(excluded.read_state, read_state),
               flagged = coalesce(excluded.flagged, flagged), archived = coalesce(excluded.archived, archived),
               status = coalesce(excluded.status, status), updated_at = excluded.updated_at",
        )?
        .execute(params![
            event.id.as_str(),
            state.read_state,
            state.flagged,
            state.archived,
            state.status,
            published_at.0,
        ])?;

    Ok(())
}

fn state(metadata: &Map<String, Value>) -> DetailState<'_> {
    let flag = |names: [&str; 3]| names.iter().find_map(|name| metadata.get(*name)?.as_bool());
    let text = |name: &str| metadata.get(name).and_then(Value::as_str);
    let read = flag(["is_read", "read", "seen"]).map(|read| if read { "read" } else { "unread" });
    DetailState {
        read_state: text("read_state").or(read),
        flagged: flag(["flagged", "is_flagged", "starred"]),
        archived: flag(["archived", "is_archived", "in_archive"]),
        status: text("status"),
    }
}
