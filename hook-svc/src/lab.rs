//! One hook upon one event, apart from the evaluation of all: `run` and `test`.
//!
//! Workers of their own, one for each author: what is tried here can hold up nobody's events, and one author's script
//! never shares a process with another's. What a turn asks has workers besides, and room of its own, so that no trial
//! holds up a turn. Nothing is dispatched or recorded.

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
use crate::roster::sees;
use crate::runner::{
    Counters, Evaluation, HookSet, HookSource, Host, Job, LoadHooksError, Outcome, PoolConfig, Pools, Seats,
    StartPoolError, Step, Verdict,
};

/// Most authors' workers that are kept, for turns and for trials each; beyond that those go that were not used longest.
const MAX_FOR_TURNS: usize = 8;
const MAX_FOR_TRIALS: usize = 4;

/// Whose hooks a bench's own workers run, whoever wrote them: it has one author alone.
const OWN: &str = "operator";

/// Channel of the events that turns ask with.
const TURN: &str = "turn";

/// Most hooks that a worker here holds; beyond that it begins anew.
const MAX_HOOKS: usize = 64;

/// Why a hook could not be tried.
#[derive(Debug, thiserror::Error)]
pub enum TryHookError {
    /// No worker.
    #[error("no worker available")]
    Start(#[from] StartPoolError),
    /// The hook cannot be handed over.
    #[error("failed to pass the hook to its worker")]
    Load(#[from] LoadHooksError),
    /// The service is going down.
    #[error("the worker was stopped")]
    Stopped,
}

/// A hook to be tried.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The hook.
    pub hook: HookSource,
    /// Whose it is.
    pub author: String,
    /// What it reads as `ctx.hook`'s counters.
    pub counters: Counters,
}

impl Trial {
    /// A hook that is not registered: the file `source`, whose header says `metadata`.
    #[must_use]
    pub fn unregistered(id: &str, source: &str, metadata: &HookMetadata, now: UnixMillis) -> Self {
        Self {
            hook: HookSource {
                id: id.to_owned(),
                name: metadata.name.clone(),
                source: source.to_owned(),
                content_hash: HEXLOWER.encode(&Sha256::digest(source.as_bytes())),
                timeout_ms: metadata.timeout_ms,
                created_at: now,
                created_by: OWN.to_owned(),
                sees: sees(metadata),
                // Nobody has granted anything to what is only tried.
                net: Vec::new(),
            },
            // No registered author's name holds a control character.
            author: "\u{1}test".to_owned(),
            counters: Counters::default(),
        }
    }
}

/// The workers of one author.
#[derive(Debug)]
struct Bench {
    pool: Pools,
    hooks: Mutex<BTreeMap<String, HookSource>>,
}

/// A bench that is being started, or is there.
type Place = Arc<OnceCell<Arc<Bench>>>;

/// Benches by author.
#[derive(Debug, Default)]
struct Shelf {
    places: HashMap<String, (Place, u64)>,
    /// Counts up with every use.
    uses: u64,
}

impl Shelf {
    /// The place of `author`; of more than `most` authors the one goes that was not used longest.
    fn place(&mut self, author: &str, most: usize) -> Place {
        self.uses += 1;

        if !self.places.contains_key(author) && self.places.len() >= most {
            let oldest = self.places.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(author, _)| author.clone()) {
                // Evaluations under way keep it until they have ended: the last clone of the pool ends its workers.
                self.places.remove(&oldest);
            }
        }

        let (place, used) = self.places.entry(author.to_owned()).or_default();
        *used = self.uses;

        Arc::clone(place)
    }
}

/// What turns ask, and trials: neither takes the other's room.
#[derive(Debug, Default)]
struct Shelves {
    turns: Shelf,
    trials: Shelf,
}

/// See the module; cheap to clone.
#[derive(Debug, Clone)]
pub struct Lab {
    config: PoolConfig,
    clock: SharedClock,
    shelves: Arc<std::sync::Mutex<Shelves>>,
}

impl Lab {
    /// Without workers yet: an author's come with its first hook. `config` as of the pool that evaluates all.
    #[must_use]
    pub fn new(config: PoolConfig, clock: SharedClock) -> Self {
        Self {
            config,
            clock,
            shelves: Arc::default(),
        }
    }

    /// Runs `trial` upon `event` as if it were `now`.
    ///
    /// # Errors
    /// [`TryHookError`] where there is no worker for it; what the script does wrong is part of the answer.
    pub async fn run(&self, trial: Trial, event: &Event, now: UnixMillis) -> Result<HookRun, TryHookError> {
        let bench = self.bench(&trial.author, event.channel == TURN).await?;
        outcome(bench.evaluate(trial, event, now).await?).await
    }

