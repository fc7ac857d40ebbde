//! What scripts share: built-ins and modules are frozen, and what cannot be is put right.

use hook_svc::runner::HookSource;

use crate::hostile::extracted;
use crate::pool::{TestPool, dm, timed};

/// What an innocent neighbour sees of the built-ins.
const LOOKS: &str = "export default () => ({ fire: true, context: { extracted: {
  json: JSON.stringify({ a: 1 }), polluted: ({}).polluted === undefined, push: [1].concat([2]).length } } });";

#[tokio::test(flavor = "multi_thread")]
async fn patched_built_ins_are_an_error_of_the_patcher() {
    let patches = [
        "Object.prototype.polluted = 1;",
        "JSON.stringify = () => 'forged';",
        "Array.prototype.concat = () => [];",
        "globalThis.JSON = {};",
        "Promise.prototype.then = () => {};",
        "Object.prototype.toString = () => 'x';",
        "Date = class {};",
        "crypto.randomUUID = () => 'forged';",
        "Object.defineProperty(globalThis, 'crypto', { value: {} });",
        "globalThis.Response = class {};",
        "Headers.prototype.get = () => 'forged';",
        "AbortSignal.timeout = () => 1;",
        "Intl.DateTimeFormat = function () {};",
        "process.env.TZ = 'Asia/Tokyo';",
        "console.log = () => {};",
        "require('node:fs').readFileSync = () => 'forged';",
        "require('node:path').join = () => 'forged';",
        "require('node:crypto').createHash = () => 1;",
        "require('node:events').prototype.emit = () => 1;",
        "require('bun:sqlite').Database.prototype.query = () => 1;",
        "require('better-sqlite3').Database.prototype.prepare = () => 1;",
        "const db = require('better-sqlite3')(':memory:'); Object.getPrototypeOf(db.prepare('select 1')).get = () => 1;",
        "Bun.hash = () => 1;",
        "process.nextTick = () => 1;",
        "Array.prototype[Symbol.iterator] = function* () {};",
        "Iterator.prototype.map = () => 1;",
        "Object.getPrototypeOf([][Symbol.iterator]()).next = () => 1;",
        "TextEncoder.prototype.encode = () => 1;",
        "EventTarget.prototype.addEventListener = () => 1;",
        "Temporal.Now.instant = () => 1;",
    ];

    let mut hooks: Vec<HookSource> = patches
        .iter()
        .enumerate()
        .map(|(at, patch)| {
            timed(
                &format!("patch-{at}"),
                30_000,
                &format!("export default () => {{ {patch} return {{ fire: false }}; }};"),
            )
        })
        .collect();

    hooks.push(timed("z-looks", 30_000, LOOKS));
    // Programs do give their own objects such properties.
    let own = "class Mine extends Error { constructor() { super('m'); this.name = 'Mine'; } }
        export default () => { const o = {}; o.toString = () => 'own'; const e = new Mine(); e.message = 'n'; return { fire: true, context: { prompt: `${o} ${e}` } }; };";
    hooks.push(timed("z-own", 30_000, own));
    let pool = TestPool::start_with(hooks, 1).await;
    let answer = pool.evaluate(dm("web:1", "x")).await;

    for (at, patch) in patches.iter().enumerate() {
        assert!(
            answer.error(&format!("patch-{at}")).starts_with("TypeError: "),
            "{patch}"
        );
    }

    assert_eq!(extracted(&answer, "z-looks", "json"), r#"{"a":1}"#);
    assert_eq!(extracted(&answer, "z-looks", "polluted"), true);

    let own = answer.fired("z-own").context.and_then(|context| context.system_prompt);
    assert_eq!(own.as_deref(), Some("own Mine: n"));

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_leads_past_the_frozen_is_gone() {
    let ways = [
        "require('bun:ffi').dlopen('libc.so.6', {});",
        "(await import('bun:ffi')).dlopen('libc.so.6', {});",
        "Bun.FFI.dlopen('libc.so.6', {});",
        "new (require('bun:ffi').CFunction)({ returns: 'int', ptr: 1 });",
        "require('bun:ffi').cc({ source: '/dev/null', symbols: {} });",
        "require('bun:jsc').setTimeZone('Asia/Tokyo');",
        "require('bun:test').mock.module('better-sqlite3', () => ({}));",
        "process.dlopen({}, '/lib/x86_64-linux-gnu/libc.so.6');",
        "process.execve('/bin/true', ['true'], {});",
        "require('node:process').execve('/bin/true', ['true'], {});",
        "require('process').execve('/bin/true', ['true'], {});",
        "(await import('node:process')).execve('/bin/true', ['true'], {});",
        "(await import('process')).default.execve('/bin/true', ['true'], {});",
        "process._debugProcess(1);",
        "process.setUncaughtExceptionCaptureCallback(() => {});",
    ];

    let hooks = ways.iter().enumerate().map(|(at, way)| {
        let source = format!("export default async () => {{ {way} return {{ fire: false }}; }};");
        timed(&format!("way-{at}"), 30_000, &source)
    });
    let pool = TestPool::start_with(hooks.collect(), 1).await;
    let answer = pool.evaluate(dm("web:1", "x")).await;
    for (at, way) in ways.iter().enumerate() {
        let error = answer.error(&format!("way-{at}"));
        assert!(error.contains("is not allowed in a hook"), "{way}: {error}");
    }

    pool.stop().await;
}

/// Modules and the time zone cannot be frozen: what a script changes of them lasts for no later event and for no later set.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_frozen_is_put_right() {
    const HIJACKS: &str =
        "contents: 'export default () => ({ fire: true, context: { prompt: \"hijacked\" } })', loader: 'ts'";

    let plugs = format!(
        "export default () => {{ Bun.plugin({{ name: 'x', setup(b) {{ b.onLoad({{ filter: /\\.ts$/ }}, () => ({{ {HIJACKS} }})); }} }}); return {{ fire: false }}; }};"
    );
    let caches = "export default () => { for (const key of Object.keys(require.cache)) {
          try { require.cache[key].exports.default = () => ({ fire: true, context: { prompt: 'hijacked' } }); } catch {} } return { fire: false }; };";
    let zones = "export default () => { import.meta.env.TZ = 'Asia/Tokyo'; delete import.meta.env.TZ; return { fire: false }; };";
    let looks = "export default async (ctx) => ({ fire: true, context: { prompt: ctx.event.id, extracted: { hour: new Date(0).getHours() } } });";

    let hooks = [
        ("m-plugs", plugs.as_str()),
        ("n-caches", caches),
        ("o-zones", zones),
        ("z", looks),
    ];

    let pool = TestPool::start(&hooks).await;
    let hour = extracted(&pool.evaluate(dm("web:0", "x")).await, "z", "hour");
    for number in 1..4 {
        let later = format!("late-{number}");
        let hooks = [&hooks[..], &[(later.as_str(), looks)]].concat();
        pool.load(&hooks).await;
        let id = format!("web:{number}");
        let answer = pool.evaluate(dm(&id, "x")).await;

        for good in ["z", later.as_str()] {
            let prompt = answer.fired(good).context.and_then(|context| context.system_prompt);
            assert_eq!(prompt.as_deref(), Some(id.as_str()), "{good}");
        }

        // Before the hook that moves the zone.
        assert_eq!(extracted(&answer, &later, "hour"), hour);
    }

    pool.stop().await;
}
