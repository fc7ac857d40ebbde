//! Many hooks, three of them hostile: every other one's result is there once, and the three are paused everywhere.
//!
//! `NEXUS_HOOKS=long` runs the long form: 1,000 hooks and 20,000 events, of which 1 % are for the three, without and with
//! them; figures on standard error.

use std::time::Duration;

use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::hook::{HookMetadata, HookMode, HookOrigin, HookRecord, HookStatus};
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::time::UnixMillis;
use shared::testing::{eventually, says};
use shared::wire::subject::token;
use shared::wire::topology::buckets;

use crate::world::{World, event};

/// How long a replica may take to see that a hook is paused, in milliseconds.
const SEEN_WITHIN_MS: i64 = 1_000;

/// A paused hook is tried once again after five minutes, a little less.
const TRIED_AGAIN_MS: i64 = 290_000;

/// Errors in a row that pause a hook.
const PAUSED_BY: usize = 5;

/// How much is tried.
#[derive(Clone, Copy)]
struct Size {
    hooks: u32,
    events: u32,
    /// Every so many events one is for the hostile hooks.
    hostile_every: u32,
    /// Milliseconds from one event to the next.
    pace_ms: u64,
    patience: Duration,
}

const SHORT: Size = Size {
    hooks: 100,
    events: 500,
    hostile_every: 50,
    pace_ms: 0,
    patience: Duration::from_secs(240),
};

const LONG: Size = Size {
    hooks: 1_000,
    events: 20_000,
    hostile_every: 100,
    pace_ms: 20,
    patience: Duration::from_secs(1_200),
};

const LOOPS: &str = "/** @match content=*hostile* */\nexport default () => { for (;;) {} };\n";
const GREEDY: &str = "/** @match content=*hostile* */\nexport default () => { const held = []; for (let i = 0; i < 2048; i++) held.push(new Uint8Array(1 << 20).fill(1)); throw new Error(`held ${held.length}`); };\n";
/// Answers for the neighbour at index 0, then writes what is no answer.
const FORGES: &str = "import fs from 'node:fs';
export default () => {
  for (const said of [{ r: [[0, 0, [1], [[0, 1, '{\"fire\":true}']], [], [9999], []]] }, 'x'.repeat(100)]) {
    const body = Buffer.from(JSON.stringify(said));
    const frame = Buffer.alloc(4 + body.length);
    frame.writeUInt32LE(body.length, 0);
    frame.set(body, 4);
    fs.writeSync(1, frame);
  }
  for (;;) {}
};
";

/// Fires on its own share of the events.
fn good(number: u32, hooks: u32) -> String {
    format!(
        "export default ({{ event }}) => ({{ fire: Number(event.source_id.split('/')[1]) % {hooks} === {number}, routing: {{ session: 's{number}' }} }});\n"
    )
}

/// A hook of the agent `author`, as a tool call stores it.
pub(crate) fn of_author(author: &str, id: &str, source: &str) -> HookRecord {
    HookRecord {
        id: id.to_owned(),
        source: source.to_owned(),
        content_hash: id.to_owned(),
        metadata: HookMetadata {
            name: id.to_owned(),
            description: None,
            mode: HookMode::Persistent,
            priority: 50,
            timeout_ms: 1_000,
            schedules: Vec::new(),
            timezone: None,
            fallback: false,
            match_rule: None,
            allow_net: Vec::new(),
            needs_channels: Vec::new(),
            other_tags: Vec::new(),
        },
        enabled: true,
        origin: HookOrigin::Tool,
        created_by: author.to_owned(),
        made_in: None,
        created_at: UnixMillis(1),
        updated_at: UnixMillis(1),
        disabled_reason: None,
        parse_error: None,
    }
}

fn of_mallory() -> HookRecord {
    let mut forges = of_author("mallory", "forges", FORGES);
    forges.metadata.timeout_ms = 10_000;
    forges.metadata.match_rule = Some("content=*hostile*".to_owned());
    forges
}

