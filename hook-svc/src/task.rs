//! One event under way.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shared::bus::Incoming;
use shared::model::event::{Direction, Event, EventId};
use shared::wire::headers::{MSG_ID, REDRIVE};
use shared::wire::seal::change_hash;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::gate::Place;
use crate::inherited::Inherited;
use crate::runner::Seats;

/// An event as its partition's owner hands it over.
#[derive(Debug)]
pub(crate) struct Task {
    /// The event.
    pub(crate) event: Event,
    /// What tells this occurrence from all others, in records, stored answers and last fires ([`key_of`]).
    pub(crate) key: EventId,
    /// Its sequence in `EVENTS`.
    pub(crate) sequence: u64,
    /// Its partition.
    pub(crate) partition: u16,
    /// Where somebody may have handled it before: what was left then.
    pub(crate) inherited: Option<Inherited>,
    /// Its done-marker was looked for already, and is not there.
    pub(crate) marker_read: bool,
    /// The highest sequence that its partition's owner has in hand, now and while the event is under way.
    pub(crate) through: Arc<AtomicU64>,
    /// Its place in its conversation.
    pub(crate) place: Place,
    /// The message it came in.
    pub(crate) incoming: Incoming,
    /// Whether its hooks are called for the first time, or those that were deferred.
    pub(crate) pass: Pass,
    /// What it holds of what all events share.
    pub(crate) lent: Lent,
    /// Hooks that are called later, once that is decided: a further try keeps to it.
    pub(crate) deferred: Mutex<Option<Vec<String>>>,
}

/// The event's id, and for a change of an item known before one of its own, so that it does not stand for the first
/// occurrence or for another change. It names what the event says: a stream that was put back gives sequences out again.
pub(crate) fn key_of(event: &Event) -> EventId {
    let own = change_hash(event).and_then(|hash| EventId::parse(format!("change:{hash}")).ok());
    own.unwrap_or_else(|| event.id.clone())
}

/// Which of an event's hooks are called.
#[derive(Debug)]
pub(crate) enum Pass {
    /// Those that have a place.
    First,
    /// Those that had none then.
    Deferred(Deferred),
}

/// Hooks that had no place when their event came.
#[derive(Debug)]
pub(crate) struct Deferred {
    /// Their ids.
    pub(crate) hooks: Vec<String>,
    /// Those of them that are called now: one author's, for whom there is a place. An author waits for no other one.
    pub(crate) called: Vec<String>,
    /// The place.
    pub(crate) seats: Mutex<Seats>,
    /// All of them are called now, and have waited too long.
    pub(crate) is_too_late: bool,
}

impl Deferred {
    /// Takes the place that was found; a further try finds its own.
    pub(crate) fn take_seats(&self) -> Seats {
        std::mem::take(&mut *self.seats.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What an event holds of what all events of this replica share. An event that waits for what others do gives it back:
/// those that wait for scripts are bounded by their authors' places.
#[derive(Debug)]
pub(crate) struct Lent {
    held: Mutex<Holding>,
    /// Memory of events that wait for earlier ones of their conversation.
    held_back: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Holding {
    /// A place among those that are evaluated.
    slot: Option<OwnedSemaphorePermit>,
    /// One of the places that conversations share.
    place: Option<OwnedSemaphorePermit>,
    memory: Option<OwnedSemaphorePermit>,
}

impl Lent {
    /// Returns what holds `memory`, if any.
    pub(crate) fn new(memory: Option<OwnedSemaphorePermit>, held_back: &Arc<Semaphore>) -> Self {
        let held = Holding {
            memory,
            ..Holding::default()
        };
        Self {
            held: Mutex::new(held),
            held_back: Arc::clone(held_back),
        }
    }

    fn held(&self) -> MutexGuard<'_, Holding> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds these until they are given back.
    pub(crate) fn begin(&self, slot: OwnedSemaphorePermit, place: Option<OwnedSemaphorePermit>) {
        let mut held = self.held();
        held.slot = Some(slot);
        held.place = place;
    }

    /// Takes what it holds of memory.
    pub(crate) fn take_memory(&self) -> Option<OwnedSemaphorePermit> {
        self.held().memory.take()
    }

    /// Gives all back: a script waits.
    pub(crate) fn waits_for_script(&self) {
        *self.held() = Holding::default();
    }

    /// Gives back what it needs to be evaluated: it waits for an earlier event of its conversation.
    pub(crate) fn waits_for_its_turn(&self) {
        let mut held = self.held();
        (held.slot, held.place) = (None, None);
        if held.memory.is_some()
            && let Ok(held_back) = Arc::clone(&self.held_back).try_acquire_owned()
        {
            held.memory = Some(held_back);
        }
    }
}

impl Task {
    /// Whether hooks see the event: what merely changed at its source is shown to those alone that ask for it.
    pub(crate) const fn is_shown(&self) -> bool {
        match self.event.direction {
            Direction::Received | Direction::Sent | Direction::Observed | Direction::Created => true,
            Direction::Updated | Direction::Deleted => false,
        }
    }

    /// Whether an operator has published it again out of the dead letters.
    pub(crate) fn is_redriven(&self) -> bool {
        let id = self.incoming.headers.get(MSG_ID);
        id.is_some_and(|id| id.starts_with(REDRIVE))
    }
}
