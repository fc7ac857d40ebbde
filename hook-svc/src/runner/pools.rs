//! One pool per owner: hooks of two authors never share a process.
//!
//! A process has no integrity between its hooks (one can forge another's answer, or read its variables), so a hook can
//! harm only hooks of its own author. Operators' own hooks are one domain, with a worker for every core. Each other
//! author has one worker, started with the first event that one of their hooks sees and ended after a minute without
//! any, or sooner where the memory is too small for all of them. An event goes only to the domains with a hook that sees it.

mod hand_over;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use shared::clock::SharedClock;
use shared::error_chain::describe_error;
use tokio::sync::broadcast;

use self::hand_over::{Begun, Handed};
use super::author_slots::{HeldSlots, MAX_AUTHORS, NoSeat};
use super::process_places::ProcessPlaces;
use super::sources::LoadedHooks;
use super::{
    AsyncError, Evaluation, EvaluationJob, HookCounters, HookSet, HookSource, LoadHooksError, PoolConfig, SandboxLevel,
    StartPoolError, WorkerPool,
};

/// Author of the files in the hooks directory and of hooks that operators push.
const OPERATOR: &str = "operator";

/// Pools of all owners; cheap to clone.
#[derive(Debug, Clone)]
pub struct WorkerPools {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: PoolConfig,
    clock: SharedClock,
    /// Pool of the operators.
    own: WorkerPool,
    /// Pools of the others, by author. A pool whose hooks are gone ends when no event is under way in it.
    others: Mutex<BTreeMap<String, SeatedPool>>,
    /// Places for the processes of the others.
    places: Arc<ProcessPlaces>,
    in_force: Mutex<InForce>,
    // Allows one switch of sets at a time.
    switching: tokio::sync::Mutex<()>,
}

/// Pool of an author, and its number among [`MAX_AUTHORS`], which no other pool has while this one lives.
#[derive(Debug)]
struct SeatedPool {
    seat: u32,
    pool: WorkerPool,
}

/// Hooks in force at one instant, by owner.
#[derive(Debug, Clone)]
pub struct InForce {
    set: Arc<HookSet>,
    parts: Arc<[Part]>,
}

/// Hooks of one owner.
#[derive(Debug)]
struct Part {
    author: String,
    /// Pool that runs the hooks, or the reason why they are not run, which is each hook's error at each event.
    runs: Result<Runs, String>,
    /// Index in the whole, ascending, by index in the part.
    to_whole: Arc<[u32]>,
}

#[derive(Debug, Clone)]
struct Runs {
    pool: WorkerPool,
    loaded: Arc<LoadedHooks>,
}

impl InForce {
    /// Returns the parts that hold any of the hooks `only` (`None` = all), with the indices in the part.
    fn parts_of(&self, only: Option<&[u32]>) -> Vec<(&Part, Option<Vec<u32>>)> {
        let parts = self.parts.iter();
        let wanted = parts.map(|part| (part, only.map(|only| indices_within(&part.to_whole, only))));
        wanted
            .filter(|(_, only)| only.as_ref().is_none_or(|only| !only.is_empty()))
            .collect()
    }

    /// Returns all hooks in force.
    #[must_use]
    pub const fn set(&self) -> &Arc<HookSet> {
        &self.set
    }

    /// Returns the last time when an author of the hooks `only` (by index, ascending) could not get on because the processes of
    /// others take all the memory: `now` if one cannot. `None` if that was not after `since`.
    #[must_use]
    pub fn last_wait_for_process(&self, only: &[u32], since: Instant, now: Instant) -> Option<Instant> {
        let parts = self.parts_of(Some(only));
        let runs = parts.iter().filter_map(|(part, _)| part.runs.as_ref().ok());
        runs.filter_map(|runs| runs.pool.last_wait_for_process(since, now))
            .max()
    }
}

impl WorkerPools {
    /// Starts the operators' pool; those of other authors start with their hooks.
    ///
    /// # Errors
    /// Returns [`StartPoolError`] if no Bun is new enough, the sandbox check fails, or the directory cannot be created.
    pub async fn start(config: PoolConfig, clock: SharedClock) -> Result<Self, StartPoolError> {
        let own = WorkerPool::start(config.clone(), Arc::clone(&clock)).await?;
        let in_force = InForce {
            set: Arc::default(),
            parts: Arc::from([]),
        };

        let inner = Inner {
            places: Arc::new(ProcessPlaces::new(config.author_processes)),
            config,
            clock,
            own,
            others: Mutex::default(),
            in_force: Mutex::new(in_force),
            switching: tokio::sync::Mutex::new(()),
        };

        Ok(Self { inner: Arc::new(inner) })
    }

