//! Scripts that want out, or want others to pay. Each is a module's body behind [`MEANS`], and what the reason says for which
//! it is paused.

/// What all have: the note's cells, ways to write to the host, and a way to say that an attempt was refused.
pub(super) const MEANS: &str = "import fs from 'node:fs'; import net from 'node:net'; import dgram from 'node:dgram'; import os from 'node:os';
import vm from 'node:vm'; import { Worker as Thread } from 'node:worker_threads'; import { spawn, spawnSync } from 'node:child_process';
import { Database } from 'bun:sqlite';
const argument = (name) => process.argv.find((a) => a.startsWith(name + '=')).slice(name.length + 1);
const mapped = () => { const bytes = Bun.mmap(argument('note'), { shared: true }); return new Int32Array(bytes.buffer, bytes.byteOffset, 8); };
const say = (said) => {
  const body = Buffer.from(JSON.stringify(said));
  const frame = Buffer.alloc(4 + body.length); frame.writeUInt32LE(body.length, 0); frame.set(body, 4);
  fs.writeSync(1, frame);
};
const busy = (ms) => { const end = performance.now() + ms; while (performance.now() < end); };
const never = () => new Promise(() => {});
const query = (sql) => ({ t: 'query', q: { slot: mapped()[0], query: { sql } } });
const NUMBERS = 'WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) ';
";

/// One of these, whichever bound of the host a machine reaches first.
const STANDS: &str = "processor time|idle without an answer|timed out after|evaluation still running";
const HOLDS: &str = "memory|processor time|idle without an answer|timed out after|evaluation still running";

