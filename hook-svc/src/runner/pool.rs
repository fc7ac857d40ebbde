//! The pool: starts and stops workers, takes events, switches sets of hooks.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use shared::clock::{SharedClock, pause};
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::author_slots::{AuthorSlots, EvaluationSlot, MAX_UNDER_WAY};
use super::bun::{self, FindBunError};
use super::in_flight::InFlightEvent;
use super::parts::StepSender;
use super::process_places::{PlaceWaits, ProcessPlaces};
use super::sandbox::{CheckSandboxError, Jail, SandboxLevel};
use super::sources::{LoadedHooks, WriteSourceError};
use super::stale_directories;
use super::stale_directories::PREFIX;
use super::user;
use super::work_queue::WorkQueue;
use super::worker::{self, PoolContext, WorkerRole};
use super::{AsyncError, EvaluationJob, HookCounters, HookSet, PoolConfig};

/// Smallest hard budget in milliseconds; with less, a garbage collection looks like a loop.
pub const MIN_HARD_BUDGET_MS: u64 = 50;

/// Most errors outside of evaluations that wait to be counted; the oldest are dropped.
const STRAYS: usize = 256;

/// Pause before a supervisor that panicked is restarted.
const PANIC_PAUSE: Duration = Duration::from_millis(100);

/// Bun worker processes that evaluate events. Cheap to clone; [`WorkerPool::stop`], or dropping the last clone, ends them.
#[derive(Clone)]
pub struct WorkerPool {
    inner: Arc<Inner>,
}

struct Inner {
    common: Arc<PoolContext>,
    seating: Arc<AuthorSlots>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    // Allows one switch of sets at a time.
    switching: tokio::sync::Mutex<()>,
}

impl WorkerPool {
    /// Starts `config.workers` processes without hooks. The processes come up in the background: see [`WorkerPool::ready_workers`].
    ///
    /// # Errors
    /// Returns [`StartPoolError`] if no Bun is new enough, the sandbox check fails, or the directory cannot be created.
    pub async fn start(config: PoolConfig, clock: SharedClock) -> Result<Self, StartPoolError> {
        let bun = bun::find(config.bun.as_deref()).await?;
        let dir = make_dir(config.dir.as_deref(), &clock).map_err(StartPoolError::MakeDirectory)?;
        let jail = Jail::check(&bun, &dir, &config).await?;
        open_to_workers(&dir, &jail)?;
        let strays = broadcast::Sender::new(STRAYS);
        let places = Arc::new(ProcessPlaces::unlimited());
        Ok(Self::start_within(jail, dir, strays, config, &clock, places))
    }

    /// Starts another pool for the author in `seat`, in the sandbox of this one, which is not checked again. Its processes run in
    /// `places`.
    ///
    /// # Errors
    /// Returns [`StartPoolError::MakeDirectory`] if the pool's directory cannot be created.
    pub(super) fn start_beside(
        &self,
        config: PoolConfig,
        seat: u32,
        clock: &SharedClock,
        places: Arc<ProcessPlaces>,
    ) -> Result<Self, StartPoolError> {
        let dir = make_dir(config.dir.as_deref(), clock).map_err(StartPoolError::MakeDirectory)?;
        let PoolContext { jail, strays, .. } = &*self.inner.common;
        let jail = jail.of_author(seat);
        open_to_workers(&dir, &jail)?;
        Ok(Self::start_within(jail, dir, strays.clone(), config, clock, places))
    }

