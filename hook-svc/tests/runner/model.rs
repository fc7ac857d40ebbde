//! The read model as scripts see it: over the protocol, in both libraries' spellings, and no file.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hook_svc::runner::{HookSource, PoolConfig, SandboxMode};
use serde_json::{Value, json};
use shared::breaker::BreakerState;
use shared::clock::{Clock as _, SystemClock};
use shared::model::hook::{HookMetadata, HookOrigin, HookRecord, HookState};
use shared::model::time::UnixMillis;
use shared::projection::{ListedHook, Projection};
use tempfile::TempDir;

use crate::pool::{Answer, TestPool, dm, timed};

/// Rows `1` to `?`, of which a statement is made.
const NUMBERS: &str = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < ?)";

/// A query that never ends.
const ENDLESS: &str = "import { Database } from 'bun:sqlite';
export default ({ dbPath }) => {
  new Database(dbPath).query('WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n').get();
  return { fire: true };
};
";

/// A pool whose scripts see an empty read model.
async fn start(hooks: Vec<HookSource>, sandbox: SandboxMode) -> (TestPool, TempDir, Projection) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("read-model.sqlite");
    let projection = Projection::open(&path).expect("a read model");
    let config = PoolConfig {
        db_path: path.to_string_lossy().into(),
        sandbox,
        ..TestPool::config()
    };
    (TestPool::start_of(config, hooks).await, folder, projection)
}

/// A row of the read model's table of hooks.
fn listed(id: &str) -> ListedHook {
    let record = HookRecord {
        id: id.to_owned(),
        source: String::new(),
        content_hash: String::new(),
        metadata: HookMetadata::from_name(id.to_owned()),
        enabled: true,
        origin: HookOrigin::Pushed,
        created_by: "operator".to_owned(),
        made_in: None,
        created_at: UnixMillis(1),
        updated_at: UnixMillis(1),
        disabled_reason: None,
        parse_error: None,
    };

    ListedHook {
        record,
        state: HookState::default(),
        circuit: BreakerState::default(),
    }
}

fn extracted(answer: &Answer, hook: &str) -> Value {
    let context = answer.fired(hook).context.expect("a context");
    Value::Object(context.extracted.expect("extracted"))
}

/// What `body`, with `dbPath` and both libraries, says.
async fn said(body: &str) -> Value {
    let source = format!(
        "import Better from 'better-sqlite3'; import {{ Database, SQLiteError }} from 'bun:sqlite';
        const fault = (act) => {{ try {{ act(); return 'nothing'; }} catch (e) {{ return e.message; }} }};
        export default async ({{ dbPath }}) => {{ {body}\nreturn {{ fire: true, context: {{ extracted }} }}; }};"
    );
    let (pool, _folder, _projection) = start(vec![timed("asks", 30_000, &source)], SandboxMode::Degraded).await;
    let answer = pool.evaluate(dm("web:1", "x")).await;
    let said = extracted(&answer, "asks");
    pool.stop().await;

    said
}

