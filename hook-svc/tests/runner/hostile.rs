//! Hooks that try what they may not do: each costs only itself, and everything that is denied is tried from inside.

use std::time::Duration;

use hook_svc::runner::{HookScope, HookSource};
use serde_json::Value;
use shared::clock::{Clock as _, SystemClock};
use shared::testing::{eventually, says};

use crate::pool::{TestPool, dm, timed};

const FIRES: &str = "export default async (ctx) => ({ fire: true, context: { prompt: ctx.event.id } });";

/// Tries `attempt` and tells how it ended.
fn trying(attempt: &str) -> String {
    format!(
        "import fs from 'node:fs'; import net from 'node:net'; import {{ spawnSync }} from 'node:child_process';
        import {{ Worker as Thread }} from 'node:worker_threads'; import {{ dlopen }} from 'bun:ffi';
        const connect = (...to) => new Promise((done, fail) => {{ net.connect(...to).on('connect', done).on('error', fail); }});
        export default async () => {{
          let said = 'done';
          try {{ const answer = await (async () => {{ {attempt} }})(); if (answer === -1) said = 'refused'; }} catch {{ said = 'refused'; }}
          return {{ fire: true, context: {{ extracted: {{ said }} }} }};
        }};"
    )
}

pub(crate) fn by(author: &str, hook: HookSource) -> HookSource {
    HookSource {
        created_by: author.to_owned(),
        sees: HookScope::Everything,
        ..hook
    }
}

