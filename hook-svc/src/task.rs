//! One event under way.

use shared::bus::Incoming;
use shared::model::event::{Direction, Event, EventId};
use shared::wire::headers::{MSG_ID, REDRIVE};

use crate::gate::Place;
use crate::inherited::Inherited;

/// An event as its partition's owner hands it over.
#[derive(Debug)]
pub(crate) struct Task {
    /// The event.
    pub(crate) event: Event,
    /// Its sequence in `EVENTS`.
    pub(crate) sequence: u64,
    /// Its partition.
    pub(crate) partition: u16,
    /// Where somebody may have handled it before: what was left then.
    pub(crate) inherited: Option<Inherited>,
    /// Its done-marker was looked for already, and is not there.
    pub(crate) marker_read: bool,
    /// Its place in its conversation.
    pub(crate) place: Place,
    /// The message it came in.
    pub(crate) incoming: Incoming,
}

impl Task {
    /// Whether hooks see the event: what merely changed at its source is shown to those alone that ask for it.
    pub(crate) const fn is_shown(&self) -> bool {
        match self.event.direction {
            Direction::Received | Direction::Sent | Direction::Observed | Direction::Created => true,
            Direction::Updated | Direction::Deleted => false,
        }
    }

    /// What tells this occurrence from all others, in records, stored answers and last fires: the event's id, and for
    /// a change of an item known before one of its own, so that it does not stand for the first occurrence.
    pub(crate) fn key(&self) -> EventId {
        if self.is_shown() {
            return self.event.id.clone();
        }
        let own = EventId::parse(format!("change:{}/{}", self.sequence, self.event.source_adapter));
        own.unwrap_or_else(|_| self.event.id.clone())
    }

    /// Whether an operator has published it again out of the dead letters.
    pub(crate) fn is_redriven(&self) -> bool {
        let id = self.incoming.headers.get(MSG_ID);
        id.is_some_and(|id| id.starts_with(REDRIVE))
    }
}
