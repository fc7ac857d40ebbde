//! Hooks that kill their worker: only they fail, every event is done, and once.

use std::time::Duration;

use crate::pool::{TestPool, dm, timed};

const FIRES: &str = "export default async (ctx) => ({ fire: true, context: { prompt: ctx.event.id } });";
const SLOW: &str = "export default async (ctx) => { await new Promise((r) => setTimeout(r, 50)); return { fire: true, context: { prompt: ctx.event.id } }; };";

/// Whether `error` is of a hook that computed without end, however busy the machine.
fn is_killed(error: &str) -> bool {
    error.starts_with("killed its worker") && error.contains("no progress for ")
}

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
    let exits = "export default () => { process.stdin.emit('end'); };";
    let pool = TestPool::start(&[("a", FIRES), ("bad", exits), ("slow", SLOW), ("z", FIRES)]).await;
    let ids: Vec<String> = (0..60).map(|i| format!("web:{i}")).collect();
    let answers = futures_util::future::join_all(ids.iter().map(|id| pool.evaluate(dm(id, "x")))).await;

    for (id, answer) in ids.iter().zip(&answers) {
        for good in ["a", "slow", "z"] {
            let prompt = answer.fired(good).context.and_then(|context| context.system_prompt);
            assert_eq!(prompt.as_ref(), Some(id), "{good}");
        }

        let error = answer.error("bad");
        let died = error.starts_with("killed its worker") && error.ends_with("the process exited or closed its pipes");
        assert!(died, "{id}: {error}");
    }

    pool.stop().await;
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

    // Whoever stands by loads it as well.
    let error = answer.error("bad");
    assert!(is_killed(error), "{answer:?}");

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_in_a_timer_is_blamed_on_who_set_it() {
    let bad = "export default () => new Promise(() => setTimeout(() => { for (;;) {} }, 30));";
    let pool = TestPool::start_with(
        vec![
            timed("a", 30_000, FIRES),
            timed("bad", 30_000, bad),
            timed("slow", 30_000, SLOW),
        ],
        1,
    )
    .await;

    let answer = pool.evaluate(dm("web:1", "x")).await;
    answer.fired("a");
    answer.fired("slow");

    assert!(is_killed(answer.error("bad")), "{answer:?}");

    pool.stop().await;
}