#[tokio::test(flavor = "multi_thread")]
async fn both_libraries_ask_the_host() {
    let said = said(
        "const bun = new Database(dbPath, { readonly: true }), better = new Better(dbPath, { readonly: true, fileMustExist: true });
        const big = '9007199254740993';
        const extracted = {
          row: bun.query('SELECT ? AS a, ?2 AS b, 2.5 AS c, NULL AS d').get(1, 'x'),
          none: [bun.query('SELECT 1 WHERE 0').get() === null, better.prepare('SELECT 1 WHERE 0').get() === undefined],
          named: [bun.query('SELECT $a AS a').get({ $a: 7 }).a, better.prepare('SELECT @a AS a, :b AS b').get({ a: 7, b: null })],
          values: bun.query('SELECT 1, 2 UNION SELECT 3, 4').values(),
          raw: better.prepare('SELECT 1 AS a, 2 AS a').raw().all(), plucked: better.prepare('SELECT 5').pluck().get(),
          iterated: [...better.prepare('SELECT 1 AS a UNION SELECT 2').iterate()],
          bytes: [...bun.query(\"SELECT x'0102ff' AS b\").get().b], back: bun.query('SELECT hex(?) AS h').get(new Uint8Array([1, 255])).h,
          lossy: bun.query('SELECT ' + big + ' AS i').get().i,
          exact: `${new Database(dbPath, { safeIntegers: true }).query('SELECT ? AS i').get(9007199254740993n).i}`,
          types: bun.query('SELECT typeof(?) AS a, typeof(?) AS b, typeof(?) AS c').get(4294967296, 1.5, true),
          infinite: bun.query('SELECT 9e999 AS r').get().r === Infinity,
          columns: better.prepare('SELECT id, name FROM hooks').columns().map((c) => c.name),
          tables: better.pragma('table_info(events)').length > 5,
          run: better.prepare('SELECT 1').run().changes, transaction: better.transaction((n) => n + 1)(1),
          few: fault(() => bun.query('SELECT ?, ?').all(1)), missing: fault(() => better.prepare('SELECT @a').get({ b: 1 })),
          wrong: fault(() => better.prepare('SELECT absent').get()),
          isFault: (() => { try { bun.query('no sql').all(); } catch (e) { return e instanceof SQLiteError && e instanceof Better.SqliteError; } })(),
          memory: (() => { const own = new Database(':memory:'); own.run('CREATE TABLE t(a)'); own.run('INSERT INTO t VALUES (1)'); return own.query('SELECT a FROM t').all(); })(),
        };
        better.close(); bun.close();
        extracted.closed = fault(() => bun.query('SELECT 1').get());",
    )
    .await;

    let expected = json!({
        "row": {"a": 1, "b": "x", "c": 2.5, "d": null}, "none": [true, true], "named": [7, {"a": 7, "b": null}],
        "values": [[1, 2], [3, 4]], "raw": [[1, 2]], "plucked": 5, "iterated": [{"a": 1}, {"a": 2}],
        "bytes": [1, 2, 255], "back": "01FF", "lossy": 9_007_199_254_740_992_i64, "exact": "9007199254740993",
        "types": {"a": "integer", "b": "real", "c": "integer"}, "infinite": true, "columns": ["id", "name"], "tables": true,
        "run": 0, "transaction": 2, "few": "SQLite query expected 2 values, received 1", "missing": "Missing parameter \"a\"",
        "wrong": said["wrong"], "isFault": true, "memory": [{"a": 1}], "closed": "Cannot use a closed database",
    });

    assert_eq!(said, expected);
    assert!(
        said["wrong"].as_str().is_some_and(|why| why.contains("no such column")),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_does_more_than_read_is_refused() {
    let said = said(
        "const db = new Database(dbPath), all = (sql) => fault(() => db.query(sql).all());
        const extracted = { refused: [
          all(\"ATTACH '/tmp/x.db' AS x\"), all(' /* a */ -- b\\n attach database ? AS x'), all(\"INSERT INTO hooks(id) VALUES ('x')\"),
          all('WITH a AS (SELECT 1) DELETE FROM events'), all('PRAGMA journal_mode = DELETE'), all('PRAGMA main.user_version = 5'),
          all('PRAGMA wal_checkpoint(TRUNCATE)'), all('BEGIN EXCLUSIVE'), all('VACUUM'), all('CREATE TEMP TABLE t(a)'), all(''),
          fault(() => db.loadExtension('/tmp/x.so')), fault(() => db.function('f', () => 1)), fault(() => db.serialize()),
        ], others: [
          all(\"SELECT load_extension('/tmp/x.so')\"), all('SELECT 1; DELETE FROM events'), all('SELECT hex(zeroblob(400000000))'),
          all('SELECT zeroblob(4000000), zeroblob(4000000)'), fault(() => db.query('SELECT ?').all(() => 1)),
        ] };",
    )
    .await;

    for why in said["refused"].as_array().expect("a list") {
        let why = why.as_str().expect("text");
        assert!(why.starts_with("only a single SELECT statement is allowed"), "{why}");
    }

    for why in said["others"].as_array().expect("a list") {
        assert_ne!(why, "nothing", "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_hook_has_the_file() {
    if !TestPool::is_confined_whole().await {
        return;
    }

    let source = "import fs from 'node:fs'; import Database from 'better-sqlite3';
        const tries = (act) => { try { act(); return true; } catch { return false; } };
        export default ({ dbPath }) => ({ fire: true, context: { extracted: {
          opened: ['', '-wal', '-shm'].map((end) => tries(() => fs.openSync(dbPath + end, 'r'))),
          listed: tries(() => fs.readdirSync(dbPath.slice(0, dbPath.lastIndexOf('/')))),
          otherwise: tries(() => new Database('file:' + dbPath).prepare('SELECT 1 FROM events').all()),
          besides: tries(() => new Database(dbPath.replace(/([^/]+)$/, './$1')).prepare('SELECT 1 FROM events').all()),
          asked: tries(() => new Database(dbPath).prepare('SELECT 1 FROM events').all()),
        } } });";

    let (pool, _folder, _projection) = start(vec![timed("looks", 30_000, source)], SandboxMode::Enforce).await;
    let answer = pool.evaluate(dm("web:1", "x")).await;
    let expected =
        json!({"opened": [false, false, false], "listed": false, "otherwise": false, "besides": false, "asked": true});

    assert_eq!(extracted(&answer, "looks"), expected);

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_never_ends_is_an_error_of_its_hook() {
    let beside = "export default () => ({ fire: true });";
    let hooks = vec![timed("endless", 30_000, ENDLESS), timed("other", 30_000, beside)];
    let (pool, _folder, _projection) = start(hooks, SandboxMode::Degraded).await;
    let began = SystemClock.monotonic();
    let answer = pool.evaluate(dm("web:1", "x")).await;

    assert_eq!(
        answer.error("endless"),
        "SQLiteError: the query took longer than 1000 ms"
    );

    answer.fired("other");
    let took = SystemClock.monotonic().duration_since(began);
    assert!(took < Duration::from_secs(20), "{took:?}");

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_answer_comes_whole_and_one_without_bounds_does_not() {
    let said = said(&format!(
        "const rows = new Database(dbPath).query(\"{NUMBERS} SELECT x, hex(zeroblob(500)) AS h FROM n\").all(4000);
        const db = new Better(dbPath), first = [];
        for (const row of db.prepare(\"{NUMBERS} SELECT x, hex(zeroblob(500)) AS h FROM n\").iterate(1000000)) {{ if (first.push(row.x) === 3) break; }}
        const extracted = {{
          rows: rows.length, bytes: rows.reduce((sum, row) => sum + row.h.length, 0), ordered: rows.every((row, at) => row.x === at + 1), first,
          bounded: fault(() => db.prepare(\"{NUMBERS} SELECT hex(zeroblob(500)) FROM n\").all(1000000)),
        }};"
    ))
    .await;

    assert_eq!(
        (&said["rows"], &said["bytes"]),
        (&json!(4_000), &json!(4_000_000)),
        "{said}"
    );
    assert_eq!((&said["ordered"], &said["first"]), (&json!(true), &json!([1, 2, 3])));
    assert_ne!(said["bounded"], json!("nothing"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_evaluation_reads_one_state_though_others_read_between() {
    let asks = "import fs from 'node:fs'; import { Database } from 'bun:sqlite';
        let met = null;
        export default async ({ event, dbPath }) => {
          const db = new Database(dbPath), count = () => db.query('SELECT count(*) AS n FROM hooks').get().n;
          const counts = [count()];
          const { promise, resolve } = Promise.withResolvers();
          if (met === null) { met = resolve; await promise; } else { met(); met = null; }
          for (let round = 0; round < 20; round++) {
            await (round % 2 ? Bun.sleep(1) : fs.promises.stat('/dev/null').catch(() => {}));
            counts.push(count());
          }
          return { fire: true, context: { extracted: { counts: [...new Set(counts)] } } };
        };";
    let (pool, _folder, projection) = start(vec![timed("asks", 30_000, asks)], SandboxMode::Degraded).await;
    pool.evaluate_skipping(dm("web:0", "warm"), &["asks"]).await;

    let is_done = AtomicBool::new(false);
    let writing = async {
        let mut hooks = Vec::new();
        while !is_done.load(Ordering::Relaxed) {
            hooks.push(listed(&format!("hook{}", hooks.len())));
            projection.list_hooks(hooks.clone()).await.expect("written");
        }
        assert!(hooks.len() > 2, "{} were written", hooks.len());
    };
    let asking = async {
        let (one, other) = tokio::join!(pool.evaluate(dm("web:1", "x")), pool.evaluate(dm("web:2", "x")));
        is_done.store(true, Ordering::Relaxed);
        (one, other)
    };

    let ((one, other), ()) = tokio::join!(asking, writing);
    for answer in [one, other] {
        let counts = extracted(&answer, "asks");
        assert_eq!(counts["counts"].as_array().map(Vec::len), Some(1), "{counts}");
    }

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_of_one_author_delay_no_other() {
    let flood = HookSource {
        created_by: "mallory".to_owned(),
        ..timed("flood", 30_000, ENDLESS)
    };
    let asks = "import { Database } from 'bun:sqlite';
        export default ({ event, dbPath }) => ({ fire: new Database(dbPath).query('SELECT ? AS a').get(event.content).a === event.content });";
    let (pool, _folder, _projection) = start(vec![flood, timed("asks", 30_000, asks)], SandboxMode::Degraded).await;
    pool.evaluate_skipping(dm("web:0", "warm"), &["flood"])
        .await
        .fired("asks");

    let (mut slowest, flooding) = (Duration::ZERO, async {
        let floods = (0..6).map(|number| pool.evaluate_skipping(dm(&format!("bad:{number}"), "x"), &["asks"]));
        futures_util::future::join_all(floods.collect::<Vec<_>>()).await
    });
    let asking = async {
        for number in 1..=100 {
            let began = SystemClock.monotonic();
            let answer = pool
                .evaluate_skipping(dm(&format!("web:{number}"), "x"), &["flood"])
                .await;
            answer.fired("asks");
            slowest = slowest.max(SystemClock.monotonic().duration_since(began));
        }
    };

    let (floods, ()) = tokio::join!(flooding, asking);
    assert!(slowest < Duration::from_millis(900), "{slowest:?}");

    for answer in floods {
        assert!(answer.failed("flood").is_some());
    }

    pool.stop().await;
}
