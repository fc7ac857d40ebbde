//! More authors than have room for a process at once: they take turns.

use std::time::Duration;

use hook_svc::runner::{HookSource, PoolConfig};
use shared::clock::{Clock as _, SystemClock};
use shared::testing::eventually_within;

use crate::hostile::by;
use crate::pool::{TestPool, dm, timed};

const FIRES: &str = "export default async () => ({ fire: true });";

const WAITS_IF_SLOW: &str = r#"
export default async ({ event }) => {
    if (event.content === "slow") await new Promise((done) => setTimeout(done, 100_000));
    return { fire: true };
};
"#;

async fn start(authors: &[&str]) -> TestPool {
    start_of(authors, FIRES).await
}

/// A pool with one hook of each of `authors`, of their names and with `source`, and room for one process.
async fn start_of(authors: &[&str], source: &str) -> TestPool {
    let config = PoolConfig {
        author_processes: 1,
        ..TestPool::config()
    };
    let hooks: Vec<HookSource> = authors
        .iter()
        .map(|author| by(author, timed(author, 120_000, source)))
        .collect();
    TestPool::start_of(config, hooks).await
}

#[tokio::test(flavor = "multi_thread")]
async fn authors_whose_processes_do_not_fit_are_deferred_and_take_turns() {
    let authors = ["ann", "bob", "cid"];
    let pool = start(&authors).await;
    pool.evaluate_skipping(dm("web:1", "x"), &["bob", "cid"])
        .await
        .fired("ann");

    // Ann's process has the only place: events need not wait until it ends.
    let in_force = pool.pool.current_hooks();
    let (seats, full) = pool.pool.seat_hooks(&in_force, None).await;
    let mut waiting: Vec<u32> = ["bob", "cid"]
        .iter()
        .filter_map(|id| in_force.set().index(id))
        .collect();
    waiting.sort_unstable();
    assert_eq!(full, waiting);
    drop(seats);

    let before = SystemClock.monotonic();
    let last_wait = |id: &str| {
        let only: Vec<u32> = in_force.set().index(id).into_iter().collect();
        in_force.last_wait_for_process(&only, before, SystemClock.monotonic())
    };
    assert_eq!(authors.map(last_wait), [None; 3]);

    let answer = pool.evaluate(dm("web:2", "x")).await;
    for author in authors {
        answer.fired(author);
    }
    // That time does not count against their evaluations.
    assert!(last_wait("bob").is_some() && last_wait("cid").is_some());
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_author_whose_process_gives_way_is_deferred_too() {
    let pool = start_of(&["ann", "bob"], WAITS_IF_SLOW).await;
    pool.evaluate_skipping(dm("web:1", "x"), &["bob"]).await.fired("ann");

    // Bob waits for the place of ann's process, in which a hook waits.
    let under_way = pool.begin_in_two(dm("web:2", "slow"), &["bob"], async { true }).await;
    let in_force = pool.pool.current_hooks();
    let ann: Vec<u32> = in_force.set().index("ann").into_iter().collect();
    // Its turn is over long before the hook that waits has ended.
    let soon = Duration::from_secs(60);
    eventually_within("no event waits for the end of that process", soon, async || {
        let (_, full) = pool.pool.seat_hooks(&in_force, Some(&ann)).await;
        if full == ann { Ok(()) } else { Err(format!("{full:?}")) }
    })
    .await;

    // Both are kept from getting on: one has no process, the process of the other takes no events.
    let before = SystemClock.monotonic();
    let both: Vec<u32> = (0..2).collect();
    for only in both.chunks(1) {
        eventually_within("the author cannot get on", soon, async || {
            let last = in_force.last_wait_for_process(only, before, SystemClock.monotonic());
            last.ok_or_else(|| format!("{only:?} has not waited since"))
        })
        .await;
    }

    drop(under_way);
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_author_who_always_has_work_gives_way_after_a_turn() {
    let pool = start(&["ann", "bob"]).await;
    let anns = async |number: u32| {
        let answer = pool
            .evaluate_skipping(dm(&format!("web:{number}"), "x"), &["bob"])
            .await;
        answer.fired("ann");
    };
    anns(0).await;

    let busy = async {
        for number in 1.. {
            anns(number).await;
        }
    };
    tokio::select! {
        () = busy => {}
        answer = pool.evaluate_skipping(dm("web:bob", "x"), &["ann"]) => drop(answer.fired("bob")),
    }
    pool.stop().await;
}
