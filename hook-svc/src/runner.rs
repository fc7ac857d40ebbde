//! What evaluates events against hook scripts: the port, and its one adapter, Bun worker processes.
//!
//! `Pools::evaluate(pools.current(), job)` hands one event to a worker that holds all hooks and answers an [`Evaluation`]: verdicts
//! arrive one by one, fired ones as soon as they are known (hooks that answer at once first, waiting ones later),
//! then [`Step::Done`] with how many merely passed. A hook that throws, never resolves, loops or kills its worker
//! costs only itself; an event is never lost or stuck because of a dead worker.
//!
//! Source: `docs/design/hooks.md` §6; seed 003 §8.2, §10.

mod blame;
mod board;
mod bun;
mod calls;
mod filter;
mod flight;
mod host;
mod leftovers;
mod note;
mod parts;
mod pool;
mod pools;
mod protocol;
mod sandbox;
mod seats;
mod sources;
mod starter;
mod user;
mod watch;
mod worker;

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

use self::filter::Filter;
use self::parts::Joined;
use crate::prefilter::Rule;

pub use self::bun::FindBunError;
pub use self::host::{Answered, Call, CallError, Host, NOT_AVAILABLE, NoHost, Spent, not_available};
pub use self::pool::{LoadHooksError, MIN_HARD_BUDGET_MS, Pool, StartPoolError};
pub use self::pools::{InForce, Pools};
pub use self::sandbox::{CheckSandboxError, Sandbox};
pub use self::seats::{MAX_UNDER_WAY, Seats};
pub(crate) use self::user::fault as user_fault;

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
    /// How the workers are confined (`hooks.sandbox`).
    pub sandbox: Sandbox,
    /// As whom they run where this process is root (`hooks.user`): a name, or a user's and a group's number as `1:1`;
    /// empty = `nobody`, or this process's where nobody cannot reach what they need.
    pub user: String,
    /// Start workers only when there is something to do, and end them when there is not.
    pub lazy: bool,
    /// Where hook sources are unpacked for the workers; `None` = a fresh directory below the system's temporary one.
    pub dir: Option<PathBuf>,
    /// Answers `ctx.search()` and `ctx.llm()`.
    pub host: Arc<dyn Host>,
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
    /// Its author: hooks of two authors never share a process.
    pub created_by: String,
    /// Which events it sees.
    pub sees: Sees,
    /// `@allow net=…`: from where it asks to fetch, as `https://host:port`.
    pub net: Vec<String>,
}

/// Which events a hook sees.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Sees {
    /// All but changes of what it saw before.
    #[default]
    Everything,
    /// Those that meet its `@match`; and where it has a `@schedule`, those of its own timer.
    Matching(Rule),
    /// Those of its own timer: it has a `@schedule` and no `@match`.
    OwnTimer,
}

impl HookSource {
    /// Whether the source speaks of a call to the host; a worker gives the means to ask to such hooks alone.
    #[must_use]
    pub fn calls_host(&self) -> bool {
        ["search", "llm", "fetch"].iter().any(|call| self.source.contains(call))
    }

    /// Whether the source speaks of anything that another run might find otherwise: the model, the read model, the
    /// time, chance, or its own fires. What such a hook fired is stored before anything comes of it.
    #[must_use]
    pub fn is_volatile(&self) -> bool {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
        self.calls_host()
            || self.reads_model()
            || reads_counters(&self.source)
            || self.source.split(|c| !is_part(c)).any(|word| VOLATILE.contains(&word))
    }

    /// Whether the source speaks of what may go on after the hook has answered.
    #[must_use]
    pub fn lingers(&self) -> bool {
        LINGERING.iter().any(|word| self.source.contains(word))
    }

    /// Whether the source speaks of the read model, which must then have taken in an event before the hook sees it.
    #[must_use]
    pub fn reads_model(&self) -> bool {
        self.source.contains("dbPath") || self.source.contains("search")
    }
}

/// Words of promises, and of what runs when a script has returned.
const LINGERING: [&str; 6] = ["await", "then", "Promise", "import(", "Microtask", "nextTick"];

/// Words of the time and of chance.
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

/// Whether `source` speaks of how often or when its hook fired.
#[must_use]
pub fn reads_counters(source: &str) -> bool {
    source.contains("trigger_count") || source.contains("last_triggered")
}

/// All hooks that see an event, in the order in which they are called.
#[derive(Debug, Default)]
pub struct HookSet {
    hooks: Vec<Arc<HookSource>>,
    by_id: HashMap<String, u32>,
    /// Those that read the read model, ascending.
    readers: Vec<u32>,
    /// The longest `@timeout`, milliseconds.
    longest_timeout_ms: u64,
    filter: OnceLock<Filter>,
}

