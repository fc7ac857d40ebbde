//! What evaluates events against hook scripts: the port, and its one adapter, Bun worker processes.
//!
//! `Pool::evaluate(job)` hands one event to a worker that holds all hooks and answers an [`Evaluation`]: verdicts
//! arrive one by one, fired ones as soon as they are known (hooks that answer at once first, waiting ones later),
//! then [`Step::Done`] with how many merely passed. A hook that throws, never resolves, loops or kills its worker
//! costs only itself; an event is never lost or stuck because of a dead worker.
//!
//! Source: `hooks.md` "Runner"; `003_b33e857b632aa7dc.txt` §8.2, §10.

mod blame;
mod board;
mod bun;
mod flight;
mod note;
mod protocol;
mod sources;
mod watch;
mod worker;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use shared::clock::SharedClock;
use shared::model::event::EventId;
use shared::model::hook::HookResult;
use shared::model::time::UnixMillis;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::board::Board;
pub use self::bun::FindBunError;
use self::flight::Flight;
use self::sources::Loaded;
use self::worker::Common;

/// Most events under way in one pool; [`Pool::evaluate`] waits beyond it.
pub const MAX_UNDER_WAY: usize = 4_096;

/// Smallest hard budget, in milliseconds: below it a garbage collection looks like a loop.
pub const MIN_HARD_BUDGET_MS: u64 = 50;

/// How a pool runs.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// The Bun binary (`hooks.bun`); `None` = `.tools/bin/bun` above the executable or the working directory,
    /// then `PATH`. At least version 1.4.
    pub bun: Option<PathBuf>,
    /// Worker processes (`hooks.workers`), at least 1; one per core is a good number.
    pub workers: usize,
    /// Milliseconds of synchronous work without progress after which a worker is killed (`hooks.hard_budget_ms`).
    pub hard_budget_ms: u64,
    /// Path of the read model that scripts see as `ctx.dbPath`.
    pub db_path: Arc<str>,
    /// Where hook sources are unpacked for the workers; `None` = a fresh directory below the system's temporary one.
    pub dir: Option<PathBuf>,
}

/// One hook as the workers need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookSource {
    /// The hook's id: path below the hooks directory without `.ts`.
    pub id: String,
    /// `@name`.
    pub name: String,
    /// The TypeScript source.
    pub source: String,
    /// SHA-256 of `source`, in hex: tells a changed file from an unchanged one.
    pub content_hash: String,
    /// `@timeout`, milliseconds.
    pub timeout_ms: u64,
    /// When first seen; scripts read it as `ctx.hook.created_at`.
    pub created_at: UnixMillis,
}

/// All hooks that see an event, in the order in which they are called.
#[derive(Debug, Default)]
pub struct HookSet {
    hooks: Vec<Arc<HookSource>>,
    by_id: HashMap<String, u32>,
}

impl HookSet {
    /// A set of `hooks`; of two with one id the later stands.
    #[must_use]
    pub fn new(hooks: impl IntoIterator<Item = HookSource>) -> Self {
        let mut set = Self::default();
        for hook in hooks {
            let next = u32::try_from(set.hooks.len()).unwrap_or(u32::MAX);
            match set.by_id.get(&hook.id) {
                Some(&known) => set.hooks[known as usize] = Arc::new(hook),
                None => {
                    set.by_id.insert(hook.id.clone(), next);
                    set.hooks.push(Arc::new(hook));
                }
            }
        }
        set
    }

    /// The hooks, by index.
    #[must_use]
    pub fn hooks(&self) -> &[Arc<HookSource>] {
        &self.hooks
    }

    /// The index of the hook `id`.
    #[must_use]
    pub fn index(&self, id: &str) -> Option<u32> {
        self.by_id.get(id).copied()
    }
}

/// What scripts read as `ctx.hook.trigger_count` and `.last_triggered`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// How often it fired.
    pub trigger_count: u64,
    /// When last.
    pub last_triggered: Option<UnixMillis>,
}

