//! Queries: `find`, `history` and the first sequence of an id.

use rusqlite::types::Value as Sql;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};
use serde::de::DeserializeOwned;

use super::api::{
    EventRow, FindReply, FindRequest, HistoryReply, HistoryRequest, MAX_THREAD_EXCERPT, ThreadRow, ThreadsReply,
    ThreadsRequest, effective_limit,
};
use super::applied::{FeedSource, from_sql, to_sql};
use super::apply::PASSED_OVER;
use crate::model::event::{EventDirection, EventId, PeerKind};
use crate::model::position::StreamPosition;
use crate::model::time::UnixMillis;
use crate::wire::partition::hashed_partition;
use crate::wire::subject::token;

/// Columns that [`event_row`] reads, in its order.
const COLUMNS: &str = "id, sequence, timestamp, published_at, revised_at, channel, account, peer_kind, peer_id, from_id, \
                       direction, content, content_types, thread_id, reply_to, hops, metadata_json";

/// Returns the stream sequence of the first occurrence of `id`.
pub(super) fn first_sequence(connection: &Connection, id: &str) -> Result<Option<u64>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT sequence FROM events WHERE id = ?1")?
        .query_row([id], |row| row.get(0).map(from_sql))
        .optional()
}

/// Returns the stored position of `source`, or `None` if the file has none.
pub(super) fn stored_position(
    connection: &Connection,
    source: FeedSource,
) -> Result<Option<StreamPosition>, rusqlite::Error> {
    connection
        .prepare_cached("SELECT incarnation, sequence, stored_at_ns FROM nexus_marks WHERE stream = ?1")?
        .query_row([source.stream()], |row| {
            Ok(StreamPosition {
                incarnation: row.get(0)?,
                sequence: from_sql(row.get(1)?),
                stored_at_ns: row.get(2)?,
            })
        })
        .optional()
}

/// Returns whether `id` has no record among those up to `through`. One statement, because a file that is rebuilt
/// meanwhile must show either both the row and the position, or neither.
pub(super) fn has_no_record(connection: &Connection, id: &str, through: u64) -> Result<bool, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT NOT EXISTS(SELECT 1 FROM nexus_evaluations WHERE event_id = ?1)
                AND EXISTS(SELECT 1 FROM nexus_positions WHERE stream = ?2 AND sequence >= ?3)
                AND NOT EXISTS(SELECT 1 FROM nexus_positions WHERE stream = ?4)",
        )?
        .query_row(
            (id, FeedSource::Invocations.stream(), to_sql(through), PASSED_OVER),
            |row| row.get(0),
        )
}

/// Returns the event with `id`.
pub(super) fn find_event(connection: &Connection, id: &str) -> Result<Option<EventRow>, rusqlite::Error> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM events WHERE id = ?1"))?
        .query_row([id], event_row)
        .optional()
}

/// Returns partition, sequence and time of storing of the events after `from` and through `to`, the newest first, at
/// most `most`.
pub(super) fn stored_events(
    connection: &Connection,
    from: u64,
    to: u64,
    most: usize,
) -> Result<Vec<(u16, u64, UnixMillis)>, rusqlite::Error> {
    let mut statement = connection.prepare_cached(
        "SELECT channel, account, peer_id, sequence, published_at FROM events
         WHERE sequence > ?1 AND sequence <= ?2 ORDER BY sequence DESC LIMIT ?3",
    )?;
    let bounds = [from, to, most as u64].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    let rows = statement.query_map(bounds, |row| {
        let of = |column| row.get_ref(column).and_then(|value| Ok(token(value.as_str()?)));
        let tokens = [of(0)?, of(1)?, of(2)?];
        let partition = hashed_partition(tokens.iter().map(|token| token.as_str()));
        let sequence = u64::try_from(row.get::<_, i64>(3)?).unwrap_or(0);
        Ok((partition, sequence, UnixMillis(row.get(4)?)))
    })?;
    rows.collect()
}