/// Ways to loop after having answered: scripts whose waiting is what is tried; no test waits by it.
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
        let hooks = vec![timed("bad", 30_000, &bad), timed("slow", 30_000, SLOW)];
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
        assert!(is_killed(&error), "{afterwards} {error}");

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
async fn strays_are_of_the_hook_that_threw_them() {
    let throws = |what: &str| format!("export default () => {{ {what} return {{ fire: false }}; }};");
    let sources = [
        ("promise", throws("(async () => { throw new Error('a promise'); })();")),
        ("late", throws("(async () => { await 0; throw new Error('late'); })();")),
        ("timer", throws("setTimeout(() => { throw 'no error'; }, 1);")),
        ("soon", throws("queueMicrotask(() => { throw null; });")),
        (
            "again",
            throws("const t = setInterval(() => { clearInterval(t); throw 1; }, 1);"),
        ),
        (
            "loading",
            "Promise.reject(new Error('while loading')); ".to_owned() + FIRES,
        ),
        ("good", FIRES.to_owned()),
    ];

    let pool = TestPool::start_with(Vec::new(), 1).await;
    let mut strays = pool.pool.subscribe_strays();
    let sources: Vec<(&str, &str)> = sources.iter().map(|(id, source)| (*id, source.as_str())).collect();
    pool.load(&sources).await;
    let answer = pool.evaluate(dm("web:1", "x")).await;
    answer.fired("good");

    let mut heard = std::collections::BTreeMap::new();
    while heard.len() < sources.len() - 1 {
        let stray = tokio::time::timeout(Duration::from_secs(60), strays.recv()).await;
        let stray = stray
            .unwrap_or_else(|_| panic!("only {heard:?}"))
            .expect("not too many");
        heard.insert(stray.hook.id.clone(), stray.error);
    }

    for (hook, error) in [
        ("promise", "Error: a promise"),
        ("late", "Error: late"),
        ("timer", "threw \"no error\""),
        ("soon", "threw null"),
        ("again", "threw 1"),
        ("loading", "Error: while loading"),
    ] {
        assert_eq!(heard.get(hook).map(String::as_str), Some(error), "{hook}");
    }

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_from_outside() {
    let pid = "export default () => ({ fire: true, context: { extracted: { pid: process.pid } } });";
    let pool = TestPool::start_with(
        vec![
            timed("pid", 30_000, pid),
            timed("slow", 30_000, SLOW),
            timed("z", 30_000, FIRES),
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

/// Tells the process it runs in.
const PID: &str = "export default () => ({ fire: true, context: { extracted: { pid: process.pid } } });";

fn pid(answer: &crate::pool::Answer, hook: &str) -> serde_json::Value {
    let context = answer.fired(hook).context.expect("a context");
    context.extracted.expect("extracted")["pid"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_had_answered_does_not_run_again() {
    let throws = "export default ({ event }) => { throw new Error(`${event.id} in ${process.pid}`); };";
    let loops = "export default ({ event }) => { if (event.content === 'boom') for (;;) {} return { fire: false }; };";
    let passes = "export default () => ({ fire: false });";
    let hooks = [("a", PID), ("b", throws), ("c", passes), ("m", loops), ("z", PID)];
    let hooks = hooks.map(|(id, source)| timed(id, 30_000, source));
    let pool = TestPool::start_with(hooks.to_vec(), 1).await;
    let before = pid(&pool.evaluate(dm("web:1", "x")).await, "a");

    let answer = pool.evaluate(dm("web:2", "boom")).await;
    assert_eq!(pid(&answer, "a"), before, "it answered before the other one looped");
    assert_eq!(answer.error("b"), format!("Error: web:2 in {before}"));
    assert!(is_killed(answer.error("m")), "{answer:?}");
    assert_ne!(pid(&answer, "z"), before, "it had not been called");
    assert_eq!(answer.done.passed, 1);

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_a_script_has_written_is_judged_as_what_it_says_aloud() {
    // Where the note lies is no secret; what it says of others of the same author is theirs to answer for.
    let forges = "import fs from 'node:fs';
        const path = process.argv.find((a) => a.startsWith('note=')).slice('note='.length);
        export default () => {
          const cells = Bun.mmap(path, { shared: true });
          new Int32Array(cells.buffer).fill(-1, 4);
          for (;;) {}
        };";

    let pool = TestPool::start(&[("forges", forges), ("z", FIRES)]).await;
    let answer = pool.evaluate(dm("web:1", "x")).await;
    answer.fired("z");

    assert!(answer.error("forges").starts_with("killed its worker"), "{answer:?}");

    pool.stop().await;
}

/// Loops after an `await` that nothing tells the host of, where `bad` says so.
const HIDDEN: &str = "import fs from 'node:fs';
    export default async ({ event }) => {
      if (event.content !== 'boom') return { fire: false };
      await fs.promises.readFile(import.meta.path);
      for (;;) {}
    };";

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_failed_on_suspicion_and_a_suspect_comes_back() {
    let slow = "export default async () => { await new Promise((r) => setTimeout(r, 20)); return { fire: true, context: { extracted: { pid: process.pid } } }; };";
    let hooks = [("a", PID), ("hidden", HIDDEN), ("slow", slow)];
    let hooks = hooks.map(|(id, source)| timed(id, 30_000, source));
    let pool = TestPool::start_with(hooks.to_vec(), 1).await;

    for id in ["web:0", "web:00"] {
        let answer = pool.evaluate(dm(id, "boom")).await;
        answer.fired("a");
        answer.fired("slow");
        assert!(answer.error("hidden").contains("no progress for "), "{answer:?}");
    }

    let mut is_back = false;
    for number in 1..100 {
        let answer = pool.evaluate(dm(&format!("web:{number}"), "x")).await;
        is_back = pid(&answer, "slow") == pid(&answer, "a");
        if is_back {
            break;
        }
    }

    assert!(is_back, "it is called beside the others again");

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_suspects_have_their_turns() {
    let waits = "export default async ({ event }) => {
          await new Promise((r) => setTimeout(r, event.content === 'boom' ? 500 : 1));
          return { fire: true, context: { extracted: { pid: process.pid } } };
        };";
    let exits = "import fs from 'node:fs';
        export default async ({ event }) => {
          if (event.content !== 'boom') return { fire: false };
          await fs.promises.readFile(import.meta.path);
          process.stdin.emit('end');
        };";

    let hooks = [("a", waits), ("b", waits), ("c", waits), ("exits", exits)];
    let hooks = hooks.map(|(id, source)| timed(id, 30_000, source));
    let pool = TestPool::start_with(hooks.to_vec(), 1).await;
    let answer = pool.evaluate(dm("web:0", "boom")).await;

    assert!(
        answer
            .error("exits")
            .ends_with("the process exited or closed its pipes"),
        "{answer:?}"
    );

    let pids = ["a", "b", "c"].map(|suspect| pid(&answer, suspect));
    assert!(
        pids[0] != pids[1] && pids[1] != pids[2] && pids[0] != pids[2],
        "each in a process of its own: {pids:?}"
    );

    let ids: Vec<String> = (1..10).map(|number| format!("web:{number}")).collect();
    let answers = futures_util::future::join_all(ids.iter().map(|id| pool.evaluate(dm(id, "x")))).await;
    for answer in &answers {
        for suspect in ["a", "b", "c"] {
            answer.fired(suspect);
        }
    }

    pool.stop().await;
}
