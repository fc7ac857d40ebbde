//! Places for the processes of authors: as many run at once as the memory of the container holds.
//!
//! Further ones wait for a place, first come, first served. While one waits, a process that has a place gives it up soon
//! after it has no work, and after its turn in any case: it takes no more events, and ends with the last that is under
//! way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shared::clock::SharedClock;
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

/// Waits of one pool's processes for places. Meanwhile the evaluations of its author cannot get on, so that time is no reason to
/// give them up.
#[derive(Debug, Default)]
pub(super) struct PlaceWaits(Mutex<WaitState>);

#[derive(Debug, Default)]
struct WaitState {
    /// Number of processes that wait.
    count: usize,
    /// Last time when a wait ended, or when a process took no events because it gave way.
    last: Option<Instant>,
}

/// The wait of one process, until it is dropped.
#[derive(Debug)]
pub(super) struct PlaceWait<'a> {
    waits: &'a PlaceWaits,
    clock: &'a SharedClock,
}

impl WaitState {
    fn end(&mut self, now: Instant) {
        self.count = self.count.saturating_sub(1);
        self.last = Some(now);
    }

    fn last_after(&self, since: Instant, now: Instant) -> Option<Instant> {
        if self.count > 0 {
            return Some(now);
        }
        self.last.filter(|at| *at > since)
    }
}

impl PlaceWaits {
    fn state(&self) -> MutexGuard<'_, WaitState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a process as waiting until the return value is dropped.
    pub(super) fn begin<'a>(&'a self, clock: &'a SharedClock) -> PlaceWait<'a> {
        self.state().count += 1;
        PlaceWait { waits: self, clock }
    }

    /// Records that a process takes no events at `now` because it gives way to others.
    pub(super) fn note_giving_way(&self, now: Instant) {
        self.state().last = Some(now);
    }

    /// Returns the last time when a process of the pool waited or gave way: `now` if one waits. `None` if that was not after
    /// `since`.
    pub(super) fn last_after(&self, since: Instant, now: Instant) -> Option<Instant> {
        self.state().last_after(since, now)
    }
}

impl Drop for PlaceWait<'_> {
    fn drop(&mut self) {
        let now = self.clock.monotonic();
        self.waits.state().end(now);
    }
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

    /// Takes a place if one is free.
    pub(super) fn take_free(&self) -> Option<ProcessPlace> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(ProcessPlace { _permit: Some(permit) })
    }

    /// Takes a place, and waits for one if all are taken.
    pub(super) async fn take(&self) -> ProcessPlace {
        if let Some(place) = self.take_free() {
            return place;
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
    use shared::clock::{Clock as _, SystemClock};

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

    #[test]
    fn a_pool_waited_for_a_place_until_the_last_of_its_processes_has_one_or_ends_that_gives_way() {
        let begun = SystemClock.monotonic();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let clock: SharedClock = Arc::new(SystemClock);
        let waits = PlaceWaits::default();
        assert_eq!(waits.last_after(at(0), at(9)), None, "it never waited");

        let (one, two) = (waits.begin(&clock), waits.begin(&clock));
        drop(one);
        assert_eq!(waits.last_after(at(0), at(0)), Some(at(0)), "it waits");
        assert_eq!(waits.last_after(at(0), at(90)), Some(at(90)), "it waits");
        drop(two);

        waits.note_giving_way(at(100));
        assert_eq!(waits.last_after(at(99), at(101)), Some(at(100)));
        assert_eq!(
            waits.last_after(at(100), at(101)),
            None,
            "what came later was not kept waiting"
        );

        let mut state = WaitState { count: 1, last: None };
        state.end(at(5));
        assert_eq!(state.last_after(at(4), at(8)), Some(at(5)));
        assert_eq!(state.last_after(at(5), at(8)), None);
    }
}
