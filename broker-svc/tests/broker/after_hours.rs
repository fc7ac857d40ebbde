//! A human who answers long after the turn's time is over, to a broker that lives or to another one: the time of waiting
//! is no part of the turn's. Real processes, whose clocks are set a day ahead.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use broker_svc::config::BrokerConfig;
use broker_svc::hooks::rules::HookRules;
use serde_json::{Value, json};
use shared::bus::ServiceSpec;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::llm::{self, LlmConfig, ModelProvider};
use shared::model::ledger::{LedgerEntry, TurnFailure};
use shared::model::session::SessionRef;
use shared::process::ShutdownSignal;
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use shared::testing::{ModelServer, ProcessClock, eventually};
use tokio::process::Child;

use crate::approvals::{asked, trusted};
use crate::asking::{Remote, desk, gated, next, payments, says, suspended};
use crate::bench::{Bench, broker_at, child, run_broker, session, told};
use crate::hooked::connector;
use crate::models;

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_AFTER_HOURS_URL";
/// Names its `personas.yaml`.
const PERSONAS: &str = "NEXUS_TEST_AFTER_HOURS_PERSONAS";
/// Names the model that it asks.
const MODEL: &str = "NEXUS_TEST_AFTER_HOURS_MODEL";
/// Names its `hooks.yaml`, if it has hooks.
const HOOKS: &str = "NEXUS_TEST_AFTER_HOURS_HOOKS";
const DAY_MS: u64 = 24 * 3_600_000;
/// A turn has half a minute, and a human has a week.
const LIMITS: &str = "limits: {wall_ms: 30000}";
const WEEK: &str = "ask: {expires_ms: 604800000}";

/// Not a test: what the children run.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let (Some(url), Some(personas)) = (told(URL), told(PERSONAS)) else {
        return;
    };

    let name = format!("child-{}", std::process::id());
    let _running = match told(MODEL) {
        Some(base_url) => {
            let config = LlmConfig {
                provider: ModelProvider::OpenAi,
                model: "any".to_owned(),
                base_url,
                ..LlmConfig::default()
            };

            let model = llm::open(config, Arc::new(SystemClock), ShutdownSignal::default()).expect("a usable model");
            let mut broker = broker_at(&url, &name, &personas, BrokerConfig::default()).await;
            if let Some(hooks) = told(HOOKS) {
                let rules = HookRules::parse(&hooks, &broker.personas).expect("hooks");
                broker = broker.with_hooks(rules);
            }
            (run_broker(Arc::new(broker.with_model(model))), None)
        }
        None => {
            let (running, gate) = gated(&url, &name, &personas).await;
            (running, Some(gate))
        }
    };

    std::future::pending::<()>().await;
}

/// Brokers of one test, one at a time, whose clocks the test sets.
struct Brokers {
    told: Vec<(&'static str, String)>,
    clock: ProcessClock,
    _folder: tempfile::TempDir,
    running: Child,
}

impl Brokers {
    fn start(bench: &Bench, personas: &str, model: Option<&ModelServer>) -> Self {
        Self::start_hooked(bench, personas, model, None)
    }

    fn start_hooked(bench: &Bench, personas: &str, model: Option<&ModelServer>, hooks: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = ProcessClock::at(&folder.path().join("clock"));
        let mut told = vec![(URL, bench.server.url()), (PERSONAS, personas.to_owned())];
        told.extend(model.map(|model| (MODEL, model.base_url("openai"))));
        told.extend(hooks.map(|hooks| (HOOKS, hooks.to_owned())));
        told.push((shared::clock::TEST_CLOCK, clock.variable().1));

        Self {
            running: Self::child(&told),
            told,
            clock,
            _folder: folder,
        }
    }

