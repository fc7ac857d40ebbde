//! Conversion of messages to rows. One statement per row, prepared once; each row is written from one stream only.

mod details;
mod event;
mod harness;
pub(super) mod health;
pub(super) mod hooks;
mod ledger;
pub(super) mod people;
mod receipt;
pub(super) mod threads;

use std::collections::BTreeMap;

use health::Health;
use people::ContactTable;
use rusqlite::Connection;
use threads::ThreadChanges;

use super::applied::{AppliedRecord, FeedSource, StreamPositions, to_sql};
use crate::model::position::StreamPosition;
use crate::model::time::UnixMillis;

/// An event whose first occurrence was just applied; the hash is from [`super::seen::fingerprint`].
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstRecord {
    pub(super) fingerprint: u64,
    pub(super) sequence: u64,
}

/// Writes the rows of `applied`. The caller must have checked that its sequence is new, and must commit.
pub(super) fn write<'a>(
    connection: &Connection,
    people: &mut ContactTable,
    health: &mut Health,
    threads: &mut ThreadChanges<'a>,
    applied: &'a AppliedRecord,
) -> Result<Option<FirstRecord>, rusqlite::Error> {
    match applied {
        AppliedRecord::Event {
            sequence,
            published_at,
            event,
        } => {
            return event::write(connection, people, threads, *sequence, *published_at, event);
        }
        AppliedRecord::Invocations { record, .. } => {
            if let Some(news) = hooks::write_invocations(connection, record)? {
                health.take(&news);
            }
        }
        AppliedRecord::Dispatch {
            sequence,
            published_at,
            dispatch,
        } => {
            hooks::write_dispatch(connection, *sequence, *published_at, dispatch)?;
        }
        AppliedRecord::Ledger {
            subject,
            session,
            record,
            ..
        } => {
            ledger::write(connection, subject, session.as_ref(), record)?;
        }
        AppliedRecord::Receipt { receipt, .. } => receipt::write(connection, receipt)?,
        AppliedRecord::Mark { source, position } => write_mark(connection, *source, position)?,
        AppliedRecord::Beside { .. } => {}
        AppliedRecord::Unreadable { source, sequence } => {
            // The record of an event may have been in this message, so its absence proves nothing any more.
            if *source == FeedSource::Invocations {
                pass_over(connection, *sequence)?;
            }
        }
    }

    Ok(None)
}

/// Stores the position of the last message of `source`.
fn write_mark(connection: &Connection, source: FeedSource, position: &StreamPosition) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO nexus_marks(stream, incarnation, sequence, stored_at_ns) VALUES(?1, ?2, ?3, ?4)",
        )?
        .execute((
            source.stream(),
            &position.incarnation,
            to_sql(position.sequence),
            position.stored_at_ns,
        ))
        .map(drop)
}

/// Key of the last record that was skipped because it cannot be decoded, in the table of the positions.
pub(super) const PASSED_OVER: &str = "passed over:INVOCATIONS";

fn pass_over(connection: &Connection, sequence: u64) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO nexus_positions(stream, sequence) VALUES(?1, ?2)")?
        .execute((PASSED_OVER, to_sql(sequence)))
        .map(drop)
}

/// The newest item of each adapter and account in one transaction: one row each, however many items came.
#[derive(Debug, Default)]
pub(super) struct AppliedWatermarks<'a>(BTreeMap<(&'a str, &'a str), (&'a str, UnixMillis)>);

impl<'a> AppliedWatermarks<'a> {
    /// Records `applied`, which is newer than the messages before it.
    pub(super) fn note_applied(&mut self, applied: &'a AppliedRecord) {
        if let AppliedRecord::Event {
            published_at, event, ..
        } = applied
        {
            self.0.insert(
                (&event.source_adapter, event.account()),
                (&event.source_id, *published_at),
            );
        }
    }

    /// Writes the table `sync_watermarks`.
    pub(super) fn write(&self, connection: &Connection) -> Result<(), rusqlite::Error> {
        let mut statement = connection.prepare_cached(
            "INSERT OR REPLACE INTO sync_watermarks(adapter, account, position, updated_at) VALUES(?1,?2,?3,?4)",
        )?;
        for ((adapter, account), (position, at)) in &self.0 {
            statement.execute((adapter, account, position, at.0))?;
        }
        Ok(())
    }
}

/// Writes the positions that differ from `before`.
pub(super) fn write_positions(
    connection: &Connection,
    before: StreamPositions,
    after: StreamPositions,
) -> Result<(), rusqlite::Error> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO nexus_positions(stream, sequence) VALUES(?1, ?2)
         ON CONFLICT(stream) DO UPDATE SET sequence = excluded.sequence",
    )?;
    for source in FeedSource::ALL {
        if before.position_of(source) != after.position_of(source) {
            statement.execute((source.stream(), to_sql(after.position_of(source))))?;
        }
    }

    Ok(())
}

/// Returns `value` as JSON text, or `null` if it cannot be written as JSON (a map with keys other than strings).
fn json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}
