//! Places for the processes of authors: as many run at once as the memory of the container holds.
//!
//! Further ones wait for a place, first come, first served. While one waits, a process that has a place gives it up soon
//! after it has no work, and after its turn in any case: it takes no more events, and ends with the last that is under
//! way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::counted::Counted;

/// Time after its first answer for which a process keeps its place although others wait.
const TURN: Duration = Duration::from_secs(5);

/// Time without work after which a process ends while others wait.
pub(super) const IDLE_WHILE_WANTED: Duration = Duration::from_millis(250);

/// All places.
#[derive(Debug)]
pub(super) struct ProcessPlaces {
    free: Arc<Semaphore>,
    /// Number of processes that wait for a place.
    wanted: AtomicUsize,
}

/// A place for one process; free again when it is dropped.
#[derive(Debug)]
pub(super) struct ProcessPlace {
    /// `None` if the semaphore was closed, which never happens.
    _permit: Option<OwnedSemaphorePermit>,
}

impl ProcessPlaces {
    /// Returns `most` places, at least one, all of them free.
    pub(super) fn new(most: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS))),
            wanted: AtomicUsize::new(0),
        }
    }

    /// Returns as many places as anybody may want.
    pub(super) fn unlimited() -> Self {
        Self::new(Semaphore::MAX_PERMITS)
    }

    /// Takes a place, and waits for one if all are taken.
    pub(super) async fn take(&self) -> ProcessPlace {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return ProcessPlace { _permit: Some(permit) };
        }

        let _wanting = Counted::new(&self.wanted);
        ProcessPlace {
            _permit: Arc::clone(&self.free).acquire_owned().await.ok(),
        }
    }

    /// Returns whether processes wait for a place.
    pub(super) fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Returns whether none is free.
    pub(super) fn are_all_taken(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// Returns whether a process must give up its place: `since` is the time since its first answer.
    pub(super) fn is_turn_over(&self, since: Duration) -> bool {
        since >= TURN && self.are_wanted()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn as_many_as_fit_have_a_place_and_the_others_wait_for_their_turn() {
        let places = ProcessPlaces::new(2);
        let (one, two) = (places.take().await, places.take().await);
        assert!(places.are_all_taken() && !places.are_wanted() && !places.is_turn_over(TURN));

        let mut third = Box::pin(places.take());
        assert!(third.as_mut().now_or_never().is_none());
        assert!(places.are_wanted() && places.is_turn_over(TURN) && !places.is_turn_over(TURN / 2));

        drop(one);
        assert!(places.take().now_or_never().is_none(), "who came first is first");
        let third = third.await;
        assert!(places.are_all_taken() && !places.are_wanted());

        drop((two, third));
        assert!(!places.are_all_taken());
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_wants_no_place_any_more() {
        let places = ProcessPlaces::new(0);
        let _one = places.take().await;
        assert!(places.take().now_or_never().is_none());
        assert!(!places.are_wanted());
    }
}
