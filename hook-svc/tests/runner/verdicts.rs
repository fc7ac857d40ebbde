//! What scripts see, what they may answer, and that a bad answer is an error of its hook alone.

use hook_svc::runner::{EvaluationStep, HookSource};
use serde_json::json;

use crate::pool::{self, Answer, TestPool, dm, timed};

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_of_all_hooks_of_an_event() {
    let pool = TestPool::start(&[
        ("fires", "export default async (ctx) => ({ fire: true, routing: { persona: 'atlas' }, context: { prompt: `${ctx.hook.id}: ${ctx.event.content}` } });"),
        ("passes", "export default async () => ({ fire: false });"),
        ("plain", "export default () => ({ fire: true, routing: { agent_id: 'old', queue_mode: 'queue' } });"),
        ("throws", "export default async () => { throw new TypeError('no such thing'); };"),
        ("slow", "export default async () => { await new Promise((r) => setTimeout(r, 20)); return { fire: true }; };"),
        ("leaves", "export default async () => ({ fire: false, disable_hook: true });"),
    ])
    .await;

    let answer = pool.evaluate(dm("web:1", "hello")).await;
    assert_eq!(
        answer.fired("fires").context.and_then(|c| c.system_prompt).as_deref(),
        Some("fires: hello")
    );
    assert_eq!(
        answer.fired("plain").routing.and_then(|r| r.persona).as_deref(),
        Some("old")
    );
    assert!(
        answer.error("throws").starts_with("TypeError: no such thing"),
        "{answer:?}"
    );

    assert!(answer.stack("throws").contains("throws.ts"), "{answer:?}");
    assert!(answer.disables("leaves"));
    assert_eq!(
        answer.order.last().map(String::as_str),
        Some("slow"),
        "who waits answers last: {answer:?}"
    );
    assert_eq!(
        (answer.done.passed, answer.waiting.len(), answer.done.latencies_us.len()),
        (1, 1, 6)
    );

    assert!(answer.done.latencies_us[4] >= 15_000, "{answer:?}");

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rubbish_is_an_error_of_its_hook_alone() {
    let pool = TestPool::start(&[
        ("nothing", "export default async () => {};"),
        ("number", "export default () => 7;"),
        ("mode", "export default () => ({ fire: true, routing: { queueMode: 'later' } });"),
        ("both", "export default () => ({ fire: true, disableHook: true, disable_hook: false });"),
        ("control", "export default () => ({ fire: true, routing: { session: 'a\\u0000b' } });"),
        ("long", "export default () => ({ fire: true, context: { prompt: 'x'.repeat(300000) } });"),
        ("cycle", "export default () => { const a: any = { fire: true }; a.a = a; return a; };"),
        ("bigint", "export default () => ({ fire: true, context: { extracted: { n: 1n } } });"),
        ("getter", "export default () => ({ get fire() { throw 1; } });"),
        ("proxy", "export default () => new Proxy({}, { get() { throw new Error('mine'); } });"),
        ("patches", "export default ({ event }) => { 'use strict'; event.metadata.is_group = 5; return { fire: true }; };"),
        ("exits", "export default () => { process.exit(3); };"),
        ("no-module", "import x from 'left-pad'; export default () => ({ fire: true, x });"),
        ("no-function", "export default 5;"),
        ("llm", "export default async ({ llm }) => ({ fire: true, context: { prompt: await llm('hi').catch((e) => e.code) } });"),
        ("search", "export default async ({ search }) => { await search('x'); return { fire: true }; };"),
        ("prints", "export default () => { console.log('{}'.repeat(100)); process.stdout.write('x'); return { fire: true }; };"),
    ])
    .await;

    let answer = pool.evaluate(dm("web:1", "hello")).await;
    for (hook, error) in [
        ("nothing", "answered undefined, expected an object"),
        ("number", "answered 7, expected an object"),
        ("mode", "`routing.queueMode`: unknown value `later`"),
        (
            "both",
            "`disableHook` and `disable_hook` name the same field with different values",
        ),
        ("control", "`routing.session` holds a control character"),
        ("long", "answered 300037 characters, at most 262144 are allowed"),
        ("cycle", "TypeError: JSON.stringify cannot serialize cyclic structures"),
        ("bigint", "TypeError: JSON.stringify cannot serialize BigInt"),
        ("getter", "threw 1"),
        ("proxy", "Error: mine"),
        ("patches", "TypeError: Attempted to assign to readonly property"),
        ("exits", "Error: process.exit is not allowed in a hook"),
        ("no-module", "does not load: "),
        (
            "no-function",
            "does not load: it has no default export that is a function",
        ),
        ("search", "NotAvailableError: search() is not available"),
    ] {
        assert!(answer.error(hook).starts_with(error), "{hook}: {}", answer.error(hook));
    }

    assert_eq!(
        answer.fired("llm").context.and_then(|c| c.system_prompt).as_deref(),
        Some("not_available")
    );

    answer.fired("prints");
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_scripts_see_of_an_event_that_refers_to_another() {
    let pool = TestPool::start(&[(
        "sees",
        "export default async ({ event }) => ({ fire: true, context: { extracted: {
            about: [event.target, event.edited_at, event.editedAt, event.mention, event.quote?.from?.id ?? null],
            frozen: [event.mention, event.quote, event.quote.from].every(Object.isFrozen),
        } } });",
    )])
    .await;

    let mut event = dm("telegram:1", "hello");
    event["target"] = json!("out:1/0");
    event["edited_at"] = json!(5);
    event["mention"] = json!({"me": true, "how": "native"});
    event["quote"] = json!({"id": "telegram:0", "text": "so", "from": {"id": "+1555"}});
    let answer = pool.evaluate(event).await;
    let seen = answer.fired("sees").context.and_then(|c| c.extracted);
    let seen = seen.expect("extracted");

    let mention = json!({"me": true, "how": "native"});
    assert_eq!(seen["about"], json!(["out:1/0", 5, 5, mention, "+1555"]));
    assert_eq!(seen["frozen"], json!(true));

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_scripts_see() {
    let pool = TestPool::start(&[(
        "sees",
        "export default async (ctx) => {
            const { event, now, hook, dbPath } = ctx;
            return { fire: true, context: { extracted: {
                names: [event.sender_id, event.source_adapter, event.thread_id, event.metadata.is_group, event.content_types,
                    event.metadata_json, event.peerKind, event.contentType, event.accountId, event.attachments.length],
                now: [now instanceof Date, now.getTime()], dbPath, hook, keys: Object.keys(ctx).sort(),
                frozen: [event, event.from, event.peer, event.metadata, event.content_types].every(Object.isFrozen),
                env: Object.keys(process.env),
            } } };
        };",
    )])
    .await;

    let mut event = dm("telegram:1", "hello");
    event["from"] = json!({"id": "+1555"});
    event["metadata"] = json!({"chat": {"title": "x"}});
    let answer = pool.evaluate(event).await;
    let seen = answer
        .fired("sees")
        .context
        .and_then(|c| c.extracted)
        .expect("extracted");

    assert_eq!(
        seen["names"],
        json!([
            "+1555",
            "telegram",
            null,
            false,
            ["text"],
            "{\"chat\":{\"title\":\"x\"},\"is_group\":false}",
            "dm",
            "text",
            null,
            0
        ])
    );

    assert_eq!(seen["now"], json!([true, pool::NOW]));
    assert_eq!(seen["dbPath"], json!(pool::DB_PATH));
    assert_eq!(
        seen["hook"],
        json!({"id": "sees", "name": "sees", "created_at": 7, "trigger_count": 0})
    );
    assert_eq!(seen["keys"], json!(["dbPath", "event", "hook", "llm", "now", "search"]));
    assert_eq!((&seen["frozen"], &seen["env"]), (&json!(true), &json!([])));

    pool.pool.count(
        "sees",
        hook_svc::runner::HookCounters {
            trigger_count: 3,
            last_triggered: Some(shared::model::time::UnixMillis(9)),
        },
    );

    let again = pool.evaluate(dm("telegram:2", "hello")).await;
    let seen = again
        .fired("sees")
        .context
        .and_then(|c| c.extracted)
        .expect("extracted");

    assert_eq!(
        (&seen["hook"]["trigger_count"], &seen["hook"]["last_triggered"]),
        (&json!(3), &json!(9))
    );

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn better_sqlite3_is_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = "import Database from 'better-sqlite3';
        export default async () => {
            const path = 'PATH';
            const db = new Database(':memory:');
            db.exec('create table t(a integer, b text); create table u(x)');
            const insert = db.prepare('insert into t values (@a, @b)');
            db.transaction((rows) => { for (const row of rows) insert.run(row); })([{ a: 1, b: 'x' }, { a: 2, b: 'y' }]);
            let refused = '', missing = '';
            try { new Database(path).exec('create table t(a)'); } catch (e) { refused = 'refused'; }
            try { new Database(path + '.none', { fileMustExist: true }); } catch (e) { missing = 'missing'; }
            const extracted = {
                get: db.prepare('select * from t where a = ?').get(2), none: db.prepare('select * from t where a = 9').get() === undefined,
                all: db.prepare('select b from t order by a').pluck().all(), raw: db.prepare('select * from t').raw().get(),
                iterate: [...db.prepare('select a from t where a > ?').iterate(0)], count: db.pragma('table_info(t)').length,
                simple: db.pragma('user_version', { simple: true }), refused, missing, columns: db.prepare('select a, b from t').columns(),
            };
            try { db.prepare('no sql'); } catch (e) { extracted.fault = e instanceof Database.SqliteError; }
            extracted.twice = [db.prepare('select a, a + 1 as a from t').raw().all(), db.prepare('select a, a + 1 as a from t').pluck().get()];
            extracted.plucked = [...db.prepare('select b from t').pluck().iterate()];
            db.close();
            return { fire: true, context: { extracted } };
        };"
    .replace("PATH", &dir.path().join("a.db").to_string_lossy());

    let pool = TestPool::start(&[("sql", &source)]).await;
    let answer = pool.evaluate(dm("web:1", "x")).await;
    let mut seen = answer
        .fired("sql")
        .context
        .and_then(|c| c.extracted)
        .expect("extracted");

    // What a sandbox that lacks a part still refuses is told in `levels.rs`.
    let refused = seen.remove("refused").expect("whether it may write");
    if pool.pool.missing_confinement().is_empty() {
        assert_eq!(refused, "refused");
    }

    assert_eq!(
        serde_json::Value::Object(seen),
        json!({"fault": true, "twice": [[[1, 2], [2, 3]], 1], "plucked": ["x", "y"], "get": {"a": 2, "b": "y"}, "none": true, "all": ["x", "y"], "raw": [1, "x"], "iterate": [{"a": 1}, {"a": 2}],
            "count": 2, "simple": 0, "missing": "missing", "columns": [{"name": "a"}, {"name": "b"}]})
    );

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_hook_has_its_own_time_out() {
    let pool = TestPool::start_with(
        vec![
            timed("never", 50, "export default () => new Promise(() => {});"),
            timed("late", 40, "export default async () => { await new Promise((r) => setTimeout(r, 400)); return { fire: true }; };"),
            timed("in-time", 5_000, "export default async () => { await new Promise((r) => setTimeout(r, 100)); return { fire: true }; };"),
            timed("busy", 5, "export default () => { const end = performance.now() + 30; while (performance.now() < end); return { fire: true }; };"),
        ],
        2,
    )
    .await;

    let answer = pool.evaluate(dm("web:1", "hello")).await;
    assert_eq!(answer.error("never"), "timed out after 50 ms");
    assert_eq!(answer.error("late"), "timed out after 40 ms");
    assert_eq!(answer.error("busy"), "timed out after 5 ms");

    answer.fired("in-time");
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_may_skip_hooks_and_a_set_may_be_empty() {
    let pool = TestPool::start(&[]).await;
    let answer = pool.evaluate(dm("web:1", "x")).await;
    assert_eq!(answer, Answer::default());

    pool.load(&[
        ("a", "export default () => ({ fire: true });"),
        ("b", "export default () => ({ fire: true });"),
    ])
    .await;
    let answer = pool.evaluate_skipping(dm("web:2", "x"), &["a"]).await;
    assert_eq!(answer.order, ["b"]);
    assert_eq!((answer.done.latencies_us.len(), answer.done.latencies_us[0]), (2, 0));

    let answer = pool.evaluate_skipping(dm("web:3", "x"), &["a", "b"]).await;
    assert_eq!(answer.order, [""; 0]);

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_old_bun_is_named() {
    let fake = tempfile::tempdir().expect("a directory");
    let path = fake.path().join("bun");
    let error = TestPool::try_start(Some(path.clone())).await.expect_err("absent");

    assert!(error.contains("failed to run"), "{error}");

    std::fs::write(&path, "#!/bin/sh\necho 1.2.3\n").expect("writes");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("sets");
    let error = TestPool::try_start(Some(path)).await.expect_err("old");

    assert!(
        error.contains("has version `1.2.3`; at least 1.4 is required"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_that_wait_for_the_read_model_keep_nobody_else_waiting() {
    let fires = "export default (ctx) => ({ fire: true, context: { prompt: ctx.dbPath } });";
    let silent = "export default () => ({ fire: false });";
    let hooks = ["a", "b-reads", "c", "d-reads"];
    let mut sources: Vec<HookSource> = hooks.iter().map(|id| timed(id, 30_000, fires)).collect();
    sources.push(timed("e", 30_000, silent));

    // One of them has a process of its own.
    sources[3].created_by = "ann".to_owned();
    let pool = TestPool::start_with(sources, 1).await;
    let (tell, told) = tokio::sync::oneshot::channel();
    let ready = async move { told.await.unwrap_or(false) };
    let later = ["b-reads", "d-reads"];
    let mut evaluation = pool.begin_in_two(dm("web:1", "x"), &later, ready).await;
    let mut first = Vec::new();

    let waiting = loop {
        match evaluation.next().await.expect("it goes on") {
            EvaluationStep::Verdict(verdict) => first.push(verdict.hook.id.clone()),
            EvaluationStep::Waiting(mut waiting) => {
                waiting.sort_unstable();
                break waiting;
            }
            EvaluationStep::Done(done) => panic!("{done:?}"),
        }
    };

    assert_eq!((first, waiting), (vec!["a".to_owned(), "c".to_owned()], vec![1, 3]));

    tell.send(true).expect("somebody waits");
    let mut second = Vec::new();
    let done = loop {
        match evaluation.next().await.expect("it goes on") {
            EvaluationStep::Verdict(verdict) => second.push(verdict.hook.id.clone()),
            EvaluationStep::Waiting(waiting) => panic!("{waiting:?}"),
            EvaluationStep::Done(done) => break done,
        }
    };

    second.sort();
    assert_eq!((second, done.passed), (later.map(str::to_owned).to_vec(), 1));
    assert_eq!(done.latencies_us.len(), 5);

    let (never, told) = tokio::sync::oneshot::channel::<bool>();
    let ready = async move { told.await.unwrap_or(false) };
    let mut evaluation = pool.begin_in_two(dm("web:2", "x"), &later, ready).await;
    drop(never);

    while let Some(step) = evaluation.next().await {
        assert!(!matches!(step, EvaluationStep::Done(_)), "it has no end: {step:?}");
    }

    pool.stop().await;
}