    fn in_force(&self) -> MutexGuard<'_, InForce> {
        self.inner.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the hooks in force now.
    #[must_use]
    pub fn current_hooks(&self) -> InForce {
        self.in_force().clone()
    }

    /// Puts `set` in force in every owner's pool. Returns the authors whose hooks are not run, so that the caller tries
    /// again.
    ///
    /// # Errors
    /// Returns [`LoadHooksError`] if the operators' hooks cannot be loaded; the former set stays in force.
    pub async fn load(&self, set: Arc<HookSet>) -> Result<Vec<String>, LoadHooksError> {
        // One load at a time, so that an older set cannot replace a newer one.
        let _one = self.inner.switching.lock().await;
        let former = self.current_hooks();

        let (mut parts, mut failed) = (Vec::new(), Vec::new());
        for (author, indices) in by_author(&set) {
            // A part that has not changed keeps its workers, with everything that they have loaded.
            let known = former.parts.iter().find(|part| part.author == author);
            let runs = match self.run_plan(&author, &indices, &set, known).await {
                Ok(runs) => Ok(runs),
                // The operator's hooks must run. Another author's failure must not stop the rest.
                Err(error) if author == OPERATOR => return Err(error),
                Err(error) => {
                    let error = describe_error(&error);
                    tracing::error!(author, error, "failed to start workers for the hooks of an author");
                    failed.push(author.clone());
                    Err(error)
                }
            };

            parts.push(Part {
                author,
                runs,
                to_whole: indices.into(),
            });
        }

        // The new set is in force before the old workers go: no event finds an author without workers.
        *self.in_force() = InForce {
            set,
            parts: parts.into(),
        };
        self.retire_pools().await;

        Ok(failed)
    }

    /// Loads the hooks `indices` of `set`, which are `author`'s; `known` is their part of the former set.
    async fn run_plan(
        &self,
        author: &str,
        indices: &[u32],
        set: &Arc<HookSet>,
        known: Option<&Part>,
    ) -> Result<Runs, LoadHooksError> {
        let hooks: Vec<Arc<HookSource>> = indices
            .iter()
            .map(|&at| Arc::clone(&set.hooks()[at as usize]))
            .collect();
        let pool = self.pool_of(author)?;
        let known = known.and_then(|part| part.runs.as_ref().ok());
        let loaded = match known.filter(|runs| runs.loaded.set().hooks() == hooks.as_slice()) {
            Some(runs) => Arc::clone(&runs.loaded),
            // If all hooks are this author's, the whole set is loaded as it is, without a copy.
            None if indices.len() == set.hooks().len() => pool.load(Arc::clone(set)).await?,
            None => pool.load(Arc::new(HookSet::from_hooks(hooks))).await?,
        };

        Ok(Runs { pool, loaded })
    }

    /// Ends the pools of authors who have no hooks any more. If an event is under way, the hooks leave the pool at
    /// once, and in time the code that they left running; the pool ends with a later set.
    async fn retire_pools(&self) {
        let in_force = self.current_hooks();
        let has_hooks = |author: &str| in_force.parts.iter().any(|part| part.author == author);
        let is_over = |author: &str, pool: &WorkerPool| !has_hooks(author) && pool.is_idle();
        let over: Vec<WorkerPool> = self
            .lock_others()
            .extract_if(.., |author, seated| is_over(author, &seated.pool))
            .map(|(_, seated)| seated.pool)
            .collect();

        // Taken out first and stopped afterwards, because the lock must not be held while a pool stops.
        for pool in over {
            pool.stop().await;
        }

        let deserted: Vec<(String, WorkerPool)> = self
            .lock_others()
            .iter()
            .filter(|(author, seated)| !has_hooks(author) && !seated.pool.is_empty())
            .map(|(author, seated)| (author.clone(), seated.pool.clone()))
            .collect();

        for (author, pool) in deserted {
            if let Err(error) = pool.load(Arc::default()).await {
                tracing::error!(
                    author,
                    error = describe_error(&error),
                    "failed to unload the deleted hooks of an author; they stay loaded until the next edit"
                );
            }
        }
    }

