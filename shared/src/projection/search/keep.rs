//! Maintenance of the vectors: embeds new and changed events behind the streams, and keeps a copy in memory.
//!
//! A crash loses nothing: the progress of embedding is stored with the vectors. If the model or the file is another
//! one, everything is embedded again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};
use std::time::Duration;

use super::pace::EmbeddingPace;
use super::store::{self, PendingText, VectorRow};
use super::vectors::{QuantizedVector, VectorIndex};
use crate::clock::{SharedClock, pause};
use crate::embed::TextEmbedder;
use crate::error_chain::describe_error;
use crate::projection::error::{ApplyBatchError, QueryProjectionError};
use crate::projection::{FeedSource, Projection};

/// Pause after the first of some new events, so that they are embedded together.
const GATHER: Duration = Duration::from_millis(100);

/// Pause before a retry: a server does not respond, the file is being rebuilt.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Interval at which progress is logged while there is a large backlog.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// Embeds with `embedder` until the read model closes; `search` uses it from now on.
pub async fn run(projection: Projection, embedder: Arc<dyn TextEmbedder>, clock: SharedClock) {
    let _ = projection.0.search.embedder.set(Arc::clone(&embedder));

    loop {
        let keeper = VectorKeeper {
            projection: &projection,
            embedder: &*embedder,
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
    clock: &'a SharedClock,
    generation: u64,
}

impl VectorKeeper<'_> {
    /// Continues at the stored position, until an error occurs.
    async fn run_until_blocked(&self) -> Result<(), KeepVectorsError> {
        let mut positions = self.projection.0.positions.clone();
        let model = self.embedder.model().to_owned();
        let resumed = model.clone();
        // Vectors of another model cannot be compared: the position belongs to the model's name.
        self.projection
            .write(move |connection, _| store::forget_other_models(connection, &resumed))
            .await?;
        self.load(&model).await?;

        let asked = model.clone();
        let mut position = self
            .projection
            .run_query(move |connection| store::embedded_position(connection, &asked))
            .await?;

        let mut told = self.clock.monotonic();
        let mut pace = EmbeddingPace::new(self.embedder.is_remote());
        let batch = self.embedder.batch();

        let backlog = metrics::gauge!("nexus_projection_embedding_backlog_events");
        loop {
            let began = self.clock.monotonic();
            // Marked as seen before the query, so that an event applied meanwhile ends the wait below.
            positions.borrow_and_update();

            let pending = self
                .projection
                .run_query(move |connection| store::pending_rows(connection, position, batch))
                .await?;
            if pending.rows.is_empty() {
                backlog.set(0.0);
                positions.changed().await.map_err(|_| KeepVectorsError::Closed)?;
                pause(GATHER).await;
                self.check()?;
                continue;
            }

            let reached = self.projection.position(FeedSource::Events);
            backlog.set(reached.saturating_sub(position) as f64);
            position = pending.up_to.unwrap_or(position);
            self.embed(&model, pending).await?;

            let now = self.clock.monotonic();
            if now.duration_since(told) > PROGRESS_EVERY {
                told = now;
                tracing::info!(model, position, reached, "embedding events");
            }

            // The rest depends on how far behind the embedding is, and leaves the processor to the hooks.
            let reached = self.projection.position(FeedSource::Events);
            pause(pace.rest_after(now.duration_since(began), reached, position, now)).await;
        }
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

    async fn embed(&self, model: &str, pending: PendingText) -> Result<(), KeepVectorsError> {
        // Rows without text need no vector, but count as done.
        let PendingText { rows, up_to } = pending;
        let texts: Vec<String> = rows
            .iter()
            .filter(|row| !row.content.is_empty())
            .map(|row| row.content.clone())
            .collect();

        let vectors = if texts.is_empty() {
            Vec::new()
        } else {
            self.embedder.embed(texts).await?
        };
        let mut vectors = vectors.into_iter();
        let embedded: Arc<Vec<(VectorRow, Option<QuantizedVector>)>> = Arc::new(
            rows.into_iter()
                .map(|row| {
                    let vector = if row.content.is_empty() { None } else { vectors.next() };
                    (row, vector.and_then(|vector| QuantizedVector::from_vector(&vector)))
                })
                .collect(),
        );

        // The read model may have been rebuilt while the texts were embedded.
        self.check()?;
        let (model, written) = (model.to_owned(), Arc::clone(&embedded));
        self.projection
            .write(move |connection, _| store::write(connection, &model, &written, up_to))
            .await?;
        self.check()?;

        let mut index = self.index();
        for (row, vector) in embedded.iter() {
            // A changed event may have a vector of its old text.
            if up_to.is_none() {
                index.remove(&row.channel, row.sequence);
            }
            if let Some(vector) = vector {
                index.insert(&row.channel, row.timestamp, row.sequence, vector);
            }
        }

        drop(index);
        metrics::counter!("nexus_projection_embedded_total").increment(embedded.len() as u64);

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
