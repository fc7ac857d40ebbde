//! State that all workers of a pool share: the queue of events, the set in force, counters, and the suspects.
//!
//! The queue is a plain value behind one lock and never waits. Workers take from one queue when they have room, so an
//! event goes to the least busy one. One worker may stand by: it holds every set and takes no event until another dies.
//! Suspects (`crash_attribution.rs`) are called in a worker that holds one of them alone, after the other hooks have answered.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::crash_attribution::CrashAttribution;
use super::in_flight::{FlightStage, InFlightEvent};
use super::protocol::{LoadRequest, WantedHook};
use super::sources::LoadedHooks;
use super::{HookCounters, HookSource};

/// Queue of events, set in force, counters and suspects of one pool; see the module.
#[derive(Debug)]
pub(super) struct WorkQueue {
    queue: VecDeque<InFlightEvent>,
    /// Events whose open hooks are all suspects.
    apart: VecDeque<InFlightEvent>,
    /// Worker that stands by, if the pool has one.
    standby: Option<usize>,
    /// Workers that are alive and take no more events.
    retiring: BTreeSet<usize>,
    /// Worker whose process is being replaced, until the next process is up.
    replaced: Option<usize>,
    current: Arc<LoadedHooks>,
    counters: HashMap<String, HookCounters>,
    /// By worker: counters that were not sent to it, by hook index of the set in force.
    untold: Vec<BTreeMap<u32, HookCounters>>,
    blame: CrashAttribution,
    stopped: bool,
}

/// Next action of a worker.
#[derive(Debug)]
pub(super) enum NextTask {
    /// Wait: no event is queued.
    Wait,
    /// Load this set before anything else.
    Load(Arc<LoadedHooks>),
    /// Evaluate this event.
    Run(Box<InFlightEvent>),
    /// Load this set, but of its hooks only the one with this id: a suspect.
    LoadAlone(Arc<LoadedHooks>, String),
    /// Make room for another suspect.
    Leave,
}

impl WorkQueue {
    /// Creates a board for `workers` workers, without hooks; `standby` is the worker that stands by.
    pub(super) fn new(workers: usize, standby: Option<usize>) -> Self {
        Self {
            queue: VecDeque::new(),
            apart: VecDeque::new(),
            standby,
            retiring: BTreeSet::new(),
            replaced: None,
            current: Arc::new(LoadedHooks::empty_set()),
            counters: HashMap::new(),
            untold: vec![BTreeMap::new(); workers],
            blame: CrashAttribution::default(),
            stopped: false,
        }
    }

    /// Returns the set in force.
    pub(super) const fn current_set(&self) -> &Arc<LoadedHooks> {
        &self.current
    }

    /// Puts `loaded` in force.
    pub(super) fn switch_set(&mut self, loaded: Arc<LoadedHooks>) {
        self.counters.retain(|id, _| loaded.set().index(id).is_some());
        // Every worker gets all counters with the set.
        self.untold.iter_mut().for_each(BTreeMap::clear);
        self.current = loaded;
    }

    /// Remembers the counters of `hook_id`.
    pub(super) fn count(&mut self, hook_id: &str, counters: HookCounters) {
        let Some(index) = self.current.set().index(hook_id) else {
            return;
        };

        match self.counters.get_mut(hook_id) {
            // Counters from a watch may be older than the ones counted here.
            Some(known) if *known == counters || known.trigger_count > counters.trigger_count => return,
            Some(known) => *known = counters,
            None => {
                self.counters.insert(hook_id.to_owned(), counters);
            }
        }

        for untold in &mut self.untold {
            untold.insert(index, counters);
        }
    }

    /// Moves the counters that were not sent to `worker` into `news`, if it holds the set in force (`generation`).
    pub(super) fn untold_counters(&mut self, worker: usize, generation: u32, news: &mut Vec<(u32, HookCounters)>) {
        news.clear();
        if generation == self.current.generation() {
            news.extend(std::mem::take(&mut self.untold[worker]));
        }
    }

    /// Queues a new event. Returns false if the pool has been stopped.
    pub(super) fn enqueue_event(&mut self, flight: InFlightEvent) -> bool {
        if !self.stopped {
            self.queue.push_back(flight);
        }
        !self.stopped
    }

    /// Queues events again because their worker died, before all others.
    pub(super) fn requeue_events(&mut self, flights: Vec<InFlightEvent>, are_apart: bool) {
        let queue = if are_apart { &mut self.apart } else { &mut self.queue };
        if !self.stopped {
            flights.into_iter().rev().for_each(|flight| queue.push_front(flight));
        }
    }

