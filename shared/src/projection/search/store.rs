//! Vectors in SQLite, the durable copy: events to be embedded, and vectors stored.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::peers::{MAX_REPLY_BYTES, MAX_TEXTS, VECTOR_HEAD, VectorsQuestion, VectorsReply, text_digest};
use super::vectors::QuantizedVector;
use crate::projection::applied::{from_sql, to_sql};

/// An event whose text must be embedded, or whose vector must be removed.
#[derive(Debug, Clone)]
pub(super) struct VectorRow {
    pub(super) sequence: u64,
    pub(super) id: String,
    pub(super) channel: String,
    pub(super) timestamp: i64,
    /// Text to embed; empty if there is none (any more).
    pub(super) content: String,
}

/// Next batch of rows to embed.
#[derive(Debug, Default)]
pub(super) struct PendingText {
    pub(super) rows: Vec<VectorRow>,
    /// Sequence up to which every event is in `rows` or embedded; `None` if the rows are changes of earlier events.
    pub(super) up_to: Option<u64>,
}

impl PendingText {
    /// Returns whether the rows, of which `count` were asked for, end because of their number or size: there may be more.
    pub(super) fn is_full(&self, count: usize) -> bool {
        let bytes: usize = self.rows.iter().map(|row| row.content.len()).sum();
        self.rows.len() >= count || bytes >= MAX_BATCH_BYTES
    }

    /// Leaves the rows after the first `count` for later.
    pub(super) fn truncate(&mut self, count: usize) {
        self.rows.truncate(count);
        if self.up_to.is_some() {
            self.up_to = self.rows.last().map(|row| row.sequence);
        }
    }
}

/// Bytes of text at which a batch ends although it could have more rows.
const MAX_BATCH_BYTES: usize = 8 << 20;

const COLUMNS: &str = "e.sequence, e.id, e.channel, e.timestamp";

/// SQL of the text to embed: none for a deleted event.
const CONTENT: &str = "CASE WHEN e.direction = 'deleted' THEN '' ELSE e.content END";

/// Returns the next rows, ascending, at most `count`: first the changed events up to `position`, then the new ones
/// after it.
pub(super) fn pending_rows(
    connection: &Connection,
    position: u64,
    count: usize,
) -> Result<PendingText, rusqlite::Error> {
    let changed = format!(
        "SELECT {COLUMNS}, {CONTENT} FROM nexus_reembed r JOIN events e ON e.sequence = r.sequence
         WHERE r.sequence <= ?1 ORDER BY r.sequence LIMIT ?2"
    );
    let mut statement = connection.prepare_cached(&changed)?;
    let rows = collect_bounded(statement.query_map((to_sql(position), to_sql(count as u64)), read_row)?)?;
    // Changes first: an edited text is found by its old words as long as they are not embedded again.
    if !rows.is_empty() {
        return Ok(PendingText { rows, up_to: None });
    }

    let new = format!("SELECT {COLUMNS}, {CONTENT} FROM events e WHERE e.sequence > ?1 ORDER BY e.sequence LIMIT ?2");
    let mut statement = connection.prepare_cached(&new)?;
    let rows = collect_bounded(statement.query_map((to_sql(position), to_sql(count as u64)), read_row)?)?;
    let up_to = rows.last().map(|row| row.sequence);

    Ok(PendingText { rows, up_to })
}

fn collect_bounded(
    rows: impl Iterator<Item = Result<VectorRow, rusqlite::Error>>,
) -> Result<Vec<VectorRow>, rusqlite::Error> {
    let mut collected = Vec::new();
    let mut bytes = 0;
    for row in rows {
        let row = row?;
        bytes += row.content.len();
        collected.push(row);
        if bytes >= MAX_BATCH_BYTES {
            break;
        }
    }

    Ok(collected)
}

fn read_row(row: &rusqlite::Row<'_>) -> Result<VectorRow, rusqlite::Error> {
    Ok(VectorRow {
        sequence: from_sql(row.get(0)?),
        id: row.get(1)?,
        channel: row.get(2)?,
        timestamp: row.get(3)?,
        content: row.get(4)?,
    })
}

fn mark_key(model: &str) -> String {
    format!("embeddings:{model}")
}

/// Deletes the positions of other models. Their vectors are replaced one by one by those of `model`, because deleting
/// all at once would block the streams for that time.
pub(super) fn forget_other_models(connection: &Connection, model: &str) -> Result<(), rusqlite::Error> {
    connection.execute(
        "DELETE FROM nexus_positions WHERE stream LIKE 'embeddings:%' AND stream <> ?1",
        [mark_key(model)],
    )?;
    Ok(())
}

/// Returns the sequence up to which every event is embedded by `model`.
pub(super) fn embedded_position(connection: &Connection, model: &str) -> Result<u64, rusqlite::Error> {
    connection
        .prepare_cached("SELECT coalesce(max(sequence), 0) FROM nexus_positions WHERE stream = ?1")?
        .query_row([mark_key(model)], |row| row.get(0).map(from_sql))
}

