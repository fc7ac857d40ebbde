//! Maintenance of the vectors: embeds new and changed events behind the streams, and keeps a copy in memory.
//!
//! A crash loses nothing: the progress of embedding is stored with the vectors. If the model or the file is another
//! one, everything is embedded again. Where another copy embeds the same texts, its vectors are taken, and stored as if
//! they had been made here.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};
use std::time::Duration;

use super::pace::EmbeddingPace;
use super::peers::{MAX_TEXTS, VectorSource, VectorsQuestion};
use super::reliance::{PeerReliance, settled_rows};
use super::store::{self, PendingText, VectorRow};
use super::vectors::{QuantizedVector, VectorIndex};
use crate::clock::{SharedClock, pause};
use crate::embed::TextEmbedder;
use crate::error_chain::describe_error;
use crate::projection::error::{ApplyBatchError, QueryProjectionError};
use crate::projection::{FeedSource, Projection};

/// Pause after the first of some new events, so that they are embedded together.
const GATHER: Duration = Duration::from_millis(100);

/// The same before another copy is asked for their vectors, which it has to make first.
const GATHER_LENT: Duration = Duration::from_millis(600);

/// Interval at which another copy is asked; in between, texts gather.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The same while it has more vectors than fit one answer.
const ASK_FOR_MORE: Duration = Duration::from_millis(100);

/// Pause before a retry: a server does not respond, the file is being rebuilt.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Interval at which progress is logged while there is a large backlog.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// Embeds with `embedder` until the read model closes; `search` uses it from now on.
pub async fn run(projection: Projection, embedder: Arc<dyn TextEmbedder>, clock: SharedClock) {
    keep_vectors(projection, embedder, None, clock).await;
}

/// As [`run`], but takes the vectors of `peers` where they have them.
pub async fn run_beside(
    projection: Projection,
    embedder: Arc<dyn TextEmbedder>,
    peers: Arc<dyn VectorSource>,
    clock: SharedClock,
) {
    keep_vectors(projection, embedder, Some(peers), clock).await;
}

