//! Agents that run their tools themselves and have humans asked: by the gate of their turn, with real processes that die.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use broker_svc::approval::store::{ApprovalStore, DecisionOutcome};
use broker_svc::config::BrokerConfig;
use broker_svc::hooks::callback;
use broker_svc::hooks::rules::HookRules;
use serde_json::{Value, json};
use shared::bus::{CoreMessage, CoreSubscription, RequestError, ServiceHandle};
use shared::clock::{SystemClock, pause};
use shared::model::approval::{ApprovalRecord, ApprovalStatus};
use shared::model::ledger::LedgerEntry;
use shared::model::session::SessionRef;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::subject;
use tokio::process::Child;

use crate::approvals::{asked, audit, becomes, say_at, trusted, word};
use crate::bench::{Bench, DEADLINE, Running, broker_at, child, run_broker, session, told};

/// Names the server of a broker that is a process of its own; absent where the tests run.
const URL: &str = "NEXUS_TEST_ASKING_URL";
/// Names its `personas.yaml`.
const PERSONAS: &str = "NEXUS_TEST_ASKING_PERSONAS";
/// `wire` is confirmed by a hook.
const HOOKS: &str = "hooks: [{name: wires, hook: PreToolUse, builtin: approval_gate, tools: [wire]}]";
/// How long one question to the gate is waited for where a broker may die over it.
const SHORT: Duration = Duration::from_secs(2);

/// Payments above 50,000 are confirmed; nobody has long for `hurry`.
pub(crate) const REMOTE: &str = "personas: {default: {runner: nats, requires_confirmation: [
    {tools: [pay], above: {amount: 50000}}, {tools: [hurry], ask: {expires_ms: 1500}}]}}";

/// Not a test: what the children run.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_of_its_own() {
    let (Some(url), Some(personas)) = (told(URL), told(PERSONAS)) else {
        return;
    };
    let name = format!("child-{}", std::process::id());
    let _running = gated(&url, &name, &personas).await;
    std::future::pending::<()>().await;
}

/// A broker with its gate.
pub(crate) async fn gated(url: &str, name: &str, personas: &str) -> (Running, ServiceHandle) {
    let broker = broker_at(url, name, personas, BrokerConfig::default()).await;
    let rules = HookRules::parse(HOOKS, &broker.personas).expect("hooks");
    let running = run_broker(Arc::new(broker.with_hooks(rules)));
    let gate = callback::serve(&running.broker).await.expect("the gate is served");
    (running, gate)
}

fn child_of(bench: &Bench, personas: &str) -> Child {
    let url = bench.server.url();
    child("asking::a_broker_of_its_own", &[(URL, &url), (PERSONAS, personas)])
}

pub(crate) fn desk(bench: &Bench) -> ApprovalStore {
    ApprovalStore::new(&bench.bus, Arc::new(SystemClock), Arc::default(), Default::default())
}

/// The operator says so to the question `id`, as the first.
pub(crate) async fn says(desk: &ApprovalStore, id: &str, approve: bool, arguments: Option<Value>) {
    let said = say_at(desk, &word(id, "operator", approve, arguments)).await;
    assert!(
        matches!(said, DecisionOutcome::Stands { changed: true, .. }),
        "{said:?}"
    );
}

/// A turn of an agent that is the test, at work.
pub(crate) struct Remote {
    pub(crate) bench: Bench,
    pub(crate) main: SessionRef,
    pub(crate) desk: ApprovalStore,
    pub(crate) questions: CoreSubscription,
    pub(crate) question: CoreMessage,
    turn: Value,
}

impl Remote {
    /// Sends it its message; a broker has to run.
    pub(crate) async fn begin(bench: Bench) -> Self {
        let questions = bench.bus.core_subscribe("nexus.agent.default").await;
        let mut questions = questions.expect("a subscription");
        bench.bus.flush().await.expect("it is known");
        let main = session("main");
        bench.publish(&trusted(&main, 1, None)).await;
        bench.claim(&main).await;
        let question = next(&mut questions).await;
        let request: Value = serde_json::from_slice(&question.payload).expect("JSON");

        Self {
            desk: desk(&bench),
            turn: request["turn"].clone(),
            bench,
            main,
            questions,
            question,
        }
    }

    /// The turn is over, and the next one begins with message `event`.
    pub(crate) async fn next_turn(&mut self, event: u64) {
        let before = self.turn.clone();
        self.bench.publish(&trusted(&self.main, event, None)).await;
        self.bench.claim(&self.main).await;

        while self.turn == before {
            // One that took long to answer was asked again.
            self.answers("done").await;
            self.question = next(&mut self.questions).await;
            let request: Value = serde_json::from_slice(&self.question.payload).expect("JSON");
            self.turn = request["turn"].clone();
        }
    }

