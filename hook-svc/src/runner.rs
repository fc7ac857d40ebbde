//! Evaluates events against hook scripts: the port, and its one adapter, Bun worker processes.
//!
//! [`WorkerPools::evaluate_event`] hands one event to a worker that holds all hooks and returns an
//! [`Evaluation`]. Verdicts arrive one by one as soon as they are known (hooks that answer at once first, waiting ones
//! later), then [`EvaluationStep::Done`] with the number of hooks that passed. A hook that throws, never resolves, loops or kills
//! its worker costs only itself; an event is never lost or stuck because of a dead worker.
//!
//! From above to below: `pools` (one `pool` an author, limited by `author_slots`, their processes by `process_places`;
//! numbers of them: `counted`), `spawner`, `sandbox` and `control_groups` (how a worker begins, as which `user`, within which
//! bounds), `worker` (one Bun process, spoken to by `protocol`, watched by `progress_watch`), `work_queue` and `in_flight` (the
//! events in it; `calls`: its calls of `host`, `model_source`: its queries), `result` (a script's answer), `parts` (one event in
//! several processes). A worker that dies: `crash_journal`, `crash_attribution`. Which hooks see an event: `filter`. Files:
//! `sources`, `stale_directories`, `bun`.
//!
//! Source: `docs/design/hooks.md` §6; seed 003 §8.2, §10.

mod author_slots;
mod bun;
mod calls;
mod control_groups;
mod counted;
mod crash_attribution;
mod crash_journal;
mod filter;
mod host;
mod in_flight;
mod model_source;
mod parts;
mod pool;
mod pools;
mod process_places;
mod progress_watch;
mod protocol;
mod reading;
pub mod result;
mod sandbox;
mod sources;
mod spawner;
mod stale_directories;
mod user;
mod work_queue;
mod worker;
mod worker_count;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use shared::model::event::{Event, EventId};
use shared::model::hook::{HookResult, HookState};
use shared::model::time::UnixMillis;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::filter::HookFilter;
use self::parts::JoinedParts;
use crate::routing::prefilter::MatchRule;

pub use self::author_slots::{HeldSlots, MAX_UNDER_WAY};
pub use self::bun::FindBunError;
pub use self::host::{CallError, CallResult, CallUsage, HostCall, NOT_AVAILABLE, NoHost, ScriptHost, not_available};
pub(crate) use self::model_source::run_query;
pub use self::model_source::{AskedQuery, ModelSource, OwnFile, PeerAnswer};
pub use self::pool::{LoadHooksError, MIN_HARD_BUDGET_MS, StartPoolError, WorkerPool};
pub use self::pools::{InForce, WorkerPools};
pub use self::sandbox::{CheckSandboxError, SandboxLevel, SandboxMode};
pub use self::sources::WriteSourceError;
pub(crate) use self::user::fault as user_fault;
pub use self::worker_count::{default_author_processes, default_workers};

/// Settings of a pool of workers.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Path of the Bun binary (`hooks.bun`), at least version 1.4. If `None`, `.tools/bin/bun` above the executable or
    /// the working directory is used, then the one on the `PATH`.
    pub bun: Option<PathBuf>,
    /// Number of worker processes (`hooks.workers`), at least 1; one per core is a good number.
    pub workers: usize,
    /// Number of processes of other authors than the operators that run at once, at least 1; further ones wait.
    pub author_processes: usize,
    /// Milliseconds of synchronous work without progress after which a worker is killed (`hooks.hard_budget_ms`).
    pub hard_budget_ms: u64,
    /// Path of the read model, which scripts see as `ctx.dbPath`.
    pub db_path: Arc<str>,
    /// Answers the queries of the read model that this process's file cannot answer.
    pub model: Arc<dyn ModelSource>,
    /// How strictly the workers are confined (`hooks.sandbox`).
    pub sandbox: SandboxMode,
    /// User that the workers run as if this process is root (`hooks.user`): a name, or a user id and a group id as
    /// `1:1`. If empty, `nobody`, or this process's own user if `nobody` cannot reach the files that workers need.
    pub user: String,
    /// Whether workers start only when an event is queued, and end when they are idle.
    pub lazy: bool,
    /// Directory below which hook sources are unpacked for the workers; if `None`, a fresh directory below the system's
    /// temporary one.
    pub dir: Option<PathBuf>,
    /// Host that answers `ctx.search()`, `ctx.llm()` and `ctx.fetch()`.
    pub host: Arc<dyn ScriptHost>,
}

/// One hook in the form that the workers need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookSource {
    /// Id of the hook: its path below the hooks directory without `.ts`.
    pub id: String,
    /// Name of the hook, from `@name`.
    pub name: String,
    /// TypeScript source of the hook.
    pub source: String,
    /// SHA-256 of `source`, in hex; tells a changed file from an unchanged one.
    pub content_hash: String,
    /// Time-out of one evaluation in milliseconds, from `@timeout`.
    pub timeout_ms: u64,
    /// Time when the hook was first seen; scripts read it as `ctx.hook.created_at`.
    pub created_at: UnixMillis,
    /// Author of the hook; hooks of two authors never share a process.
    pub created_by: String,
    /// Events that the hook sees.
    pub sees: HookScope,
    /// Origins that the hook asks to fetch from, as `https://host:port` (`@allow net=…`).
    pub net: Vec<String>,
}

