//! Read model in step with history: the state at the moment when a past event was new, for replays of events.
//!
//! It contains `EVENTS` up to the event itself, and the messages of the other streams that were stored before it. The
//! rows are those that [`super::feed`] would write, written by the same code.

use std::sync::Arc;

use super::Projection;
use super::applied::{AppliedRecord, FeedSource};
use super::error::ApplyBatchError;
use super::feed::{BATCH_BYTES, BATCH_MESSAGES, decode, store_batch};
use crate::bus::{Bus, IncomingMessage, OrderedReader};
use crate::model::time::UnixMillis;
use crate::wire::seal::TrustKeys;

/// Reason why a read model cannot be brought to a past moment.
#[derive(Debug, thiserror::Error)]
pub enum StepProjectionError {
    /// The stream cannot be read.
    #[error("failed to read {stream}: {detail}")]
    Read {
        /// Name of the stream.
        stream: &'static str,
        /// Error text of the server.
        detail: String,
    },
    /// The rows cannot be written.
    #[error("failed to write the read model")]
    Write(#[from] ApplyBatchError),
}

/// All streams, each at one position; see the module.
#[derive(Debug)]
pub struct SteppedProjection {
    projection: Projection,
    cursors: Vec<StepCursor>,
}

#[derive(Debug)]
struct StepCursor {
    source: FeedSource,
    reader: OrderedReader,
    trust: Arc<TrustKeys>,
    /// Message that was read and not applied yet.
    ahead: Option<IncomingMessage>,
    /// Sequence of the last message that was read.
    read: u64,
    /// Whether no message was after it at that time.
    at_end: bool,
}

impl SteppedProjection {
    /// Starts at the positions of `projection`, which must have no other feed.
    ///
    /// # Errors
    /// Returns [`StepProjectionError::Read`] if a stream cannot be read.
    pub async fn begin_at_position(bus: &Bus, projection: Projection) -> Result<Self, StepProjectionError> {
        let mut cursors = Vec::new();
        for source in FeedSource::ALL {
            let stream = source.stream();
            let failed = |detail: String| StepProjectionError::Read { stream, detail };
            let from = projection.position(source).saturating_add(1);
            let state = bus
                .stream_state(stream)
                .await
                .map_err(|error| failed(error.to_string()))?;

            let reader = bus
                .read_ordered(stream, &[], from)
                .await
                .map_err(|error| failed(error.to_string()))?;
            cursors.push(StepCursor {
                source,
                reader,
                trust: Arc::clone(bus.trust()),
                ahead: None,
                read: from - 1,
                // Without it, the reader would wait for a message that is not there.
                at_end: state.messages == 0 || state.last < from,
            });
        }

        Ok(Self { projection, cursors })
    }

    /// Applies `EVENTS` up to `sequence`, at or after which a message must be stored, and the messages of the other
    /// streams stored before `at`. Never goes back.
    ///
    /// # Errors
    /// Returns [`StepProjectionError::Write`] if the rows cannot be written.
    pub async fn take_in(&mut self, sequence: u64, at: UnixMillis) -> Result<(), StepProjectionError> {
        for cursor in &mut self.cursors {
            loop {
                let batch = cursor.next_batch(sequence, at).await;
                if batch.is_empty() {
                    break;
                }
                store_batch(&self.projection, cursor.source, Arc::new(batch)).await?;
            }
        }

        Ok(())
    }
}

impl StepCursor {
    /// Returns the next messages that are due, at most a batch; empty if there are none.
    async fn next_batch(&mut self, sequence: u64, at: UnixMillis) -> Vec<AppliedRecord> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_MESSAGES && bytes < BATCH_BYTES {
            let may_read = match self.source {
                // Events may be newer than this reader, so `at_end` does not count; the requested one exists.
                FeedSource::Events => self.read < sequence,
                FeedSource::Invocations | FeedSource::Dispatches | FeedSource::Ledger | FeedSource::Receipts => {
                    !self.at_end
                }
            };

            // One message is read ahead, because only its time says whether it is due.
            if self.ahead.is_none() && may_read {
                let message = self.reader.next().await;
                (self.read, self.at_end) = (message.sequence, message.pending == 0);
                self.ahead = Some(message);
            }

            let is_due = |message: &IncomingMessage| match self.source {
                FeedSource::Events => message.sequence <= sequence,
                FeedSource::Invocations | FeedSource::Dispatches | FeedSource::Ledger | FeedSource::Receipts => {
                    message.published_at < at
                }
            };

            let Some(message) = self.ahead.take_if(|message| is_due(message)) else {
                break;
            };
            bytes += message.payload.len();
            batch.push(decode(self.source, &message, &self.trust));
        }

        batch
    }
}