/// Returns the events that match every field of `request`, the newest first.
pub(super) fn find(connection: &Connection, request: &FindRequest) -> Result<FindReply, rusqlite::Error> {
    let number = |value: Option<i64>| value.map(Sql::Integer);
    let text = |value: &Option<String>| value.clone().map(Sql::Text);
    let before = request.before.and_then(|before| i64::try_from(before).ok());

    let conditions = [
        ("id = ?", request.id.as_ref().map(|id| Sql::Text(id.to_string()))),
        ("instr(lower(content), lower(?)) > 0", text(&request.text)),
        ("channel = ?", text(&request.channel)),
        ("account = ?", text(&request.account)),
        ("peer_id = ?", text(&request.peer)),
        ("from_id = ?", text(&request.from)),
        ("timestamp >= ?", number(request.since.map(|since| since.0))),
        ("timestamp < ?", number(request.until.map(|until| until.0))),
        ("sequence < ?", number(before)),
    ];

    let limit = effective_limit(request.limit);
    // `newest` returns one event more than `limit`; if it is there, the next page begins behind the last one shown.
    let events = newest_events(connection, &conditions, limit)?;
    let next = (events.len() > limit as usize).then(|| events[limit as usize - 1].sequence);

    Ok(FindReply {
        events: events.into_iter().take(limit as usize).collect(),
        next,
    })
}

/// Returns the end of a conversation, the oldest event first, without deleted events.
pub(super) fn read_history(connection: &Connection, request: &HistoryRequest) -> Result<HistoryReply, rusqlite::Error> {
    let before = request.before.and_then(|before| i64::try_from(before).ok());
    let conditions = [
        ("channel = ?", Some(Sql::Text(request.channel.clone()))),
        ("account = ?", Some(Sql::Text(request.account.clone()))),
        ("peer_id = ?", Some(Sql::Text(request.peer.clone()))),
        ("direction <> ?", Some(Sql::Text("deleted".to_owned()))),
        ("thread_id = ?", request.thread.clone().map(Sql::Text)),
        ("sequence < ?", before.map(Sql::Integer)),
    ];

    let limit = effective_limit(request.limit) as usize;
    let mut events = newest_events(connection, &conditions, limit as u32)?;
    let more = events.len() > limit;
    events.truncate(limit);
    events.reverse();

    Ok(HistoryReply { events, more })
}

/// The threads of a conversation. The index of threads tells which there are and which event of each is the newest, with
/// one step for each thread, however many events it has.
const THREADS: &str = "
  WITH RECURSIVE
    names(thread) AS (
      VALUES('')
      UNION ALL
      SELECT (SELECT thread_id FROM events WHERE channel = ?1 AND account = ?2 AND peer_id = ?3
                AND thread_id > names.thread ORDER BY thread_id LIMIT 1)
      FROM names WHERE names.thread IS NOT NULL),
    newest(thread, last) AS (
      SELECT thread, (SELECT sequence FROM events WHERE channel = ?1 AND account = ?2 AND peer_id = ?3
                        AND thread_id = names.thread ORDER BY sequence DESC LIMIT 1)
      FROM names WHERE thread <> '' ORDER BY 2 DESC LIMIT ?4)
  SELECT thread,
    (SELECT timestamp FROM events WHERE channel = ?1 AND account = ?2 AND peer_id = ?3 AND thread_id = thread
       AND direction <> 'deleted' ORDER BY sequence LIMIT 1),
    (SELECT timestamp FROM events WHERE channel = ?1 AND account = ?2 AND peer_id = ?3 AND thread_id = thread
       AND direction <> 'deleted' ORDER BY sequence DESC LIMIT 1),
    coalesce(
      (SELECT substr(content, 1, ?5) FROM events WHERE channel = ?1 AND account = ?2 AND peer_id = ?3
         AND thread_id = thread AND direction = 'received' ORDER BY sequence LIMIT 1),
      (SELECT substr(content, 1, ?5) FROM events WHERE channel = ?1 AND account = ?2 AND peer_id = ?3
         AND thread_id = thread AND direction <> 'deleted' ORDER BY sequence LIMIT 1))
  FROM newest ORDER BY last DESC";

