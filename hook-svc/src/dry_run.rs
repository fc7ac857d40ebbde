//! Evaluates one hook for one event, apart from the evaluation of all: `run` and `test`.
//!
//! Each author has workers of their own here: a trial cannot delay other authors' events, and one author's script never
//! shares a process with another's. Requests of turns have separate workers and room, so that no trial delays a turn.
//! Nothing is dispatched or recorded.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use shared::clock::SharedClock;
use shared::model::event::Event;
use shared::model::hook::HookMetadata;
use shared::model::hook_api::HookRun;
use shared::model::time::UnixMillis;
use tokio::sync::{Mutex, OnceCell};

use crate::config::HooksConfig;
use crate::registry::active_hooks::seen_events;
use crate::runner::{
    Evaluation, EvaluationJob, EvaluationStep, HeldSlots, HookCounters, HookSet, HookSource, HookVerdict,
    LoadHooksError, OwnFile, PoolConfig, RunOutcome, ScriptHost, StartPoolError, WorkerPools, default_author_processes,
    default_workers,
};

/// Most authors whose workers are kept, for turns and for trials each; beyond that the least recently used are stopped.
const MAX_FOR_TURNS: usize = 8;
const MAX_FOR_TRIALS: usize = 4;

/// Author under which a bench's own workers run hooks, since it has one author alone.
const OWN: &str = "operator";

/// Channel of the events that turns send.
const TURN: &str = "turn";

/// Most hooks that a worker here holds; beyond that its set is cleared.
const MAX_HOOKS: usize = 64;

/// Reason why a hook could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum TryHookError {
    /// The workers could not be started.
    #[error("no worker available")]
    Start(#[from] StartPoolError),
    /// The hook could not be loaded.
    #[error("failed to pass the hook to its worker")]
    Load(#[from] LoadHooksError),
    /// The service is stopping.
    #[error("the worker was stopped")]
    Stopped,
}

/// A hook to evaluate.
#[derive(Debug, Clone)]
pub struct DryRun {
    /// Source of the hook.
    pub hook: HookSource,
    /// Author of the hook.
    pub author: String,
    /// Counters that the hook reads in `ctx.hook`.
    pub counters: HookCounters,
}

impl DryRun {
    /// Creates a trial of a hook that is not registered: the file `source`, whose header is `metadata`.
    #[must_use]
    pub fn from_file(id: &str, source: &str, metadata: &HookMetadata, now: UnixMillis) -> Self {
        Self {
            hook: HookSource {
                id: id.to_owned(),
                name: metadata.name.clone(),
                source: source.to_owned(),
                content_hash: HEXLOWER.encode(&Sha256::digest(source.as_bytes())),
                timeout_ms: metadata.timeout_ms,
                created_at: now,
                created_by: OWN.to_owned(),
                sees: seen_events(metadata),
                // A hook that is only tried has no grants.
                net: Vec::new(),
            },
            // No registered author's name contains a control character.
            author: "\u{1}test".to_owned(),
            counters: HookCounters::default(),
        }
    }
}

/// Workers of one author.
#[derive(Debug)]
struct Bench {
    pool: WorkerPools,
    hooks: Mutex<BTreeMap<String, HookSource>>,
}

/// A bench that is being started, or is running.
type Place = Arc<OnceCell<Arc<Bench>>>;

/// Benches by author.
#[derive(Debug, Default)]
struct Shelf {
    places: HashMap<String, (Place, u64)>,
    /// Number of uses, counted to find the least recently used.
    uses: u64,
}

impl Shelf {
    /// Returns the place of `author`; if there are `most` others, the least recently used one is removed.
    fn place_author(&mut self, author: &str, most: usize) -> Place {
        self.uses += 1;

        if !self.places.contains_key(author) && self.places.len() >= most {
            let oldest = self.places.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(author, _)| author.clone()) {
                // Evaluations under way keep the bench until they end: the last clone of the pool stops its workers.
                self.places.remove(&oldest);
            }
        }

        let (place, used) = self.places.entry(author.to_owned()).or_default();
        *used = self.uses;

        Arc::clone(place)
    }
}

/// Benches for turns and for trials: neither uses the other's room.
#[derive(Debug, Default)]
struct Shelves {
    turns: Shelf,
    trials: Shelf,
}

/// Runner of single hooks; cheap to clone. See the module.
#[derive(Debug, Clone)]
pub struct DryRunner {
    config: PoolConfig,
    clock: SharedClock,
    shelves: Arc<std::sync::Mutex<Shelves>>,
}