    fn start_within(
        jail: Jail,
        dir: PathBuf,
        strays: broadcast::Sender<AsyncError>,
        config: PoolConfig,
        clock: &SharedClock,
        places: Arc<ProcessPlaces>,
    ) -> Self {
        let workers = config.workers.max(1);
        // A pool that is always up has one standby; every pool has one worker for suspects.
        let beside = workers + usize::from(!config.lazy);
        let common = Arc::new(PoolContext {
            board: Mutex::new(WorkQueue::new(beside + 1, (!config.lazy).then_some(workers))),
            queued: Notify::new(),
            apart: Notify::new(),
            changed: Notify::new(),
            stop: CancellationToken::new(),
            ready: 0.into(),
            ready_apart: 0.into(),
            placed: 0.into(),
            places,
            place_waits: PlaceWaits::default(),
            workers,
            jail,
            lazy: config.lazy,
            dir,
            db_path: config.db_path,
            model: config.model,
            host: config.host,
            strays,
            hard_budget: Duration::from_millis(config.hard_budget_ms.max(MIN_HARD_BUDGET_MS)),
            launched: 0.into(),
            // The queries of one author wait for each other, not for those of another.
            queries: Arc::new(Semaphore::new(workers.div_ceil(2))),
        });

        let roles = (0..=beside).map(|index| {
            if index < beside {
                WorkerRole::Beside
            } else {
                WorkerRole::Apart
            }
        });
        let keep = |(index, role)| tokio::spawn(keep_worker(Arc::clone(&common), Arc::clone(clock), index, role));
        let tasks = Mutex::new(roles.enumerate().map(keep).collect());

        Self {
            inner: Arc::new(Inner {
                common,
                seating: Arc::new(AuthorSlots::new(MAX_UNDER_WAY)),
                tasks,
                switching: tokio::sync::Mutex::new(()),
            }),
        }
    }

    /// Puts `set` in force: events are evaluated against it from now on. Events handed over before finish with the set
    /// that they began with (if their worker dies meanwhile, with the hooks of the same ids in the set then in force).
    /// Only changed files are written.
    ///
    /// # Errors
    /// Returns [`LoadHooksError`] if a source cannot be written; the former set stays in force.
    pub(super) async fn load(&self, set: Arc<HookSet>) -> Result<Arc<LoadedHooks>, LoadHooksError> {
        let common = &self.inner.common;
        let _one = self.inner.switching.lock().await;
        let former = Arc::clone(common.lock_board().current_set());
        let dir = common.dir.clone();
        let unpacked = tokio::task::spawn_blocking(move || LoadedHooks::unpack_set(set, &former, &dir)).await;
        let loaded = unpacked.map_err(|_| LoadHooksError::Stopped)??;
        let loaded = Arc::new(loaded);
        common.lock_board().switch_set(Arc::clone(&loaded));
        common.queued.notify_waiters();
        common.changed.notify_waiters();

        Ok(loaded)
    }

    /// Returns the places for evaluations in the pool.
    pub(super) fn seating(&self) -> &Arc<AuthorSlots> {
        &self.inner.seating
    }

    /// Returns whether an event for the pool would wait for the end of another author's process.
    pub(super) fn awaits_place(&self) -> bool {
        let common = &self.inner.common;
        if !common.places.are_all_taken() {
            return false;
        }
        // One that gives way takes no more events, and the next one of the pool begins after those that wait.
        let retiring = common.lock_board().retiring_workers();
        common.placed.load(Ordering::Relaxed) <= retiring
    }

    /// Returns the last time when a process of the pool waited for a place, or gave way to another pool's: `now` if one waits.
    /// `None` if that was not after `since`.
    pub(super) fn last_wait_for_process(&self, since: Instant, now: Instant) -> Option<Instant> {
        self.inner.common.place_waits.last_after(since, now)
    }

    /// Hands one event over, to be evaluated against `loaded`; `seat` is its place.
    pub(super) fn hand_over(
        &self,
        loaded: Arc<LoadedHooks>,
        job: EvaluationJob,
        steps: StepSender,
        seat: EvaluationSlot,
    ) {
        let common = &self.inner.common;
        if common
            .lock_board()
            .enqueue_event(InFlightEvent::new(job, loaded, steps, seat))
        {
            common.queued.notify_one();
        }
    }

    /// Sends a hook's counters to the workers; events handed over afterwards see them.
    pub fn count(&self, hook_id: &str, counters: HookCounters) {
        self.inner.common.lock_board().count(hook_id, counters);
    }

    /// Subscribes to the errors that scripts throw outside of their evaluations, here and in the pools beside this one.
    pub(super) fn subscribe_strays(&self) -> broadcast::Receiver<AsyncError> {
        self.inner.common.strays.subscribe()
    }

    /// Returns whether no hooks are in force in the pool.
    pub(super) fn is_empty(&self) -> bool {
        self.inner.common.lock_board().current_set().set().hooks().is_empty()
    }

    /// Returns whether no event is under way in the pool.
    pub(super) fn is_idle(&self) -> bool {
        self.inner.seating.is_idle()
    }