/// One event to be evaluated.
#[derive(Debug, Clone)]
pub struct Job {
    /// The event's id, for logs.
    pub event_id: EventId,
    /// The event as JSON by its wire names (`serde_json::to_vec(&event)`); the worker adds the ledger's column names.
    pub event_json: Bytes,
    /// The evaluation time, `ctx.now`.
    pub now: UnixMillis,
    /// Ids of hooks that shall not see it (already decided, disabled meanwhile, prefiltered); mostly empty.
    pub skip: Vec<String>,
}

/// What one hook did.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Which hook.
    pub hook: Arc<HookSource>,
    /// Evaluation time, microseconds.
    pub latency_us: u64,
    /// What it did.
    pub outcome: Outcome,
}

/// What a hook did, where it is more than passing silently.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It fired.
    Fired(Box<HookResult>),
    /// It did not fire and asks to be disabled (`disableHook: true` with `fire: false`).
    DisableSelf,
    /// It threw, timed out, answered rubbish, did not load or killed its worker.
    Failed {
        /// What is wrong, in one line.
        error: String,
        /// Where, if the script said.
        stack: Option<String>,
    },
}

/// One step of an [`Evaluation`].
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// One hook fired, failed, or wants to be disabled.
    Verdict(Box<Verdict>),
    /// Sent at most once, after the hooks that answer at once: indices into the set of those still at work. All
    /// others have answered (the silent ones passed), so that the order of one conversation need not wait for a
    /// slow hook with the quick ones. Not sent where [`Step::Done`] follows immediately.
    Waiting(Vec<u32>),
    /// Every hook has answered; nothing follows.
    Done(Done),
}

/// The end of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Done {
    /// Hooks that answered `fire: false` and nothing else.
    pub passed: u32,
    /// Evaluation time by index into [`Evaluation::set`], microseconds, 0 for skipped hooks; empty where the event
    /// lost a worker on its way.
    pub latencies_us: Vec<u32>,
}

/// The answers to one [`Job`], as they become known.
#[derive(Debug)]
pub struct Evaluation {
    set: Arc<HookSet>,
    steps: mpsc::Receiver<Step>,
}

impl Evaluation {
    /// The next step; `None` after [`Step::Done`], and where the pool was stopped before the event was done
    /// (then the event is to be evaluated again elsewhere).
    pub async fn next(&mut self) -> Option<Step> {
        self.steps.recv().await
    }

    /// The hooks against which the event is evaluated: those in force when it was handed over.
    #[must_use]
    pub fn set(&self) -> &Arc<HookSet> {
        &self.set
    }
}

/// Bun worker processes that evaluate events. Cheap to clone; [`Pool::stop`], or dropping the last clone, ends them.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    common: Arc<Common>,
    places: Arc<Semaphore>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    // One switch of sets at a time.
    switching: tokio::sync::Mutex<()>,
}

impl Pool {
    /// Starts `config.workers` processes, without hooks. They come up in the background: see [`Pool::ready`].
    ///
    /// # Errors
    /// [`StartPoolError`]: no fitting Bun, or nowhere to put files.
    pub async fn start(config: PoolConfig, clock: SharedClock) -> Result<Self, StartPoolError> {
        let bun = bun::find(config.bun.as_deref()).await?;
        let dir = make_dir(config.dir.as_deref(), &clock).map_err(StartPoolError::MakeDirectory)?;
        let workers = config.workers.max(1);
        let common = Arc::new(Common {
            board: Mutex::new(Board::new(workers)),
            queued: tokio::sync::Notify::new(),
            stop: CancellationToken::new(),
            ready: 0.into(),
            bun,
            dir,
            db_path: config.db_path,
            hard_budget: Duration::from_millis(config.hard_budget_ms.max(MIN_HARD_BUDGET_MS)),
            launched: 0.into(),
        });
        let keep = |index| tokio::spawn(worker::keep(Arc::clone(&common), Arc::clone(&clock), index));
        let tasks = Mutex::new((0..workers).map(keep).collect());
        let places = Arc::new(Semaphore::new(MAX_UNDER_WAY));
        Ok(Self {
            inner: Arc::new(Inner {
                common,
                places,
                tasks,
                switching: tokio::sync::Mutex::new(()),
            }),
        })
    }