    fn lock_others(&self) -> MutexGuard<'_, BTreeMap<String, SeatedPool>> {
        self.inner.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pool of `author`, started if necessary.
    fn pool_of(&self, author: &str) -> Result<WorkerPool, LoadHooksError> {
        if author == OPERATOR {
            return Ok(self.inner.own.clone());
        }

        let mut others = self.lock_others();
        if let Some(known) = others.get(author) {
            return Ok(known.pool.clone());
        }

        let is_free = |seat: &u32| others.values().all(|seated| seated.seat != *seat);
        let Some(seat) = (0..).take(MAX_AUTHORS).find(is_free) else {
            return Err(LoadHooksError::TooManyAuthors(MAX_AUTHORS));
        };

        // Of many authors few have events at a time, so their workers run only while they have some.
        let config = PoolConfig {
            workers: 1,
            lazy: true,
            ..self.inner.config.clone()
        };
        let places = Arc::clone(&self.inner.places);
        let started = self.inner.own.start_beside(config, seat, &self.inner.clock, places);
        let pool = started.map_err(|error| LoadHooksError::StartPool(Box::new(error)))?;
        let seated = SeatedPool {
            seat,
            pool: pool.clone(),
        };
        others.insert(author.to_owned(), seated);

        Ok(pool)
    }

    /// Returns places for the evaluation of the hooks `only` (`None` = all) of `in_force`, and the indices, ascending,
    /// of the hooks whose authors have no place because too many of their evaluations wait already, or because the processes
    /// of others take all the memory.
    pub async fn seat_hooks(&self, in_force: &InForce, only: Option<&[u32]>) -> (HeldSlots, Vec<u32>) {
        let parts = in_force.parts_of(only);
        let asked = parts.iter().map(async |(part, _)| match &part.runs {
            // When another author's process ends is unknown.
            Ok(runs) if runs.pool.awaits_place() => Err(NoSeat::Full),
            Ok(runs) => runs.pool.seating().in_time().await,
            // A part without a pool needs no place.
            Err(_) => Err(NoSeat::Stopped),
        });

        let offered = join_all(asked).await;

        let (mut seats, mut full) = (HeldSlots::default(), Vec::new());
        for ((part, only), offer) in parts.iter().zip(offered) {
            match (offer, only) {
                (Ok(seat), _) => seats.add(&part.author, seat),
                (Err(NoSeat::Stopped), _) => {}
                (Err(NoSeat::Full), None) => full.extend(part.to_whole.iter()),
                (Err(NoSeat::Full), Some(only)) => {
                    full.extend(only.iter().filter_map(|index| part.to_whole.get(*index as usize)));
                }
            }
        }

        full.sort_unstable();
        (seats, full)
    }

    /// Waits without limit for a place for any of the authors of the hooks `only` of `in_force`. Returns it and the
    /// indices, ascending, of the author's hooks: an evaluation that waits for one author's place holds none of
    /// another's.
    pub async fn first_seat(&self, in_force: &InForce, only: &[u32]) -> (HeldSlots, Vec<u32>) {
        let parts = in_force.parts_of(Some(only));
        let mut waiting: FuturesUnordered<_> = parts
            .iter()
            .map(async |(part, only)| match &part.runs {
                Ok(runs) => (part, only, runs.pool.seating().wait().await.ok()),
                // A part without a pool needs no place.
                Err(_) => (part, only, None),
            })
            .collect();

        let Some((part, only, seat)) = waiting.next().await else {
            return Default::default();
        };

        let mut seats = HeldSlots::default();
        if let Some(seat) = seat {
            seats.add(&part.author, seat);
        }

        let of_whole = |index: &u32| part.to_whole.get(*index as usize).copied();
        (seats, only.iter().flatten().filter_map(of_whole).collect())
    }

    /// Hands one event over, to be evaluated against `in_force`; parts whose author has no place in `seats` begin when
    /// they get one.
    #[must_use]
    pub fn evaluate_event(&self, in_force: &InForce, job: &EvaluationJob, seats: &HeldSlots) -> Evaluation {
        let parts = in_force.parts_of(job.only.as_deref());
        let mut begun = Begun::new(&in_force.set, job, parts.len());
        for (number, (part, only)) in (0..).zip(parts) {
            begun.hand_over(number, part, only, job, seats);
        }
        begun.evaluation
    }