pub(crate) fn extracted(answer: &crate::pool::Answer, hook: &str, field: &str) -> Value {
    let context = answer.fired(hook).context.expect("a context");
    context.extracted.expect("extracted")[field].clone()
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
async fn what_is_denied_is_refused() {
    // Somebody listens there: it is the sandbox that refuses, and nothing else.
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("x.sock");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).expect("a socket file");
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let fetches = format!("await fetch('http://127.0.0.1:{port}/');");
    let connects = format!("await connect({port}, '127.0.0.1');");

    let connects_to_file = format!("await connect('{}');", socket.display());
    let attempts = [
        ("reads a file", "fs.readFileSync('/etc/passwd');"),
        (
            "reads a secret of another process",
            "fs.readFileSync('/proc/1/environ');",
        ),
        ("lists a directory", "fs.readdirSync('/');"),
        ("writes a file", "fs.writeFileSync('/tmp/nexus-evil', 'x');"),
        (
            "writes a neighbour",
            "fs.writeFileSync(process.cwd() + '/hooks/evil.ts', 'x');",
        ),
        (
            "empties a file that it may read",
            "fs.openSync(process.cwd() + '/shim/probe.txt', fs.constants.O_RDONLY | fs.constants.O_TRUNC);",
        ),
        (
            "moves a file",
            "fs.renameSync(process.cwd() + '/shim/probe.txt', process.cwd() + '/hooks/probe.txt');",
        ),
        ("fetches", fetches.as_str()),
        ("connects", connects.as_str()),
        ("connects to a socket file", connects_to_file.as_str()),
        ("listens", "Bun.serve({ port: 0, fetch: () => new Response('') });"),
        (
            "spawns",
            "const { error } = spawnSync('/bin/true'); if (error) throw error;",
        ),
        ("spawns by Bun", "Bun.spawnSync(['/bin/true']);"),
        ("signals", "process.kill(process.ppid, 0);"),
        (
            "signals by the C library",
            "return dlopen('libc.so.6', { kill: { args: ['int', 'int'], returns: 'int' } }).symbols.kill(process.ppid, 0);",
        ),
        (
            "forks by the C library",
            "return dlopen('libc.so.6', { fork: { args: [], returns: 'int' } }).symbols.fork();",
        ),
        ("starts a thread", "new Thread('data:text/javascript,1');"),
        ("exits", "process.exit(3);"),
        (
            "reads our environment",
            "fs.readFileSync(`/proc/${process.ppid}/environ`);",
        ),
        ("reads our memory", "fs.openSync(`/proc/${process.ppid}/mem`, 'r');"),
        (
            "makes a link",
            "fs.symlinkSync('/etc/passwd', process.cwd() + '/link');",
        ),
        (
            "renames its source",
            "fs.renameSync(import.meta.path, import.meta.path + '.old');",
        ),
        ("removes its source", "fs.unlinkSync(import.meta.path);"),
        ("makes its source executable", "fs.chmodSync(import.meta.path, 0o777);"),
        ("makes its source look old", "fs.utimesSync(import.meta.path, 1, 1);"),
        ("looks at other pools", "fs.readdirSync(process.cwd() + '/..');"),
        ("connects to an abstract socket", "await connect({ path: '\\0nexus' });"),
    ];

    // By number, as the C library would: those of x86-64.
    let calls = [
        ("traces", "101, 0, 0, 0, 0"),
        ("reads a process", "310, process.ppid, 0, 0, 0"),
        ("writes a process", "311, process.ppid, 0, 0, 0"),
        ("makes a ring", "425, 1, 0, 0, 0"),
        ("unshares", "272, 0x10000000, 0, 0, 0"),
        ("mounts", "165, 0, 0, 0, 0"),
        ("handles page faults", "323, 0, 0, 0, 0"),
        ("loads a filter", "321, 0, 0, 0, 0"),
        ("asks for keys", "250, 0, -3, 0, 0"),
        ("counts events", "298, 0, 0, -1, -1"),
        ("signals a thread of another", "234, process.ppid, process.ppid, 0, 0"),
        ("opens a process", "434, process.ppid, 0, 0, 0"),
        ("becomes another", "105, 1, 0, 0, 0"),
        ("changes its root", "161, 0, 0, 0, 0"),
        ("changes its root by a mount", "155, 0, 0, 0, 0"),
        ("becomes another by another call", "117, 1, 1, 1, 0"),
        ("takes other groups", "116, 0, 0, 0, 0"),
        ("takes capabilities", "126, 0, 0, 0, 0"),
        ("becomes a file of its own making", "322, -1, 0, 0, 0"),
        ("changes the clock", "227, 0, 0, 0, 0"),
        ("changes the host's name", "170, 0, 0, 0, 0"),
        ("marks its files", "188, 0, 0, 0, 0"),
        ("loads a module", "313, -1, 0, 0, 0"),
        ("reads the kernel's log", "103, 3, 0, 0, 0"),
        (
            "takes limits away",
            "302, 0, 7, Number(ptr(new BigUint64Array([4096n, 4096n]))), 0",
        ),
    ];

    let calls = calls.map(|(name, arguments)| {
        let call = format!(
            "const {{ ptr, read }} = await import('bun:ffi');
            const types = {{ syscall: {{ args: ['i64', 'i64', 'i64', 'i64', 'i64'], returns: 'i64' }}, __errno_location: {{ args: [], returns: 'ptr' }} }};
            const {{ syscall, __errno_location }} = dlopen('libc.so.6', types).symbols;
            const errno = __errno_location();
            const answer = Number(syscall({arguments}));
            // EPERM, EACCES or ENOSYS: it is forbidden, not merely wrong.
            return answer === -1 && [1, 13, 38].includes(read.i32(errno)) ? -1 : 0;"
        );

        (name, call)
    });

    let is_known = cfg!(target_arch = "x86_64");
    let calls = calls
        .iter()
        .filter(|_| is_known)
        .map(|(name, call)| (*name, call.as_str()));

    let attempts: Vec<(&str, &str)> = attempts.into_iter().chain(calls).collect();
    let sources: Vec<(&str, String)> = attempts
        .iter()
        .map(|(name, attempt)| (*name, trying(attempt)))
        .collect();

    let hooks = sources
        .iter()
        .map(|(name, source)| timed(name, 30_000, source))
        .collect();
    let pool = TestPool::start_with(hooks, 1).await;
    if !TestPool::is_confined_whole().await {
        return pool.stop().await;
    }

    let answer = pool.evaluate(dm("web:1", "x")).await;
    for (name, _) in attempts {
        assert_eq!(extracted(&answer, name, "said"), "refused", "a hook that {name}");
    }

    pool.stop().await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn no_hook_has_what_hook_svc_was_left_open() {
    use std::io::Write as _;

    // As a shell, a supervisor or a container's runtime leaves files open for what they start.
    let mut secret = tempfile::tempfile().expect("a file");
    secret.write_all(b"the secret of another author").expect("written");
    rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).expect("left open");

    let looks = "import fs from 'node:fs';
        export default () => {
          const found = [];
          for (let fd = 3; fd < 1024; fd++) {
            const bytes = Buffer.alloc(64);
            try { found.push(bytes.toString('utf8', 0, fs.readSync(fd, bytes, 0, 64, 0))); } catch {}
          }
          const own = process.argv.find((a) => a.startsWith('answers=')).slice(8);
          return { fire: true, context: { extracted: { found, answers: fs.fstatSync(Number(own)).isFIFO() } } };
        };";
    let pool = TestPool::start_with(vec![timed("looks", 30_000, looks)], 1).await;
    let answer = pool.evaluate(dm("web:1", "x")).await;

    // The launcher closes them.
    if TestPool::is_confined_whole().await {
        let found = extracted(&answer, "looks", "found").to_string();
        assert!(!found.contains("secret"), "{found}");
        assert_eq!(extracted(&answer, "looks", "answers"), true);
    }

    drop(secret);
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_our_environment_is_seen() {
    let env = "export default () => ({ fire: true, context: { extracted: { env: Object.keys(process.env).filter((n) => !n.startsWith('BUN_JSC')) } } });";
    let pool = TestPool::start(&[("env", env)]).await;
    let seen = extracted(&pool.evaluate(dm("web:1", "x")).await, "env", "env");
    assert_eq!(seen, serde_json::json!([]));
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gigabytes_are_an_error_of_their_hook() {
    let greedy = "export default () => { const held = []; for (let i = 0; i < 2048; i++) held.push(new Uint8Array(1 << 20).fill(1)); return { fire: true }; };";
    let pool = TestPool::start(&[("a", FIRES), ("greedy", greedy), ("z", FIRES)]).await;
    let events: Vec<String> = (0..10).map(|n| format!("web:{n}")).collect();
    let answers = futures_util::future::join_all(events.iter().map(|id| pool.evaluate(dm(id, "x")))).await;

    for (id, answer) in events.iter().zip(&answers) {
        for good in ["a", "z"] {
            let prompt = answer.fired(good).context.and_then(|context| context.system_prompt);
            assert_eq!(prompt.as_ref(), Some(id));
        }
        assert!(!answer.error("greedy").is_empty());
    }

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_author_forges_nothing_but_their_own() {
    // Answers for the neighbour at index 0 of its own process, and then garbage.
    let forges = "import fs from 'node:fs';
        export default () => {
          const body = Buffer.from(JSON.stringify({ r: [[0, 0, [1, 1], [[0, 1, '{\"fire\":true,\"context\":{\"prompt\":\"forged\"}}']], [], [], []]] }));
          const frame = Buffer.alloc(4 + body.length); frame.writeUInt32LE(body.length, 0); frame.set(body, 4);
          fs.writeSync(1, frame); fs.writeSync(1, Buffer.from([255, 255, 255, 255]));
          return { fire: false };
        };";

    let hooks = vec![
        timed("a", 30_000, FIRES),
        by("mallory", timed("forges", 30_000, forges)),
        by("ann", timed("m", 30_000, FIRES)),
        timed("z", 30_000, FIRES),
    ];

    let pool = TestPool::start_with(hooks, 1).await;
    for number in 0..8 {
        the_good_ones_fire(&pool, &format!("web:{number}")).await;
    }

    pool.stop().await;
}

/// Shows the event `id` to all: `a`, `m` and `z` fire upon it as if they were alone.
async fn the_good_ones_fire(pool: &TestPool, id: &str) {
    let answer = pool.evaluate(dm(id, "x")).await;
    for good in ["a", "m", "z"] {
        let prompt = answer.fired(good).context.and_then(|context| context.system_prompt);
        assert_eq!(prompt.as_deref(), Some(id), "{good}");
    }
}

/// Writes each of `frames` to the pipe, then garbage, which costs it its process.
fn writing(frames: &str) -> String {
    format!(
        "import fs from 'node:fs';
        export default () => {{
          for (const said of {frames}) {{
            const body = Buffer.from(JSON.stringify(said));
            const frame = Buffer.alloc(4 + body.length); frame.writeUInt32LE(body.length, 0); frame.set(body, 4);
            fs.writeSync(1, frame);
          }}
          fs.writeSync(1, Buffer.from([255, 255, 255, 255]));
          return {{ fire: false }};
        }};"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_ends_whatever_is_written_to_the_pipe() {
    let frames = [
        "[{r: [[0, 0, [], [], [], [9999], []]]}]",
        "[{r: [[0, 0, [], [], [], [0, 0], []]]}]",
        "[{r: [[0, 4294967295, [], [], [], [0], []]]}, {r: [[0, 4294967295, [], [], [], [], []]]}]",
        "[{r: [[0, 1, [1, 2, 3, 4], [], [], [], []]]}]",
        "[{r: [[0, 1, [1], [], [], [], [0]]]}]",
        "[{r: [[0, 0, [1], [[7, 1, '{\"fire\":true}']], [], [], []]]}]",
        "[{t: 'call', k: [[0, 77, 0, 'llm', '{}']]}]",
        "[{t: 'loaded', g: 1, bad: [[99, 'x']]}, {r: [[12345, 1, [], [], [], [], []]]}]",
    ];

    let mut hooks = vec![timed("a", 30_000, FIRES), by("ann", timed("m", 30_000, FIRES))];
    for (number, frames) in frames.iter().enumerate() {
        let (author, id) = (format!("mallory-{number}"), format!("writes-{number}"));
        hooks.push(by(&author, timed(&id, 30_000, &writing(frames))));
    }

    hooks.push(timed("z", 30_000, FIRES));
    let pool = TestPool::start_with(hooks, 1).await;
    for number in 0..2 {
        the_good_ones_fire(&pool, &format!("web:{number}")).await;
    }

    pool.stop().await;
}

/// How long an event may take beyond the hard budget of a hook that loops upon it: half of the events of a round
/// (`NEXUS_HOOKS=long`: the budget is processor time, of which a busy machine gives little), and any.
const BEYOND_BUDGET: Duration = Duration::from_millis(500);
const AT_LAST: Duration = Duration::from_secs(30);
/// How often the long form looks again.
const ROUNDS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_with_a_loop_in_it_is_done_soon() {
    let budget = Duration::from_millis(TestPool::config().hard_budget_ms);
    let pool = TestPool::start_with(Vec::new(), 1).await;

    let is_long = says("NEXUS_HOOKS", "long");
    for round in 0..ROUNDS {
        let took = loops(&pool, 5 * round).await;
        println!("five events took {took:?}, half of them {:?}", took[2]);
        assert!(took[4] <= AT_LAST, "{took:?}");
        if !is_long || took[2] <= budget + BEYOND_BUDGET {
            return pool.stop().await;
        }
    }

    panic!("never within {BEYOND_BUDGET:?} of the budget");
}

/// How long five events take, upon each of which another hook loops, in ascending order.
async fn loops(pool: &TestPool, from: usize) -> Vec<Duration> {
    let mut took = Vec::new();
    for number in from..from + 5 {
        // Another one each time: one that has killed a worker is called apart from then on.
        let id = format!("loops-{number}");
        let loops = "export default ({ event }) => { while (event.content === 'loop'); return { fire: false }; };";
        pool.load(&[("a", FIRES), (&id, loops), ("z", FIRES)]).await;
        until_both_are_up(pool).await;
        pool.evaluate(dm(&format!("web:{number}"), "x")).await.fired("z");
        let begun = SystemClock.monotonic();
        let answer = pool.evaluate(dm(&format!("web:{number}/loop"), "loop")).await;
        took.push(SystemClock.monotonic().duration_since(begun));
        answer.fired("a");
        answer.fired("z");

        assert!(
            answer.error(&id).starts_with("killed its worker"),
            "{}",
            answer.error(&id)
        );
    }

    took.sort_unstable();
    took
}

/// Waits until the one worker of `pool` is up, and the one that stands by.
async fn until_both_are_up(pool: &TestPool) {
    eventually("both are up", async || pool.pool.ready_workers() >= 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_authors_are_an_error_of_the_last_and_those_who_are_gone_do_not_count() {
    let hook = |number: usize| {
        by(
            &format!("author-{number:02}"),
            timed(&format!("h{number:02}"), 30_000, FIRES),
        )
    };

    let pool = TestPool::start_with(vec![timed("own", 30_000, FIRES)], 1).await;
    let load = async |hooks: Vec<HookSource>| {
        let set = std::sync::Arc::new(hook_svc::runner::HookSet::new(hooks));
        pool.pool.load(set).await.expect("the operators' hooks load")
    };

    let mut all: Vec<HookSource> = (0..66).map(hook).collect();
    all.push(timed("own", 30_000, FIRES));
    assert_eq!(load(all).await, ["author-64", "author-65"]);

    let ids: Vec<String> = (1..65).map(|number| format!("h{number:02}")).collect();
    let others: Vec<&str> = ids.iter().map(String::as_str).collect();
    let answer = pool.evaluate_skipping(dm("web:1", "x"), &others).await;
    answer.fired("h00");
    answer.fired("own");
    let error = answer.error("h65");

    assert!(error.contains("more than 64 authors"), "{error}");

    for number in 60..66 {
        load(vec![hook(number)]).await;
    }

    assert_eq!(load(vec![hook(65)]).await, [""; 0]);

    pool.evaluate(dm("web:2", "x")).await.fired("h65");
    pool.stop().await;
}