async fn keep_vectors(
    projection: Projection,
    embedder: Arc<dyn TextEmbedder>,
    peers: Option<Arc<dyn VectorSource>>,
    clock: SharedClock,
) {
    let _ = projection.0.search.embedder.set(Arc::clone(&embedder));

    loop {
        let keeper = VectorKeeper {
            projection: &projection,
            embedder: &*embedder,
            peers: peers.as_deref(),
            clock: &clock,
            generation: projection.0.generation.load(Ordering::Acquire),
        };

        // A renewed file begins with a new keeper at once, because its generation is another one.
        match keeper.run_until_blocked().await {
            Err(KeepVectorsError::Closed) => return,
            Err(KeepVectorsError::Renewed) | Ok(()) => {}
            Err(error) => {
                tracing::warn!(
                    model = embedder.model(),
                    error = describe_error(&error),
                    "failed to store vectors; retrying"
                );
                pause(RETRY_PAUSE).await;
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum KeepVectorsError {
    #[error("the read model was rebuilt")]
    Renewed,
    #[error("the read model is closed")]
    Closed,
    #[error("failed to embed texts")]
    Embed(#[from] crate::embed::EmbedTextsError),
    #[error("failed to read texts")]
    Read(#[source] QueryProjectionError),
    #[error("failed to write vectors")]
    Write(#[source] ApplyBatchError),
}

impl From<QueryProjectionError> for KeepVectorsError {
    fn from(error: QueryProjectionError) -> Self {
        match error {
            QueryProjectionError::Closed => Self::Closed,
            QueryProjectionError::Sqlite(_) => Self::Read(error),
        }
    }
}

impl From<ApplyBatchError> for KeepVectorsError {
    fn from(error: ApplyBatchError) -> Self {
        match error {
            ApplyBatchError::Closed => Self::Closed,
            ApplyBatchError::Rebuilt => Self::Renewed,
            ApplyBatchError::Passing(_) => Self::Write(error),
        }
    }
}

struct VectorKeeper<'a> {
    projection: &'a Projection,
    embedder: &'a dyn TextEmbedder,
    peers: Option<&'a dyn VectorSource>,
    clock: &'a SharedClock,
    generation: u64,
}

/// Rows that are stored next.
struct NextRows {
    pending: PendingText,
    /// Vectors that another copy has made, by sequence; the other rows are embedded here.
    lent: HashMap<u64, Option<QuantizedVector>>,
    /// Rest after them; `None` for that of the embedder's pace.
    rest: Option<Duration>,
}

impl VectorKeeper<'_> {
    /// Continues at the stored position, until an error occurs.
    async fn run_until_blocked(&self) -> Result<(), KeepVectorsError> {
        let mut positions = self.projection.0.positions.clone();
        let mut position = self.resume().await?;

        let mut told = self.clock.monotonic();
        let mut pace = EmbeddingPace::new(self.embedder.is_remote());
        let mut reliance = PeerReliance::default();

        let backlog = metrics::gauge!("nexus_projection_embedding_backlog_events");
        loop {
            let now = self.clock.monotonic();
            let peers = self.peers.filter(|peers| reliance.asks(peers.is_there(), now));
            // Marked as seen before the query, so that an event applied meanwhile ends the wait below.
            positions.borrow_and_update();

            let count = peers.map_or_else(|| self.embedder.batch(), |_| MAX_TEXTS);
            let pending = self
                .projection
                .run_query(move |connection| store::pending_rows(connection, position, count))
                .await?;
            if pending.rows.is_empty() {
                backlog.set(0.0);
                positions.changed().await.map_err(|_| KeepVectorsError::Closed)?;
                pause(if peers.is_some() { GATHER_LENT } else { GATHER }).await;
                self.check()?;
                continue;
            }

            let reached = self.projection.position(FeedSource::Events);
            backlog.set(reached.saturating_sub(position) as f64);
            let Some(next) = self.next_rows(peers, pending, &mut reliance).await else {
                pause(ASK_EVERY).await;
                self.check()?;
                continue;
            };

            // The wait for another copy's answer is no work, after which the processor would be left to others.
            let worked_from = self.clock.monotonic();
            position = next.pending.up_to.unwrap_or(position);
            let rest = next.rest;
            self.store_rows(next).await?;

            let now = self.clock.monotonic();
            if now.duration_since(told) > PROGRESS_EVERY {
                told = now;
                tracing::info!(model = self.embedder.model(), position, reached, "embedding events");
            }

            // The rest depends on how far behind the embedding is, and leaves the processor to the hooks.
            let reached = self.projection.position(FeedSource::Events);
            let own_rest = || pace.rest_after(now.duration_since(worked_from), reached, position, now);
            pause(rest.unwrap_or_else(own_rest)).await;
        }
    }

    /// Loads the stored vectors, and returns the sequence up to which every event is embedded.
    async fn resume(&self) -> Result<u64, KeepVectorsError> {
        let model = self.embedder.model().to_owned();
        let resumed = model.clone();
        // Vectors of another model cannot be compared: the position belongs to the model's name.
        self.projection
            .write(move |connection, _| store::forget_other_models(connection, &resumed))
            .await?;
        self.load(&model).await?;

        let position = self
            .projection
            .run_query(move |connection| store::embedded_position(connection, &model))
            .await?;
        Ok(position)
    }

    /// Returns the rows of `pending` that are stored next, with the vectors that `peers` lends for them. Returns `None`
    /// if it is about to have those of the first rows.
    async fn next_rows(
        &self,
        peers: Option<&dyn VectorSource>,
        mut pending: PendingText,
        reliance: &mut PeerReliance,
    ) -> Option<NextRows> {
        let texts = pending.rows.iter().filter(|row| !row.content.is_empty());
        let texts = texts.map(|row| (row.sequence, row.content.as_str()));
        let question = peers.map(|peers| (peers, VectorsQuestion::new(self.embedder.model(), texts)));
        if let Some((peers, question)) = question.filter(|(_, question)| !question.texts.is_empty()) {
            let reply = peers.lend(question).await;
            let now = self.clock.monotonic();
            match reply {
                None => reliance.embed_on_own(now),
                Some(reply) => {
                    let lent: HashMap<_, _> = reply.vectors.into_iter().collect();
                    let settled = settled_rows(&pending.rows, reply.through, &lent, self.embedder.batch());
                    if settled > 0 {
                        reliance.note_lent();
                        let is_all = settled == pending.rows.len();
                        let has_more = reply.is_cut || is_all && pending.is_full(MAX_TEXTS);
                        pending.truncate(settled);
                        // A copy that has other texts saves nothing.
                        let rest = if has_more { ASK_FOR_MORE } else { ASK_EVERY };
                        let rest = (!lent.is_empty()).then_some(rest);
                        return Some(NextRows { pending, lent, rest });
                    }
                    if reliance.waits(now) {
                        return None;
                    }
                }
            }
        }

        pending.truncate(self.embedder.batch());
        Some(NextRows {
            pending,
            lent: HashMap::new(),
            rest: None,
        })
    }

    fn check(&self) -> Result<(), KeepVectorsError> {
        if self.projection.0.generation.load(Ordering::Acquire) == self.generation {
            Ok(())
        } else {
            Err(KeepVectorsError::Renewed)
        }
    }

    fn index(&self) -> RwLockWriteGuard<'_, VectorIndex> {
        self.projection
            .0
            .search
            .index
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the stored vectors into memory, in place of the current ones.
    async fn load(&self, model: &str) -> Result<(), KeepVectorsError> {
        let model = model.to_owned();
        let loaded = self
            .projection
            .run_query(move |connection| {
                let mut index = VectorIndex::default();
                store::load(connection, &model, |channel, time, sequence, vector| {
                    index.insert(channel, time, sequence, vector);
                })?;
                Ok(index)
            })
            .await?;

        let mut index = self.index();
        index.clear();
        *index = loaded;
        let vectors = index.len();
        drop(index);

        if vectors > 0 {
            tracing::info!(vectors, "vectors loaded");
        }

        Ok(())
    }

    /// Embeds the rows that have text and were not lent, and stores all of them.
    async fn store_rows(&self, next: NextRows) -> Result<(), KeepVectorsError> {
        let NextRows {
            pending: PendingText { rows, up_to },
            mut lent,
            ..
        } = next;
        let texts: Vec<String> = rows
            .iter()
            .filter(|row| !row.content.is_empty() && !lent.contains_key(&row.sequence))
            .map(|row| row.content.clone())
            .collect();
        let made = texts.len();
        let taken = rows.iter().filter(|row| lent.contains_key(&row.sequence)).count();

        let vectors = if texts.is_empty() {
            Vec::new()
        } else {
            self.embedder.embed(texts).await?
        };
        let mut vectors = vectors.into_iter();
        let mut vector_of = |row: &VectorRow| -> Option<QuantizedVector> {
            // Rows without text need no vector, but count as done.
            if row.content.is_empty() {
                return None;
            }
            match lent.remove(&row.sequence) {
                Some(vector) => vector,
                None => QuantizedVector::from_vector(&vectors.next()?),
            }
        };
        let with_vectors = rows.into_iter().map(|row| {
            let vector = vector_of(&row);
            (row, vector)
        });
        let settled: Arc<Vec<(VectorRow, Option<QuantizedVector>)>> = Arc::new(with_vectors.collect());

        // The read model may have been rebuilt while the texts were embedded.
        self.check()?;
        let (model, written) = (self.embedder.model().to_owned(), Arc::clone(&settled));
        self.projection
            .write(move |connection, _| store::write(connection, &model, &written, up_to))
            .await?;
        self.check()?;

        let mut index = self.index();
        for (row, vector) in settled.iter() {
            // A changed event may have a vector of its old text.
            if up_to.is_none() {
                index.remove(&row.channel, row.sequence);
            }
            if let Some(vector) = vector {
                index.insert(&row.channel, row.timestamp, row.sequence, vector);
            }
        }

        drop(index);
        metrics::counter!("nexus_projection_embedded_total").increment(made as u64);
        metrics::counter!("nexus_projection_vectors_taken_total").increment(taken as u64);

        Ok(())
    }
}

impl Projection {
    /// Returns the number of events that have a vector in memory.
    #[must_use]
    pub fn vector_count(&self) -> usize {
        self.0.search.index.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}