    /// Returns whether [`WorkerPool::stop`] was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.inner.common.stop.is_cancelled()
    }

    /// Returns how far the workers are confined.
    #[must_use]
    pub fn sandbox_level(&self) -> SandboxLevel {
        self.inner.common.jail.level()
    }

    /// Returns the confinements that the workers' sandbox lacks; empty if they are fully confined.
    #[must_use]
    pub fn missing_confinement(&self) -> &[String] {
        self.inner.common.jail.missing_parts()
    }

    /// Returns why the workers run as root although nothing else is missing; `None` if they do not.
    #[must_use]
    pub fn as_own(&self) -> Option<&str> {
        self.inner.common.jail.as_own()
    }

    /// Returns whether the workers run in control groups of their authors.
    #[must_use]
    pub fn has_groups(&self) -> bool {
        self.inner.common.jail.has_groups()
    }

    /// Returns the number of worker processes that are up.
    #[must_use]
    pub fn ready_workers(&self) -> usize {
        self.inner.common.ready.load(Ordering::Relaxed)
    }

    /// Ends the workers; evaluations under way end without [`super::EvaluationStep::Done`].
    pub async fn stop(&self) {
        let common = &self.inner.common;
        common.stop.cancel();
        common.lock_board().stop();
        self.inner.seating.close();

        let tasks = std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "worker supervisor panicked");
            }
        }
    }
}

/// Keeps worker `index` alive until the pool stops, even if its supervisor panics: events in flight there end without
/// [`super::EvaluationStep::Done`] and are evaluated again.
async fn keep_worker(common: Arc<PoolContext>, clock: SharedClock, index: usize, role: WorkerRole) {
    while let Err(error) = tokio::spawn(worker::keep_worker(
        Arc::clone(&common),
        Arc::clone(&clock),
        index,
        role,
    ))
    .await
    {
        if common.stop.is_cancelled() {
            return;
        }
        tracing::error!(worker = index, %error, "worker supervisor panicked; restarting it");
        pause(PANIC_PAUSE).await;
    }
}

// By hand: the state of all workers and hooks would be printed.
impl std::fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerPool")
            .field("ready", &self.ready_workers())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.common.stop.cancel();
        if let Err(error) = std::fs::remove_dir_all(&self.common.dir) {
            tracing::debug!(dir = %self.common.dir.display(), %error, "failed to remove the worker directory");
        }
    }
}

/// Reason why a pool does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartPoolError {
    /// No Bun is new enough.
    #[error("bun not found")]
    FindBun(#[from] FindBunError),
    /// Hooks cannot be confined as configured.
    #[error("no sandbox available for hooks")]
    Sandbox(#[from] CheckSandboxError),
    /// The directory for the workers' files cannot be created.
    #[error("failed to create the directory for hook workers")]
    MakeDirectory(#[source] std::io::Error),
}

/// Reason why hooks could not be handed to the workers; the former set stays in force.
#[derive(Debug, thiserror::Error)]
pub enum LoadHooksError {
    /// A source cannot be written for the workers.
    #[error(transparent)]
    WriteSource(#[from] WriteSourceError),
    /// More authors have hooks than may have pools.
    #[error("not run: more than {0} authors have hooks")]
    TooManyAuthors(usize),
    /// The pool of an author does not start.
    #[error("failed to start the hook workers of an author")]
    StartPool(#[source] Box<StartPoolError>),
    /// The pool is stopping.
    #[error("the hook workers are stopping")]
    Stopped,
}

/// Gives the user that workers run as access to `dir`, and no other user.
fn open_to_workers(dir: &Path, jail: &Jail) -> Result<(), StartPoolError> {
    match jail.worker_user() {
        Some(user) => user::open_to(dir, user).map_err(StartPoolError::MakeDirectory),
        None => Ok(()),
    }
}

/// Creates a fresh directory with the worker's source below `parent`. Its name has the process id, the time and a
/// number, so that two pools never share one.
fn make_dir(parent: Option<&Path>, clock: &SharedClock) -> std::io::Result<PathBuf> {
    static POOLS: AtomicU64 = AtomicU64::new(0);
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let number = POOLS.fetch_add(1, Ordering::Relaxed);
    stale_directories::remove_once(&parent);
    let dir = parent.join(format!("{PREFIX}{}-{}-{number}", std::process::id(), clock.now()));
    std::fs::create_dir_all(&dir)?;
    let dir = dir.canonicalize()?;
    bun::unpack_shim(&dir)?;
    Ok(dir)
}
