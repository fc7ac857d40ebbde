//! What the projection is fed with: decoded messages, each with its place in its stream. *Pure.*

use crate::model::dispatch::Dispatch;
use crate::model::event::{Event, EventId};
use crate::model::invocation::EventInvocations;
use crate::model::ledger::LedgerRecord;
use crate::model::position::Position;
use crate::model::receipt::Receipt;
use crate::model::session::SessionRef;
use crate::model::time::UnixMillis;
use crate::wire::topology::streams;

/// A stream that the read model is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// What happened.
    Events,
    /// What the hooks did with it.
    Invocations,
    /// What the hooks ordered.
    Dispatches,
    /// What the agents did.
    Ledger,
    /// What the channels did.
    Receipts,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Events,
        Self::Invocations,
        Self::Dispatches,
        Self::Ledger,
        Self::Receipts,
    ];

    /// The stream's name on the server (`docs/design/wire.md` §3).
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
pub enum Applied {
    /// Of `EVENTS`.
    Event {
        /// Stream sequence.
        sequence: u64,
        /// When the server stored it.
        published_at: UnixMillis,
        /// The event.
        event: Box<Event>,
    },
    /// Of `INVOCATIONS`.
    Invocations {
        /// Stream sequence.
        sequence: u64,
        /// The hooks' outcomes.
        record: Box<EventInvocations>,
    },
    /// Of `DISPATCHES`.
    Dispatch {
        /// Stream sequence.
        sequence: u64,
        /// When the server stored it.
        published_at: UnixMillis,
        /// The dispatch.
        dispatch: Box<Dispatch>,
    },
    /// Of `LEDGER`.
    Ledger {
        /// Stream sequence.
        sequence: u64,
        /// The subject as stored: names the session even where its tokens are shortened.
        subject: String,
        /// The session, where the subject's tokens could be reversed.
        session: Option<SessionRef>,
        /// The entries.
        record: Box<LedgerRecord>,
    },
    /// Of `RECEIPTS`.
    Receipt {
        /// Stream sequence.
        sequence: u64,
        /// The receipt.
        receipt: Box<Receipt>,
    },
    /// Names the last message of what was taken in before it.
    Mark {
        /// Its stream.
        source: Source,
        /// That message.
        position: Position,
    },
    /// Of no interest to the read model: only moves the position.
    Beside {
        /// Its stream.
        source: Source,
        /// Stream sequence.
        sequence: u64,
    },
    /// Not to be decoded: only moves the position.
    Unreadable {
        /// Its stream.
        source: Source,
        /// Stream sequence.
        sequence: u64,
    },
}

impl Applied {
    /// The stream and the sequence in it.
    #[must_use]
    pub const fn place(&self) -> (Source, u64) {
        match self {
            Self::Event { sequence, .. } => (Source::Events, *sequence),
            Self::Invocations { sequence, .. } => (Source::Invocations, *sequence),
            Self::Dispatch { sequence, .. } => (Source::Dispatches, *sequence),
            Self::Ledger { sequence, .. } => (Source::Ledger, *sequence),
            Self::Receipt { sequence, .. } => (Source::Receipts, *sequence),
            Self::Beside { source, sequence } | Self::Unreadable { source, sequence } => (*source, *sequence),
            Self::Mark { source, position } => (*source, position.sequence),
        }
    }

    /// The event that it is or is about, where it is about one.
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

/// A stream sequence as SQLite holds it: its integers are signed. No stream comes near the bound.
pub(super) fn to_sql(sequence: u64) -> i64 {
    i64::try_from(sequence).unwrap_or(i64::MAX)
}

/// A stream sequence as it was before [`to_sql`].
pub(super) fn from_sql(sequence: i64) -> u64 {
    u64::try_from(sequence).unwrap_or(0)
}

/// How far each stream is projected: the sequence of the last message taken in, 0 = none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Positions([u64; Source::ALL.len()]);

impl Positions {
    /// The last sequence of `source` that is taken in.
    #[must_use]
    pub const fn of(self, source: Source) -> u64 {
        self.0[source as usize]
    }

    /// Whether everything in `source` up to `sequence` is taken in.
    #[must_use]
    pub const fn covers(self, source: Source, sequence: u64) -> bool {
        sequence <= self.of(source)
    }

    /// Takes in `sequence` of `source`; never goes back.
    pub const fn advance(&mut self, source: Source, sequence: u64) {
        if !self.covers(source, sequence) {
            self.0[source as usize] = sequence;
        }
    }
}