    /// Queues an event whose open hooks are all suspects.
    pub(super) fn set_apart(&mut self, flight: InFlightEvent) {
        if !self.stopped {
            self.apart.push_back(flight);
        }
    }

    /// Returns whether `worker` stands by.
    pub(super) fn stands_by(&self, worker: usize) -> bool {
        self.standby == Some(worker)
    }

    /// Marks `worker` as taking no more events; the standby takes its place.
    pub(super) fn retire_worker(&mut self, worker: usize) {
        self.retiring.insert(worker);
        self.stand_in(worker);
    }

    /// Returns the number of workers that are alive and take no more events.
    pub(super) fn retiring_workers(&self) -> usize {
        self.retiring.len()
    }

    /// Records that the process of `worker` has ended; the standby takes its place.
    pub(super) fn worker_ended(&mut self, worker: usize) {
        self.retiring.remove(&worker);
        self.stand_in(worker);
    }

    /// Returns whether the process of `worker` may be replaced now: the processes are replaced one after the other.
    pub(super) fn takes_turn(&mut self, worker: usize) -> bool {
        *self.replaced.get_or_insert(worker) == worker
    }

    /// Records that the process of `worker` has come up.
    pub(super) fn came_up(&mut self, worker: usize) {
        if self.replaced == Some(worker) {
            self.replaced = None;
        }
    }

    /// Makes `worker` the standby, or another worker that retires, because that one takes no events anyway.
    fn stand_in(&mut self, worker: usize) {
        if self.standby.is_some() {
            let other = self.retiring.iter().find(|other| **other != worker);
            self.standby = Some(other.copied().unwrap_or(worker));
        }
    }

    /// Returns the next action of `worker`, which holds the set `held`.
    pub(super) fn next(&mut self, worker: usize, held: &Arc<LoadedHooks>, now: Instant) -> NextTask {
        loop {
            // A worker that stands by takes no events: it replaces one that retires.
            let front = self.queue.front().filter(|_| !self.stands_by(worker));
            let Some(front) = front else {
                let is_current = held.generation() == self.current.generation();
                return if is_current {
                    NextTask::Wait
                } else {
                    NextTask::Load(Arc::clone(&self.current))
                };
            };

            // The event needs a newer set than the worker holds.
            if front.loaded().generation() > held.generation() {
                return NextTask::Load(Arc::clone(front.loaded()));
            }

            let Some(mut flight) = self.queue.pop_front() else {
                return NextTask::Wait;
            };
            let is_older = flight.loaded().generation() < held.generation();

            // The worker has a newer set: the event goes on with it, without the hooks that are gone.
            let mut stage = FlightStage::UnderWay;
            if is_older {
                stage = flight.move_to(held);
            }

            // Hooks that repeatedly killed workers get an error instead of a call.
            if stage == FlightStage::UnderWay {
                stage = self.fail_benched(&mut flight, now);
            }

            // A suspect is called by the worker for suspects only, so that it cannot take others with it.
            if stage == FlightStage::UnderWay && !self.blame.is_empty() {
                let suspects = self.blame.suspect_indices(flight.loaded().set(), now);
                stage = flight.set_apart(&suspects);
            }

            match stage {
                FlightStage::UnderWay => return NextTask::Run(Box::new(flight)),
                FlightStage::Apart => self.apart.push_back(flight),
                FlightStage::Over => {}
            }
        }
    }

