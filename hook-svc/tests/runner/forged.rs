//! What a process says of itself is a hint: scripts that look lively, say nothing, or name others are found out by the
//! host's own clocks.

use crate::pool::{TestPool, dm, timed};

const FIRES: &str = "export default async (ctx) => ({ fire: true, context: { prompt: ctx.event.id } });";

/// What hostile scripts here have: the note's cells, and a way to say anything to the host.
const MEANS: &str = "import fs from 'node:fs';
    const mapped = () => {
      const path = process.argv.find((a) => a.startsWith('note=')).slice(5);
      const bytes = Bun.mmap(path, { shared: true });
      return new Int32Array(bytes.buffer, bytes.byteOffset, 8);
    };
    const say = (said) => {
      const body = Buffer.from(JSON.stringify(said));
      const frame = Buffer.alloc(4 + body.length); frame.writeUInt32LE(body.length, 0); frame.set(body, 4);
      fs.writeSync(1, frame);
    };\n";

/// Shows events to `bad` beside two innocents of its author until it has cost itself an evaluation: it dies of `error`, one of several,
/// and each innocent loses at most one event.
async fn check(bad: &str, error: &str) {
    let source = format!("{MEANS}{bad}");
    let hooks = vec![
        timed("a", 30_000, FIRES),
        timed("bad", 1_000, &source),
        timed("z", 30_000, FIRES),
    ];

    let pool = TestPool::start_with(hooks, 1).await;
    let mut said = None;

    let mut lost = 0;
    for number in 0..12 {
        let answer = pool.evaluate(dm(&format!("web:{number}"), "x")).await;
        lost += ["a", "z"]
            .into_iter()
            .filter(|good| answer.failed(good).is_some())
            .count();
        said = said.or_else(|| answer.failed("bad").map(str::to_owned));
    }

    let said = said.unwrap_or_default();
    assert!(error.split('|').any(|error| said.contains(error)), "{bad}: {said}");
    assert!(lost <= 2, "{bad}: innocents lost {lost} of 24 evaluations");

    let later = pool.evaluate(dm("web:later", "x")).await;
    later.fired("a");
    later.fired("z");
    pool.stop().await;
}

/// One of these: where a disk is busy, who writes to its note, which is a file, waits for the page more than it computes.
const STANDS: &str = "ms of processor time|it neither computed nor answered";

#[tokio::test(flavor = "multi_thread")]
async fn who_counts_its_own_steps_is_stuck() {
    check(
        "export default () => { const c = mapped(); for (;;) c[2] = (c[2] + 1) | 0; };",
        STANDS,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_answers_pings_that_nobody_sent_is_stuck() {
    check(
        "export default () => { let n = 0; for (;;) { if (n++ % 100000 === 0) say({ t: 'pong', n }); } };",
        STANDS,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_that_sets_have_loaded_is_stuck() {
    check(
        "export default () => { let n = 0; for (;;) { if (n++ % 100000 === 0) say({ t: 'loaded', g: 1, bad: [] }); } };",
        STANDS,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_names_an_innocent_costs_it_one_event() {
    check(
        "export default () => { const c = mapped(); for (;;) { c[1] = 1; c[2]++; } };",
        STANDS,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_names_nobody_is_found() {
    check(
        "export default () => { const c = mapped(); for (;;) { c[1] = 0; c[2]++; } };",
        STANDS,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_blocks_is_found_though_it_computes_nothing() {
    let still = "idle without an answer";
    check(
        "export default () => { Bun.sleepSync(30000); return { fire: false }; };",
        still,
    )
    .await;
    let waits = "export default () => { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 30000); return { fire: false }; };";
    check(waits, still).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_keeps_back_all_answers_is_overdue() {
    // It never ends its own evaluation, by keeping the shim's alarm from ringing, and lives on, answering pings.
    let bad = "export default () => new Promise(() => {
        const busy = () => { const end = performance.now() + 40; while (performance.now() < end); };
        for (let n = 0; n < 4; n++) setInterval(busy, 1);
      });";
    // On a machine that is busy elsewhere the alarm may ring after all.
    check(bad, "killed its worker|timed out after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_any_length_are_cut() {
    let long = "'x'.repeat(8 << 20)";
    let forgers = [
        format!("export default () => {{ say({{ r: {long} }}); for (;;); }};"),
        format!(
            "export default () => {{ say({{ r: [[mapped()[0], 0, [1], [], [[0, 1, {long}, {long}]], [], []]] }}); for (;;); }};"
        ),
    ];

    for forges in forgers {
        let pool = TestPool::start_with(vec![timed("bad", 1_000, &format!("{MEANS}{forges}"))], 1).await;
        let answer = pool.evaluate(dm("web:1", "x")).await;
        assert!(
            answer.error("bad").len() <= 16_000,
            "{forges}: {}",
            answer.error("bad").len()
        );
        pool.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_never_ends_loading_holds_nobody_up() {
    let hooks = vec![
        timed("a", 30_000, FIRES),
        timed(
            "bad",
            1_000,
            "await new Promise(() => {}); export default () => ({ fire: false });",
        ),
        timed(
            "noted",
            1_000,
            &format!("{MEANS}const c = mapped(); for (;;) c[2]++; export default () => ({{ fire: false }});"),
        ),
        timed("z", 30_000, FIRES),
    ];

    let pool = TestPool::start_with(hooks, 1).await;
    let answer = pool.evaluate(dm("web:1", "x")).await;
    answer.fired("a");
    answer.fired("z");

    assert!(answer.error("bad").contains("more than 1000 ms"), "{answer:?}");
    let stands = STANDS.split('|').any(|error| answer.error("noted").contains(error));
    assert!(stands, "{answer:?}");

    pool.stop().await;
}