/// Name, script, and a part of what it is paused for, one of several where it depends on the machine; none where it only costs itself, and need not be paused.
pub(super) type Hostile = (&'static str, &'static str, Option<&'static str>);

/// Who keep the processor.
const LOOPS: [Hostile; 12] = [
    ("loop", "export default () => { for (;;); };", Some(STANDS)),
    (
        "loop_later",
        "export default async () => { await 1; for (;;); };",
        Some(STANDS),
    ),
    (
        "regex",
        "export default () => ({ fire: /^(a+)+$/.test('a'.repeat(40) + 'b') });",
        Some(STANDS),
    ),
    (
        "microtasks",
        "export default () => { const again = () => Promise.resolve().then(again); again(); return never(); };",
        Some(STANDS),
    ),
    (
        "ticks",
        "export default () => { const again = () => process.nextTick(again); again(); return never(); };",
        Some(STANDS),
    ),
    (
        "immediates",
        "export default () => { const again = () => { busy(5); setImmediate(again); }; again(); return never(); };",
        Some(STANDS),
    ),
    (
        "intervals",
        "export default () => { for (let n = 0; n < 4; n++) setInterval(() => busy(40), 1); return never(); };",
        Some(STANDS),
    ),
    (
        "getter",
        "export default () => ({ get fire() { for (;;); } });",
        Some(STANDS),
    ),
    (
        "proxy",
        "export default () => new Proxy({}, { get: () => { for (;;); }, ownKeys: () => { for (;;); } });",
        Some(STANDS),
    ),
    (
        "thenable",
        "export default () => ({ then() { for (;;); } });",
        Some(STANDS),
    ),
    (
        "error",
        "export default () => { throw { get message() { for (;;); }, get stack() { for (;;); }, toString() { for (;;); } }; };",
        Some(STANDS),
    ),
    (
        "stack",
        "Error.prepareStackTrace = () => { for (;;); }; export default () => { throw new Error('x'); };",
        Some("readonly property"),
    ),
];

/// Who stand still, or keep others waiting.
const STILL: [Hostile; 8] = [
    ("sleep", "export default () => { Bun.sleepSync(30000); };", Some(STANDS)),
    (
        "wait",
        "export default () => { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 30000); };",
        Some(STANDS),
    ),
    (
        "steal",
        "export default () => { for (;;) fs.readSync(0, Buffer.alloc(65536)); };",
        Some(STANDS),
    ),
    (
        "deaf",
        "export default () => { fs.closeSync(0); return never(); };",
        Some("closed its pipes|EBADF"),
    ),
    (
        "mute",
        "export default () => { fs.closeSync(1); return never(); };",
        Some("closed its pipes|EBADF"),
    ),
    (
        "exit",
        "export default () => { process.exit(0); };",
        Some("process.exit is not allowed"),
    ),
    (
        "abort",
        "export default () => { process.abort(); };",
        Some("process.abort is not allowed"),
    ),
    (
        "recursion",
        "const deep = (n) => deep(n + 1) + deep(n); export default () => deep(0);",
        Some("call stack"),
    ),
];

/// Who write what the shim writes.
const FORGERS: [Hostile; 10] = [
    (
        "steps",
        "export default () => { const c = mapped(); for (;;) c[2] = (c[2] + 1) | 0; };",
        Some(STANDS),
    ),
    (
        "names",
        "export default () => { const c = mapped(); for (;;) { c[1] = 1; c[2]++; } };",
        Some(STANDS),
    ),
    (
        "nobody",
        "export default () => { const c = mapped(); for (;;) { c[1] = 0; c[2]++; } };",
        Some(STANDS),
    ),
    (
        "fills",
        "export default () => { const c = mapped(); c.fill(-1); return never(); };",
        Some(STANDS),
    ),
    (
        "pongs",
        "export default () => { for (let n = 0; ; n++) if (n % 100000 === 0) say({ t: 'pong', n }); };",
        Some(STANDS),
    ),
    (
        "answers",
        "export default () => { say({ r: [[mapped()[0], 0, [1], [[0, 1, '{\"fire\":true}']], [], [9999], []]] }); for (;;); };",
        Some("answer for hook 9999"),
    ),
    (
        "calls",
        "export default () => { for (let n = 0; n < 5000; n++) say({ t: 'call', k: [[mapped()[0], 0, n, 'llm', '{}']] }); for (;;); };",
        Some(STANDS),
    ),
    (
        "rubbish",
        "export default () => { fs.writeSync(1, 'x'.repeat(1000)); for (;;); };",
        Some("frame has"),
    ),
    (
        "long",
        "export default () => { const head = Buffer.alloc(4); head.writeUInt32LE(0x7fffffff, 0); fs.writeSync(1, head); for (;;); };",
        Some("frame has"),
    ),
    (
        "queries",
        "export default () => { for (;;) say(query('SELECT 1')); };",
        Some("query before the previous one was answered"),
    ),
];

/// Who keep the read model.
const READERS: [Hostile; 5] = [
    (
        "endless",
        "export default ({ dbPath }) => new Database(dbPath).query(NUMBERS + 'SELECT count(*) FROM n').get();",
        Some("the query took longer than"),
    ),
    (
        "all",
        "export default ({ dbPath }) => new Database(dbPath).query(NUMBERS + 'SELECT hex(zeroblob(1000)) FROM n').all();",
        Some("the query took longer than"),
    ),
    (
        "unread",
        "export default () => { say(query(NUMBERS + 'SELECT hex(zeroblob(1000)) FROM n LIMIT 3000')); return never(); };",
        Some("query before the previous one"),
    ),
    (
        "writes",
        "export default ({ dbPath }) => new Database(dbPath).run('DELETE FROM events');",
        Some("only a single SELECT"),
    ),
    (
        "locks",
        "export default ({ dbPath }) => { fs.closeSync(fs.openSync(dbPath + '-shm', 'r')); };",
        Some("EACCES"),
    ),
];

/// Who hold memory, files or processes.
const GREEDY: [Hostile; 8] = [
    (
        "buffers",
        "export default () => { const held = []; for (;;) held.push(new Uint8Array(1 << 20).fill(1)); };",
        Some(HOLDS),
    ),
    (
        "shared",
        "export default () => { const held = []; for (;;) held.push(new Uint8Array(new SharedArrayBuffer(1 << 22)).fill(1)); };",
        Some(HOLDS),
    ),
    (
        "wasm",
        "export default () => { const held = []; for (;;) { const m = new WebAssembly.Memory({ initial: 256 }); new Uint8Array(m.buffer).fill(1); held.push(m); } };",
        Some(HOLDS),
    ),
    (
        "text",
        "export default () => ({ fire: true, context: { prompt: 'x'.repeat(1 << 28) } });",
        Some(HOLDS),
    ),
    (
        "nested",
        "export default () => { let deep = {}; for (let n = 0; n < 100000; n++) deep = { deep }; return { fire: true, context: { extracted: deep } }; };",
        Some(
            "Maximum call stack size exceeded|processor time|idle without an answer|timed out after|evaluation still running",
        ),
    ),
    (
        "threads",
        "export default () => { for (let n = 0; n < 50; n++) new Thread('for (;;);', { eval: true }); return never(); };",
        Some("is not allowed in a hook"),
    ),
    (
        "spawns",
        "export default () => { if (spawnSync('/bin/true').error) throw new Error('refused'); };",
        Some("refused"),
    ),
    (
        "timers",
        "export default () => { for (let n = 0; n < 200000; n++) setInterval(() => {}, 1); return { fire: false }; };",
        None,
    ),
];

/// Who talk too much, or to whom they may not, and who change what others use.
const LOUD: [Hostile; 15] = [
    (
        "stderr",
        "const text = 'x'.repeat(65536); export default () => { for (;;) fs.writeSync(2, text); };",
        Some("EAGAIN"),
    ),
    (
        "drip",
        "export default () => { setInterval(() => { for (let n = 0; n < 200; n++) fs.writeSync(2, 'x'); }, 1); return { fire: false }; };",
        None,
    ),
    (
        "escapes",
        "const text = '\\u0001'.repeat(65536); export default () => { for (let n = 0; n < 1000; n++) console.log(text); return { fire: false }; };",
        None,
    ),
    (
        "quotes",
        "const text = 'x'.repeat(1 << 23); export default () => { say({ r: text }); for (;;); };",
        Some(
            "protocol violation by the worker|processor time|idle without an answer|timed out after|evaluation still running",
        ),
    ),
    (
        "console",
        "const text = 'x'.repeat(65536); export default () => { for (let n = 0; n < 1000; n++) console.log(text); return { fire: false }; };",
        None,
    ),
    (
        "strays",
        "export default () => { setInterval(() => { throw new Error('stray'); }, 1); return { fire: false }; };",
        Some("stray"),
    ),
    (
        "rejects",
        "export default () => { for (let n = 0; n < 10000; n++) Promise.reject(new Error('unhandled')); return { fire: false }; };",
        Some("unhandled"),
    ),
    (
        "connects",
        "export default () => new Promise((_, fail) => net.connect(4222, '127.0.0.1').on('error', fail));",
        Some("ECONNREFUSED"),
    ),
    (
        "datagrams",
        "export default () => new Promise((_, fail) => dgram.createSocket('udp4').on('error', fail).bind(0));",
        Some("EPERM"),
    ),
    (
        "signals",
        "export default () => { process.kill(process.ppid, 9); };",
        Some("process.kill is not allowed"),
    ),
    (
        "renices",
        "export default () => { os.setPriority(process.ppid, 19); };",
        Some("EPERM"),
    ),
    (
        "secrets",
        "export default () => { fs.readFileSync(`/proc/${process.ppid}/environ`); };",
        Some("EACCES"),
    ),
    (
        "inherits",
        "export default () => {
          for (let fd = 3; fd < 128; fd++) {
            const bytes = Buffer.alloc(64);
            let length = 0;
            try { length = fs.readSync(fd, bytes, 0, 64, 0); } catch {}
            if (bytes.toString('utf8', 0, length).includes('secret')) return { fire: false };
          }
          throw new Error('nothing was left open');
        };",
        Some("nothing was left open"),
    ),
    (
        "disk",
        "export default () => { for (let n = 0; ; n++) fs.writeFileSync(`/tmp/evil${n}`, 'x'); };",
        Some("EACCES"),
    ),
    (
        "patches",
        "export default () => { Array.prototype.push = () => 0; Promise.prototype.then = () => {}; JSON.parse = () => ({}); };",
        Some("readonly property"),
    ),
];

/// Who make trouble while they load.
const LOADING: [Hostile; 2] = [
    (
        "waits_to_load",
        "await never(); export default () => ({ fire: true });",
        Some("took more than"),
    ),
    (
        "loops_to_load",
        "for (;;); export default () => ({ fire: true });",
        None,
    ),
];

/// All of them.
pub(super) fn all() -> Vec<Hostile> {
    let groups: [&[Hostile]; 7] = [&LOOPS, &STILL, &FORGERS, &READERS, &GREEDY, &LOUD, &LOADING];
    groups.concat()
}
