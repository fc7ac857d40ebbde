//! A pool for every owner: hooks of two authors never share a process.
//!
//! A process has no integrity between its hooks — one can forge another's answer, or read its variables — so whoever
//! wrote a hook is the bound of what it can spoil. Operators' own hooks are one domain, with a worker for every core.
//! Each other author has one worker, started with the first event that one of their hooks sees and ended after a
//! minute without any. An event goes only to the domains some hook of which sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shared::clock::SharedClock;
use tokio::sync::mpsc;

use super::parts::{Joined, Steps};
use super::sources::Loaded;
use super::{
    Counters, Done, Evaluation, HookSet, HookSource, Job, LoadHooksError, Pool, PoolConfig, StartPoolError, Step,
};

/// The author of files in the hooks directory and of what operators push.
const OPERATOR: &str = "operator";

/// Most authors beside the operators; the hooks of further ones are not run.
const MAX_AUTHORS: usize = 64;

/// All pools; cheap to clone.
#[derive(Debug, Clone)]
pub struct Pools {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: PoolConfig,
    clock: SharedClock,
    /// The operators'.
    own: Pool,
    /// Of the others, by author. One whose hooks are gone stays, without a process: what it has under way comes to
    /// its end.
    others: Mutex<BTreeMap<String, Pool>>,
    in_force: Mutex<InForce>,
    // One switch of sets at a time.
    switching: tokio::sync::Mutex<()>,
}

/// The hooks in force at one instant, by owner.
#[derive(Debug, Clone)]
pub struct InForce {
    set: Arc<HookSet>,
    parts: Arc<[Part]>,
}

/// One owner's hooks.
#[derive(Debug)]
struct Part {
    author: String,
    pool: Pool,
    loaded: Arc<Loaded>,
    /// By index in the part: index in the whole, ascending.
    to_whole: Arc<[u32]>,
}

impl InForce {
    /// All hooks.
    #[must_use]
    pub const fn set(&self) -> &Arc<HookSet> {
        &self.set
    }
}