    /// As [`WorkerPools::evaluate_event`], but the hooks `later` (by index, ascending) are called once `ready` returns true; if it
    /// returns false, the evaluation ends without [`super::EvaluationStep::Done`]. Until then they take no place, which
    /// their authors' other hooks may need.
    pub fn evaluate_in_two(
        &self,
        in_force: &InForce,
        job: &EvaluationJob,
        (later, ready): (&[u32], impl Future<Output = bool> + Send + 'static),
        seats: &HeldSlots,
    ) -> Evaluation {
        let hooks = u32::try_from(in_force.set.hooks().len()).unwrap_or(u32::MAX);
        let mut soon = job.only.clone().unwrap_or_else(|| (0..hooks).collect());
        soon.retain(|index| later.binary_search(index).is_err());
        let soon = in_force.parts_of(Some(&soon));
        let later = in_force.parts_of(Some(later));
        let mut begun = Begun::new(&in_force.set, job, soon.len() + later.len());

        let mut waiting = Vec::new();
        for (number, (part, only)) in (soon.len()..).zip(later) {
            begun.tell_waiting(number, part, only.as_deref());
            waiting.extend(begun.prepare_part(number, part, only, job, &HeldSlots::default()));
        }

        // If `ready` returns false, the unsent parts are dropped, so the evaluation ends without `Done`.
        begun.evaluation.later.spawn(async move {
            if ready.await {
                join_all(waiting.into_iter().map(Handed::hand_over)).await;
            }
        });

        for (number, (part, only)) in (0..).zip(soon) {
            begun.hand_over(number, part, only, job, seats);
        }

        begun.evaluation
    }

    /// Sends a hook's counters to the workers; events handed over afterwards see them.
    pub fn count(&self, hook_id: &str, counters: HookCounters) {
        for runs in self
            .current_hooks()
            .parts
            .iter()
            .filter_map(|part| part.runs.as_ref().ok())
        {
            runs.pool.count(hook_id, counters);
        }
    }

    /// Subscribes to the errors that scripts throw outside of their evaluations.
    #[must_use]
    pub fn subscribe_strays(&self) -> broadcast::Receiver<AsyncError> {
        self.inner.own.subscribe_strays()
    }

    /// Returns the number of worker processes of the operators' pool that are up.
    #[must_use]
    pub fn ready_workers(&self) -> usize {
        self.inner.own.ready_workers()
    }

    /// Returns whether [`WorkerPools::stop`] was called: evaluations under way then never finish.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.inner.own.is_stopped()
    }

    /// Returns how far the workers are confined.
    #[must_use]
    pub fn sandbox_level(&self) -> SandboxLevel {
        self.inner.own.sandbox_level()
    }

    /// Returns the confinements that the workers' sandbox lacks; empty if they are fully confined.
    #[must_use]
    pub fn missing_confinement(&self) -> &[String] {
        self.inner.own.missing_confinement()
    }

    /// Returns why hooks run as root although nothing else is missing; `None` if they do not.
    #[must_use]
    pub fn as_own(&self) -> Option<&str> {
        self.inner.own.as_own()
    }

    /// Returns whether the operators' hooks run in a control group; those of authors do then as well.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.inner.own.has_groups()
    }

    /// Ends all workers; evaluations under way end without [`super::EvaluationStep::Done`].
    pub async fn stop(&self) {
        self.inner.own.stop().await;
        let others = std::mem::take(&mut *self.lock_others());
        for seated in others.values() {
            seated.pool.stop().await;
        }
    }
}

/// Returns the indices of the hooks of `set`, by author.
fn by_author(set: &HookSet) -> BTreeMap<String, Vec<u32>> {
    let mut authors: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (index, hook) in (0_u32..).zip(set.hooks()) {
        authors.entry(hook.created_by.clone()).or_default().push(index);
    }
    authors
}

/// Returns the positions of the members of `only` in `to_whole`; both ascend.
fn indices_within(to_whole: &[u32], only: &[u32]) -> Vec<u32> {
    let found = only.iter().filter_map(|index| to_whole.binary_search(index).ok());
    found.filter_map(|at| u32::try_from(at).ok()).collect()
}
