//! Input of the projection: decoded messages, each with its position in its stream. *Pure.*

use std::sync::Arc;

use crate::model::dispatch::Dispatch;
use crate::model::event::{Event, EventId};
use crate::model::invocation::EventInvocations;
use crate::model::ledger::LedgerRecord;
use crate::model::position::StreamPosition;
use crate::model::receipt::Receipt;
use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;
use crate::wire::topology::streams;

/// A stream that the read model is built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FeedSource {
    /// Stream of events.
    Events,
    /// Stream of the hooks' outcomes.
    Invocations,
    /// Stream of the dispatches that hooks ordered.
    Dispatches,
    /// Stream of the agents' ledgers.
    Ledger,
    /// Stream of the channels' receipts.
    Receipts,
}

impl FeedSource {
    /// All sources, in the order of their discriminants.
    pub const ALL: [Self; 5] = [
        Self::Events,
        Self::Invocations,
        Self::Dispatches,
        Self::Ledger,
        Self::Receipts,
    ];

    /// Name of the stream on the server (`docs/design/wire.md` §3).
    #[must_use]
    pub const fn stream(self) -> &'static str {
        match self {
            Self::Events => streams::EVENTS,
            Self::Invocations => streams::INVOCATIONS,
            Self::Dispatches => streams::DISPATCHES,
            Self::Ledger => streams::LEDGER,
            Self::Receipts => streams::RECEIPTS,
        }
    }
}

/// One message of one stream, decoded.
#[derive(Debug, Clone, PartialEq)]
pub enum AppliedRecord {
    /// Message of `EVENTS`.
    Event {
        /// Sequence in the stream.
        sequence: u64,
        /// Time at which the server stored it.
        published_at: UnixMillis,
        /// Decoded event.
        event: Arc<Event>,
    },
    /// Message of `INVOCATIONS`.
    Invocations {
        /// Sequence in the stream.
        sequence: u64,
        /// Outcomes of the hooks.
        record: Box<EventInvocations>,
    },
    /// Message of `DISPATCHES`.
    Dispatch {
        /// Sequence in the stream.
        sequence: u64,
        /// Time at which the server stored it.
        published_at: UnixMillis,
        /// Decoded dispatch.
        dispatch: Box<Dispatch>,
    },
    /// Message of `LEDGER`.
    Ledger {
        /// Sequence in the stream.
        sequence: u64,
        /// Subject as stored: it identifies the session even if its tokens are shortened.
        subject: String,
        /// Session, if the subject's tokens could be decoded.
        session: Option<SessionRef>,
        /// Entries of the ledger.
        record: Box<LedgerRecord>,
    },
    /// Message of `RECEIPTS`.
    Receipt {
        /// Sequence in the stream.
        sequence: u64,
        /// Decoded receipt.
        receipt: Box<Receipt>,
    },
    /// Position of the last message among those before it in the batch.
    Mark {
        /// Stream of the message.
        source: FeedSource,
        /// Position of the message.
        position: StreamPosition,
    },
    /// Message that the read model does not store: it only moves the position.
    Beside {
        /// Stream of the message.
        source: FeedSource,
        /// Sequence in the stream.
        sequence: u64,
    },
    /// Message that cannot be decoded: it only moves the position.
    Unreadable {
        /// Stream of the message.
        source: FeedSource,
        /// Sequence in the stream.
        sequence: u64,
    },
}

impl AppliedRecord {
    /// Returns the stream and the sequence in it.
    #[must_use]
    pub const fn place(&self) -> (FeedSource, u64) {
        match self {
            Self::Event { sequence, .. } => (FeedSource::Events, *sequence),
            Self::Invocations { sequence, .. } => (FeedSource::Invocations, *sequence),
            Self::Dispatch { sequence, .. } => (FeedSource::Dispatches, *sequence),
            Self::Ledger { sequence, .. } => (FeedSource::Ledger, *sequence),
            Self::Receipt { sequence, .. } => (FeedSource::Receipts, *sequence),
            Self::Beside { source, sequence } | Self::Unreadable { source, sequence } => (*source, *sequence),
            Self::Mark { source, position } => (*source, position.sequence),
        }
    }

    /// Returns the id of the event that the message is or is about, if there is one.
    pub(super) fn event_id(&self) -> Option<&EventId> {
        match self {
            Self::Event { event, .. } => Some(&event.id),
            Self::Invocations { record, .. } => Some(&record.event_id),
            Self::Dispatch { dispatch, .. } => Some(&dispatch.event_id),
            Self::Ledger { .. }
            | Self::Receipt { .. }
            | Self::Beside { .. }
            | Self::Unreadable { .. }
            | Self::Mark { .. } => None,
        }
    }
}

/// Converts a stream sequence to SQLite's signed integers. No stream comes near the bound.
pub(super) fn to_sql(sequence: u64) -> i64 {
    i64::try_from(sequence).unwrap_or(i64::MAX)
}

/// Reverses [`to_sql`].
pub(super) fn from_sql(sequence: i64) -> u64 {
    u64::try_from(sequence).unwrap_or(0)
}

/// Position of each stream in the projection: the sequence of the last message applied, 0 = none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamPositions([u64; FeedSource::ALL.len()]);

impl StreamPositions {
    /// Returns the last sequence of `source` that is applied.
    #[must_use]
    pub const fn position_of(self, source: FeedSource) -> u64 {
        self.0[source as usize]
    }

    /// Returns whether every message in `source` up to `sequence` is applied.
    #[must_use]
    pub const fn covers(self, source: FeedSource, sequence: u64) -> bool {
        sequence <= self.position_of(source)
    }

    /// Moves the position of `source` to `sequence`; never moves it back.
    pub const fn advance(&mut self, source: FeedSource, sequence: u64) {
        if !self.covers(source, sequence) {
            self.0[source as usize] = sequence;
        }
    }
}
