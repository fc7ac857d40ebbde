//! Switching sets while events are in flight: none is lost, none is evaluated twice, none meets half a set.

use std::collections::BTreeMap;
use std::time::Duration;

use shared::clock::{Clock as _, SystemClock};
use shared::testing::eventually;

use crate::pool::{TestPool, dm, timed};

fn version(number: u32, waits: bool) -> String {
    let wait = if waits {
        "await new Promise((r) => setTimeout(r, 3));"
    } else {
        ""
    };
    format!(
        "export default async () => {{ {wait} return {{ fire: true, context: {{ extracted: {{ version: {number} }} }} }}; }};"
    )
}

fn versions(answer: &crate::pool::Answer) -> BTreeMap<&'static str, serde_json::Value> {
    let of = |hook| answer.fired(hook).context.and_then(|c| c.extracted).expect("extracted")["version"].clone();
    BTreeMap::from(["now", "waits"].map(|hook| (hook, of(hook))))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_meets_one_set_once() {
    let pool = TestPool::start(&[("now", &version(0, false)), ("waits", &version(0, true))]).await;
    let events = async {
        let mut seen = Vec::new();
        for round in 0..40 {
            let ids: Vec<String> = (0..25).map(|i| format!("web:{round}/{i}")).collect();
            let answers = futures_util::future::join_all(ids.iter().map(|id| pool.evaluate(dm(id, "x")))).await;
            seen.extend(answers);
        }

        seen
    };

    let reloads = async {
        for number in 1..=30 {
            pool.load(&[("now", &version(number, false)), ("waits", &version(number, true))])
                .await;
            pool.evaluate(dm(&format!("web:between/{number}"), "x")).await;
        }
    };

    let (seen, ()) = tokio::join!(events, reloads);
    assert_eq!(seen.len(), 1_000);

    let mut used = std::collections::BTreeSet::new();
    for answer in &seen {
        let versions = versions(answer);
        assert_eq!(versions["now"], versions["waits"], "one set: {answer:?}");
        used.insert(versions["now"].to_string());
    }

    assert!(used.len() > 1, "reloads happened while events ran: {used:?}");

    let last = pool.evaluate(dm("web:last", "x")).await;
    assert_eq!(versions(&last)["now"], 30);

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_file_is_not_read_again() {
    let counting = "let calls = 0; export default () => ({ fire: true, context: { extracted: { calls: ++calls } } });";
    let pool = TestPool::start_with(vec![timed("counts", 1_000, counting)], 1).await;
    let calls = |answer: crate::pool::Answer| {
        answer
            .fired("counts")
            .context
            .and_then(|c| c.extracted)
            .expect("extracted")["calls"]
            .clone()
    };

    assert_eq!(calls(pool.evaluate(dm("web:1", "x")).await), 1);

    pool.load(&[
        ("counts", counting),
        ("other", "export default () => ({ fire: false });"),
    ])
    .await;
    assert_eq!(
        calls(pool.evaluate(dm("web:2", "x")).await),
        2,
        "its module is the same"
    );

    pool.load(&[("counts", &format!("{counting}// changed"))]).await;
    assert_eq!(calls(pool.evaluate(dm("web:3", "x")).await), 1);

    pool.load(&[("counts", counting)]).await;
    assert_eq!(
        calls(pool.evaluate(dm("web:4", "x")).await),
        1,
        "changed back is changed too"
    );

    pool.stop().await;
}

/// Counts in the process, every few milliseconds, for as long as it is let; `looks` tells how far it has come.
const TICKS: &str = "let on = false; export default () => {
    if (!on) { on = true; globalThis.ticks = 0; setInterval(() => { globalThis.ticks++; }, 1);
      (async () => { for (;;) { await Bun.sleep(1); globalThis.ticks++; } })(); }
    return { fire: false }; };";
const LOOKS: &str = "export default () => ({ fire: true, context: { extracted: { ticks: globalThis.ticks ?? -1 } } });";

async fn ticks(pool: &TestPool, id: &str) -> i64 {
    let answer = pool.evaluate(dm(id, "x")).await;
    let context = answer.fired("looks").context.expect("a context");
    context.extracted.expect("extracted")["ticks"]
        .as_i64()
        .expect("a number")
}

/// What no timer holds: loops over promises that the process itself settles.
const LOOPS_ON: &str = "import fs from 'node:fs'; let on = false; export default () => {
    if (!on) { on = true; globalThis.ticks = 0;
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => { globalThis.ticks++; port2.postMessage(0); };
      port2.postMessage(0);
      (async () => { for (;;) { await fs.promises.stat('/dev/null').catch(() => {}); globalThis.ticks++; } })(); }
    return { fire: false }; };";

/// Asks an event every few milliseconds until the hook that looks is in a process in which nothing was left.
async fn is_replaced(pool: &TestPool, within: Duration) {
    let begun = SystemClock.monotonic();
    let mut number = 0;
    eventually("its process is replaced", async || {
        number += 1;
        ticks(pool, &format!("web:on/{number}")).await == -1
    })
    .await;

    let took = SystemClock.monotonic().duration_since(begun);
    assert!(took < within, "{took:?}");
}