fn number(record: &EventInvocations) -> u32 {
    let last = record.event_id.as_str().rsplit('/').next();
    last.and_then(|n| n.parse().ok()).expect("a number")
}

fn check(record: &EventInvocations, size: Size, has_hostile: bool) {
    let number = number(record);
    let fired: Vec<&str> = record
        .hooks
        .iter()
        .filter(|hook| matches!(hook.outcome, HookOutcome::Fired { .. }))
        .map(|hook| hook.hook_id.as_str())
        .collect();

    assert_eq!(fired, [format!("good/{}", number % size.hooks)], "{record:?}");
    assert_eq!(record.passed, size.hooks - 1, "{record:?}");

    let is_hostile = has_hostile && number.is_multiple_of(size.hostile_every);
    assert_eq!(record.hooks.len() - 1, if is_hostile { 3 } else { 0 }, "{record:?}");
}

/// What one run came to.
struct Ran {
    records: Vec<EventInvocations>,
    /// From publishing to the end of the evaluation, of events that are not for the hostile hooks, ascending.
    latencies_ms: Vec<i64>,
    took: Duration,
}

impl Ran {
    fn percentile(&self, per_cent: usize) -> i64 {
        self.latencies_ms[(self.latencies_ms.len() - 1) * per_cent / 100]
    }
}

/// Good hooks, and hostile ones, upon many events at two replicas.
async fn run(size: Size, has_hostile: bool) -> Ran {
    let Size { hooks, events, .. } = size;
    let mut files: Vec<(String, String)> = (0..hooks).map(|n| (format!("good/{n}.ts"), good(n, hooks))).collect();
    if has_hostile {
        files.push(("loops.ts".to_owned(), LOOPS.to_owned()));
        files.push(("greedy.ts".to_owned(), GREEDY.to_owned()));
    }

    let named: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    let mut world = World::new(&named).await;
    if has_hostile {
        let kv = world.bus.kv::<HookRecord>(buckets::HOOKS);
        kv.create(&token("forges"), &of_mallory()).await.expect("stored");
    }

    for name in ["a", "b"] {
        world.start(name);
    }

    world.wait_for_members(2).await;
    let begun = SystemClock.monotonic();
    let since = || SystemClock.monotonic().duration_since(begun);

    let mut published = Vec::new();
    for number in 0..events {
        let is_hostile = number.is_multiple_of(size.hostile_every);
        let content = if is_hostile { "hostile" } else { "hello" };
        let due = Duration::from_millis(u64::from(number) * size.pace_ms);
        pause(due.saturating_sub(since())).await;
        published.push(SystemClock.now());
        world
            .publish(&event(&format!("v{}", number % 97), number, content))
            .await;
    }

    let stored = async || {
        world
            .bus
            .stream_state("INVOCATIONS")
            .await
            .map_or(0, |state| state.messages)
    };

    while stored().await < u64::from(events) {
        assert!(since() < size.patience, "not within {:?}", size.patience);
        pause(Duration::from_millis(100)).await;
    }

    let took = since();

    for hostile in ["loops", "greedy", "forges"].iter().filter(|_| has_hostile) {
        eventually(&format!("{hostile} is paused"), async || {
            let state = world.hook_state(hostile).await;
            state.is_some_and(|state| state.status == HookStatus::Paused)
        })
        .await;
    }

    let records = world.invocations().await;
    assert_eq!(records.len(), events as usize);

    for record in &records {
        check(record, size, has_hostile);
    }

    assert_eq!(world.dispatches().await.len(), events as usize);

    let others = records
        .iter()
        .filter(|record| !number(record).is_multiple_of(size.hostile_every));
    let took_ms = |record: &EventInvocations| record.finished_at.0 - published[number(record) as usize].0;
    let mut latencies_ms: Vec<i64> = others.map(took_ms).collect();
    latencies_ms.sort_unstable();

    Ran {
        records,
        latencies_ms,
        took,
    }
}