    pub(crate) async fn try_gate(
        &self,
        call: &str,
        tool: &str,
        amount: u64,
        attempt: Option<&str>,
        patience: Duration,
    ) -> Result<Value, RequestError> {
        let question = json!({
            "turn": self.turn, "session": self.main, "hook_event_name": "PreToolUse", "tool_use_id": call, "tool_name": tool,
            "tool_input": {"amount": amount}, "attempt": attempt
        });
        let subject = "nexus.svc.turn.gate";

        self.bench
            .bus
            .request(subject, Headers::new(), &question, patience)
            .await
    }

    pub(crate) async fn gate(&self, call: &str, tool: &str, amount: u64, attempt: Option<&str>) -> Value {
        let answer = self.try_gate(call, tool, amount, attempt, DEADLINE).await;
        answer.expect("the gate answers")
    }

    /// Asks for a payment that a human has to approve; the approval's id.
    pub(crate) async fn asks(&self, call: &str, amount: u64) -> String {
        let answer = self.gate(call, "pay", amount, None).await;
        assert_eq!(answer["decision"], "ask", "{answer}");
        assert_eq!(answer.get("code"), None, "an agent is told no code");
        answer["approval"].as_str().expect("an id").to_owned()
    }

    pub(crate) async fn answers(&self, content: &str) {
        let to = self.question.reply.clone().expect("a place to answer");
        let answer = json!({ "content": content }).to_string();
        self.bench.bus.core_publish(&to, &Headers::new(), answer.into()).await;
    }

    /// It has nothing to do before a human has answered `id`.
    pub(crate) async fn waits(&self, id: &str) {
        let to = self.question.reply.clone().expect("a place to answer");
        let answer = json!({ "waiting": id }).to_string();
        self.bench.bus.core_publish(&to, &Headers::new(), answer.into()).await;
    }

    /// How the ledger says that `id` ended.
    async fn decided(&self, id: &str) -> Vec<ApprovalStatus> {
        let mut all = Vec::new();
        for entry in self.bench.entries(&self.main).await {
            if let LedgerEntry::ApprovalDecided { decision, .. } = entry
                && decision.id == id
            {
                all.push(decision.status);
            }
        }
        all
    }
}

pub(crate) async fn next(questions: &mut CoreSubscription) -> CoreMessage {
    let question = tokio::time::timeout(DEADLINE, questions.next()).await;
    question.expect("in time").expect("a question")
}

pub(crate) fn allowed(amount: u64) -> Value {
    json!({"decision": "allow", "tool_input": {"amount": amount}})
}

