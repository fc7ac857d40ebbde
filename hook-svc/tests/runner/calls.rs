//! `ctx.search()` and `ctx.llm()`: calls to the host, each made once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use hook_svc::runner::{CallError, CallResult, CallUsage, HostCall, ScriptHost, not_available};
use serde_json::{Value, json};

use crate::pool::{Answer, NOW, TestPool, dm, timed};

/// Answers `search` with its arguments, refuses queries that say so, and counts how often each call came.
#[derive(Debug, Default)]
struct Desk {
    calls: Mutex<BTreeMap<String, u32>>,
}

#[async_trait]
impl ScriptHost for Desk {
    async fn call(&self, call: HostCall) -> CallResult {
        assert_eq!(call.now.0, NOW);

        let key = format!("{} {} {}", call.event_id, call.hook.id, call.number);
        *self
            .calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(key)
            .or_default() += 1;

        tokio::task::yield_now().await;

        if call.name != "search" {
            return not_available(&call.name);
        }

        if call.args["query"] == json!("refuse") {
            return CallError::new("bad_arguments", "no such thing").into();
        }

        CallResult {
            outcome: Ok(call.args),
            spent: CallUsage {
                search_calls: 1,
                ..CallUsage::default()
            },
        }
    }
}

async fn pool(hooks: &[(&str, &str)], workers: usize) -> (Arc<Desk>, TestPool) {
    let desk = Arc::new(Desk::default());
    let hooks = hooks.iter().map(|(id, source)| timed(id, 30_000, source)).collect();
    let host: Arc<dyn ScriptHost> = Arc::clone(&desk) as _;
    (desk, TestPool::start_on(hooks, workers, host).await)
}

fn extracted(answer: &Answer, hook: &str) -> Value {
    Value::Object(answer.fired(hook).context.and_then(|c| c.extracted).expect("extracted"))
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_find_who_asked() {
    let (_, pool) = pool(
        &[
            ("asks", "export default async ({ search, event }) => ({ fire: true, context: { extracted: { got: await search(event.content, { limit: 3, channels: ['sms'] }) } } });"),
            ("many", "export default async (ctx) => ({ fire: true, context: { extracted: { got: await Promise.all([...Array(50).keys()].map((n) => ctx.search(String(n)))) } } });"),
            ("refused", "export default async (ctx) => ({ fire: true, context: { extracted: { got: await ctx.search('refuse').catch((e) => [e.name, e.code, e.message]) } } });"),
            ("model", "export default async (ctx) => ({ fire: true, context: { extracted: { got: await ctx.llm('x').catch((e) => [e.name, e.code]) } } });"),
            ("greedy", "export default async (ctx) => { for (;;) await ctx.search('x'); };"),
            ("passes", "export default async (ctx) => { await ctx.search('x'); return { fire: false }; };"),
            ("silent", "export default async () => ({ fire: false });"),
            ("cyclic", "export default async (ctx) => { const a: any = {}; a.a = a; await ctx.search('x', a); return { fire: true }; };"),
        ],
        2,
    )
    .await;

    let events: Vec<Value> = (0..40).map(|n| dm(&format!("web:{n}"), &format!("text {n}"))).collect();
    let answers = futures_util::future::join_all(events.into_iter().map(|event| pool.evaluate(event))).await;
    for (n, answer) in answers.iter().enumerate() {
        let got = json!({"query": format!("text {n}"), "limit": 3, "channels": ["sms"]});
        assert_eq!(extracted(answer, "asks")["got"], got);

        let many: Vec<Value> = (0..50).map(|n| json!({"query": n.to_string()})).collect();
        assert_eq!(extracted(answer, "many")["got"], json!(many));
        assert_eq!(
            extracted(answer, "refused")["got"],
            json!(["HostCallError", "bad_arguments", "no such thing"])
        );
        assert_eq!(
            extracted(answer, "model")["got"],
            json!(["NotAvailableError", "not_available"])
        );

        assert!(
            answer
                .error("greedy")
                .contains("a hook may make 100 calls on one event"),
            "{answer:?}"
        );
        assert!(answer.error("cyclic").contains("cyclic"), "{answer:?}");
        assert!(answer.passes("passes"), "{answer:?}");
        assert_eq!(answer.done.passed, 1, "the silent one");

        let used = |hook: &str| answer.spent[hook].search_calls;
        assert_eq!(
            [
                used("asks"),
                used("many"),
                used("model"),
                used("greedy"),
                used("passes")
            ],
            [1, 50, 0, 100, 1]
        );
    }

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_asks_nothing_twice() {
    let twice = "export default async (ctx) => { const a = await ctx.search('one'); await new Promise((r) => setTimeout(r, 100)); const b = await ctx.search('two'); return { fire: true, context: { extracted: { got: [a.query, b.query] } } }; };";
    let dies = "let asked = 0; export default async (ctx) => { if (ctx.event.content === 'boom') { await ctx.search('x'); for (;;) {} } return { fire: true }; };";
    let (desk, pool) = pool(&[("twice", twice), ("dies", dies)], 1).await;
    let calm = futures_util::future::join_all((0..10).map(|n| pool.evaluate(dm(&format!("web:{n}"), "calm"))));
    let (answers, boom) = tokio::join!(calm, pool.evaluate(dm("web:boom", "boom")));

    for answer in answers.iter().chain([&boom]) {
        assert_eq!(extracted(answer, "twice")["got"], json!(["one", "two"]));
    }

    assert!(boom.error("dies").contains("no progress for "), "{boom:?}");

    let calls = desk.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(calls.len(), 11 * 2 + 1, "{calls:?}");
    assert!(calls.values().all(|&count| count == 1), "{calls:?}");

    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_too_late_wakes_nobody() {
    #[derive(Debug)]
    struct Slow;

    #[async_trait]
    impl ScriptHost for Slow {
        async fn call(&self, _: HostCall) -> CallResult {
            shared::clock::pause(std::time::Duration::from_millis(1_500)).await;
            CallResult {
                outcome: Ok(json!(1)),
                spent: CallUsage::default(),
            }
        }
    }

    let hooks = vec![timed(
        "late",
        50,
        "export default async ({ search }) => { await search('x'); return { fire: true }; };",
    )];
    let pool = TestPool::start_on(hooks, 1, Arc::new(Slow)).await;

    // Long enough that the answers for the first of them come while the last are under way.
    for n in 0..40 {
        let answer = pool.evaluate(dm(&format!("web:{n}"), "x")).await;
        assert_eq!(answer.error("late"), "timed out after 50 ms");
    }

    pool.stop().await;
}
