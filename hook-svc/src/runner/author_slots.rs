//! Places of an author: they limit the evaluations of their hooks that are under way on this replica at once.
//!
//! If all places are taken, an evaluation waits for one as long as the workers are merely busy. If the evaluations that
//! have places wait themselves (for a timer, a model, a server), the time until one is free is unknown: then there is
//! no place.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most authors beside the operators; the hooks of further authors are not run.
pub(super) const MAX_AUTHORS: usize = 64;

/// Most evaluations of one author under way (`docs/design/trust.md` §5).
pub const MAX_UNDER_WAY: usize = 256;

/// Time that an evaluation waits for a place before it checks whether the evaluations that have one wait.
const GRACE: Duration = Duration::from_millis(250);

/// A place for one evaluation; free again when the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct EvaluationSlot {
    _permit: Arc<OwnedSemaphorePermit>,
    waiting: Arc<AtomicUsize>,
}

/// Counts an evaluation as waiting: its hooks were called and have not all answered.
#[derive(Debug)]
pub(super) struct WaitingEvaluation(Arc<AtomicUsize>);

/// Places of one evaluation, by author.
#[derive(Debug, Clone, Default)]
pub struct HeldSlots(BTreeMap<String, EvaluationSlot>);

/// Reason why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoSeat {
    /// The evaluations that have places are waiting.
    Full,
    /// The pool is stopping.
    Stopped,
}

/// All places of one author.
#[derive(Debug)]
pub(super) struct AuthorSlots {
    places: Arc<Semaphore>,
    most: usize,
    waiting: Arc<AtomicUsize>,
    /// Whether an evaluation has waited for a place in vain, and none has been free since.
    is_full: AtomicBool,
}

impl EvaluationSlot {
    /// Counts the evaluation in this place as waiting until the return value is dropped.
    pub(super) fn note_waiting(&self) -> WaitingEvaluation {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingEvaluation(Arc::clone(&self.waiting))
    }
}

impl Drop for WaitingEvaluation {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HeldSlots {
    /// Adds the place of `author`.
    pub(super) fn add(&mut self, author: &str, seat: EvaluationSlot) {
        self.0.insert(author.to_owned(), seat);
    }

    /// Returns the place of `author`, if there is one.
    pub(super) fn seat_of(&self, author: &str) -> Option<EvaluationSlot> {
        self.0.get(author).cloned()
    }
}

impl AuthorSlots {
    /// Returns `most` places, all of them free.
    pub(super) fn new(most: usize) -> Self {
        Self {
            places: Arc::new(Semaphore::new(most)),
            most,
            waiting: Arc::default(),
            is_full: AtomicBool::new(false),
        }
    }

    fn new_seat(&self, permit: OwnedSemaphorePermit) -> EvaluationSlot {
        EvaluationSlot {
            _permit: Arc::new(permit),
            waiting: Arc::clone(&self.waiting),
        }
    }

    /// Returns a place if one is free.
    pub(super) fn free_seat(&self) -> Option<EvaluationSlot> {
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        self.is_full.store(false, Ordering::Relaxed);
        Some(self.new_seat(permit))
    }

    /// Waits for a place without limit; first come, first served.
    pub(super) async fn wait(&self) -> Result<EvaluationSlot, NoSeat> {
        let permit = Arc::clone(&self.places).acquire_owned().await;
        permit.map(|permit| self.new_seat(permit)).map_err(|_| NoSeat::Stopped)
    }

    /// Waits for a place, unless the evaluations that have one are waiting.
    pub(super) async fn in_time(&self) -> Result<EvaluationSlot, NoSeat> {
        if let Some(seat) = self.free_seat() {
            return Ok(seat);
        }

        // Others have waited in vain already; until a place is free, waiting as well would only take time.
        if self.is_full.load(Ordering::Relaxed) && !self.places.is_closed() {
            return Err(NoSeat::Full);
        }

        let mut seat = pin!(self.wait());
        loop {
            if let Ok(seat) = tokio::time::timeout(GRACE, &mut seat).await {
                return seat;
            }

            if self.waiting.load(Ordering::Relaxed) * 2 >= self.most {
                self.is_full.store(true, Ordering::Relaxed);
                return Err(NoSeat::Full);
            }
        }
    }

    /// Returns whether all places are free.
    pub(super) fn is_idle(&self) -> bool {
        self.places.available_permits() == self.most
    }

    /// Closes the places: none is given out from now on.
    pub(super) fn close(&self) {
        self.places.close();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn while_the_workers_are_busy_an_evaluation_waits_and_while_hooks_wait_it_does_not() {
        let seating = AuthorSlots::new(2);
        let (one, two) = (seating.free_seat().expect("free"), seating.free_seat().expect("free"));
        assert!(seating.free_seat().is_none());

        let busy = tokio::time::timeout(20 * GRACE, seating.in_time()).await;
        assert!(busy.is_err(), "it waits on");

        let waits = one.note_waiting();
        assert_eq!(seating.in_time().await.map(|_| ()), Err(NoSeat::Full));

        let at_once = seating.in_time().now_or_never();
        assert_eq!(at_once.map(|seat| seat.map(|_| ())), Some(Err(NoSeat::Full)));

        drop((waits, two));
        assert!(seating.in_time().now_or_never().expect("at once").is_ok());

        drop(one);
        assert!(seating.is_idle());
    }

    #[tokio::test]
    async fn a_pool_that_ends_says_so() {
        let seating = AuthorSlots::new(1);
        let _seat = seating.free_seat();
        seating.close();
        assert_eq!(seating.in_time().await.map(|_| ()), Err(NoSeat::Stopped));
        assert_eq!(seating.wait().await.map(|_| ()), Err(NoSeat::Stopped));
    }
}