/// How many processes this one has started.
fn processes_of_this_test() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let children = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    children.map(|children| children.split_whitespace().count()).sum()
}

/// A little more than what a process may go on.
const REPLACED_WITHIN: Duration = Duration::from_secs(35);

#[tokio::test(flavor = "multi_thread")]
async fn the_process_of_a_deleted_hook_is_replaced_under_traffic() {
    let hooks = vec![timed("looks", 30_000, LOOKS), timed("loops", 30_000, LOOPS_ON)];
    let pool = TestPool::start_with(hooks, 1).await;
    pool.evaluate(dm("web:0", "x")).await;
    let before = ticks(&pool, "web:1").await;
    eventually("it goes on", async || ticks(&pool, "web:2").await > before).await;

    pool.load(&[("looks", LOOKS)]).await;
    is_replaced(&pool, REPLACED_WITHIN).await;
    pool.stop().await;
}

/// Deletes the only hook of an author while it waits; it goes on with `turns` turns of a loop between two rests of 5 ms.
async fn delete_the_last_hook_of_an_author(turns: u32) {
    let waits = &format!(
        "let on = false; export default async () => {{
        if (!on) {{ on = true; (async () => {{ for (let n = 0; ; n++) {{ await Promise.resolve(); if (n % {turns} === 0) await Bun.sleep(5); }} }})(); }}
        await new Promise(() => {{}}); }};"
    );
    let of_another = hook_svc::runner::HookSource {
        created_by: "mallory".to_owned(),
        ..timed("waits", 8_000, waits)
    };
    let pool = TestPool::start_with(vec![timed("looks", 30_000, LOOKS), of_another], 1).await;
    let in_force = pool.pool.current_hooks();
    let job = crate::pool::job(dm("web:0", "x"), None);
    let mut evaluation = pool
        .pool
        .evaluate_event(&in_force, &job, &hook_svc::runner::HeldSlots::default());
    eventually("it waits", async || {
        matches!(
            evaluation.next().await,
            Some(hook_svc::runner::EvaluationStep::Waiting(_))
        )
    })
    .await;
    let (works, stands_by, of_mallory) = (1, 1, 1);
    eventually("all processes are up", async || {
        processes_of_this_test() == works + stands_by + of_mallory
    })
    .await;

    pool.load(&[("looks", LOOKS)]).await;
    let begun = SystemClock.monotonic();
    eventually("the event that waits is over", async || {
        evaluation.next().await.is_none()
    })
    .await;
    eventually("its process has ended", async || processes_of_this_test() == 2).await;
    let took = SystemClock.monotonic().duration_since(begun);
    assert!(took < REPLACED_WITHIN, "{took:?}");
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_hook_of_an_author_leaves_nothing_behind_though_it_waits() {
    delete_the_last_hook_of_an_author(100).await;
}

/// Its process is ended because it computes. The event that waited there brings no process back that would stay.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_hook_of_an_author_leaves_nothing_behind_though_it_computes() {
    delete_the_last_hook_of_an_author(100_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_where_a_hook_was_deleted_is_evaluated_to_its_end() {
    let waits = "export default async ({ event }) => { await Bun.sleep(event.content === 'long' ? 9000 : 1); return { fire: true }; };";
    let hooks = vec![
        timed("looks", 30_000, LOOKS),
        timed("loops", 30_000, LOOPS_ON),
        timed("waits", 60_000, waits),
    ];
    let pool = TestPool::start_with(hooks, 1).await;
    pool.evaluate(dm("web:0", "x")).await;
    eventually("it goes on", async || ticks(&pool, "web:1").await > 0).await;

    let kept = vec![timed("looks", 30_000, LOOKS), timed("waits", 60_000, waits)];
    let (answer, ()) = tokio::join!(pool.evaluate(dm("web:long", "long")), async {
        pool.pool
            .load(std::sync::Arc::new(hook_svc::runner::HookSet::new(kept)))
            .await
            .expect("loads");
        is_replaced(&pool, REPLACED_WITHIN).await;
    });

    answer.fired("waits");
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_deleted_hook_left_to_run_ends_with_it() {
    let hooks = vec![timed("looks", 30_000, LOOKS), timed("ticks", 30_000, TICKS)];
    let pool = TestPool::start_with(hooks, 1).await;
    pool.evaluate(dm("web:0", "x")).await;
    let before = ticks(&pool, "web:1").await;
    eventually("it ticks", async || ticks(&pool, "web:2").await > before).await;

    pool.load(&[("looks", LOOKS)]).await;
    let mut last = ticks(&pool, "web:3").await;
    eventually("it stands still, in the same process", async || {
        let now = ticks(&pool, "web:4").await;
        let stands = now == std::mem::replace(&mut last, now);
        stands && now > 0
    })
    .await;

    pool.stop().await;
}