/// Selects the events that a hook sees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum HookScope {
    /// All events except changes of items that the hook saw before.
    #[default]
    Everything,
    /// Events that meet its `@match`; if the hook has a `@schedule`, also those of its own timer.
    Matching(MatchRule),
    /// Events of its own timer only: the hook has a `@schedule` and no `@match`.
    OwnTimer,
}

impl HookSource {
    /// Returns whether the source mentions a call to the host; a worker gives only such hooks the means to make one.
    #[must_use]
    pub fn calls_host(&self) -> bool {
        ["search", "llm", "fetch", "readFile"]
            .iter()
            .any(|call| self.source.contains(call))
    }

    /// Returns whether the source mentions anything that another run might see differently: the model, the read model,
    /// the time, randomness, or the hook's own fires. The result of such a hook is stored before its actions are
    /// performed.
    #[must_use]
    pub fn is_volatile(&self) -> bool {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
        self.calls_host()
            || self.reads_model()
            || reads_counters(&self.source)
            || self.source.split(|c| !is_part(c)).any(|word| VOLATILE.contains(&word))
    }

    /// Returns whether the source mentions anything that may continue after the hook has answered.
    #[must_use]
    pub fn may_linger(&self) -> bool {
        LINGERING.iter().any(|word| self.source.contains(word))
    }

    /// Returns whether the source mentions the read model, which must then have applied an event before the hook sees
    /// it. A source that may name it in a way that cannot be judged counts as one that does.
    #[must_use]
    pub fn reads_model(&self) -> bool {
        reading::reads_model(&self.source)
    }
}

/// Words in a source that mean promises, or code that runs after a script has returned.
const LINGERING: [&str; 6] = ["await", "then", "Promise", "import(", "Microtask", "nextTick"];

/// Words in a source that mean the time or randomness.
const VOLATILE: [&str; 8] = [
    "now",
    "Date",
    "Temporal",
    "performance",
    "random",
    "randomUUID",
    "getRandomValues",
    "crypto",
];

/// Returns whether `source` mentions how often or when its hook fired.
#[must_use]
pub fn reads_counters(source: &str) -> bool {
    source.contains("trigger_count") || source.contains("last_triggered")
}

/// All hooks of a pool, in the order in which they are called.
#[derive(Debug, Default)]
pub struct HookSet {
    hooks: Vec<Arc<HookSource>>,
    by_id: HashMap<String, u32>,
    /// Indices of the hooks that query the read model, ascending.
    readers: Vec<u32>,
    /// Longest `@timeout` of the hooks, in milliseconds.
    longest_timeout_ms: u64,
    filter: OnceLock<HookFilter>,
}

impl HookSet {
    /// Creates a set of hooks whose ids are distinct.
    fn from_hooks(hooks: Vec<Arc<HookSource>>) -> Self {
        let by_id = (0_u32..).zip(&hooks).map(|(index, hook)| (hook.id.clone(), index));
        Self {
            by_id: by_id.collect(),
            readers: reader_indices(&hooks),
            longest_timeout_ms: longest_timeout(&hooks),
            hooks,
            filter: OnceLock::new(),
        }
    }

    /// Creates a set of `hooks`; if two have the same id, the later one replaces the earlier.
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

        set.readers = reader_indices(&set.hooks);
        set.longest_timeout_ms = longest_timeout(&set.hooks);

        set
    }

    /// Returns the longest `@timeout` of the hooks.
    #[must_use]
    pub const fn longest_timeout(&self) -> Duration {
        Duration::from_millis(self.longest_timeout_ms)
    }

    /// Returns the indices of the hooks that query the read model, ascending.
    #[must_use]
    pub fn model_readers(&self) -> &[u32] {
        &self.readers
    }

    /// Returns the hooks, by index.
    #[must_use]
    pub fn hooks(&self) -> &[Arc<HookSource>] {
        &self.hooks
    }

    /// Returns the indices of the hooks that see `event`, ascending; `None` means all.
    #[must_use]
    pub fn hooks_seeing(&self, event: &Event) -> Option<Vec<u32>> {
        self.filter
            .get_or_init(|| HookFilter::from_hooks(&self.hooks))
            .hooks_seeing(self, event)
    }

    /// Returns the index of the hook `id`.
    #[must_use]
    pub fn index(&self, id: &str) -> Option<u32> {
        self.by_id.get(id).copied()
    }
}

fn longest_timeout(hooks: &[Arc<HookSource>]) -> u64 {
    hooks.iter().map(|hook| hook.timeout_ms).max().unwrap_or_default()
}

fn reader_indices(hooks: &[Arc<HookSource>]) -> Vec<u32> {
    let readers = (0_u32..).zip(hooks).filter(|(_, hook)| hook.reads_model());
    readers.map(|(index, _)| index).collect()
}