pub(crate) fn reason(answer: &Value) -> &str {
    assert_eq!(answer["decision"], "deny", "{answer}");
    answer["reason"].as_str().expect("why")
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
async fn an_agent_asks_the_gate_again_until_a_human_has_decided_and_is_given_the_call_once() {
    let bench = Bench::start().await;
    let (running, gate) = gated(&bench.server.url(), "b1", REMOTE).await;
    let agent = Remote::begin(bench).await;

    assert_eq!(agent.gate("t0", "pay", 10, None).await, allowed(10), "nobody is asked");

    let first = agent.asks("t1", 60_000).await;
    assert_eq!(agent.asks("t1", 60_000).await, first, "the same question");
    assert!(reason(&agent.gate("t1", "wipe", 60_000, None).await).contains("an id of its own"));

    says(&agent.desk, &first, true, Some(json!({"amount": 40_000}))).await;
    assert_eq!(agent.gate("t1", "pay", 60_000, Some("a")).await, allowed(40_000));
    assert_eq!(
        agent.gate("t1", "pay", 60_000, Some("a")).await,
        allowed(40_000),
        "its answer was lost"
    );

    for attempt in [Some("b"), None] {
        let again = agent.gate("t1", "pay", 60_000, attempt).await;
        assert!(reason(&again).contains("used once"), "{again}");
    }

    let denied = agent.asks("t2", 60_000).await;
    says(&agent.desk, &denied, false, None).await;
    assert_eq!(
        reason(&agent.gate("t2", "pay", 60_000, None).await),
        "denied by operator"
    );

    let former = agent.asks("t3", 60_000).await;
    says(&agent.desk, &former, true, None).await;
    let latter = agent.asks("t3", 70_000).await;

    assert_ne!(former, latter, "the yes was to other arguments");
    assert_eq!(
        becomes(&agent.desk, &former, ApprovalStatus::Superseded)
            .await
            .trail
            .used_by,
        None
    );

    says(&agent.desk, &latter, true, None).await;
    assert_eq!(agent.gate("t3", "pay", 70_000, None).await, allowed(70_000));

    let left = agent.asks("t4", 60_000).await;
    let wired = agent.gate("t6", "wire", 1, None).await;
    assert_eq!((&wired["decision"], &wired["policy"]), (&json!("ask"), &json!("wires")));

    let hurry = agent.gate("t5", "hurry", 1, None).await;
    let lapsed = hurry["approval"].as_str().expect("an id").to_owned();
    eventually("the approval expires", async || {
        let answer = agent.gate("t5", "hurry", 1, None).await;
        answer["decision"] == "deny" && reason(&answer).contains("expired")
    })
    .await;

    eventually("the ledger has every question", async || {
        asked(&agent.bench.entries(&agent.main).await).len() == 7
    })
    .await;
    agent.answers("done").await;
    eventually("the turn", async || agent.bench.completed(&agent.main).await.len() == 1).await;
    becomes(&agent.desk, &left, ApprovalStatus::Canceled).await;

    let ends = [
        (&first, vec!["asked", "approved", "consumed"], ApprovalStatus::Consumed),
        (&denied, vec!["asked", "denied"], ApprovalStatus::Denied),
        (
            &former,
            vec!["asked", "approved", "superseded"],
            ApprovalStatus::Superseded,
        ),
        (&latter, vec!["asked", "approved", "consumed"], ApprovalStatus::Consumed),
        (&left, vec!["asked", "canceled"], ApprovalStatus::Canceled),
        (&lapsed, vec!["asked", "expired"], ApprovalStatus::Expired),
    ];

    for (id, records, status) in ends {
        // What becomes of a question is told to AUDIT after it stands in KV.
        let wanted = format!("{id}: {records:?}");
        eventually(&wanted, async || audit(&agent.bench, id).await == records).await;
        assert_eq!(agent.decided(id).await.last(), Some(&status));
    }

    let over = agent.try_gate("t7", "pay", 1, None, DEADLINE).await;
    assert!(matches!(over, Err(RequestError::Service { code: 409, .. })), "{over:?}");

    gate.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_given_by_a_broker_that_dies_over_it_is_given_again_to_its_attempt_alone() {
    let bench = Bench::start().await;
    let mut first = child_of(&bench, REMOTE);
    let mut agent = Remote::begin(bench).await;
    let mut id = String::new();

    // The gate is announced a moment after the broker runs.
    eventually("the gate asks", async || {
        let answer = agent.try_gate("t1", "pay", 60_000, Some("a"), SHORT).await;
        let asked = answer.map(|answer| answer["approval"].as_str().expect("an id").to_owned());
        id = asked.unwrap_or_default();
        !id.is_empty()
    })
    .await;

    let records = agent.bench.bus.core_subscribe(&subject::approval_audit(&id)).await;
    let mut records = records.expect("a subscription");
    agent.bench.bus.flush().await.expect("it is known");
    says(&agent.desk, &id, true, None).await;
    let given = agent.try_gate("t1", "pay", 60_000, Some("a"), SHORT);

    let killed = async {
        loop {
            let record = next(&mut records).await;
            let record: Value = shared::wire::envelope::decode::<ApprovalRecord>(&record.headers, &record.payload)
                .map(|record| json!(record.what))
                .expect("a record");
            if record == "consumed" {
                first.kill().await.expect("SIGKILL");
                return;
            }
        }
    };

    let (_, ()) = tokio::join!(given, killed);
    let _second = child_of(&agent.bench, REMOTE);
    eventually("the same attempt is answered", async || {
        let answer = agent.try_gate("t1", "pay", 60_000, Some("a"), SHORT).await;
        answer.is_ok_and(|answer| answer == allowed(60_000))
    })
    .await;

    assert!(reason(&agent.gate("t1", "pay", 60_000, Some("b")).await).contains("used once"));

    // Whoever took the session over asks its agent again, for the same turn.
    agent.question = next(&mut agent.questions).await;
    let request: Value = serde_json::from_slice(&agent.question.payload).expect("JSON");
    assert_eq!(request["turn"], agent.turn);

    agent.answers("done").await;
    eventually("the turn", async || agent.bench.completed(&agent.main).await.len() == 1).await;
    assert_eq!(audit(&agent.bench, &id).await, ["asked", "approved", "consumed"]);
}

/// The documented example that pays, in `folder`.
fn example(bench: &Bench, folder: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/gated.py");
    let (url, payments) = (bench.server.url(), folder.join("payments"));
    format!(
        "personas: {{default: {{runner: process, requires_confirmation: [{{tools: [pay]}}], process: {{command: python3, \
         args: ['{}'], env: {{NATS_URL: '{url}', PAYMENTS: '{}'}}}}}}}}",
        script.display(),
        payments.display()
    )
}

pub(crate) fn payments(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("payments")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The question for which a turn of `main` waits, its slot free.
pub(crate) async fn suspended(bench: &Bench, main: &SessionRef) -> String {
    let mut id = String::new();
    eventually("the turn waits", async || {
        let asked = asked(&bench.entries(main).await);
        // Asked by the agent, and then waited for.
        let last = asked.last().map(|request| request.id.clone()).unwrap_or_default();
        let times = asked.iter().filter(|request| request.id == last).count();
        id = last;
        times == 2 && bench.claims().await == 0
    })
    .await;

    id
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_agent_waits_for_a_human_without_its_broker_and_pays_what_was_approved() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let personas = example(&bench, folder.path());
    let desk = desk(&bench);
    let mut broker = child_of(&bench, &personas);

    let stories: [(bool, Option<Value>, &str); 3] = [
        (true, None, "paid 60000"),
        (true, Some(json!({"amount": 40_000})), "paid 40000"),
        (false, None, "not paid: denied by operator"),
    ];

    for (number, (approve, arguments, said)) in stories.into_iter().enumerate() {
        let here = session(&number.to_string());
        bench.publish(&trusted(&here, 1, None)).await;
        bench.claim(&here).await;
        let id = suspended(&bench, &here).await;
        broker.kill().await.expect("SIGKILL");
        says(&desk, &id, approve, arguments).await;
        broker = child_of(&bench, &personas);
        eventually("the turn", async || bench.completed(&here).await.len() == 1).await;

        eventually("its reply", async || {
            let replies = bench.replies().await;
            replies
                .iter()
                .any(|reply| reply.session == here && reply.content == said)
        })
        .await;

        let (status, end) = match approve {
            true => (ApprovalStatus::Consumed, vec!["asked", "approved", "consumed"]),
            false => (ApprovalStatus::Denied, vec!["asked", "denied"]),
        };
        becomes(&desk, &id, status).await;
        assert_eq!(audit(&bench, &id).await, end);
    }

    assert_eq!(payments(folder.path()), ["60000", "40000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_with_its_broker_after_the_word_pays_at_most_once() {
    let bench = Bench::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let personas = example(&bench, folder.path());

    let desk = desk(&bench);
    // Where the yes is there, where the call is given out, and some way behind it.
    for (number, (what, wait_ms)) in [("approved", 0), ("consumed", 0), ("consumed", 40)]
        .into_iter()
        .enumerate()
    {
        let here = session(&number.to_string());
        let mut broker = child_of(&bench, &personas);
        bench.publish(&trusted(&here, 1, None)).await;
        bench.claim(&here).await;
        let id = suspended(&bench, &here).await;
        let before = payments(folder.path()).len();
        let records = bench.bus.core_subscribe(&subject::approval_audit(&id)).await;
        let mut records = records.expect("a subscription");
        bench.bus.flush().await.expect("it is known");
        says(&desk, &id, true, None).await;

        loop {
            let record = next(&mut records).await;
            let record = shared::wire::envelope::decode::<ApprovalRecord>(&record.headers, &record.payload);
            if record.expect("a record").what == what {
                break;
            }
        }

        pause(Duration::from_millis(wait_ms)).await;
        broker.kill().await.expect("SIGKILL");
        let broker = child_of(&bench, &personas);
        eventually("the turn", async || bench.completed(&here).await.len() == 1).await;
        becomes(&desk, &id, ApprovalStatus::Consumed).await;
        let paid = payments(folder.path()).len() - before;

        assert!(paid <= 1, "paid {paid} times");

        drop(broker);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_goes_on_whose_question_another_run_of_its_agent_has_superseded() {
    let bench = Bench::start().await;
    let (running, gate) = gated(&bench.server.url(), "b1", REMOTE).await;
    let mut agent = Remote::begin(bench).await;
    let former = agent.asks("t1", 60_000).await;
    agent.waits(&former).await;

    assert_eq!(suspended(&agent.bench, &agent.main).await, former);

    // A run that was thought dead asks about the same call with other arguments.
    let latter = agent.asks("t1", 70_000).await;
    becomes(&agent.desk, &former, ApprovalStatus::Superseded).await;
    says(&agent.desk, &latter, true, None).await;
    agent.question = next(&mut agent.questions).await;

    assert_eq!(agent.gate("t1", "pay", 70_000, None).await, allowed(70_000));

    agent.answers("done").await;
    eventually("the turn", async || agent.bench.completed(&agent.main).await.len() == 1).await;
    assert_eq!(agent.decided(&former).await, [ApprovalStatus::Superseded]);

    gate.stop().await;
    running.stop().await;
}
