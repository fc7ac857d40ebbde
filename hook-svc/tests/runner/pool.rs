//! A pool on real Bun, and answers that can be asked by hook.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hook_svc::runner::{
    CallUsage, EvaluationEnd, EvaluationJob, EvaluationStep, HeldSlots, HookSet, HookSource, NoHost, OwnFile,
    PoolConfig, RunOutcome, SandboxMode, ScriptHost, WorkerPools,
};
use serde_json::{Value, json};
use shared::clock::SystemClock;
use shared::model::event::Event;
use shared::model::hook::HookResult;
use shared::model::time::UnixMillis;
use shared::testing::says;

/// The evaluation time of every event here.
pub(crate) const NOW: i64 = 1_769_000_000_123;
/// What scripts read as `ctx.dbPath`.
pub(crate) const DB_PATH: &str = "/nowhere/read-model.db";
/// No event takes longer, however busy the machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A pool that is stopped at the end of its test.
pub(crate) struct TestPool {
    pub(crate) pool: WorkerPools,
}

/// What was answered to one event.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    outcomes: BTreeMap<String, RunOutcome>,
    /// Hooks with a verdict, in order.
    pub(crate) order: Vec<String>,
    /// Hooks that were waiting after the first answer.
    pub(crate) waiting: Vec<u32>,
    pub(crate) done: EvaluationEnd,
    /// What each hook with a verdict has used.
    pub(crate) spent: BTreeMap<String, CallUsage>,
}

impl Answer {
    pub(crate) fn fired(&self, hook: &str) -> HookResult {
        match self.outcomes.get(hook) {
            Some(RunOutcome::Fired(result)) => (**result).clone(),
            other => panic!("{hook}: {other:?}"),
        }
    }

    pub(crate) fn error(&self, hook: &str) -> &str {
        match self.outcomes.get(hook) {
            Some(RunOutcome::Failed { error, .. }) => error,
            other => panic!("{hook}: {other:?}"),
        }
    }

    /// What is wrong with `hook`, where it failed.
    pub(crate) fn failed(&self, hook: &str) -> Option<&str> {
        if let Some(RunOutcome::Failed { error, .. }) = self.outcomes.get(hook) {
            Some(error)
        } else {
            None
        }
    }

    pub(crate) fn stack(&self, hook: &str) -> &str {
        match self.outcomes.get(hook) {
            Some(RunOutcome::Failed { stack: Some(stack), .. }) => stack,
            other => panic!("{hook}: {other:?}"),
        }
    }

    pub(crate) fn passes(&self, hook: &str) -> bool {
        self.outcomes.get(hook) == Some(&RunOutcome::Passed)
    }

    pub(crate) fn disables(&self, hook: &str) -> bool {
        self.outcomes.get(hook) == Some(&RunOutcome::DisableSelf)
    }
}

impl TestPool {
    pub(crate) async fn start(hooks: &[(&str, &str)]) -> Self {
        Self::start_with(sources(hooks), 2).await
    }

    pub(crate) async fn start_with(hooks: Vec<HookSource>, workers: usize) -> Self {
        Self::start_on(hooks, workers, Arc::new(NoHost)).await
    }

    /// With the workers' files below `dir`.
    pub(crate) async fn start_in(hooks: Vec<HookSource>, dir: &std::path::Path) -> Self {
        let dir = Some(dir.to_owned());
        Self::begin(hooks, 1, Arc::new(NoHost), dir).await
    }

    pub(crate) async fn start_on(hooks: Vec<HookSource>, workers: usize, host: Arc<dyn ScriptHost>) -> Self {
        Self::begin(hooks, workers, host, None).await
    }

    async fn begin(hooks: Vec<HookSource>, workers: usize, host: Arc<dyn ScriptHost>, dir: Option<PathBuf>) -> Self {
        let config = PoolConfig {
            workers,
            dir,
            host,
            ..Self::config()
        };
        Self::start_of(config, hooks).await
    }

    pub(crate) async fn start_of(config: PoolConfig, hooks: Vec<HookSource>) -> Self {
        let pool = WorkerPools::start(config, Arc::new(SystemClock))
            .await
            .expect("bun >= 1.4 in .tools/bin");
        pool.load(Arc::new(HookSet::new(hooks))).await.expect("loads");
        Self { pool }
    }

    /// One worker, as root's hooks are run where nothing is configured.
    pub(crate) fn config() -> PoolConfig {
        PoolConfig {
            bun: None,
            workers: 1,
            author_processes: 128,
            hard_budget_ms: 250,
            db_path: DB_PATH.into(),
            model: Arc::new(OwnFile),
            sandbox: SandboxMode::Degraded,
            user: String::new(),
            lazy: false,
            dir: None,
            host: Arc::new(NoHost),
        }
    }