    /// Returns the next action of the worker for suspects, which holds `held` and of its hooks only `mine`. `is_over`:
    /// it gives way to other suspects; `is_free`: no event is under way in it.
    pub(super) fn next_apart(
        &mut self,
        held: &Arc<LoadedHooks>,
        mine: Option<&str>,
        (is_over, is_free): (bool, bool),
        now: Instant,
    ) -> NextTask {
        // Suspects take turns, so that one of them cannot keep the worker for itself.
        let gives_way = mine.filter(|_| is_over);
        if gives_way.is_some_and(|mine| self.apart.iter().any(|flight| !flight.awaits_hook(mine))) {
            return if is_free { NextTask::Leave } else { NextTask::Wait };
        }

        let current = Arc::clone(&self.current);
        let suspects = self.blame.suspect_indices(current.set(), now);
        let is_suspect = |index: &u32| suspects.binary_search(index).is_ok();
        let mut others = VecDeque::new();

        let mut next = None;
        while let Some(mut flight) = self.apart.pop_front() {
            let mut stage = flight.open_for_all();
            if flight.loaded().generation() != current.generation() {
                stage = flight.move_to(&current);
            }

            if stage == FlightStage::UnderWay {
                stage = self.fail_benched(&mut flight, now);
            }

            if stage == FlightStage::Over {
                continue;
            }

            let open = flight.open();
            // A hook that is no longer suspected is called beside others.
            if !open.iter().all(is_suspect) {
                self.queue.push_back(flight);
                continue;
            }

            let index = mine.map_or(open.first().copied(), |mine| current.set().index(mine));
            let Some(index) = index.filter(|index| open.contains(index)) else {
                others.push_back(flight);
                continue;
            };

            // The worker has loaded exactly this hook: a death is then certain to be its own.
            if mine.is_some() && held.generation() == current.generation() {
                flight.open_for(index);
                next = Some(NextTask::Run(Box::new(flight)));
            } else {
                let hook = current.set().hooks().get(index as usize).map(|hook| hook.id.clone());
                next = hook.map(|hook| NextTask::LoadAlone(Arc::clone(&current), hook));
                others.push_back(flight);
            }

            break;
        }

        // The order of the waiting events is kept.
        let others_wait = !others.is_empty();
        others.append(&mut self.apart);
        self.apart = others;

        match next {
            Some(next) => next,
            None if others_wait && is_free && mine.is_some() => NextTask::Leave,
            None => NextTask::Wait,
        }
    }

    /// Returns whether events wait for the worker for suspects.
    pub(super) fn has_apart(&self) -> bool {
        !self.apart.is_empty()
    }

    /// Returns whether events wait in the queue.
    pub(super) fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Records that `hook` killed its worker; see [`CrashAttribution::record_death`].
    pub(super) fn record_death(&mut self, hook: &HookSource, at_load: bool, cause: &str, now: Instant) -> bool {
        self.blame.record_death(hook, at_load, cause, now)
    }

    /// Returns whether `hook` is called apart from others.
    pub(super) fn is_suspect(&self, hook: &HookSource, now: Instant) -> bool {
        self.blame.is_suspect(hook, now)
    }

    /// Records that `hook` was waiting in a worker that died; see [`CrashAttribution::record_suspect`].
    pub(super) fn record_suspect(&mut self, hook: &HookSource, now: Instant) {
        self.blame.record_suspect(hook, now);
    }

    /// Records that `hook` has run apart; see [`CrashAttribution::record_clean_run`].
    pub(super) fn record_clean_run(&mut self, hook: &HookSource) -> bool {
        self.blame.record_clean_run(hook)
    }

    /// Returns the message that hands `loaded` to `worker`, which holds `former`; `alone`: of its hooks, load only this
    /// one.
    pub(super) fn load_message<'a>(
        &mut self,
        worker: usize,
        loaded: &'a LoadedHooks,
        former: &'a LoadedHooks,
        alone: Option<&str>,
    ) -> LoadRequest<'a> {
        // The load message carries all counters, so no change of them has to be told any more.
        if loaded.generation() == self.current.generation() {
            self.untold[worker].clear();
        }

        let wanted = |(index, hook): (usize, &'a Arc<HookSource>)| -> WantedHook<'a> {
            let may_load = match alone {
                Some(alone) => hook.id == alone && !self.blame.is_barred(hook),
                None => !self.blame.is_loaded_apart(hook),
            };
            let path = loaded.path(index).filter(|_| may_load);
            let counters = self.counters.get(&hook.id).copied().unwrap_or_default();
            let last = counters.last_triggered.map(|at| at.0);

            (
                path,
                &hook.id,
                &hook.name,
                hook.created_at.0,
                hook.timeout_ms,
                counters.trigger_count,
                last,
                hook.calls_host(),
                hook.may_linger(),
            )
        };

        let hooks = loaded.set().hooks().iter().enumerate().map(wanted).collect();
        LoadRequest {
            t: "load",
            g: loaded.generation(),
            hooks,
            drop: loaded.dropped_paths(former),
        }
    }

    /// Stops taking events and drops those that wait.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        self.queue.clear();
        self.apart.clear();
    }

    fn fail_benched(&self, flight: &mut InFlightEvent, now: Instant) -> FlightStage {
        if self.blame.is_empty() {
            return FlightStage::UnderWay;
        }

        let loaded = Arc::clone(flight.loaded());
        for (index, error) in self.blame.benched_hooks(loaded.set(), now) {
            let stage = flight.fail_hooks(&[index], error);
            if stage != FlightStage::UnderWay {
                return stage;
            }
        }

        FlightStage::UnderWay
    }
}