impl DryRunner {
    /// Creates a lab without workers: an author's start with their first hook. `config` is that of the pool for all
    /// events.
    #[must_use]
    pub fn new(config: PoolConfig, clock: SharedClock) -> Self {
        Self {
            config,
            clock,
            shelves: Arc::default(),
        }
    }

    /// Runs `trial` for `event` with the evaluation time `now`.
    ///
    /// # Errors
    /// Returns [`TryHookError`] if there is no worker for it; errors of the script are part of the result.
    pub async fn run(&self, trial: DryRun, event: &Event, now: UnixMillis) -> Result<HookRun, TryHookError> {
        let bench = self.author_bench(&trial.author, event.channel == TURN).await?;
        run_outcome(bench.evaluate_trial(trial, event, now).await?).await
    }

    /// Stops all workers.
    pub async fn stop(&self) {
        let shelves = std::mem::take(&mut *self.lock_shelves());
        let places = shelves
            .turns
            .places
            .into_values()
            .chain(shelves.trials.places.into_values());

        for (place, _) in places {
            if let Some(bench) = place.get() {
                bench.pool.stop().await;
            }
        }
    }

    fn lock_shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn author_bench(&self, author: &str, of_turns: bool) -> Result<Arc<Bench>, TryHookError> {
        let place = {
            let mut shelves = self.lock_shelves();
            if of_turns {
                shelves.turns.place_author(author, MAX_FOR_TURNS)
            } else {
                shelves.trials.place_author(author, MAX_FOR_TRIALS)
            }
        };

        // Only requests for the same author wait while this bench starts.
        let bench = place.get_or_try_init(|| self.start(author, of_turns)).await?;
        Ok(Arc::clone(bench))
    }

    async fn start(&self, author: &str, of_turns: bool) -> Result<Arc<Bench>, TryHookError> {
        let config = PoolConfig {
            workers: if of_turns { self.config.workers } else { 1 },
            // Operators' hooks run for every turn, so their workers stay up; others start on demand.
            lazy: !(of_turns && author == OWN),
            ..self.config.clone()
        };

        Ok(Arc::new(Bench {
            pool: WorkerPools::start(config, Arc::clone(&self.clock)).await?,
            hooks: Mutex::default(),
        }))
    }
}

impl Bench {
    async fn evaluate_trial(
        &self,
        mut trial: DryRun,
        event: &Event,
        now: UnixMillis,
    ) -> Result<Evaluation, TryHookError> {
        if trial.hook.created_by != OWN {
            // The hook must not use grants of operators' own hooks, here or where it is registered.
            trial.hook.net.clear();
            OWN.clone_into(&mut trial.hook.created_by);
        }

        // The lock is held until the event is handed over, so that the set in force has its hook.
        let mut hooks = self.hooks.lock().await;
        let id = trial.hook.id.clone();
        if hooks.get(&id) != Some(&trial.hook) {
            if hooks.len() >= MAX_HOOKS {
                hooks.clear();
            }
            hooks.insert(id.clone(), trial.hook);
            self.pool.load(Arc::new(HookSet::new(hooks.values().cloned()))).await?;
        }

        self.pool.count(&id, trial.counters);
        let in_force = self.pool.current_hooks();
        let job = EvaluationJob {
            only: Some(in_force.set().index(&id).into_iter().collect()),
            ..evaluation_job(event, now)
        };

        Ok(self.pool.evaluate_event(&in_force, &job, &HeldSlots::default()))
    }
}

/// Returns the pool configuration for the operator's configuration; scripts see `db_path`, whose file answers their
/// queries, and call `host`.
#[must_use]
pub fn pool_config(config: &HooksConfig, db_path: &Path, host: Arc<dyn ScriptHost>) -> PoolConfig {
    let workers = match config.workers {
        0 => default_workers(),
        workers => workers,
    };
    PoolConfig {
        bun: (!config.bun.is_empty()).then(|| PathBuf::from(&config.bun)),
        workers,
        author_processes: default_author_processes(workers),
        hard_budget_ms: config.hard_budget_ms,
        db_path: db_path.to_string_lossy().into(),
        model: Arc::new(OwnFile),
        dir: None,
        sandbox: config.sandbox,
        user: config.user.clone(),
        lazy: false,
        host,
    }
}

/// One hook evaluated for many events of a replayed history. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HistoryReplay {
    pool: WorkerPools,
    hook_id: Arc<str>,
}

