//! What a hook's queries of the read model cost an event: `cargo run --release -p hook-svc --example model_queries`.
//!
//! One hook that makes 0, 1, 10 or 100 queries upon each of 2,000 events: one event at a time, 500 a second, and as fast as
//! eight at once are answered. Alone, and beside nine hooks that pass.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use hook_svc::runner::{
    EvaluationJob, EvaluationStep, HeldSlots, HookScope, HookSet, HookSource, NoHost, OwnFile, PoolConfig, RunOutcome,
    SandboxMode, WorkerPools,
};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::event::{Event, EventId};
use shared::model::time::UnixMillis;
use shared::projection::Projection;

const EVENTS: usize = 2_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("read-model.sqlite");
    let projection = Projection::open(&path).expect("a read model");

    println!("queries an event | p50 alone | p99 alone | p99 at 500/s | events/s, eight at once");

    for queries in [0, 1, 10, 100] {
        let pool = start(path.to_string_lossy().into(), queries).await;
        let _warm = run(&pool, 1, None, 300).await;
        let (_, alone) = run(&pool, 1, None, EVENTS).await;
        let (_, paced) = run(&pool, 64, Some(500), EVENTS).await;
        let (took, _) = run(&pool, 8, None, EVENTS).await;

        println!(
            "{queries} | {:?} | {:?} | {:?} | {:.0}",
            alone[EVENTS / 2],
            alone[EVENTS / 100 * 99],
            paced[EVENTS / 100 * 99],
            EVENTS as f64 / took.as_secs_f64()
        );

        pool.stop().await;
    }

    drop(projection);
}

async fn start(db_path: String, queries: usize) -> WorkerPools {
    let asks = format!(
        "import Database from 'better-sqlite3';
         let n = 0, db, one;
         export default ({{ event, dbPath }}) => {{
           if ({queries} > 0 && !one) {{ db = new Database(dbPath, {{ readonly: true }}); one = db.prepare('SELECT ? AS asked, count(*) AS found FROM events WHERE id = ?'); }}
           for (let i = 0; i < {queries}; i++) {{ const id = 'x:' + n++; if (one.get(id, id).asked !== id) throw new Error('no row'); }}
           return {{ fire: false }};
         }};"
    );

    let passes = (0..9).map(|n| {
        (
            format!("passes{n}"),
            "export default () => ({ fire: false });".to_owned(),
        )
    });

    let hooks = std::iter::once(("asks".to_owned(), asks))
        .chain(passes)
        .map(|(id, source)| HookSource {
            content_hash: format!("{id}{queries}"),
            name: id.clone(),
            id,
            source,
            timeout_ms: 5_000,
            created_at: UnixMillis(0),
            created_by: "operator".to_owned(),
            sees: HookScope::Everything,
            net: Vec::new(),
        });

    let config = PoolConfig {
        bun: None,
        workers: 1,
        hard_budget_ms: 250,
        db_path: db_path.into(),
        model: Arc::new(OwnFile),
        sandbox: SandboxMode::Degraded,
        user: String::new(),
        lazy: false,
        dir: None,
        host: Arc::new(NoHost),
    };

    let pool = WorkerPools::start(config, Arc::new(SystemClock)).await.expect("bun");
    pool.load(Arc::new(HookSet::new(hooks))).await.expect("loads");

    pool
}

/// Has `events` evaluated, up to `at_once` together, `pace` a second if there is one: how long all took, and each, sorted.
async fn run(pool: &WorkerPools, at_once: usize, pace: Option<u32>, events: usize) -> (Duration, Vec<Duration>) {
    let began = SystemClock.monotonic();
    let each = futures_util::stream::iter(0..events).map(|number| async move {
        let due = pace.map_or(began, |pace| {
            began + Duration::from_secs(1) / pace * u32::try_from(number).expect("few")
        });
        pause(due.saturating_duration_since(SystemClock.monotonic())).await;
        let from = if pace.is_some() { due } else { SystemClock.monotonic() };
        evaluate(pool, number).await;

        SystemClock.monotonic() - from
    });

    let mut took: Vec<Duration> = each.buffered(at_once).collect().await;
    let whole = SystemClock.monotonic() - began;
    took.sort();

    (whole, took)
}

async fn evaluate(pool: &WorkerPools, number: usize) {
    let event = Event::new(
        EventId::parse(format!("x:{number}")).expect("valid"),
        "x",
        "peer",
        UnixMillis(1),
    );

    let in_force = pool.current_hooks();
    let job = EvaluationJob {
        event_json: Bytes::from(serde_json::to_vec(&event).expect("json")),
        event_id: event.id,
        sequence: 0,
        now: UnixMillis(1),
        only: None,
    };

    let mut evaluation = pool.evaluate_event(&in_force, &job, &HeldSlots::default());
    while let Some(step) = evaluation.next().await {
        if let EvaluationStep::Verdict(verdict) = step
            && let RunOutcome::Failed { error, .. } = &verdict.outcome
        {
            panic!("{error}");
        }
    }
}