/// Every replica skips `hook` a second after the error that pauses it; answers how many were called after that error.
fn is_paused_everywhere(records: &[EventInvocations], hook: &str) -> usize {
    let of = |record: &EventInvocations| {
        let found = record.hooks.iter().find(|known| known.hook_id == hook)?;
        Some((
            record.started_at.0,
            record.finished_at.0,
            record.evaluated_by.clone(),
            found.outcome.clone(),
        ))
    };

    let told: Vec<_> = records.iter().filter_map(of).collect();
    let mut failed: Vec<(i64, i64)> = told
        .iter()
        .filter(|(.., outcome)| matches!(outcome, HookOutcome::Failed { .. }))
        .map(|(started, finished, ..)| (*finished, *started))
        .collect();

    failed.sort_unstable();
    let opened = failed[PAUSED_BY - 1].0;
    let window = opened + SEEN_WITHIN_MS..opened + TRIED_AGAIN_MS;
    let late: Vec<_> = failed.iter().filter(|(_, started)| window.contains(started)).collect();

    assert!(late.is_empty(), "{hook} opened at {opened}: {late:?}");

    let skipped = told
        .iter()
        .filter(|(.., outcome)| matches!(outcome, HookOutcome::Skipped { .. }));
    let by: std::collections::BTreeSet<&str> = skipped.map(|(_, _, by, _)| by.as_str()).collect();
    assert_eq!(by.len(), 2, "{hook} is skipped by {by:?}");

    failed.len() - PAUSED_BY
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_hooks_cost_nobody_else_a_result() {
    if !says("NEXUS_HOOKS", "long") {
        run(SHORT, true).await;
        return;
    }

    let without = run(LONG, false).await;
    let with = run(LONG, true).await;
    for (what, ran) in [("without", &without), ("with", &with)] {
        let [p50, p95, p99] = [50, 95, 99].map(|per_cent| ran.percentile(per_cent));
        eprintln!(
            "{what} hostile hooks: p50 {p50} ms, p95 {p95} ms, p99 {p99} ms, {:?} in all",
            ran.took
        );
    }

    for hook in ["loops", "greedy", "forges"] {
        let further = is_paused_everywhere(&with.records, hook);
        eprintln!("{hook}: called {further} times more after its fifth error");
    }

    assert!(with.percentile(99) <= 2 * without.percentile(99).max(1));
}

/// The processes whose command line names a folder of the process `pid`, and how long each has computed, in ticks.
fn workers_of(pid: u32) -> Vec<u64> {
    let folder = format!("nexus-hooks-{pid}-");
    let ticks = |process: std::path::PathBuf| {
        let line = std::fs::read(process.join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(&folder).then_some(())?;
        let stat = std::fs::read_to_string(process.join("stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        fields.split_whitespace().nth(11)?.parse().ok()
    };

    let processes = std::fs::read_dir("/proc").expect("Linux").filter_map(Result::ok);
    processes.filter_map(|process| ticks(process.path())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_loops_does_not_outlive_a_killed_service() {
    let mut world = World::new(&[("loops.ts", "for (;;) {} export default () => ({ fire: false });\n")]).await;
    // Nobody else ends it.
    world.sections = "hard_budget_ms = 600000\n".to_owned();
    world.start("a");
    let pid = world.replica("a").pid();
    eventually("the hook loops", async || {
        workers_of(pid).iter().any(|ticks| *ticks > 200)
    })
    .await;

    world.replica("a").kill();
    // Without the launcher, the next process ends it.
    if std::env::var("NEXUS_TEST_LACKS").is_ok_and(|lacks| lacks == "nexus-jail") {
        world.start("a");
    }
    eventually("its process is gone", async || workers_of(pid).is_empty()).await;
}
