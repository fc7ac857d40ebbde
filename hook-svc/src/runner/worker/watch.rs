//! Looks at a process: whether it gets on with its work, and whether it is to end.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use shared::clock::pause;

use super::death::WorkerDeath;
use super::leaving::{self, Leave, Leaver};
use super::{Run, State, WorkerRole};
use crate::runner::process_places::IDLE_WHILE_WANTED;
use crate::runner::progress_watch::{self, ProcessTimes, WorkerPulse, WorkerTask};

/// Memory in MiB above which a worker is killed. The sandbox limits data memory, much of which is only reserved; this
/// limits the memory that is held.
const MAX_MEMORY_MB: u64 = 640;

/// Memory in MiB above which a worker is replaced once no event is under way in it.
const GROWN_MEMORY_MB: u64 = 384;

/// Number of requested loads and evaluations that have ended once a process has loaded its hooks and answered for an event.
const FIRST_ANSWER: u64 = 2;

/// Time after which a worker that runs only on demand ends if it has no work. It ends at once if its pool has no hooks.
const IDLE: Duration = Duration::from_mins(1);

/// Interval of looks at a process without work that computes nothing.
const REST: Duration = Duration::from_secs(1);

/// Hard budgets granted to a suspect, because its code is not compiled.
const APART_BUDGETS: u32 = 2;

