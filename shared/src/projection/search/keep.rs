//! Maintenance of the vectors: embeds new and changed events behind the streams, and keeps a copy in memory.
//!
//! A crash loses nothing: the progress of embedding is stored with the vectors. If the model or the file is another
//! one, everything is embedded again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};
use std::time::Duration;

use super::pace::Pace;
use super::store::{self, Pending, Row};
use super::vectors::{Quantized, VectorIndex};
use crate::clock::{SharedClock, pause};
use crate::embed::Embedder;
use crate::error_chain::describe_error;
use crate::projection::error::{ApplyBatchError, QueryProjectionError};
use crate::projection::{Projection, Source};

/// Pause after the first of some new events, so that they are embedded together.
const GATHER: Duration = Duration::from_millis(100);

/// Pause before a retry: a server does not respond, the file is being rebuilt.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Interval at which progress is logged while there is a large backlog.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// Embeds with `embedder` until the read model closes; `search` uses it from now on.
pub async fn run(projection: Projection, embedder: Arc<dyn Embedder>, clock: SharedClock) {
    let _ = projection.0.search.embedder.set(Arc::clone(&embedder));

    loop {
        let keeper = Keeper {
            projection: &projection,
            embedder: &*embedder,
            clock: &clock,
            generation: projection.0.generation.load(Ordering::Acquire),
        };

        match keeper.keep().await {
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

struct Keeper<'a> {
    projection: &'a Projection,
    embedder: &'a dyn Embedder,
    clock: &'a SharedClock,
    generation: u64,
}

impl Keeper<'_> {
    /// Continues at the stored position, until an error occurs.
    async fn keep(&self) -> Result<(), KeepVectorsError> {
        let mut positions = self.projection.0.positions.clone();
        let model = self.embedder.model().to_owned();
        let resumed = model.clone();
        self.projection
            .write(move |connection, _| store::resume(connection, &resumed))
            .await?;
        self.load(&model).await?;

        let asked = model.clone();
        let mut position = self
            .projection
            .ask(move |connection| store::position(connection, &asked))
            .await?;

        let mut told = self.clock.monotonic();
        let mut pace = Pace::new(self.embedder.is_remote());
        let batch = self.embedder.batch();

        let backlog = metrics::gauge!("nexus_projection_embedding_backlog_events");
        loop {
            let began = self.clock.monotonic();
            // Marked as seen before the query, so that an event applied meanwhile ends the wait below.
            positions.borrow_and_update();

            let pending = self
                .projection
                .ask(move |connection| store::pending(connection, position, batch))
                .await?;
            if pending.rows.is_empty() {
                backlog.set(0.0);
                positions.changed().await.map_err(|_| KeepVectorsError::Closed)?;
                pause(GATHER).await;
                self.check()?;
                continue;
            }

            let reached = self.projection.position(Source::Events);
            backlog.set(reached.saturating_sub(position) as f64);
            position = pending.up_to.unwrap_or(position);
            self.embed(&model, pending).await?;

            let now = self.clock.monotonic();
            if now.duration_since(told) > PROGRESS_EVERY {
                told = now;
                tracing::info!(model, position, reached, "embedding events");
            }

            let reached = self.projection.position(Source::Events);
            pause(pace.rest(now.duration_since(began), reached, position, now)).await;
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
            .ask(move |connection| {
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

    async fn embed(&self, model: &str, pending: Pending) -> Result<(), KeepVectorsError> {
        let Pending { rows, up_to } = pending;
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
        let embedded: Arc<Vec<(Row, Option<Quantized>)>> = Arc::new(
            rows.into_iter()
                .map(|row| {
                    let vector = if row.content.is_empty() { None } else { vectors.next() };
                    (row, vector.and_then(|vector| Quantized::of(&vector)))
                })
                .collect(),
        );

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
    pub fn vectors(&self) -> usize {
        self.0.search.index.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}