    /// Ends all workers.
    pub async fn stop(&self) {
        let shelves = std::mem::take(&mut *self.shelves());
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

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn bench(&self, author: &str, of_turns: bool) -> Result<Arc<Bench>, TryHookError> {
        let place = {
            let mut shelves = self.shelves();
            if of_turns {
                shelves.turns.place(author, MAX_FOR_TURNS)
            } else {
                shelves.trials.place(author, MAX_FOR_TRIALS)
            }
        };

        // Whoever else asks for this author's meanwhile waits for it; nobody else does.
        let bench = place.get_or_try_init(|| self.start(author, of_turns)).await?;
        Ok(Arc::clone(bench))
    }

    async fn start(&self, author: &str, of_turns: bool) -> Result<Arc<Bench>, TryHookError> {
        let config = PoolConfig {
            workers: if of_turns { self.config.workers } else { 1 },
            // Operators' hooks stand in the way of every turn; the rest comes up when it is asked for.
            lazy: !(of_turns && author == OWN),
            ..self.config.clone()
        };

        Ok(Arc::new(Bench {
            pool: Pools::start(config, Arc::clone(&self.clock)).await?,
            hooks: Mutex::default(),
        }))
    }
}

impl Bench {
    async fn evaluate(&self, mut trial: Trial, event: &Event, now: UnixMillis) -> Result<Evaluation, TryHookError> {
        if trial.hook.created_by != OWN {
            // It may use what is granted to operators' own hooks as little here as where it is registered.
            trial.hook.net.clear();
            OWN.clone_into(&mut trial.hook.created_by);
        }

        // Held until the event is handed over, so that it meets the set with its hook.
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
        let in_force = self.pool.current();
        let job = Job {
            only: Some(in_force.set().index(&id).into_iter().collect()),
            ..job(event, now)
        };

        Ok(self.pool.evaluate(&in_force, &job, &Seats::default()))
    }
}

/// The pool that an operator's configuration asks for; scripts see `db_path`, and ask `host`.
#[must_use]
pub fn pool_config(config: &HooksConfig, db_path: &Path, host: Arc<dyn Host>) -> PoolConfig {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    PoolConfig {
        bun: (!config.bun.is_empty()).then(|| PathBuf::from(&config.bun)),
        workers: if config.workers == 0 { cores } else { config.workers },
        hard_budget_ms: config.hard_budget_ms,
        db_path: db_path.to_string_lossy().into(),
        dir: None,
        sandbox: config.sandbox,
        user: config.user.clone(),
        lazy: false,
        host,
    }
}

/// One hook upon many events: history that is replayed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Replay {
    pool: Pools,
    hook_id: Arc<str>,
}

impl Replay {
    /// Workers that hold `trial`'s hook alone.
    ///
    /// # Errors
    /// [`TryHookError`] where there are none.
    pub async fn start(config: PoolConfig, clock: SharedClock, trial: Trial) -> Result<Self, TryHookError> {
        let pool = Pools::start(config, clock).await?;
        let hook_id = trial.hook.id.as_str().into();
        pool.load(Arc::new(HookSet::new([trial.hook]))).await?;
        Ok(Self { pool, hook_id })
    }

    /// Runs the hook upon `event` as if it were `now`, where its header lets it see it; many at once.
    ///
    /// # Errors
    /// [`TryHookError::Stopped`].
    pub async fn run(&self, event: &Event, now: UnixMillis) -> Result<HookRun, TryHookError> {
        let in_force = self.pool.current();
        let only = in_force.set().seeing(event);
        if only.as_ref().is_some_and(Vec::is_empty) {
            return Ok(answer(None, 0));
        }

        let job = Job {
            only,
            ..job(event, now)
        };

        outcome(self.pool.evaluate(&in_force, &job, &Seats::default())).await
    }

    /// Whether the hook's header lets it see `event`.
    #[must_use]
    pub fn sees(&self, event: &Event) -> bool {
        let only = self.pool.current().set().seeing(event);
        only.is_none_or(|hooks| !hooks.is_empty())
    }

    /// Events handed over afterwards read these as the hook's counters.
    pub fn count(&self, counters: Counters) {
        self.pool.count(&self.hook_id, counters);
    }

    /// Ends the workers.
    pub async fn stop(&self) {
        self.pool.stop().await;
    }
}

fn job(event: &Event, now: UnixMillis) -> Job {
    Job {
        event_id: event.id.clone(),
        event_json: Bytes::from(serde_json::to_vec(event).unwrap_or_default()),
        sequence: 0,
        now,
        only: None,
    }
}

/// What the one hook of `evaluation` did.
async fn outcome(mut evaluation: Evaluation) -> Result<HookRun, TryHookError> {
    let mut told = None;
    while let Some(step) = evaluation.next().await {
        match step {
            Step::Verdict(verdict) => told = Some(*verdict),
            Step::Waiting(_) => {}
            Step::Done(done) => {
                let latency = done.latencies_us.iter().copied().max().unwrap_or(0);
                return Ok(answer(told, latency.into()));
            }
        }
    }

    Err(TryHookError::Stopped)
}

fn answer(verdict: Option<Verdict>, latency_us: u64) -> HookRun {
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
        Outcome::Fired(result) => {
            run.fired = true;
            run.result = Some(*result);
        }
        Outcome::DisableSelf => {
            run.result = Some(shared::model::hook::HookResult {
                disable_hook: true,
                ..shared::model::hook::HookResult::default()
            });
        }
        Outcome::Passed => {}
        Outcome::Failed { error, stack } => {
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
        let first = shelf.place("a", 2);
        shelf.place("b", 2);
        assert!(Arc::ptr_eq(&first, &shelf.place("a", 2)), "it is kept");
        shelf.place("c", 2);
        let mut kept: Vec<&str> = shelf.places.keys().map(String::as_str).collect();
        kept.sort_unstable();
        assert_eq!(kept, ["a", "c"]);
    }
}