impl HookSet {
    /// A set of hooks with ids of their own.
    fn of(hooks: Vec<Arc<HookSource>>) -> Self {
        let by_id = (0_u32..).zip(&hooks).map(|(index, hook)| (hook.id.clone(), index));
        Self {
            by_id: by_id.collect(),
            readers: readers(&hooks),
            longest_timeout_ms: longest(&hooks),
            hooks,
            filter: OnceLock::new(),
        }
    }

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

        set.readers = readers(&set.hooks);
        set.longest_timeout_ms = longest(&set.hooks);

        set
    }

    /// The longest `@timeout` of its hooks.
    #[must_use]
    pub const fn longest_timeout(&self) -> Duration {
        Duration::from_millis(self.longest_timeout_ms)
    }

    /// The hooks that read the read model, by index, ascending.
    #[must_use]
    pub fn readers(&self) -> &[u32] {
        &self.readers
    }

    /// The hooks, by index.
    #[must_use]
    pub fn hooks(&self) -> &[Arc<HookSource>] {
        &self.hooks
    }

    /// Which hooks see `event`, by index, ascending; `None` = all.
    #[must_use]
    pub fn seeing(&self, event: &Event) -> Option<Vec<u32>> {
        self.filter.get_or_init(|| Filter::of(&self.hooks)).seeing(self, event)
    }

    /// The index of the hook `id`.
    #[must_use]
    pub fn index(&self, id: &str) -> Option<u32> {
        self.by_id.get(id).copied()
    }
}

fn longest(hooks: &[Arc<HookSource>]) -> u64 {
    hooks.iter().map(|hook| hook.timeout_ms).max().unwrap_or_default()
}

fn readers(hooks: &[Arc<HookSource>]) -> Vec<u32> {
    let readers = (0_u32..).zip(hooks).filter(|(_, hook)| hook.reads_model());
    readers.map(|(index, _)| index).collect()
}

/// What scripts read as `ctx.hook.trigger_count` and `.last_triggered`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// How often it fired.
    pub trigger_count: u64,
    /// When last.
    pub last_triggered: Option<UnixMillis>,
}

impl From<&HookState> for Counters {
    fn from(state: &HookState) -> Self {
        Self {
            trigger_count: state.trigger_count,
            last_triggered: state.last_triggered,
        }
    }
}

/// One event to be evaluated.
#[derive(Debug, Clone)]
pub struct Job {
    /// What tells this occurrence from all others, in logs and to the host: one call is answered once upon it.
    pub event_id: EventId,
    /// The event as JSON by its wire names (`serde_json::to_vec(&event)`); the worker adds the ledger's column names.
    pub event_json: Bytes,
    /// Its place in `EVENTS`, which a read model that answers its scripts has taken in; 0 = none is asked for.
    pub sequence: u64,
    /// The evaluation time, `ctx.now`.
    pub now: UnixMillis,
    /// Indices of the hooks that see it, ascending; `None` = all.
    pub only: Option<Vec<u32>>,
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
    /// What its calls to the host have used.
    pub spent: Spent,
}

/// What a hook did, where it is more than passing silently.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It fired.
    Fired(Box<HookResult>),
    /// It did not fire and asks to be disabled (`disableHook: true` with `fire: false`).
    DisableSelf,
    /// It passed, after calls to the host that are to be billed; other hooks that pass are only counted.
    Passed,
    /// It threw, timed out, answered rubbish, did not load or killed its worker.
    Failed {
        /// What is wrong, in one line.
        error: String,
        /// Where, if the script said.
        stack: Option<String>,
    },
}

/// An error outside of evaluations: of a promise that nobody awaited, or of a timer.
#[derive(Debug, Clone)]
pub struct Stray {
    /// Whose.
    pub hook: Arc<HookSource>,
    /// What is wrong, in one line.
    pub error: String,
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
    steps: mpsc::Receiver<(usize, Step)>,
    /// Where it is evaluated in several parts.
    joined: Option<Joined>,
    /// Hands over the parts that have to wait; dropped with the evaluation.
    later: JoinSet<()>,
}

impl Evaluation {
    fn of(set: Arc<HookSet>, steps: mpsc::Receiver<(usize, Step)>, joined: Option<Joined>) -> Self {
        Self {
            set,
            steps,
            joined,
            later: JoinSet::new(),
        }
    }

    /// One that ends before any hook has answered.
    #[must_use]
    pub fn lost(set: &Arc<HookSet>) -> Self {
        Self::of(Arc::clone(set), mpsc::channel(1).1, None)
    }

    /// The next step; `None` after [`Step::Done`], and where the pool was stopped before the event was done
    /// (then the event is to be evaluated again elsewhere).
    pub async fn next(&mut self) -> Option<Step> {
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

    /// The hooks against which the event is evaluated: those in force when it was handed over.
    #[must_use]
    pub fn set(&self) -> &Arc<HookSet> {
        &self.set
    }
}
