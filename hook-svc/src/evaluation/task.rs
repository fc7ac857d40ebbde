//! One event under way.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shared::bus::IncomingMessage;
use shared::model::event::{Event, EventDirection, EventId};
use shared::wire::headers::{MSG_ID, REDRIVE};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

use crate::evaluation::order_gate::ConversationPlace;
use crate::evaluation::redelivery_check::RedeliveryCheck;
use crate::evaluation::retry_budget::UnreadTries;
use crate::runner::HeldSlots;

/// An event that its partition's owner hands over for evaluation.
#[derive(Debug)]
pub(crate) struct EventTask {
    /// The event to evaluate.
    pub(crate) event: Arc<Event>,
    /// Id that tells this occurrence from all others, in records, stored answers and last fires ([`shared::wire::seal::record_key`]).
    pub(crate) key: EventId,
    /// Sequence of the event in `EVENTS`.
    pub(crate) sequence: u64,
    /// Partition of the event.
    pub(crate) partition: u16,
    /// State that a former owner left, if one may have handled the event.
    pub(crate) inherited: Option<RedeliveryCheck>,
    /// Whether its done-marker was already looked up, and is absent.
    pub(crate) marker_read: bool,
    /// Highest sequence that its partition's owner has taken, updated while the event is under way.
    pub(crate) through: Arc<AtomicU64>,
    /// Place of the event in its conversation.
    pub(crate) place: ConversationPlace,
    /// Message that carried the event.
    pub(crate) incoming: IncomingMessage,
    /// Whether its hooks are called for the first time, or only those that were deferred.
    pub(crate) pass: EvaluationRound,
    /// Resources that it holds of those all events share.
    pub(crate) lent: SharedPermits,
    /// Hooks that are called later, once that is decided; further tries use the same ones.
    pub(crate) deferred: Mutex<Option<Vec<String>>>,
    /// Whether an answer would go on with a loop of another bot, once that is known: the same for each hook that answers.
    pub(crate) is_in_loop: OnceCell<bool>,
    /// Tries in which no copy of the read model answered one of its hooks.
    pub(crate) unread: UnreadTries,
}

/// Selects which of an event's hooks are called.
#[derive(Debug)]
pub(crate) enum EvaluationRound {
    /// The hooks that have a place.
    First,
    /// The hooks that had no place in the first pass.
    Deferred(DeferredHooks),
}

/// Hooks that had no place when their event came.
#[derive(Debug)]
pub(crate) struct DeferredHooks {
    /// Ids of the hooks.
    pub(crate) hooks: Vec<String>,
    /// Ids of the hooks that are called now: those of one author with a place. An author does not wait for another.
    pub(crate) called: Vec<String>,
    /// Place for their evaluation.
    pub(crate) seats: Mutex<HeldSlots>,
    /// Whether all of them have waited too long and must be given up.
    pub(crate) is_too_late: bool,
}

impl DeferredHooks {
    /// Takes the place that was found; a further try finds one itself.
    pub(crate) fn take_seats(&self) -> HeldSlots {
        std::mem::take(&mut *self.seats.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Resources of this replica that an event holds. An event that waits for others gives them back: events that wait for
/// scripts are limited by their authors' places.
#[derive(Debug)]
pub(crate) struct SharedPermits {
    held: Mutex<Holding>,
    /// Memory of events that wait for earlier ones of their conversation.
    held_back: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Holding {
    /// Permit to be evaluated.
    slot: Option<OwnedSemaphorePermit>,
    /// One of the places that conversations share.
    place: Option<OwnedSemaphorePermit>,
    memory: Option<OwnedSemaphorePermit>,
}

impl SharedPermits {
    /// Creates a holder of `memory`, if any.
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

    fn lock_held(&self) -> MutexGuard<'_, Holding> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds `slot` and `place` until they are given back.
    pub(crate) fn begin_holding(&self, slot: OwnedSemaphorePermit, place: Option<OwnedSemaphorePermit>) {
        let mut held = self.lock_held();
        held.slot = Some(slot);
        held.place = place;
    }

    /// Takes the memory permit that it holds.
    pub(crate) fn take_memory(&self) -> Option<OwnedSemaphorePermit> {
        self.lock_held().memory.take()
    }

    /// Gives everything back, because a script waits.
    pub(crate) fn waits_for_script(&self) {
        *self.lock_held() = Holding::default();
    }

    /// Gives back the permits for evaluation, because the event waits for an earlier one of its conversation.
    pub(crate) fn waits_for_its_turn(&self) {
        let mut held = self.lock_held();
        (held.slot, held.place) = (None, None);
        if held.memory.is_some()
            && let Ok(held_back) = Arc::clone(&self.held_back).try_acquire_owned()
        {
            held.memory = Some(held_back);
        }
    }
}

impl EventTask {
    /// Returns whether hooks see the event by default: mere changes at the source are shown only to hooks that ask for
    /// them.
    pub(crate) fn is_shown(&self) -> bool {
        match self.event.direction {
            EventDirection::Received | EventDirection::Sent | EventDirection::Observed | EventDirection::Created => {
                true
            }
            EventDirection::Updated | EventDirection::Deleted => false,
        }
    }

    /// Lets later changes of the item pass if the event is a change, because its orders are given or it leads to none.
    pub(crate) fn settle_change(&self) {
        if !self.is_shown() {
            self.place.settle_item();
        }
    }

    /// Returns whether an operator has republished it from the dead letters.
    pub(crate) fn is_redriven(&self) -> bool {
        let id = self.incoming.headers.get(MSG_ID);
        id.is_some_and(|id| id.starts_with(REDRIVE))
    }
}