/// Counters that scripts read as `ctx.hook.trigger_count` and `.last_triggered`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HookCounters {
    /// Number of times the hook fired.
    pub trigger_count: u64,
    /// Time of the last fire, if any.
    pub last_triggered: Option<UnixMillis>,
}

impl From<&HookState> for HookCounters {
    fn from(state: &HookState) -> Self {
        Self {
            trigger_count: state.trigger_count,
            last_triggered: state.last_triggered,
        }
    }
}

/// One event to evaluate.
#[derive(Debug, Clone)]
pub struct EvaluationJob {
    /// Id that tells this occurrence from all others, in logs and to the host; the host answers each call once per
    /// event id.
    pub event_id: EventId,
    /// Event as JSON by its wire names (`serde_json::to_vec(&event)`); the worker adds the ledger's column names.
    pub event_json: Bytes,
    /// Sequence number of the event in `EVENTS`; a read model that answers the scripts must have applied it. 0 requires
    /// none.
    pub sequence: u64,
    /// Evaluation time, `ctx.now` in scripts.
    pub now: UnixMillis,
    /// Indices of the hooks that see the event, ascending; `None` means all.
    pub only: Option<Vec<u32>>,
}

/// Result of one hook for one event.
#[derive(Debug, Clone, PartialEq)]
pub struct HookVerdict {
    /// Hook that produced the result.
    pub hook: Arc<HookSource>,
    /// Evaluation time in microseconds.
    pub latency_us: u64,
    /// Outcome of the evaluation.
    pub outcome: RunOutcome,
    /// Usage of the hook's calls to the host.
    pub spent: CallUsage,
}

/// Outcome of a hook that did more than pass silently.
#[derive(Debug, Clone, PartialEq)]
pub enum RunOutcome {
    /// The hook fired with this result.
    Fired(Box<HookResult>),
    /// The hook did not fire and asks to be disabled (`disableHook: true` with `fire: false`).
    DisableSelf,
    /// The hook passed, after calls to the host that must be billed; other hooks that pass are only counted.
    Passed,
    /// The hook threw, timed out, returned an invalid result, did not load or killed its worker.
    Failed {
        /// Description of the error, in one line.
        error: String,
        /// Stack trace, if the script gave one.
        stack: Option<String>,
    },
}

/// Error outside of evaluations: of a promise that was not awaited, or of a timer.
#[derive(Debug, Clone)]
pub struct AsyncError {
    /// Hook that caused the error.
    pub hook: Arc<HookSource>,
    /// Description of the error, in one line.
    pub error: String,
}

/// One step of an [`Evaluation`].
#[derive(Debug, Clone, PartialEq)]
pub enum EvaluationStep {
    /// A hook fired, failed, asks to be disabled, or passed after billed calls.
    Verdict(Box<HookVerdict>),
    /// Indices into the set of the hooks that are still running. Sent at most once, after the hooks that answer at
    /// once; all other hooks have answered (the silent ones passed). The order of one conversation thus waits for slow
    /// hooks only. Not sent if [`EvaluationStep::Done`] follows immediately.
    Waiting(Vec<u32>),
    /// Every hook has answered; no step follows.
    Done(EvaluationEnd),
}

/// End of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EvaluationEnd {
    /// Number of hooks that returned `fire: false` and nothing else.
    pub passed: u32,
    /// Evaluation time by index into [`Evaluation::set`], in microseconds, 0 for skipped hooks; empty if the event lost
    /// a worker on its way.
    pub latencies_us: Vec<u32>,
}

/// Answers to one [`EvaluationJob`], as they become known.
#[derive(Debug)]
pub struct Evaluation {
    set: Arc<HookSet>,
    steps: mpsc::Receiver<(usize, EvaluationStep)>,
    /// State of the join if the event is evaluated in several parts.
    joined: Option<JoinedParts>,
    /// Tasks that hand over the parts that must wait; dropped with the evaluation.
    later: JoinSet<()>,
}

impl Evaluation {
    fn of_set(set: Arc<HookSet>, steps: mpsc::Receiver<(usize, EvaluationStep)>, joined: Option<JoinedParts>) -> Self {
        Self {
            set,
            steps,
            joined,
            later: JoinSet::new(),
        }
    }

    /// Creates an evaluation that ends before any hook has answered.
    #[must_use]
    pub fn lost_evaluation(set: &Arc<HookSet>) -> Self {
        Self::of_set(Arc::clone(set), mpsc::channel(1).1, None)
    }

    /// Returns the next step. Returns `None` after [`EvaluationStep::Done`], and if the pool was stopped before the event was
    /// done (then the event must be evaluated again elsewhere).
    pub async fn next(&mut self) -> Option<EvaluationStep> {
        loop {
            let (part, step) = self.steps.recv().await?;
            let Some(joined) = &mut self.joined else {
                return Some(step);
            };
            if let Some(step) = joined.take(part, step) {
                return Some(step);
            }
        }
    }

    /// Returns the hooks against which the event is evaluated: those in force when it was handed over.
    #[must_use]
    pub fn set(&self) -> &Arc<HookSet> {
        &self.set
    }
}
