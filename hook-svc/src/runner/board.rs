//! What all workers of a pool share: the queue of events, the set in force, counters, and who is blamed.
//!
//! A plain value behind one lock; nothing in it waits. Workers take from one queue when they have room, so an event
//! goes to whoever is least busy.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::blame::Blame;
use super::flight::Flight;
use super::protocol::{Load, WantedHook};
use super::sources::Loaded;
use super::{Counters, HookSource};

/// See the module.
#[derive(Debug)]
pub(super) struct Board {
    queue: VecDeque<Flight>,
    current: Arc<Loaded>,
    counters: HashMap<String, Counters>,
    /// By worker: counters by hook index of the set in force that it has not been told.
    untold: Vec<BTreeMap<u32, Counters>>,
    blame: Blame,
    stopped: bool,
}

/// What a worker is to do next.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing is queued.
    Wait,
    /// Load this set before anything else.
    Load(Arc<Loaded>),
    /// Evaluate this event.
    Run(Box<Flight>),
}

impl Board {
    /// For `workers` workers, without hooks.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            current: Arc::new(Loaded::empty()),
            counters: HashMap::new(),
            untold: vec![BTreeMap::new(); workers],
            blame: Blame::default(),
            stopped: false,
        }
    }

    /// The set in force.
    pub(super) const fn current(&self) -> &Arc<Loaded> {
        &self.current
    }

    /// Puts `loaded` in force.
    pub(super) fn switch(&mut self, loaded: Arc<Loaded>) {
        self.counters.retain(|id, _| loaded.set().index(id).is_some());
        // Every worker is told all counters with the set.
        self.untold.iter_mut().for_each(BTreeMap::clear);
        self.current = loaded;
    }

    /// Remembers the counters of `hook_id`.
    pub(super) fn count(&mut self, hook_id: &str, counters: Counters) {
        let Some(index) = self.current.set().index(hook_id) else {
            return;
        };
        match self.counters.get_mut(hook_id) {
            // What a watch tells may be older than what was counted here.
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

    /// Counters that `worker`, which holds `generation`, has not been told; it is told now.
    pub(super) fn tell(&mut self, worker: usize, generation: u32, news: &mut Vec<(u32, Counters)>) {
        news.clear();
        if generation == self.current.generation() {
            news.extend(std::mem::take(&mut self.untold[worker]));
        }
    }

    /// Queues a new event. False when the pool has been stopped.
    pub(super) fn enqueue(&mut self, flight: Flight) -> bool {
        if !self.stopped {
            self.queue.push_back(flight);
        }
        !self.stopped
    }

    /// Queues events again whose worker died, before all others.
    pub(super) fn requeue(&mut self, flights: Vec<Flight>) {
        if !self.stopped {
            flights
                .into_iter()
                .rev()
                .for_each(|flight| self.queue.push_front(flight));
        }
    }

    /// What a worker that holds `generation` does next.
    pub(super) fn next(&mut self, held: &Arc<Loaded>, now: Instant) -> Next {
        loop {
            let Some(front) = self.queue.front() else {
                let is_current = held.generation() == self.current.generation();
                return if is_current {
                    Next::Wait
                } else {
                    Next::Load(Arc::clone(&self.current))
                };
            };
            if front.loaded().generation() > held.generation() {
                return Next::Load(Arc::clone(front.loaded()));
            }
            let Some(mut flight) = self.queue.pop_front() else {
                return Next::Wait;
            };
            let older = flight.loaded().generation() < held.generation();
            if (older && flight.move_to(held)) || self.fail_benched(&mut flight, now) {
                continue;
            }
            return Next::Run(Box::new(flight));
        }
    }

    /// Whether events wait.
    pub(super) fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// `hook` killed its worker; see [`Blame::died`].
    pub(super) fn died(&mut self, hook: &HookSource, at_load: bool, cause: &str, now: Instant) -> bool {
        self.blame.died(hook, at_load, cause, now)
    }

    /// The message that hands `loaded` to `worker`, which holds `former`.
    pub(super) fn load_message<'a>(&mut self, worker: usize, loaded: &'a Loaded, former: &'a Loaded) -> Load<'a> {
        if loaded.generation() == self.current.generation() {
            self.untold[worker].clear();
        }
        let wanted = |(index, hook): (usize, &'a Arc<HookSource>)| -> WantedHook<'a> {
            let path = if self.blame.is_barred(hook) {
                None
            } else {
                loaded.path(index)
            };
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
                hook.lingers(),
            )
        };
        let hooks = loaded.set().hooks().iter().enumerate().map(wanted).collect();
        Load {
            t: "load",
            g: loaded.generation(),
            hooks,
            drop: loaded.dropped(former),
        }
    }

    /// Takes no more events and drops those that wait.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        self.queue.clear();
    }

    // True when nobody is left to call.
    fn fail_benched(&self, flight: &mut Flight, now: Instant) -> bool {
        if self.blame.is_empty() {
            return false;
        }
        let loaded = Arc::clone(flight.loaded());
        (0_u32..)
            .zip(loaded.set().hooks())
            .any(|(index, hook)| match self.blame.bench(hook, now) {
                Some(error) => flight.fail(&[index], error),
                None => false,
            })
    }
}