    /// Returns whether hooks are confined whole on this machine. If not, which `NEXUS_SANDBOX=absent` has to say, `enforce` must
    /// run none, and say why.
    pub(crate) async fn is_confined_whole() -> bool {
        let config = PoolConfig {
            sandbox: SandboxMode::Enforce,
            ..Self::config()
        };
        let started = Self::try_config(config).await;
        if !says("NEXUS_SANDBOX", "absent") {
            started.expect("NEXUS_SANDBOX=absent leaves this out").stop().await;
            return true;
        }

        let refused = started.expect_err("NEXUS_SANDBOX=absent is said of a machine that confines hooks whole");
        assert!(
            refused.contains("hooks cannot be confined on this machine"),
            "{refused}"
        );
        println!("SKIPPED: {refused}");
        false
    }

    pub(crate) async fn try_start(bun: Option<PathBuf>) -> Result<WorkerPools, String> {
        let config = PoolConfig { bun, ..Self::config() };
        Self::try_config(config).await
    }

    pub(crate) async fn try_config(config: PoolConfig) -> Result<WorkerPools, String> {
        WorkerPools::start(config, Arc::new(SystemClock))
            .await
            .map_err(|error| {
                format!(
                    "{error}: {}",
                    std::error::Error::source(&error)
                        .map(ToString::to_string)
                        .unwrap_or_default()
                )
            })
    }

    pub(crate) async fn load(&self, hooks: &[(&str, &str)]) {
        self.pool
            .load(Arc::new(HookSet::new(sources(hooks))))
            .await
            .expect("loads");
    }

    pub(crate) async fn evaluate(&self, event: Value) -> Answer {
        self.evaluate_skipping(event, &[]).await
    }

    /// What the pool says of an event whose hooks `later` wait for `ready`.
    pub(crate) async fn begin_in_two(
        &self,
        event: Value,
        later: &[&str],
        ready: impl Future<Output = bool> + Send + 'static,
    ) -> hook_svc::runner::Evaluation {
        let in_force = self.pool.current_hooks();
        let later: Vec<u32> = later.iter().filter_map(|id| in_force.set().index(id)).collect();
        let job = job(event, None);
        self.pool
            .evaluate_in_two(&in_force, &job, (&later, ready), &HeldSlots::default())
    }

    /// Everything about one event; fails where anything follows `Done` or a hook has two verdicts.
    pub(crate) async fn evaluate_skipping(&self, event: Value, skip: &[&str]) -> Answer {
        let in_force = self.pool.current_hooks();
        let hooks = in_force.set().hooks();
        let called = (0_u32..)
            .zip(hooks)
            .filter(|(_, hook)| !skip.contains(&hook.id.as_str()));
        let only = (!skip.is_empty()).then(|| called.map(|(index, _)| index).collect());
        let mut evaluation = self
            .pool
            .evaluate_event(&in_force, &job(event, only), &HeldSlots::default());

        let mut answer = Answer::default();
        let mut is_done = false;
        while let Some(step) = tokio::time::timeout(DEADLINE, evaluation.next())
            .await
            .expect("an answer in time")
        {
            assert!(!is_done, "{step:?} after Done");

            match step {
                EvaluationStep::Verdict(verdict) => {
                    answer.order.push(verdict.hook.id.clone());
                    answer.spent.insert(verdict.hook.id.clone(), verdict.spent);
                    let former = answer.outcomes.insert(verdict.hook.id.clone(), verdict.outcome);
                    assert_eq!(former, None, "two verdicts of {}", verdict.hook.id);
                }
                EvaluationStep::Waiting(hooks) => answer.waiting = hooks,
                EvaluationStep::Done(done) => {
                    answer.done = done;
                    is_done = true;
                }
            }
        }

        assert!(is_done, "the pool stopped");
        answer
    }

    pub(crate) async fn stop(self) {
        self.pool.stop().await;
        assert_eq!(self.pool.ready_workers(), 0);
    }
}

/// A job for an event given by its wire JSON.
pub(crate) fn job(event: Value, only: Option<Vec<u32>>) -> EvaluationJob {
    let event: Event = serde_json::from_value(event).expect("an event");
    EvaluationJob {
        event_json: serde_json::to_vec(&event).expect("serialises").into(),
        event_id: event.id,
        sequence: 0,
        now: UnixMillis(NOW),
        only,
    }
}

/// A received text in a direct conversation; the channel is the id's adapter.
pub(crate) fn dm(id: &str, content: &str) -> Value {
    let (adapter, source) = id.split_once(':').expect("adapter:source");
    json!({
        "id": id, "timestamp": 1, "channel": adapter, "source_adapter": adapter, "source_id": source,
        "from": {"id": "ann"}, "peer": {"kind": "dm", "id": "ann"}, "content": content, "content_types": ["text"],
    })
}

pub(crate) fn timed(id: &str, timeout_ms: u64, source: &str) -> HookSource {
    HookSource {
        id: id.to_owned(),
        name: id.to_owned(),
        source: source.to_owned(),
        content_hash: format!("{:x}", source.len()) + source,
        timeout_ms,
        created_at: UnixMillis(7),
        created_by: "operator".to_owned(),
        sees: hook_svc::runner::HookScope::Everything,
        net: Vec::new(),
    }
}

fn sources(hooks: &[(&str, &str)]) -> Vec<HookSource> {
    hooks.iter().map(|(id, source)| timed(id, 30_000, source)).collect()
}