impl Run<'_> {
    /// Returns an error once the process makes no progress on its work. Uses only the host's clocks and the kernel's
    /// figures. `output` is the pipe into which the process writes.
    pub(super) async fn watch_progress(&self, pid: u32, output: OwnedFd) -> Result<(), WorkerDeath> {
        let (mut idle_since, mut worked_since, mut gives_way) = (None, None, false);
        // The code of a suspect is not compiled, so it gets more time.
        let budget = match self.role {
            WorkerRole::Beside => self.common.hard_budget,
            WorkerRole::Apart => self.common.hard_budget * APART_BUDGETS,
        };

        let mut pulse = WorkerPulse::new(budget);
        let mut rests = false;
        loop {
            if rests {
                let _begun = tokio::time::timeout(REST, self.begun.notified()).await;
            }
            pause(budget / progress_watch::LOOKS_PER_BUDGET).await;
            let now = self.clock.monotonic();
            let mut state = self.state();
            let mut sight = state.current_sight();

            // Work may be queued that the worker has not taken yet.
            let is_needed = sight.work != WorkerTask::Nothing || self.is_wanted();
            idle_since = (!is_needed).then(|| idle_since.unwrap_or(now));

            let is_idle = idle_since.is_some_and(|since| now.saturating_duration_since(since) >= self.may_idle());
            if is_idle && (self.common.lazy || self.role == WorkerRole::Apart) {
                return Err(WorkerDeath::Idle);
            }

            worked_since = worked_since.or((state.ended >= FIRST_ANSWER).then_some(now));
            let turn = worked_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            gives_way = gives_way || self.common.places.is_turn_over(turn);
            if gives_way {
                self.give_way(&mut state, now)?;
            }

            self.weigh_memory(&mut state, pid)?;
            self.replace(&mut state, now)?;

            // The pipe comes last: bytes that a thread writes before it sleeps are then seen.
            let times = ProcessTimes::of_process(pid, sight.is_pinged);
            sight.has_unread = progress_watch::has_unread_bytes(&output);
            let look = pulse.judge_sight(sight, times, now);
            state.age = pulse.process_age();
            rests = !is_needed && pulse.is_quiet();

            match look {
                progress_watch::WatchResult::Moving => {}
                progress_watch::WatchResult::Ask if state.is_asked => {}
                progress_watch::WatchResult::Ask => {
                    (state.ping, state.is_asked) = (true, true);
                    self.moved.notify_one();
                }
                progress_watch::WatchResult::Stuck(computed) => return Err(WorkerDeath::Stuck(computed.as_millis())),
                progress_watch::WatchResult::Still(since) => return Err(WorkerDeath::Still(since.as_millis())),
            }

            // The last net: a worker may answer pings and yet never finish an evaluation.
            if let Some((slot, over)) = state.terms.find_overdue(state.age) {
                let over_ms = over.as_millis();
                return Err(WorkerDeath::Overdue { slot, over_ms });
            }
        }
    }

    /// Returns whether work is queued for this worker.
    fn is_wanted(&self) -> bool {
        match self.role {
            WorkerRole::Beside => self.common.lock_board().is_waiting(),
            WorkerRole::Apart => self.common.lock_board().has_apart(),
        }
    }

    /// Returns whether the pool has any hooks. Without them no event will come, and what a process still runs is left over.
    fn has_hooks(&self) -> bool {
        !self.common.lock_board().current_set().set().hooks().is_empty()
    }

    /// Returns how long a process without work goes on.
    fn may_idle(&self) -> Duration {
        if !self.has_hooks() {
            Duration::ZERO
        } else if self.common.places.are_wanted() {
            IDLE_WHILE_WANTED
        } else {
            IDLE
        }
    }

    /// Ends a process whose place others wait for once no event is under way in it; until then it takes no more.
    fn give_way(&self, state: &mut State<'_>, now: Instant) -> Result<(), WorkerDeath> {
        self.common.place_waits.note_giving_way(now);
        if state.in_flight.is_empty() && state.loading.is_none() {
            return Err(WorkerDeath::Idle);
        }
        self.drain(state);
        Ok(())
    }

    /// Ends a process that exceeds its memory limit, and one that has grown once no event is under way in it.
    fn weigh_memory(&self, state: &mut State<'_>, pid: u32) -> Result<(), WorkerDeath> {
        let held = progress_watch::memory_mb(pid).unwrap_or_default();
        if held > MAX_MEMORY_MB {
            return Err(WorkerDeath::Memory(held));
        }

        if held > GROWN_MEMORY_MB && state.loading.is_none() {
            if state.in_flight.is_empty() {
                return Err(WorkerDeath::Grown(held));
            }

            // If other workers are up, this one takes no more events, so that it can end.
            if self.has_others() {
                self.drain(state);
            }
        }

        Ok(())
    }

    /// Returns whether another process of the pool that takes events is up.
    fn has_others(&self) -> bool {
        self.role == WorkerRole::Beside && self.common.ready.load(Ordering::Relaxed) > 1
    }

    /// Makes the process take no more events.
    fn drain(&self, state: &mut State<'_>) {
        if !std::mem::replace(&mut state.retires, true) && self.role == WorkerRole::Beside {
            self.common.retire_worker(self.index);
        }
    }

    /// Ends a process that has loaded hooks which were deleted or replaced; code that they left running ends with it.
    fn replace(&self, state: &mut State<'_>, now: Instant) -> Result<(), WorkerDeath> {
        if self.role == WorkerRole::Apart && state.mine.is_some() && state.left.is_none() {
            // A worker for suspects loads a further set only when its suspect is called.
            let is_old = self.common.lock_board().current_set().generation() != state.held.generation();
            state.left = is_old.then_some(now);
        }

        let Some(left) = state.left.filter(|_| state.loading.is_none()) else {
            return Ok(());
        };

        let waited = now.saturating_duration_since(left);
        let has_turn = self.role == WorkerRole::Apart
            || (leaving::wants_turn(waited) && self.common.lock_board().takes_turn(self.index));
        let leaver = Leaver {
            waited,
            is_free: state.in_flight.is_empty(),
            has_turn,
            has_others: self.has_others(),
        };

        match leaving::decide(leaver) {
            Leave::Stay => Ok(()),
            Leave::Drain => {
                self.drain(state);
                Ok(())
            }
            Leave::End => Err(WorkerDeath::Replaced),
        }
    }
}