impl HistoryReplay {
    /// Starts workers that hold only `trial`'s hook.
    ///
    /// # Errors
    /// Returns [`TryHookError`] if they cannot be started.
    pub async fn start(config: PoolConfig, clock: SharedClock, trial: DryRun) -> Result<Self, TryHookError> {
        let pool = WorkerPools::start(config, clock).await?;
        let hook_id = trial.hook.id.as_str().into();
        pool.load(Arc::new(HookSet::new([trial.hook]))).await?;
        Ok(Self { pool, hook_id })
    }

    /// Runs the hook for `event` with the evaluation time `now`, if its header lets it see the event. Many runs may be
    /// concurrent.
    ///
    /// # Errors
    /// Returns [`TryHookError::Stopped`] if the workers were stopped.
    pub async fn run(&self, event: &Event, now: UnixMillis) -> Result<HookRun, TryHookError> {
        let in_force = self.pool.current_hooks();
        let only = in_force.set().hooks_seeing(event);
        if only.as_ref().is_some_and(Vec::is_empty) {
            return Ok(run_answer(None, 0));
        }

        let job = EvaluationJob {
            only,
            ..evaluation_job(event, now)
        };

        run_outcome(self.pool.evaluate_event(&in_force, &job, &HeldSlots::default())).await
    }

    /// Returns whether the hook's header lets it see `event`.
    #[must_use]
    pub fn sees_event(&self, event: &Event) -> bool {
        let only = self.pool.current_hooks().set().hooks_seeing(event);
        only.is_none_or(|hooks| !hooks.is_empty())
    }

    /// Sets the counters that the hook reads for events handed over afterwards.
    pub fn count(&self, counters: HookCounters) {
        self.pool.count(&self.hook_id, counters);
    }

    /// Stops the workers.
    pub async fn stop(&self) {
        self.pool.stop().await;
    }
}

fn evaluation_job(event: &Event, now: UnixMillis) -> EvaluationJob {
    EvaluationJob {
        event_id: event.id.clone(),
        event_json: Bytes::from(serde_json::to_vec(event).unwrap_or_default()),
        sequence: 0,
        now,
        only: None,
    }
}

/// Returns the result of the one hook of `evaluation`.
async fn run_outcome(mut evaluation: Evaluation) -> Result<HookRun, TryHookError> {
    let mut told = None;
    while let Some(step) = evaluation.next().await {
        match step {
            EvaluationStep::Verdict(verdict) => told = Some(*verdict),
            EvaluationStep::Waiting(_) => {}
            EvaluationStep::Done(done) => {
                let latency = done.latencies_us.iter().copied().max().unwrap_or(0);
                return Ok(run_answer(told, latency.into()));
            }
        }
    }

    Err(TryHookError::Stopped)
}

fn run_answer(verdict: Option<HookVerdict>, latency_us: u64) -> HookRun {
    let mut run = HookRun {
        fired: false,
        result: None,
        error: None,
        stack: None,
        latency_us,
        llm_calls: 0,
        llm_tokens_in: 0,
        llm_tokens_out: 0,
        llm_cost_usd: 0.0,
        search_calls: 0,
    };

    // A hook that passed has no verdict of its own.
    let Some(verdict) = verdict else {
        return run;
    };
    run.latency_us = verdict.latency_us;
    run.llm_calls = verdict.spent.llm_calls;
    run.llm_tokens_in = verdict.spent.llm_tokens_in;
    run.llm_tokens_out = verdict.spent.llm_tokens_out;
    run.llm_cost_usd = verdict.spent.llm_cost_usd;
    run.search_calls = verdict.spent.search_calls;

    match verdict.outcome {
        RunOutcome::Fired(result) => {
            run.fired = true;
            run.result = Some(*result);
        }
        RunOutcome::DisableSelf => {
            run.result = Some(shared::model::hook::HookResult {
                disable_hook: true,
                ..shared::model::hook::HookResult::default()
            });
        }
        RunOutcome::Passed => {}
        RunOutcome::Failed { error, stack } => {
            run.error = Some(error);
            run.stack = stack;
        }
    }

    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_not_asked_for_longest_makes_room() {
        let mut shelf = Shelf::default();
        let first = shelf.place_author("a", 2);
        shelf.place_author("b", 2);
        assert!(Arc::ptr_eq(&first, &shelf.place_author("a", 2)), "it is kept");
        shelf.place_author("c", 2);
        let mut kept: Vec<&str> = shelf.places.keys().map(String::as_str).collect();
        kept.sort_unstable();
        assert_eq!(kept, ["a", "c"]);
    }
}
