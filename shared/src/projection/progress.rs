//! How far the read model has come: its positions in the streams, waits for them, and what is still to be applied.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use super::backlog::{self, Backlog, SeenEvents};
use super::{FeedSource, Inner, Projection, QueryProjectionError, query};
use crate::bus::IncomingMessage;
use crate::model::position::StreamPosition;
use crate::model::time::UnixMillis;
use crate::wire::partition::stored_partition;
use crate::wire::session_mark::PartitionFloors;
use crate::wire::topology::PARTITIONS;

impl Projection {
    /// Returns the sequence of the last message of `source` that is applied, 0 = none: resume after it.
    #[must_use]
    pub fn position(&self, source: FeedSource) -> u64 {
        self.0.positions.borrow().position_of(source)
    }

    /// Returns the position of the last message of `source` that is applied, or `None` if the file has none.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub fn stream_position(&self, source: FeedSource) -> Result<Option<StreamPosition>, QueryProjectionError> {
        self.read(|connection| query::stored_position(connection, source))
    }

    /// Waits until the message `sequence` of `source` is applied.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError::Closed`] if that will not happen any more.
    pub async fn wait_reached(&self, source: FeedSource, sequence: u64) -> Result<(), QueryProjectionError> {
        let mut positions = self.0.positions.clone();
        if positions.borrow().covers(source, sequence) {
            return Ok(());
        }

        let _waiting = PositionWaiter::new(&self.0);
        positions
            .wait_for(|positions| positions.covers(source, sequence))
            .await
            .map(drop)
            .map_err(|_| QueryProjectionError::Closed)
    }

    /// Returns whether the writer has stopped, so that no more messages will be applied.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.positions.has_changed().is_err()
    }

    /// Returns whether a caller waits for a position now.
    pub(super) fn is_awaited(&self) -> bool {
        self.0.waiting.load(Ordering::Acquire) > 0
    }

    /// Says whether the feed has caught up with the streams. It then stores messages under load in larger transactions, up to
    /// two seconds late unless a caller waits for a position; before that, such a lag could not be told from a backlog.
    pub fn set_caught_up(&self, caught_up: bool) {
        self.0.caught_up.store(caught_up, Ordering::Relaxed);
    }

    /// Returns what [`Self::set_caught_up`] has said last; false before.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.0.caught_up.load(Ordering::Relaxed)
    }

    /// Returns how far the projection is behind at `now`, on the stream with the largest lag. Returns `None` if that
    /// is unknown, because the end of a stream is not known yet.
    #[must_use]
    pub fn lag(&self, now: UnixMillis) -> Option<Duration> {
        self.0.lag.at(*self.0.positions.borrow(), now)
    }

    /// Returns the number of messages that are still to be read, of all streams together, by their last sequences. Returns
    /// `None` if that is unknown.
    #[must_use]
    pub fn remaining_messages(&self) -> Option<u64> {
        self.0.lag.remaining_messages(*self.0.positions.borrow())
    }

    /// Returns whether the file was compared with `EVENTS` since it was opened. Before, it may be of a stream that was put
    /// back since, in which its ids and sequences are those of other messages.
    #[must_use]
    pub fn is_compared(&self) -> bool {
        self.0.lag.is_known(FeedSource::Events)
    }

    /// Starts the count of unsettled events again with a reading of `EVENTS` after `position`.
    pub(super) fn begin_backlog(&self, position: u64) {
        self.lock_backlog().begin_behind(position);
    }

    /// Notes that `incoming` was read from `EVENTS`.
    pub(super) fn note_seen(&self, incoming: &IncomingMessage) {
        if let Some(partition) = stored_partition(&incoming.subject) {
            self.lock_backlog()
                .note(partition, incoming.sequence, incoming.published_at);
        }
    }

    /// Returns the events that no owner has settled by `floors`, if `EVENTS` ends with the message `end`. Those that an
    /// earlier process has read are looked up in the file the first time.
    ///
    /// # Errors
    /// Returns [`QueryProjectionError`] if the file cannot be read.
    pub async fn backlog(&self, floors: &PartitionFloors, end: u64) -> Result<Backlog, QueryProjectionError> {
        let owed = self.lock_backlog().owed_through();
        if let Some(owed) = owed {
            let settled = (0..PARTITIONS).map(|partition| floors.floor_of(partition).unwrap_or_default().at.sequence);
            let settled = settled.min().unwrap_or(0);
            let earlier = self
                .run_query(move |connection| query::stored_events(connection, settled, owed, backlog::MAX_RUNS))
                .await?;
            self.lock_backlog().add_earlier(owed, earlier.into_iter());
        }

        Ok(self.lock_backlog().settle(floors, end))
    }

    fn lock_backlog(&self) -> MutexGuard<'_, SeenEvents> {
        self.0.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a caller that waits for a position, while this lives.
struct PositionWaiter<'a>(&'a Inner);

impl<'a> PositionWaiter<'a> {
    fn new(inner: &'a Inner) -> Self {
        inner.waiting.fetch_add(1, Ordering::AcqRel);
        inner.wanted.notify_waiters();
        Self(inner)
    }
}

impl Drop for PositionWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