/// Returns the threads of a conversation, the one with the newest event first; a thread of deleted events only is left out.
pub(super) fn threads(connection: &Connection, request: &ThreadsRequest) -> Result<ThreadsReply, rusqlite::Error> {
    let (channel, account, peer) = (&request.channel, &request.account, &request.peer);
    let mut statement = connection.prepare_cached(THREADS)?;
    let mut rows = statement.query((
        channel,
        account,
        peer,
        effective_limit(request.limit),
        MAX_THREAD_EXCERPT as i64,
    ))?;

    let mut threads = Vec::new();
    while let Some(row) = rows.next()? {
        let (Some(began_at), Some(last_at)) = (row.get(1)?, row.get(2)?) else {
            continue;
        };
        // A character may have more than one byte.
        let mut excerpt: String = row.get(3)?;
        excerpt.truncate(excerpt.floor_char_boundary(MAX_THREAD_EXCERPT));

        threads.push(ThreadRow {
            thread: row.get(0)?,
            excerpt,
            began_at: UnixMillis(began_at),
            last_at: UnixMillis(last_at),
        });
    }

    Ok(ThreadsReply { threads })
}

/// Returns the events that meet the given conditions, the newest first; one more than `limit`, to show whether there
/// are more.
fn newest_events(
    connection: &Connection,
    conditions: &[(&str, Option<Sql>)],
    limit: u32,
) -> Result<Vec<EventRow>, rusqlite::Error> {
    // Only the given conditions are in the text, so that SQLite can choose an index for them. The conditions' texts are
    // constants, and the values are bound.
    let given: Vec<_> = conditions
        .iter()
        .filter_map(|(condition, value)| Some((*condition, value.clone()?)))
        .collect();
    let mut sql = format!("SELECT {COLUMNS} FROM events");
    for (index, (condition, _)) in given.iter().enumerate() {
        sql.push_str(if index == 0 { " WHERE " } else { " AND " });
        sql.push_str(condition);
    }

    sql.push_str(" ORDER BY sequence DESC LIMIT ");
    sql.push_str(&(limit + 1).to_string());
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(given.into_iter().map(|(_, value)| value)), event_row)?;

    rows.collect()
}

/// Reads a row of [`COLUMNS`].
pub(super) fn event_row(row: &Row<'_>) -> Result<EventRow, rusqlite::Error> {
    let id: String = row.get(0)?;
    let id = EventId::parse(id)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error)))?;

    Ok(EventRow {
        id,
        sequence: from_sql(row.get(1)?),
        timestamp: UnixMillis(row.get(2)?),
        published_at: UnixMillis(row.get(3)?),
        revised_at: row.get::<_, Option<i64>>(4)?.map(UnixMillis),
        channel: row.get(5)?,
        account: row.get(6)?,
        peer_kind: column_enum::<PeerKind>(row, 7)?,
        peer_id: row.get(8)?,
        from_id: row.get(9)?,
        direction: column_enum::<EventDirection>(row, 10)?,
        content: row.get(11)?,
        content_types: column_json(row, 12)?,
        thread_id: row.get(13)?,
        reply_to: row.get(14)?,
        hops: row.get(15)?,
        metadata: column_json(row, 16)?,
    })
}

/// Reads an enum by the name that serde gives it.
fn column_enum<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<T, rusqlite::Error> {
    let name = row.get_ref(column)?.as_str()?;
    let name = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(name);
    T::deserialize(name).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}

/// Reads a column of JSON text.
fn column_json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<T, rusqlite::Error> {
    serde_json::from_str(row.get_ref(column)?.as_str()?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_of_a_conversation_are_found_by_their_index_alone() {
        let connection = Connection::open_in_memory().expect("a database");
        connection
            .execute_batch(include_str!("schema.sql"))
            .expect("the tables of the schema");

        let mut plan = connection
            .prepare(&format!("EXPLAIN QUERY PLAN {THREADS}"))
            .expect("a statement");
        let parameters = ("webchat", "default", "v1", 50, MAX_THREAD_EXCERPT as i64);
        let steps = plan.query_map(parameters, |row| row.get::<_, String>(3));
        let steps: Vec<String> = steps.expect("a plan").collect::<Result<_, _>>().expect("a plan");

        let of_events: Vec<&String> = steps.iter().filter(|step| step.contains(" events ")).collect();
        assert_eq!(of_events.len(), 6, "{steps:#?}");
        for step in of_events {
            assert!(
                step.starts_with("SEARCH events USING ") && step.contains("INDEX events_thread"),
                "{steps:#?}"
            );
        }

        // Only the list of threads may be sorted, and not their events.
        let sorted = steps.iter().filter(|step| step.contains("TEMP B-TREE"));
        assert!(sorted.count() <= 2, "{steps:#?}");
    }
}
