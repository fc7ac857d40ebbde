//! How far a worker has read its session's subject, and the state of the messages there.
//!
//! The bell is a core subscription on the session's subject. It may ring twice, not at all, or before the stream
//! holds the message that it rings for, so data is always read from the end of the last look.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use shared::bus::{Bus, CoreSubscription, ReadStreamError};
use shared::model::ledger::{DispatchRef, LedgerCursor};
use shared::model::position::StreamPosition;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::subject;
use ulid::Ulid;

use crate::broker::BrokerContext;
use crate::broker::stream_facts::StreamEra;
use crate::error::RunSessionError;
use crate::ledger::state::advance_cursor;
use crate::queue::doubt::{DoubtResolution, SessionDoubts};
use crate::queue::inbox;
use crate::queue::inbox::InboxPoll;
use crate::session::InboxItem;

/// A worker's place in its session's subject of `DISPATCHES`.
#[derive(Debug)]
pub(super) struct InboxReader {
    /// Facts about the streams that hold at present.
    era: Arc<StreamEra>,
    /// Results of the checks of dispatches in doubt.
    doubts: SessionDoubts,
    /// Subscription that rings when a message comes for the session; it is open while the worker waits.
    bell: Option<CoreSubscription>,
    /// Sequence up to which every message on the session's subject was handed to the machine.
    looked_through: u64,
    /// Sequences of unreadable messages that are not given up yet: the cursor's floor stays below them.
    unreadable: BTreeSet<u64>,
    /// By sequence of a message that was looked at and not consumed: the time it was stored, nanoseconds since 1970,
    /// and the sequence of its event, 0 = it has none.
    stamps: HashMap<u64, (i64, u64)>,
    /// Sequences whose consumption is staged or appended since the last flush.
    consumed: Vec<u64>,
}

impl InboxReader {
    /// Creates a reader that begins behind `cursor`; `is_void` says that the cursor counted a stream that is gone.
    pub(super) fn new(era: Arc<StreamEra>, cursor: &LedgerCursor, is_void: bool) -> Self {
        let mut reader = Self {
            era,
            doubts: SessionDoubts::default(),
            bell: None,
            looked_through: cursor.floor,
            unreadable: BTreeSet::new(),
            stamps: HashMap::new(),
            consumed: Vec::new(),
        };

        reader.doubts.is_void = is_void;
        reader
    }

    /// Returns the sequence up to which everything was looked at.
    pub(super) const fn looked_through(&self) -> u64 {
        self.looked_through
    }

    /// Returns the time until which turns may have run that the ledger does not know; `None` if it knows all.
    pub(super) fn doubt_until(&self) -> Option<UnixMillis> {
        self.era.doubt_until
    }

    /// Reads the messages that have come since the last look.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the stream cannot be read.
    pub(super) async fn look(
        &mut self,
        broker: &BrokerContext,
        session: &SessionRef,
    ) -> Result<InboxPoll, ReadStreamError> {
        let look = inbox::read_arrivals(broker, session, self.looked_through + 1).await?;
        self.looked_through = look.through.unwrap_or(self.looked_through);
        self.stamps.extend(look.stamps.iter().copied());
        Ok(look)
    }

    /// Returns whether a dispatch that `cursor` does not count was handled before, or may have been.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the record cannot be read.
    pub(super) async fn doubt(
        &mut self,
        broker: &BrokerContext,
        session: &SessionRef,
        cursor: &LedgerCursor,
        arrival: &InboxItem,
    ) -> Result<Option<DoubtResolution>, RunSessionError> {
        self.doubts
            .judge_arrival(broker, &self.era, session, cursor, arrival)
            .await
    }

    /// Returns those of `dispatches` of which the ledger says last that they are lost.
    ///
    /// # Errors
    /// Returns [`RunSessionError`] if the ledger cannot be read.
    pub(super) async fn known_lost(
        &mut self,
        broker: &BrokerContext,
        session: &SessionRef,
        dispatches: &[DispatchRef],
    ) -> Result<Vec<Ulid>, RunSessionError> {
        let mut lost = Vec::new();
        for dispatch in dispatches {
            if self.doubts.is_lost(broker, session, dispatch.id).await? {
                lost.push(dispatch.id);
            }
        }
        Ok(lost)
    }

    /// Forgets what was read of the ledger about dispatches, because the ledger says otherwise now.
    pub(super) fn forget_standings(&mut self) {
        self.doubts.forget_standings();
    }

    /// Keeps the cursor's floor below the unreadable messages at `sequences`.
    pub(super) fn hold_floor(&mut self, sequences: impl IntoIterator<Item = u64>) {
        self.unreadable.extend(sequences);
    }

    /// Lets the cursor's floor pass the message at `sequence`.
    pub(super) fn free_floor(&mut self, sequence: u64) {
        self.unreadable.remove(&sequence);
    }

    /// Returns `cursor` once the messages at `consumed` are done; `open` is the lowest sequence that the machine
    /// still has.
    pub(super) fn cursor_after(&mut self, cursor: &LedgerCursor, consumed: &[u64], open: Option<u64>) -> LedgerCursor {
        self.consumed.extend(consumed);
        let unreadable = self.unreadable.first().copied();
        let open = open.into_iter().chain(unreadable).min();

        let mut cursor = cursor.clone();
        for &sequence in consumed {
            cursor = advance_cursor(&cursor, sequence, self.looked_through, open);
            let (stored_at_ns, event_seq) = self.stamps.remove(&sequence).unwrap_or_default();
            cursor.event_seq = cursor.event_seq.max(event_seq);

            // The newest consumed message lets a later owner detect that the stream was restored.
            if stored_at_ns > 0 && cursor.newest.as_ref().is_none_or(|newest| newest.sequence < sequence) {
                cursor.newest = Some(StreamPosition {
                    incarnation: self.era.incarnation.clone(),
                    sequence,
                    stored_at_ns,
                });
            }
        }

        cursor
    }

    /// Takes the sequences consumed since the last time.
    pub(super) fn take_consumed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.consumed)
    }

    /// Listens to the session's subject from now on. Returns whether the subscription is new.
    ///
    /// Without a bell the look each second finds the same messages, later.
    pub(super) async fn listen(&mut self, bus: &Bus, session: &SessionRef) -> bool {
        if self.bell.is_some() {
            return false;
        }

        match bus.core_subscribe(&subject::dispatch(session)).await {
            Ok(bell) => self.bell = Some(bell),
            Err(error) => tracing::debug!(%session, error, "failed to subscribe to session wake-ups"),
        }

        true
    }

    /// Waits until the bell rings; waits forever if there is none.
    pub(super) async fn wait_for_ring(&mut self) {
        let is_open = match self.bell.as_mut() {
            Some(bell) => bell.next().await.is_some(),
            None => std::future::pending().await,
        };

        if !is_open {
            self.bell = None;
        }
    }
}
