//! Search by words (FTS5, BM25) and by meaning (vectors), fused by reciprocal rank.
//!
//! SQLite holds the vectors, and `vectors` holds the copy in memory that is searched. [`keep`] maintains both, behind
//! the streams and off the path of events. Without an embedder, and until it has caught up, results come from words
//! alone. [`peers`] is how a copy of the read model takes the vectors that another one has made.

pub(super) mod fuse;
pub mod keep;
mod pace;
pub mod peers;
mod reliance;
mod store;
pub(super) mod vectors;
pub(super) mod words;

use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use self::fuse::RankedHit;
use self::peers::{VectorsQuestion, VectorsReply};
use self::vectors::{QuantizedVector, VectorFilter, VectorIndex};
use super::api::{SearchHit, SearchReply, SearchRequest, search_limit};
use super::applied::{from_sql, to_sql};
use super::{Projection, QueryProjectionError};
use crate::embed::TextEmbedder;
use crate::model::event::EventId;
use crate::model::time::UnixMillis;

/// Maximum number of candidates that each of the two searches passes to the fusion.
const CANDIDATES: usize = 100;

/// Maximum length of a query, in characters; the rest is ignored.
const MAX_QUERY_CHARS: usize = 1_000;

/// Number of characters of an event's content that a hit shows.
const SHOWN_CHARS: usize = 200;

/// State of the search by meaning.
#[derive(Debug, Default)]
pub(super) struct SearchIndex {
    embedder: OnceLock<Arc<dyn TextEmbedder>>,
    index: RwLock<VectorIndex>,
}

/// Longest wait of a query for its vector: a script that searches has a time limit itself, and words give results too.
const EMBED_PATIENCE: Duration = Duration::from_secs(3);

impl Projection {
    /// Returns the events similar to `request`'s query, best first, without deleted ones.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub async fn search(&self, mut request: SearchRequest) -> Result<SearchReply, QueryProjectionError> {
        if let Some((end, _)) = request.query.char_indices().nth(MAX_QUERY_CHARS) {
            request.query.truncate(end);
        }

        let vector = self.embed_query(&request.query).await;
        let projection = self.clone();

        self.run_query(move |connection| {
            let by_meaning = vector.map(|vector| projection.nearest_sequences(&vector, &request));
            let by_words = by_words(connection, &request)?;
            build_reply(connection, &request, &by_words, by_meaning.as_deref())
        })
        .await
    }

    /// Returns the vectors that `question` asks for, as far as they are made; `None` if this copy embeds with another
    /// model, or with none.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub async fn lend_vectors(&self, question: VectorsQuestion) -> Result<Option<VectorsReply>, QueryProjectionError> {
        let embedder = self.0.search.embedder.get();
        if embedder.is_none_or(|embedder| embedder.model() != question.model) {
            return Ok(None);
        }

        let lent = self.run_query(move |connection| store::vectors_of(connection, &question));
        lent.await.map(Some)
    }

    async fn embed_query(&self, query: &str) -> Option<QuantizedVector> {
        let embedder = self.0.search.embedder.get()?;
        let embedded = embedder.embed(vec![query.to_owned()]);
        match tokio::time::timeout(EMBED_PATIENCE, embedded).await {
            Ok(Ok(vectors)) => vectors.first().and_then(|vector| QuantizedVector::from_vector(vector)),
            Ok(Err(error)) => {
                tracing::warn!(model = embedder.model(), %error, "query answered without vectors");
                None
            }
            Err(_) => {
                tracing::warn!(
                    model = embedder.model(),
                    "embedding a query timed out; answered without vectors"
                );
                None
            }
        }
    }

    fn nearest_sequences(&self, vector: &QuantizedVector, request: &SearchRequest) -> Vec<u64> {
        let filter = VectorFilter {
            channels: request.channels.as_deref(),
            since: request.since.map_or(i64::MIN, |since| since.0),
            until: request.until.map_or(i64::MAX, |until| until.0),
        };
        let index = self.0.search.index.read();
        let index = index.unwrap_or_else(std::sync::PoisonError::into_inner);
        index.nearest(vector, &filter, CANDIDATES)
    }
}

/// Returns the sequences of the events that match enough of the query's words, by BM25.
fn by_words(connection: &Connection, request: &SearchRequest) -> Result<Vec<u64>, rusqlite::Error> {
    // A query of signs alone has no words to search for.
    let Some(expression) = words::fts_expression(&request.query) else {
        return Ok(Vec::new());
    };

    // One parameter for any number of channels, so that the statement stays the same and is prepared once.
    let channels = request
        .channels
        .as_ref()
        .map(|channels| serde_json::json!(channels).to_string());
    let mut statement = connection.prepare_cached(
        "SELECT e.sequence FROM events_fts f JOIN events e ON e.sequence = f.rowid
         WHERE f.events_fts MATCH ?1 AND (?2 IS NULL OR e.channel IN (SELECT value FROM json_each(?2)))
           AND e.timestamp >= ?3 AND e.timestamp < ?4
         ORDER BY f.rank LIMIT ?5",
    )?;

    let rows = statement.query_map(
        params![
            expression,
            channels,
            request.since.map_or(i64::MIN, |since| since.0),
            request.until.map_or(i64::MAX, |until| until.0),
            to_sql(CANDIDATES as u64),
        ],
        |row| row.get(0).map(from_sql),
    )?;

    rows.collect()
}

fn build_reply(
    connection: &Connection,
    request: &SearchRequest,
    by_words: &[u64],
    by_meaning: Option<&[u64]>,
) -> Result<SearchReply, rusqlite::Error> {
    let limit = search_limit(request.limit) as usize;
    let lists: Vec<&[u64]> = std::iter::once(by_words).chain(by_meaning).collect();

    let mut hits = Vec::with_capacity(limit);
    // An event that was deleted meanwhile gives no hit, so more candidates than `limit` are looked at.
    for RankedHit { sequence, score } in fuse::reciprocal_rank(&lists) {
        if hits.len() == limit {
            break;
        }
        hits.extend(read_hit(connection, sequence, score)?);
    }

    Ok(SearchReply {
        hits,
        by_meaning: by_meaning.is_some(),
    })
}

/// Returns the hit at `sequence`, or `None` if the event was deleted meanwhile.
fn read_hit(connection: &Connection, sequence: u64, score: f64) -> Result<Option<SearchHit>, rusqlite::Error> {
    let found = connection
        .prepare_cached(
            "SELECT id, channel, timestamp, from_id, substr(content, 1, ?2) FROM events
             WHERE sequence = ?1 AND direction <> 'deleted'",
        )?
        .query_row((to_sql(sequence), to_sql(SHOWN_CHARS as u64)), |row| {
            let id: String = row.get(0)?;
            Ok((id, row.get(1)?, UnixMillis(row.get(2)?), row.get(3)?, row.get(4)?))
        })
        .optional()?;

    Ok(found.and_then(|(id, channel, timestamp, from_id, excerpt)| {
        Some(SearchHit {
            event_id: EventId::parse(id).ok()?,
            score,
            channel,
            timestamp,
            from_id,
            excerpt,
        })
    }))
}
