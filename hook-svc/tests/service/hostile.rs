//! Many hooks, three of them hostile: every other one's result is there once, and the three are paused everywhere.
//!
//! `NEXUS_HOOKS=long` runs the long form: 1,000 hooks and 20,000 events, figures on standard error.

use std::time::Duration;

use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::hook::{HookMetadata, HookMode, HookOrigin, HookRecord, HookStatus};
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::time::UnixMillis;
use shared::wire::subject::token;
use shared::wire::topology::buckets;

use crate::world::{World, event, eventually};

/// Every so many events one is for the hostile hooks.
const HOSTILE_EVERY: u32 = 50;

const LOOPS: &str = "/** @match content=*hostile* */\nexport default () => { for (;;) {} };\n";
const GREEDY: &str = "/** @match content=*hostile* */\nexport default () => { const held = []; for (let i = 0; i < 2048; i++) held.push(new Uint8Array(1 << 20).fill(1)); throw new Error(`held ${held.length}`); };\n";
const FORGES: &str = "import fs from 'node:fs';\nexport default () => { fs.writeSync(1, Buffer.from([255, 255, 255, 255])); for (;;) {} };\n";

/// Fires on its own share of the events.
fn good(number: u32, hooks: u32) -> String {
    format!(
        "export default ({{ event }}) => ({{ fire: Number(event.source_id.split('/')[1]) % {hooks} === {number}, routing: {{ session: 's{number}' }} }});\n"
    )
}

/// A hook of an agent, as a tool call stores it.
fn of_mallory() -> HookRecord {
    HookRecord {
        id: "forges".to_owned(),
        source: FORGES.to_owned(),
        content_hash: "1".to_owned(),
        metadata: HookMetadata {
            name: "forges".to_owned(),
            description: None,
            mode: HookMode::Persistent,
            priority: 50,
            timeout_ms: 10_000,
            schedules: Vec::new(),
            timezone: None,
            fallback: false,
            match_rule: Some("content=*hostile*".to_owned()),
            other_tags: Vec::new(),
        },
        enabled: true,
        origin: HookOrigin::Tool,
        created_by: "mallory".to_owned(),
        created_at: UnixMillis(1),
        updated_at: UnixMillis(1),
        disabled_reason: None,
        parse_error: None,
    }
}

fn is_long() -> bool {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test binary is asked for its long form by a variable"
    )]
    std::env::var("NEXUS_HOOKS").is_ok_and(|form| form == "long")
}

fn check(record: &EventInvocations, hooks: u32) {
    let number: u32 = record
        .event_id
        .as_str()
        .rsplit('/')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    let fired: Vec<&str> = record
        .hooks
        .iter()
        .filter(|hook| matches!(hook.outcome, HookOutcome::Fired { .. }))
        .map(|hook| hook.hook_id.as_str())
        .collect();
    assert_eq!(fired, [format!("good/{}", number % hooks)], "{record:?}");
    assert_eq!(record.passed, hooks - 1, "{record:?}");
    let hostile = record.hooks.len() - 1;
    assert_eq!(
        hostile,
        if number.is_multiple_of(HOSTILE_EVERY) { 3 } else { 0 },
        "{record:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_hooks_cost_nobody_else_a_result() {
    let (hooks, events) = if is_long() { (1_000, 20_000) } else { (100, 500) };
    let mut files: Vec<(String, String)> = (0..hooks).map(|n| (format!("good/{n}.ts"), good(n, hooks))).collect();
    files.push(("loops.ts".to_owned(), LOOPS.to_owned()));
    files.push(("greedy.ts".to_owned(), GREEDY.to_owned()));
    let named: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    let mut world = World::new(&named).await;
    let kv = world.bus.kv::<HookRecord>(buckets::HOOKS);
    kv.create(&token("forges"), &of_mallory()).await.expect("stored");
    for name in ["a", "b"] {
        world.start(name);
    }
    world.wait_for_members(2).await;
    let begun = SystemClock.monotonic();
    for number in 0..events {
        let content = if number % HOSTILE_EVERY == 0 {
            "hostile"
        } else {
            "hello"
        };
        world
            .publish(&event(&format!("v{}", number % 97), number, content))
            .await;
    }
    let patience = Duration::from_secs(if is_long() { 1_200 } else { 90 });
    while world
        .bus
        .stream_state("INVOCATIONS")
        .await
        .map_or(0, |state| state.messages)
        < u64::from(events)
    {
        assert!(
            SystemClock.monotonic().duration_since(begun) < patience,
            "not within {patience:?}"
        );
        pause(Duration::from_millis(100)).await;
    }
    let took = SystemClock.monotonic().duration_since(begun);
    for hostile in ["loops", "greedy", "forges"] {
        eventually(&format!("{hostile} is paused"), async || {
            world
                .hook_state(hostile)
                .await
                .is_some_and(|state| state.status == HookStatus::Paused)
        })
        .await;
    }
    let records = world.invocations().await;
    assert_eq!(records.len(), events as usize);
    for record in &records {
        check(record, hooks);
    }
    assert_eq!(world.dispatches().await.len(), events as usize);
    eprintln!("{hooks} hooks, {events} events, every {HOSTILE_EVERY}th hostile: {took:?}");
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
    eventually("its process is gone", async || workers_of(pid).is_empty()).await;
}