impl Pools {
    /// Starts the operators' pool; those of others come with their hooks.
    ///
    /// # Errors
    /// [`StartPoolError`]: no fitting Bun, no sandbox, or nowhere to put files.
    pub async fn start(config: PoolConfig, clock: SharedClock) -> Result<Self, StartPoolError> {
        let own = Pool::start(config.clone(), Arc::clone(&clock)).await?;
        let in_force = InForce {
            set: Arc::default(),
            parts: Arc::from([]),
        };
        let inner = Inner {
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

    /// The hooks in force now.
    #[must_use]
    pub fn current(&self) -> InForce {
        self.in_force().clone()
    }

    /// As `Pool::load`, for every owner's pool.
    ///
    /// # Errors
    /// [`LoadHooksError`]; the former set stays in force.
    pub async fn load(&self, set: Arc<HookSet>) -> Result<(), LoadHooksError> {
        let _one = self.inner.switching.lock().await;
        let former = self.current();
        let mut parts = Vec::new();
        for (author, indices) in by_author(&set) {
            let hooks: Vec<Arc<HookSource>> = indices
                .iter()
                .map(|&at| Arc::clone(&set.hooks()[at as usize]))
                .collect();
            let known = former.parts.iter().find(|part| part.author == author);
            let Some(pool) = self.pool_of(&author).await? else {
                tracing::error!(author, "hooks are not run: there are too many authors");
                continue;
            };
            let unchanged = known.filter(|part| part.loaded.set().hooks() == hooks.as_slice());
            let loaded = match unchanged {
                Some(part) => Arc::clone(&part.loaded),
                None => {
                    let whole = indices.len() == set.hooks().len();
                    let part = if whole {
                        Arc::clone(&set)
                    } else {
                        Arc::new(HookSet::of(hooks))
                    };
                    pool.load(part).await?
                }
            };
            parts.push(Part {
                author,
                pool,
                loaded,
                to_whole: indices.into(),
            });
        }
        *self.in_force() = InForce {
            set,
            parts: parts.into(),
        };
        Ok(())
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<String, Pool>> {
        self.inner.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool of `author`; none where there are too many.
    async fn pool_of(&self, author: &str) -> Result<Option<Pool>, LoadHooksError> {
        if author == OPERATOR {
            return Ok(Some(self.inner.own.clone()));
        }
        if let Some(known) = self.others().get(author) {
            return Ok(Some(known.clone()));
        }
        if self.others().len() >= MAX_AUTHORS {
            return Ok(None);
        }
        let config = PoolConfig {
            workers: 1,
            lazy: true,
            ..self.inner.config.clone()
        };
        let started = Pool::start(config, Arc::clone(&self.inner.clock)).await;
        let pool = started.map_err(|error| LoadHooksError::StartPool(Box::new(error)))?;
        self.others().insert(author.to_owned(), pool.clone());
        Ok(Some(pool))
    }

    /// Hands one event over, to be evaluated against `in_force`.
    pub async fn evaluate(&self, in_force: InForce, job: Job) -> Evaluation {
        let InForce { set, parts } = in_force;
        let wanted: Vec<(&Part, Option<Vec<u32>>)> = parts
            .iter()
            .map(|part| (part, job.only.as_deref().map(|only| within(&part.to_whole, only))))
            .filter(|(_, only)| only.as_ref().is_none_or(|only| !only.is_empty()))
            .collect();
        let verdicts = job.only.as_ref().map_or(set.hooks().len(), Vec::len);
        let (sender, steps) = mpsc::channel(verdicts + 2 * wanted.len().max(1));
        if wanted.is_empty() {
            let _ = sender.try_send((0, Step::Done(Done::default())));
            return Evaluation::of(set, steps, None);
        }
        let joined = (wanted.len() > 1).then(|| Joined::of(wanted.len()));
        for (number, (part, only)) in wanted.into_iter().enumerate() {
            let is_whole = part.to_whole.len() == set.hooks().len();
            let to = if is_whole {
                Steps::only(sender.clone())
            } else {
                Steps::of(sender.clone(), number, Arc::clone(&part.to_whole), set.hooks().len())
            };
            let job = Job { only, ..job.clone() };
            part.pool.hand_over(Arc::clone(&part.loaded), job, to).await;
        }
        Evaluation::of(set, steps, joined)
    }

    /// Whether a hook of the set in force reads the read model.
    #[must_use]
    pub fn reads_model(&self) -> bool {
        self.in_force().set.reads_model()
    }

    /// Tells the workers a hook's counters; events handed over afterwards see them.
    pub fn count(&self, hook_id: &str, counters: Counters) {
        for part in self.current().parts.iter() {
            part.pool.count(hook_id, counters);
        }
    }

    /// Worker processes of the operators' pool that are up.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.inner.own.ready()
    }

    /// What the workers' sandbox lacks; empty where they are confined whole.
    #[must_use]
    pub fn lacks(&self) -> &[String] {
        self.inner.own.lacks()
    }

    /// Ends all workers; evaluations under way end without [`Step::Done`].
    pub async fn stop(&self) {
        let others = std::mem::take(&mut *self.others());
        for pool in others.values() {
            pool.stop().await;
        }
        self.inner.own.stop().await;
    }
}

/// The hooks of `set` by their author, as indices.
fn by_author(set: &HookSet) -> BTreeMap<String, Vec<u32>> {
    let mut authors: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (index, hook) in (0_u32..).zip(set.hooks()) {
        authors.entry(hook.created_by.clone()).or_default().push(index);
    }
    authors
}

/// Where those of `only` stand in `to_whole`; both ascend.
fn within(to_whole: &[u32], only: &[u32]) -> Vec<u32> {
    let found = only.iter().filter_map(|index| to_whole.binary_search(index).ok());
    found.filter_map(|at| u32::try_from(at).ok()).collect()
}