    fn child(told: &[(&'static str, String)]) -> Child {
        let told: Vec<(&str, &str)> = told.iter().map(|(name, value)| (*name, value.as_str())).collect();
        child("after_hours::a_broker_of_its_own", &told)
    }

    /// A day passes: for a broker that lives, or between one that dies and the next.
    async fn pass_a_day(&mut self, dies: bool) {
        if dies {
            self.running.kill().await.expect("SIGKILL");
        }
        self.clock.set_ahead(DAY_MS);
        if dies {
            self.running = Self::child(&self.told);
        }
    }
}

/// What the turn of `main` failed of, if it did.
async fn failures(bench: &Bench, main: &SessionRef) -> Vec<TurnFailure> {
    let mut failed = Vec::new();
    for entry in bench.entries(main).await {
        if let LedgerEntry::TurnFailed { failure, .. } = entry {
            failed.push(failure);
        }
    }
    failed
}

async fn is_done(bench: &Bench, main: &SessionRef) {
    eventually("the turn's end", async || {
        assert_eq!(failures(bench, main).await, [], "the turn has failed");
        bench.completed(main).await.len() == 1
    })
    .await;
}

async fn a_model_s_turn(dies: bool) {
    let bench = Bench::start().await;
    let (count, service) = connector(&bench, Value::Null).await;
    let model = ModelServer::ruled(|request, _| match request.tool_results().last() {
        None => ScriptedAnswer::calls([ScriptedCall::new(
            "c1",
            "create_hook",
            &json!({"name": "a", "script": "b"}),
        )]),
        Some(_) => ScriptedAnswer::text("done"),
    })
    .await;

    let personas = format!(
        "personas: {{default: {{runner: llm, {LIMITS}, requires_confirmation: [{{tools: [create_hook], {WEEK}}}]}}}}"
    );
    let mut brokers = Brokers::start(&bench, &personas, Some(&model));
    let main = session("main");
    models::send(&bench, &main, 1, &["*"], 0).await;
    eventually("the question", async || {
        !asked(&bench.entries(&main).await).is_empty() && bench.claims().await == 0
    })
    .await;

    brokers.pass_a_day(dies).await;
    let id = asked(&bench.entries(&main).await).pop().expect("a question").id;
    says(&desk(&bench), &id, true, None).await;
    is_done(&bench, &main).await;

    assert_eq!(count.load(Ordering::SeqCst), 1, "the tool runs once");
    assert_eq!(
        model.requests().len(),
        2,
        "the model is asked once behind the tool, with time to answer"
    );

    // The card, and the answer.
    let replies = bench.until_replies(2).await;
    assert_eq!(replies.last().map(|reply| reply.content.as_str()), Some("done"));

    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_s_turn_goes_on_that_was_approved_after_a_day() {
    a_model_s_turn(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_s_turn_goes_on_at_another_broker_that_was_approved_after_a_day() {
    a_model_s_turn(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_s_turn_goes_on_that_was_approved_after_a_day() {
    for dies in [false, true] {
        let bench = Bench::start().await;
        let folder = tempfile::tempdir().expect("a folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/gated.py");
        let (url, paid) = (bench.server.url(), folder.path().join("payments"));

        let personas = format!(
            "personas: {{default: {{runner: process, {LIMITS}, requires_confirmation: [{{tools: [pay], {WEEK}}}], \
             process: {{command: python3, args: ['{}'], env: {{NATS_URL: '{url}', PAYMENTS: '{}'}}}}}}}}",
            script.display(),
            paid.display()
        );

        let mut brokers = Brokers::start(&bench, &personas, None);
        let main = session("main");
        bench.publish(&trusted(&main, 1, None)).await;
        bench.claim(&main).await;
        let id = suspended(&bench, &main).await;
        brokers.pass_a_day(dies).await;
        says(&desk(&bench), &id, true, None).await;
        is_done(&bench, &main).await;

        assert_eq!(payments(folder.path()), ["60000"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_on_nats_is_asked_again_with_the_time_that_is_left_after_a_day() {
    for dies in [false, true] {
        let bench = Bench::start().await;
        let personas = format!(
            "personas: {{default: {{runner: nats, {LIMITS}, requires_confirmation: [{{tools: [pay], {WEEK}}}]}}}}"
        );
        let mut brokers = Brokers::start(&bench, &personas, None);
        let mut remote = Remote::begin(bench).await;
        let id = remote.asks("c1", 60_000).await;
        remote.waits(&id).await;
        eventually("the turn waits", async || remote.bench.claims().await == 0).await;

        brokers.pass_a_day(dies).await;
        says(&remote.desk, &id, true, None).await;
        remote.question = next(&mut remote.questions).await;
        let request: Value = serde_json::from_slice(&remote.question.payload).expect("JSON");
        let deadline = request["deadline"].as_i64().expect("an instant");
        let ahead = deadline - SystemClock.now().0 - i64::try_from(DAY_MS).expect("a day");

        assert!((1..=30_000).contains(&ahead), "{ahead} ms are left");

        let allowed = remote.gate("c1", "pay", 60_000, None).await;
        assert_eq!(allowed["decision"], "allow", "{allowed}");

        remote.answers("paid").await;
        is_done(&remote.bench, &remote.main).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_has_used_its_time_fails_of_it_once_whichever_broker_has_it() {
    let bench = Bench::start().await;
    let mut questions = bench
        .bus
        .core_subscribe("nexus.agent.default")
        .await
        .expect("a subscription");

    bench.bus.flush().await.expect("it is known");
    // The agent never answers; a question may take as long as the turn.
    let personas = "personas: {default: {runner: nats, limits: {wall_ms: 6000, reply_timeout_ms: 60000}}}";
    let mut brokers = Brokers::start(&bench, personas, None);
    let main = session("main");
    bench.send(&main, 1).await;
    next(&mut questions).await;
    brokers.running.kill().await.expect("SIGKILL");

    // A day without a broker: at most a tenth of it counts.
    brokers.clock.set_ahead(DAY_MS);
    brokers.running = Brokers::child(&brokers.told);
    let again = next(&mut questions).await;
    let request: Value = serde_json::from_slice(&again.payload).expect("JSON");
    let deadline = request["deadline"].as_i64().expect("an instant");
    let left = deadline - SystemClock.now().0 - i64::try_from(DAY_MS).expect("a day");

    assert!(
        left > 1_000,
        "a day without a broker is no time of the turn: {left} ms are left"
    );

    eventually("the turn's end", async || !failures(&bench, &main).await.is_empty()).await;
    bench.until_replies(1).await;
    let limit = "wall_ms".to_owned();

    assert_eq!(failures(&bench, &main).await, [TurnFailure::Limit { limit }]);

    let more = tokio::time::timeout(Duration::from_millis(10), questions.next()).await;
    assert!(more.is_err(), "it is asked again without time to answer");
}

/// The time of a turn whose first call takes a part of it, milliseconds.
const SHARED_MS: i64 = 12_000;
const FIRST_CALL: Duration = Duration::from_secs(5);
/// A change of owners counts as a tenth of the turn's time at most, and a busy machine ends a turn a little late.
const LATE_MS: i64 = 3_000;

/// Tools whose first call is answered after [`FIRST_CALL`] and whose second never is; each call notes when it came.
struct Silent {
    folder: tempfile::TempDir,
    model: ModelServer,
}

impl Silent {
    /// A model that calls `list_hooks`, and then `second` with `arguments`.
    async fn start(second: &'static str, arguments: Value) -> Self {
        let model = ModelServer::ruled(move |request, _| match request.tool_results().len() {
            0 => ScriptedAnswer::calls([ScriptedCall::new("c0", "list_hooks", &json!({ "status": "active" }))]),
            1 => ScriptedAnswer::calls([ScriptedCall::new("c1", second, &arguments)]),
            _ => ScriptedAnswer::text("done"),
        })
        .await;

        Self {
            folder: tempfile::tempdir().expect("a folder"),
            model,
        }
    }

    fn spec(&self) -> ServiceSpec {
        let begun = self.begun_file();
        ServiceSpec::new("hook", "test").endpoint("list", move |question: Value| {
            let begun = begun.clone();
            async move {
                if question["status"] == "active" {
                    pause(FIRST_CALL).await;
                    return Ok::<_, (usize, String)>(json!([]));
                }
                note(&begun);
                std::future::pending().await
            }
        })
    }

    fn begun_file(&self) -> std::path::PathBuf {
        self.folder.path().join("begun")
    }

    /// When the calls began that are never answered, Unix milliseconds by the host's clock.
    fn begun(&self) -> Vec<i64> {
        let text = std::fs::read_to_string(self.begun_file()).unwrap_or_default();
        text.lines().map(|line| line.parse().expect("milliseconds")).collect()
    }
}

fn note(begun: &Path) {
    use std::io::Write as _;

    let file = std::fs::OpenOptions::new().create(true).append(true).open(begun);
    writeln!(file.expect("a file"), "{}", SystemClock.now().0).expect("it is noted");
}

/// A turn of which a call or a hook is under way when its broker dies, and of which the next broker, a day later, waits for it
/// as long as the turn has left: less than it had, and more than nothing.
async fn waits_for_what_is_left(silent: &Silent, hooks: Option<&str>) {
    let bench = Bench::start().await;
    let service = bench.bus.serve(silent.spec()).await.expect("a service");
    let personas = format!("personas: {{default: {{runner: llm, limits: {{wall_ms: {SHARED_MS}}}}}}}");
    let mut brokers = Brokers::start_hooked(&bench, &personas, Some(&silent.model), hooks);
    let main = session("main");
    models::send(&bench, &main, 1, &["*"], 0).await;

    eventually("the second call", async || silent.begun().len() == 1).await;
    brokers.pass_a_day(true).await;
    eventually("it begins again", async || silent.begun().len() == 2).await;
    eventually("the turn's end", async || !failures(&bench, &main).await.is_empty()).await;

    let limit = "wall_ms".to_owned();
    assert_eq!(failures(&bench, &main).await, [TurnFailure::Limit { limit }]);
    assert_eq!(silent.begun().len(), 2, "it is not begun once more");

    let ended = bench.ledger(&main).await.pop().expect("a ledger").1.at;
    let waited = ended.0 - i64::try_from(DAY_MS).expect("a day") - silent.begun()[1];
    let used = i64::try_from(FIRST_CALL.as_millis()).expect("seconds");
    assert!(
        waited > 1_000,
        "a day without a broker is no time of the turn: {waited} ms"
    );
    assert!(
        waited <= SHARED_MS - used + LATE_MS && waited < SHARED_MS - LATE_MS,
        "the first call took {used} of {SHARED_MS} ms, and the second is waited for {waited} ms"
    );

    drop(service);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_has_what_is_left_of_its_turn_at_another_broker() {
    let silent = Silent::start("list_hooks", json!({ "status": "disabled" })).await;
    waits_for_what_is_left(&silent, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_has_what_is_left_of_its_turn_at_another_broker() {
    let silent = Silent::start("create_hook", json!({ "name": "a", "script": "b" })).await;
    let script = silent.folder.path().join("slow.sh");
    std::fs::write(&script, "date +%s%3N >> \"$1\"; sleep 600\n").expect("a script");
    let command = format!("sh {} {}", script.display(), silent.begun_file().display());
    let hooks = format!(
        "enabled: true\nallow: {{all: ['{command}']}}\n\
         hooks: [{{name: gate, hook: PreToolUse, tools: [create_hook], command: '{command}', blocking: true, timeout: 60}}]"
    );
    waits_for_what_is_left(&silent, Some(&hooks)).await;
}