/// Stores vectors (`None` = the row has none) and the position, all in the caller's transaction.
pub(super) fn write(
    connection: &Connection,
    model: &str,
    rows: &[(VectorRow, Option<QuantizedVector>)],
    up_to: Option<u64>,
) -> Result<(), rusqlite::Error> {
    // An event that was changed again while it was embedded stays in the table.
    let done = format!(
        "DELETE FROM nexus_reembed WHERE sequence = ?1 AND (SELECT {CONTENT} FROM events e WHERE e.sequence = ?1) IS ?2"
    );
    // Most events never change: then the text of no row has to be read again.
    let any_changed: bool = connection
        .prepare_cached("SELECT EXISTS(SELECT 1 FROM nexus_reembed)")?
        .query_row([], |row| row.get(0))?;
    for (row, vector) in rows {
        let sequence = to_sql(row.sequence);
        if any_changed {
            connection.prepare_cached(&done)?.execute((sequence, &row.content))?;
        }
        let Some(vector) = vector else {
            connection
                .prepare_cached("DELETE FROM embeddings WHERE sequence = ?1")?
                .execute([sequence])?;
            continue;
        };

        let bytes: Vec<u8> = vector.bytes.iter().map(|byte| byte.cast_unsigned()).collect();
        connection
            .prepare_cached(
                "INSERT OR REPLACE INTO embeddings(event_id, model, vector, sequence, scale) VALUES(?1,?2,?3,?4,?5)",
            )?
            .execute(params![row.id, model, bytes, sequence, vector.scale])?;
    }

    // The position is written with the vectors: both or neither.
    if let Some(up_to) = up_to {
        connection
            .prepare_cached("INSERT OR REPLACE INTO nexus_positions(stream, sequence) VALUES(?1, ?2)")?
            .execute((mark_key(model), to_sql(up_to)))?;
    }

    Ok(())
}

/// Returns the vectors that `question` asks for, as far as its model has come.
pub(super) fn vectors_of(connection: &Connection, question: &VectorsQuestion) -> Result<VectorsReply, rusqlite::Error> {
    // One state for all: a text counts only with the position and the changes that its vector was stored with.
    let state = connection.unchecked_transaction()?;
    let position = embedded_position(&state, &question.model)?;
    // The vector of an event that is to be embedded again is of its former text.
    let of_text = format!(
        "SELECT {CONTENT}, v.scale, v.vector FROM events e
         LEFT JOIN embeddings v ON v.sequence = e.sequence AND v.model = ?2
         WHERE e.sequence = ?1 AND NOT EXISTS(SELECT 1 FROM nexus_reembed r WHERE r.sequence = e.sequence)"
    );
    let mut statement = state.prepare_cached(&of_text)?;

    let mut reply = VectorsReply::default();
    let mut room = MAX_REPLY_BYTES;
    for (sequence, digest) in question.texts.iter().take(MAX_TEXTS) {
        if *sequence > position {
            break;
        }

        let found = statement
            .query_row((to_sql(*sequence), &question.model), |row| {
                let is_same = text_digest(row.get_ref(0)?.as_str()?) == *digest;
                Ok(if is_same { Some(read_vector(row)?) } else { None })
            })
            .optional()?;
        if let Some(vector) = found.flatten() {
            let bytes = VECTOR_HEAD + vector.as_ref().map_or(0, |vector| vector.bytes.len());
            let Some(left) = room.checked_sub(bytes) else {
                reply.is_cut = true;
                break;
            };
            room = left;
            reply.vectors.push((*sequence, vector));
        }
        reply.through = *sequence;
    }

    Ok(reply)
}

/// Reads scale and vector in the columns 1 and 2; `None` if the text has no vector.
fn read_vector(row: &rusqlite::Row<'_>) -> Result<Option<QuantizedVector>, rusqlite::Error> {
    let scale: Option<f32> = row.get(1)?;
    let bytes = row.get_ref(2)?.as_blob_or_null()?;
    Ok(scale.zip(bytes).map(|(scale, bytes)| QuantizedVector {
        bytes: bytes.iter().map(|byte| byte.cast_signed()).collect(),
        scale,
    }))
}

/// Passes the vectors of `model` up to its position to `take`: channel, time, sequence, vector. Vectors after that
/// position are left from an earlier use of the model, and are embedded again.
pub(super) fn load(
    connection: &Connection,
    model: &str,
    mut take: impl FnMut(&str, i64, u64, &QuantizedVector),
) -> Result<(), rusqlite::Error> {
    let mut statement = connection.prepare(
        "SELECT e.channel, e.timestamp, v.sequence, v.scale, v.vector FROM embeddings v
         JOIN events e ON e.sequence = v.sequence WHERE v.model = ?1 AND v.sequence <= ?2 ORDER BY v.sequence",
    )?;
    let mut rows = statement.query((model, to_sql(embedded_position(connection, model)?)))?;
    while let Some(row) = rows.next()? {
        let bytes = row.get_ref(4)?.as_blob()?;
        let vector = QuantizedVector {
            bytes: bytes.iter().map(|byte| byte.cast_signed()).collect(),
            scale: row.get(3)?,
        };
        take(row.get_ref(0)?.as_str()?, row.get(1)?, from_sql(row.get(2)?), &vector);
    }

    Ok(())
}
