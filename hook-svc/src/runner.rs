//! What evaluates events against hook scripts: the port, and its one adapter, Bun worker processes.
//!
//! `Pool::evaluate(job)` hands one event to a worker that holds all hooks and answers an [`Evaluation`]: verdicts
//! arrive one by one, fired ones as soon as they are known (hooks that answer at once first, waiting ones later),
//! then [`Step::Done`] with how many merely passed. A hook that throws, never resolves, loops or kills its worker
//! costs only itself; an event is never lost or stuck because of a dead worker.
//!
//! Source: `hooks.md` "Runner"; `003_b33e857b632aa7dc.txt` §8.2, §10.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use shared::clock::SharedClock;
use shared::model::event::EventId;
use shared::model::hook::HookResult;
use shared::model::time::UnixMillis;
use tokio::sync::mpsc;

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
    /// Every hook has answered; nothing follows.
    Done(Done),
}

/// The end of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Done {
    /// Hooks that answered `fire: false` and nothing else.
    pub passed: u32,
    /// Evaluation time by index into `set`, microseconds; empty where nothing ran.
    pub latencies_us: Vec<u32>,
}

/// The answers to one [`Job`], as they become known.
#[derive(Debug)]
pub struct Evaluation {
    set: Arc<HookSet>,
    steps: mpsc::UnboundedReceiver<Step>,
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

/// Bun worker processes that evaluate events. Cheap to clone; [`Pool::stop`] ends the processes.
#[derive(Debug, Clone)]
pub struct Pool {
    inner: Arc<()>,
}

/// Why a pool does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartPoolError {}

/// Why hooks could not be handed to the workers; the former set stays in force.
#[derive(Debug, thiserror::Error)]
pub enum LoadHooksError {}

// Signatures of the pool; the bodies follow.
//
// impl Pool {
//     pub async fn start(config: PoolConfig, clock: SharedClock) -> Result<Pool, StartPoolError>;
//     /// From now on events are evaluated against `set`; those in flight finish with the set they began with.
//     /// Only changed files are read anew.
//     pub async fn load(&self, set: Arc<HookSet>) -> Result<(), LoadHooksError>;
//     /// Hands one event over; waits while 4,096 events are under way.
//     pub async fn evaluate(&self, job: Job) -> Evaluation;
//     /// Tells the workers a hook's counters; seen by the events that are handed over afterwards.
//     pub fn count(&self, hook_id: &str, counters: Counters);
//     /// Workers that are up and have loaded their hooks (for readiness: >= 1).
//     pub fn ready(&self) -> usize;
//     /// Ends the workers; evaluations under way end without `Done`.
//     pub async fn stop(&self);
// }
