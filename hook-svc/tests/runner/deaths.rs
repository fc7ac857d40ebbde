//! Hooks that kill their worker: only they fail, every event is done, and once.

use crate::pool::{TestPool, dm};

const FIRES: &str = "export default async (ctx) => ({ fire: true, context: { prompt: ctx.event.id } });";
const SLOW: &str = "export default async (ctx) => { await new Promise((r) => setTimeout(r, 50)); return { fire: true, context: { prompt: ctx.event.id } }; };";

/// Loads `bad` beside good hooks and checks that of many events every one is done, with the good hooks' verdicts.
async fn check(bad: &str, error: &str) {
    let pool = TestPool::start(&[("a", FIRES), ("bad", bad), ("slow", SLOW), ("z", FIRES)]).await;
    let ids: Vec<String> = (0..60).map(|i| format!("web:{i}")).collect();
    let answers = futures_util::future::join_all(ids.iter().map(|id| pool.evaluate(dm(id, "boom")))).await;
    for (id, answer) in ids.iter().zip(&answers) {
        for good in ["a", "slow", "z"] {
            assert_eq!(
                answer.fired(good).context.and_then(|c| c.system_prompt).as_ref(),
                Some(id),
                "{good}"
            );
        }
        assert!(answer.error("bad").contains(error), "{id}: {}", answer.error("bad"));
    }
    let later = pool.evaluate(dm("web:later", "boom")).await;
    assert!(
        later.error("bad").starts_with("killed its worker "),
        "benched at once: {later:?}"
    );
    later.fired("z");
    // A changed source gets its chance at once.
    pool.load(&[("bad", FIRES)]).await;
    pool.evaluate(dm("web:mended", "x")).await.fired("bad");
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop() {
    check("export default () => { for (;;) {} };", "no progress for ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_after_an_await() {
    check(
        "export default async () => { await null; await 1; for (;;) {} };",
        "no progress for ",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_in_a_regular_expression() {
    check(
        "export default () => { while (true) /^(a+)+$/.test('aaaaaaaaaaaaaaaaaaaaaaaaaaaa!'); };",
        "no progress for ",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_gone() {
    check("import { dlopen } from 'bun:ffi'; export default () => { dlopen('libc.so.6', { _exit: { args: ['int'], returns: 'void' } }).symbols._exit(3); };", "the process exited").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_while_loading() {
    let pool = TestPool::start(&[
        ("a", FIRES),
        ("bad", "for (;;) {} export default () => ({ fire: false });"),
    ])
    .await;
    let answer = pool.evaluate(dm("web:1", "x")).await;
    answer.fired("a");
    assert!(
        answer
            .error("bad")
            .starts_with("killed its worker 2 times: no progress for "),
        "{answer:?}"
    );
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_in_a_timer_is_blamed_on_who_set_it() {
    let bad = "export default () => new Promise(() => setTimeout(() => { for (;;) {} }, 30));";
    let pool = TestPool::start_with(
        vec![
            crate::pool::timed("a", 30_000, FIRES),
            crate::pool::timed("bad", 30_000, bad),
            crate::pool::timed("slow", 30_000, SLOW),
        ],
        1,
    )
    .await;
    let answer = pool.evaluate(dm("web:1", "x")).await;
    answer.fired("a");
    answer.fired("slow");
    assert!(
        answer
            .error("bad")
            .starts_with("killed its worker 2 times: no progress for "),
        "{answer:?}"
    );
    pool.stop().await;
}

/// Ways to loop after having answered.
const AFTERWARDS: [&str; 5] = [
    "setTimeout(() => { for (;;) {} }, 5);",
    "setImmediate(() => { for (;;) {} });",
    "import('node:timers').then((timers) => timers.setTimeout(() => { for (;;) {} }, 5));",
    "pause(5).then(() => { for (;;) {} });",
    "(async () => { await Bun.sleep(5); await null; for (;;) {} })();",
];

#[tokio::test(flavor = "multi_thread")]
async fn who_loops_after_having_answered_is_blamed_and_nobody_who_waits() {
    for afterwards in AFTERWARDS {
        let bad = format!(
            "import {{ setTimeout as pause }} from 'node:timers/promises';
            export default () => {{ {afterwards} return {{ fire: false }}; }};"
        );
        let hooks = vec![
            crate::pool::timed("bad", 30_000, &bad),
            crate::pool::timed("slow", 30_000, SLOW),
        ];
        let pool = TestPool::start_with(hooks, 1).await;
        let mut error = None;
        for number in 0..20 {
            let answer = pool.evaluate(dm(&format!("web:{number}"), "x")).await;
            answer.fired("slow");
            error = answer.failed("bad").map(str::to_owned);
            if error.is_some() {
                break;
            }
        }
        let error = error.unwrap_or_default();
        assert!(
            error.starts_with("killed its worker 2 times: no progress for "),
            "{afterwards} {error}"
        );
        pool.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strays_end_nobody() {
    let stray = "export default () => { Promise.reject(new Error('stray')); setTimeout(() => { throw new Error('timer'); }, 1); return { fire: true }; };";
    let pool = TestPool::start(&[("stray", stray), ("slow", SLOW)]).await;
    for i in 0..20 {
        let answer = pool.evaluate(dm(&format!("web:{i}"), "x")).await;
        answer.fired("stray");
        answer.fired("slow");
    }
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_from_outside() {
    let pid = "export default () => ({ fire: true, context: { extracted: { pid: process.pid } } });";
    let pool = TestPool::start_with(
        vec![
            crate::pool::timed("pid", 30_000, pid),
            crate::pool::timed("slow", 30_000, SLOW),
            crate::pool::timed("z", 30_000, FIRES),
        ],
        1,
    )
    .await;
    let pid_of = |answer: &crate::pool::Answer| {
        answer
            .fired("pid")
            .context
            .and_then(|c| c.extracted)
            .expect("extracted")["pid"]
            .clone()
    };
    let before = pid_of(&pool.evaluate(dm("web:first", "x")).await);
    let ids: Vec<String> = (0..300).map(|i| format!("web:{i}")).collect();
    let all = futures_util::future::join_all(ids.iter().map(|id| pool.evaluate(dm(id, "x"))));
    let kill = async {
        // The first of them has answered: others are waiting in the worker now.
        pool.evaluate(dm("web:one", "x")).await;
        let killed = tokio::process::Command::new("kill")
            .args(["-9", &before.to_string()])
            .status()
            .await;
        assert!(killed.expect("kill runs").success());
    };
    let (answers, ()) = tokio::join!(all, kill);
    for (id, answer) in ids.iter().zip(&answers) {
        for hook in ["slow", "z"] {
            assert_eq!(
                answer.fired(hook).context.and_then(|c| c.system_prompt).as_ref(),
                Some(id)
            );
        }
    }
    assert_ne!(pid_of(&pool.evaluate(dm("web:last", "x")).await), before);
    pool.stop().await;
}