    /// From now on events are evaluated against `set`; those handed over before finish with the set they began with
    /// (where their worker dies meanwhile, with the hooks of the same ids in the set then in force). Only changed
    /// files are read anew.
    ///
    /// # Errors
    /// [`LoadHooksError`]; the former set stays in force.
    pub async fn load(&self, set: Arc<HookSet>) -> Result<(), LoadHooksError> {
        let common = &self.inner.common;
        let _one = self.inner.switching.lock().await;
        let former = Arc::clone(common.board().current());
        let dir = common.dir.clone();
        let unpacked = tokio::task::spawn_blocking(move || Loaded::unpack(set, &former, &dir)).await;
        let loaded = unpacked.map_err(|_| LoadHooksError::Stopped)??;
        common.board().switch(Arc::new(loaded));
        common.queued.notify_waiters();
        Ok(())
    }

    /// Hands one event over; waits while [`MAX_UNDER_WAY`] events are under way.
    pub async fn evaluate(&self, job: Job) -> Evaluation {
        let common = &self.inner.common;
        let place = Arc::clone(&self.inner.places).acquire_owned().await;
        let mut board = common.board();
        let loaded = Arc::clone(board.current());
        let set = Arc::clone(loaded.set());
        // One verdict a hook, who is waiting, and the end.
        let (sender, steps) = mpsc::channel(set.hooks().len() + 2);
        if let Ok(place) = place
            && board.enqueue(Flight::new(job, loaded, sender, place))
        {
            drop(board);
            common.queued.notify_one();
        }
        Evaluation { set, steps }
    }

    /// Tells the workers a hook's counters; events handed over afterwards see them.
    pub fn count(&self, hook_id: &str, counters: Counters) {
        self.inner.common.board().count(hook_id, counters);
    }

    /// Worker processes that are up.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.inner.common.ready.load(Ordering::Relaxed)
    }

    /// Ends the workers; evaluations under way end without [`Step::Done`].
    pub async fn stop(&self) {
        let common = &self.inner.common;
        common.stop.cancel();
        common.board().stop();
        self.inner.places.close();
        let tasks = std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "hook worker's keeper panicked");
            }
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("ready", &self.ready())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.common.stop.cancel();
        if let Err(error) = std::fs::remove_dir_all(&self.common.dir) {
            tracing::debug!(dir = %self.common.dir.display(), %error, "directory of hook workers stays behind");
        }
    }
}

/// Why a pool does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartPoolError {
    /// No Bun that fits.
    #[error("no bun to run hooks with")]
    FindBun(#[from] FindBunError),
    /// No place for the workers' files.
    #[error("the directory for hook workers cannot be made")]
    MakeDirectory(#[source] std::io::Error),
}

/// Why hooks could not be handed to the workers; the former set stays in force.
#[derive(Debug, thiserror::Error)]
pub enum LoadHooksError {
    /// A source cannot be written for the workers.
    #[error("source of hook {hook} cannot be written to {path}")]
    WriteSource {
        /// Which hook.
        hook: String,
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The pool is going down.
    #[error("the hook workers are being stopped")]
    Stopped,
}

/// A fresh directory with the worker's source, below `parent`. Named by process and time: two pools never share one.
fn make_dir(parent: Option<&Path>, clock: &SharedClock) -> std::io::Result<PathBuf> {
    static POOLS: AtomicU64 = AtomicU64::new(0);
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let number = POOLS.fetch_add(1, Ordering::Relaxed);
    let dir = parent.join(format!("nexus-hooks-{}-{}-{number}", std::process::id(), clock.now()));
    std::fs::create_dir_all(&dir)?;
    let dir = dir.canonicalize()?;
    bun::unpack_shim(&dir)?;
    Ok(dir)
}
