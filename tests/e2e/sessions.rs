//! What an operator asks and orders of sessions, by the command line, in words and in JSON, while the agent is held in
//! the middle of its turns; what came of it stands in the session's ledger.

use std::time::Duration;

use serde_json::{Value, json};
use shared::bus::CoreMessage;
use shared::clock::pause;
use shared::model::time::UnixMillis;
use shared::wire::agent::{AgentReply, AgentRequest};
use shared::wire::envelope::{PayloadFormat, encode_payload};
use shared::wire::headers::Headers;
use shared::wire::session_mark::SessionMark;
use shared::wire::subject;
use shared::wire::topology::buckets::SESSION_OVERRIDES;
use tests::command::Said;
use tests::eventually::eventually;
use tests::world::{Setup, World, without_ticks};

use crate::story::{ANSWER, Agent, PATIENCE, event, send, session};

/// The agent is the test, and is asked once however long it is held.
const PERSONAS: &str = "personas: {default: {runner: nats, limits: {reply_timeout_ms: 500000}}}";
const PERSONA: &str = "default";
/// The session of the conversation with Ann.
const ANN: &str = "s-ann";
/// A session that is forked from it; [`ANSWER`] answers the peer `branch` there.
const BRANCH: &str = "s-branch";
/// Between two orders for which somebody listens.
const AGAIN: Duration = Duration::from_millis(250);

struct Operator {
    world: World,
    agent: Agent,
}

impl Operator {
    async fn begin() -> Self {
        let world = World::start(Setup {
            hooks: vec![("answer.ts", ANSWER.to_owned())],
            personas: PERSONAS.to_owned(),
            environment: vec![without_ticks()],
            without: vec!["delivery-svc"],
            ..Setup::default()
        })
        .await;
        let agent = Agent::listen(&world.bus).await;
        Self { world, agent }
    }

    /// `nexus session` of Ann's session, in JSON.
    async fn ann(&self, action: &str, more: &[&str]) -> Value {
        self.world
            .json(&[&["session", action, PERSONA, ANN], more].concat())
            .await
    }

    /// Why the command ends with exit code `code`.
    async fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let said = self.world.nexus(arguments).await;
        assert_eq!(said.code, Some(code), "nexus {arguments:?}: {}", said.out);
        said.err
    }

    /// Message `number` of the conversation with `peer`.
    async fn says(&self, peer: &str, number: u32) {
        let id = format!("e2e:{peer}/{number}");
        send(&self.world, &event(&id, peer, &format!("message {number}"))).await;
    }

    /// The next question to the agent, who is held until it is answered.
    async fn asked(&mut self) -> (CoreMessage, AgentRequest) {
        let question = self.agent.asked().await;
        let request = serde_json::from_slice(&question.payload).expect("a request");
        (question, request)
    }

    /// Where Ann's session stands, once `is_so`.
    async fn stands(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(what, PATIENCE, async || {
            let view = self.ann("show", &[]).await;
            if is_so(&view) {
                Ok(view)
            } else {
                Err(format!("{view}\n{}", self.world.logs()))
            }
        })
        .await
    }

    /// Nothing is left to do in Ann's session.
    async fn is_idle(&self) {
        let waited = self.ann("wait", &["--seconds", "60"]).await;
        assert_eq!(waited, json!({ "idle": true }));
    }

    /// All entries of the session's ledger, as `tail` prints them.
    async fn entries(&self, session: &str) -> Vec<Value> {
        let listed = self.world.json(&["session", "list", "--persona", PERSONA]).await;
        let listed = listed.as_array().expect("sessions");
        let records = listed
            .iter()
            .find(|one| one["session"]["session"] == session)
            .expect("it is listed");

        let count = records["records"].to_string();
        let out = self
            .world
            .words(&[
                "--json", "session", "tail", PERSONA, session, "--all", "--limit", &count,
            ])
            .await;

        let records: Vec<Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect();
        assert_eq!(records.len().to_string(), count);

        let entries = records.iter().flat_map(|record| record["entries"].as_array());
        entries.flatten().cloned().collect()
    }

    /// The entries of one kind of Ann's session.
    async fn of_kind(&self, kind: &str) -> Vec<Value> {
        let mut entries = self.entries(ANN).await;
        entries.retain(|entry| entry["kind"] == kind);
        entries
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_asks_and_orders_what_sessions_do() {
    let mut operator = Operator::begin().await;
    nobody(&operator).await;
    let done = looked_at(&mut operator).await;
    let interrupted = queued_and_interrupted(&mut operator).await;
    aborted(&mut operator).await;
    let failed = failed(&mut operator).await;
    forked(&mut operator, &[(&done, 1), (&interrupted, 3), (&failed, 6)]).await;
    anew(&operator).await;
    parked(&operator).await;
    operator.world.stack.stop().await;
}

/// A session that is not there is not made by a name misspelt.
async fn nobody(operator: &Operator) {
    for action in ["show", "abort", "interrupt", "reset"] {
        let why = operator.refused(3, &["session", action, PERSONA, "nobody"]).await;
        assert!(why.contains("there is no session default/nobody"), "{action}: {why}");
    }

    let why = operator
        .refused(3, &["session", "fork", PERSONA, "nobody", "new"])
        .await;
    assert!(why.contains("there is no session default/nobody"), "{why}");

    let why = operator.refused(3, &["session", "release", PERSONA, "nobody"]).await;
    assert!(why.contains("is not quarantined"), "{why}");

    let said = operator
        .world
        .nexus(&["session", "queue", PERSONA, "nobody", "--mode", "loud"])
        .await;
    assert_eq!(said.code, Some(2), "{}", said.err);
    assert_eq!(operator.world.json(&["session", "list"]).await, json!([]));

    // It has nothing to do.
    operator.world.words(&["session", "wait", PERSONA, "nobody"]).await;
}

/// A turn runs, and is over; answers which.
async fn looked_at(operator: &mut Operator) -> String {
    operator.says("ann", 1).await;
    let (question, request) = operator.asked().await;
    let turn = request.turn.to_string();
    let shown = operator.stands("it runs", |view| view["running"].is_object()).await;

    assert_eq!(
        (&shown["running"]["turn"], &shown["idle"], &shown["waiting"]),
        (&json!(turn), &json!(false), &json!(0)),
        "{shown}"
    );

    let words = operator.world.words(&["session", "show", PERSONA, ANN]).await;
    assert!(words.contains(&format!("turn {turn} runs")), "{words}");

    let why = operator
        .refused(1, &["session", "wait", PERSONA, ANN, "--seconds", "1"])
        .await;
    assert!(why.contains("is not idle after 1 s"), "{why}");

    let top = operator.world.json(&["top", "--limit", "1"]).await;
    assert_eq!(top["sessions"][0]["session"], "default/s-ann", "{top}");
    assert_eq!(top["sessions"][0]["queued"], 1, "{top}");

    let words = operator.world.words(&["top", "--plain", "--limit", "1"]).await;
    assert!(words.contains("default/s-ann"), "{words}");

    operator.agent.answer(&question, "answer 1").await;
    operator.is_idle().await;
    let words = operator.world.words(&["session", "wait", PERSONA, ANN]).await;

    assert_eq!(words, "default/s-ann is idle\n");

    let shown = operator.ann("show", &[]).await;
    assert_eq!(
        (&shown["running"], &shown["idle"], &shown["turns_in_history"]),
        (&Value::Null, &json!(true), &json!(1)),
        "{shown}"
    );
    assert_eq!(shown["head"], json!(turn), "{shown}");

    let words = operator.world.words(&["session", "show", PERSONA, ANN]).await;
    assert!(words.contains("idle") && words.contains("1 turns"), "{words}");

    let words = operator.world.words(&["session", "list"]).await;
    assert!(words.contains(ANN) && words.contains("1 of 1 sessions"), "{words}");

    let others = operator.world.json(&["session", "list", "--persona", "other"]).await;
    assert_eq!(others, json!([]));

    let entries = operator.entries(ANN).await;
    let kinds: Vec<&str> = entries.iter().filter_map(|entry| entry["kind"].as_str()).collect();
    assert!(
        kinds.starts_with(&["session_opened"]) && kinds.contains(&"turn_completed"),
        "{kinds:?}"
    );

    turn
}

/// The session has queue settings of its own; what waited behind a turn becomes one turn, and that is interrupted for
/// what came after it. Answers the interrupted turn.
async fn queued_and_interrupted(operator: &mut Operator) -> String {
    let settings = [
        "--mode",
        "collect",
        "--debounce-ms",
        "1000",
        "--cap",
        "7",
        "--overflow",
        "old",
    ];

    let ordered = operator
        .ann("queue", &[&settings[..], &["--reason", "it is loud"]].concat())
        .await;
    assert!(ordered["id"].is_string() && ordered["sequence"].is_u64(), "{ordered}");

    let wanted = json!({ "mode": "collect", "debounce_ms": 1_000, "cap": 7, "overflow": "old" });
    operator.stands("it has them", |view| view["queue"] == wanted).await;
    let carried = operator.of_kind("ordered").await;

    assert_eq!(
        (&carried[0]["order"]["id"], &carried[0]["order"]["reason"]),
        (&ordered["id"], &json!("it is loud")),
        "{carried:?}"
    );

    let words = operator.world.words(&["session", "show", PERSONA, ANN]).await;
    assert!(words.contains("mode collect"), "{words}");

    operator.says("ann", 2).await;
    let (question, _) = operator.asked().await;
    operator.says("ann", 3).await;
    operator.says("ann", 4).await;
    operator.stands("both wait", |view| view["waiting"] == 2).await;
    let words = operator.world.words(&["session", "show", PERSONA, ANN]).await;

    assert!(words.contains("waiting  2"), "{words}");

    operator.agent.answer(&question, "answer 2").await;
    let (_, both) = operator.asked().await;
    let begun = operator.of_kind("turn_started").await;
    let merged = begun[2]["dispatches"].as_array().map(Vec::len);

    assert_eq!((&begun[2]["turn"], merged), (&json!(both.turn), Some(2)), "{begun:?}");

    operator.says("ann", 5).await;
    operator.stands("one waits", |view| view["waiting"] == 1).await;
    let words = operator
        .world
        .words(&["session", "interrupt", PERSONA, ANN, "--reason", "wrong way"])
        .await;

    assert!(
        words.starts_with("interrupt sent to default/s-ann as order "),
        "{words}"
    );

    let (question, behind) = operator.asked().await;
    let last = &behind.messages.last().expect("a message").content;
    assert!(last.contains("message 5"), "{last}");

    let interrupted = operator.of_kind("turn_interrupted").await;
    assert_eq!(interrupted.len(), 1, "{interrupted:?}");
    assert_eq!(
        (&interrupted[0]["turn"], &interrupted[0]["reason"]),
        (&json!(both.turn), &json!("interrupt by operator")),
        "{interrupted:?}"
    );
    assert!(operator.of_kind("dispatch_dropped").await.is_empty());

    operator.agent.answer(&question, "answer 5").await;
    operator.is_idle().await;

    both.turn.to_string()
}

/// The running turn is canceled, and what waits behind it is dropped.
async fn aborted(operator: &mut Operator) {
    operator.ann("queue", &[]).await;
    operator
        .stands("it has none of its own", |view| view["queue"] == json!({}))
        .await;
    operator.says("ann", 6).await;
    let (_, request) = operator.asked().await;
    operator.says("ann", 7).await;
    operator.stands("one waits", |view| view["waiting"] == 1).await;

    let ordered = operator.ann("abort", &["--reason", "enough"]).await;
    operator.is_idle().await;
    let interrupted = operator.of_kind("turn_interrupted").await;

    assert_eq!(interrupted.len(), 2, "{interrupted:?}");
    assert_eq!(interrupted[1]["turn"], json!(request.turn), "{interrupted:?}");
    assert_eq!(interrupted[1]["reason"], "abort by operator", "{interrupted:?}");

    let dropped = operator.of_kind("dispatch_dropped").await;
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    assert_eq!(
        (&dropped[0]["dispatch"]["event_id"], &dropped[0]["reason"]),
        (&json!("e2e:ann/7"), &json!("aborted")),
        "{dropped:?}"
    );

    let carried = operator.of_kind("ordered").await;
    let last = &carried.last().expect("it is carried out")["order"];
    assert_eq!(
        (&last["id"], &last["reason"]),
        (&ordered["id"], &json!("enough")),
        "{last}"
    );

    let shown = operator.ann("show", &[]).await;
    assert_eq!(
        (&shown["waiting"], &shown["running"]),
        (&json!(0), &Value::Null),
        "{shown}"
    );
}

/// The agent says that it cannot; answers in which turn.
async fn failed(operator: &mut Operator) -> String {
    operator.says("ann", 8).await;
    let (question, request) = operator.asked().await;
    let cannot = AgentReply::Error {
        error: "I cannot".to_owned(),
        retryable: false,
    };

    let to = question.reply.as_deref().expect("a place to answer");
    let cannot = encode_payload(&cannot, PayloadFormat::Json);
    operator.world.bus.core_publish(to, &Headers::new(), cannot).await;
    operator.is_idle().await;
    let failed = operator.of_kind("turn_failed").await;

    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0]["turn"], json!(request.turn), "{failed:?}");

    request.turn.to_string()
}

/// Sessions are forked `through` turns of each end, which are so many turns of the history; one fork goes on from there.
async fn forked(operator: &mut Operator, through: &[(&str, usize)]) {
    for (turn, turns) in through {
        let name = format!("at-{turns}");
        let fork = operator.ann("fork", &[&name, "--turn", turn]).await;
        assert_eq!(
            (&fork["session"]["session"], &fork["turns_in_history"]),
            (&json!(name), &json!(turns)),
            "{fork}"
        );
        assert_eq!((&fork["idle"], &fork["waiting"]), (&json!(true), &json!(0)), "{fork}");

        let why = operator.refused(5, &["session", "fork", PERSONA, ANN, &name]).await;
        assert!(why.contains(&format!("session default/{name} exists already")), "{why}");
    }

    let never = "01JDGZX4Q8AAAAAAAAK7Q2M9PX";
    let why = operator
        .refused(3, &["session", "fork", PERSONA, ANN, BRANCH, "--turn", never])
        .await;

    assert!(why.contains("no finished turn 01JDGZX4Q8AAAAAAAAK7Q2M9PX"), "{why}");

    let whole = operator.world.words(&["session", "fork", PERSONA, ANN, BRANCH]).await;
    assert!(whole.contains("session  default/s-branch"), "{whole}");

    operator.says("branch", 9).await;
    let (question, request) = operator.asked().await;
    assert_eq!(request.session.session, BRANCH);

    let remembers: Vec<&str> = request.messages.iter().map(|said| said.content.as_str()).collect();
    let has = |part: &str| remembers.iter().any(|said| said.contains(part));
    for part in ["message 1", "answer 5", "[interrupted]", "[failed: ", "message 9"] {
        assert!(has(part), "{part}: {remembers:?}");
    }

    operator.agent.answer(&question, "answer 9").await;
    operator.world.words(&["session", "wait", PERSONA, BRANCH]).await;
    let shown = operator.ann("show", &[]).await;

    assert_eq!(shown["turns_in_history"], 6, "its origin knows nothing of it: {shown}");
}

/// A session that is parked says so, and why, until it is released; it need not have written anything.
async fn parked(operator: &Operator) {
    let parked = session("dora");
    let mark = SessionMark {
        session: parked.clone(),
        quarantined: Some("claim came again and again".to_owned()),
        tries: None,
        since: UnixMillis(1_800_000_000_000),
    };

    let key = &subject::session_key(&parked);
    let marks = operator.world.bus.kv::<SessionMark>(SESSION_OVERRIDES);
    marks.put(key, &mark).await.expect("parked");
    let shown = operator
        .world
        .json(&["session", "show", PERSONA, &parked.session])
        .await;

    assert_eq!(
        shown["quarantined"],
        json!({ "why": "claim came again and again", "since": 1_800_000_000_000_i64 }),
        "{shown}"
    );

    let words = operator
        .world
        .words(&["--utc", "session", "show", PERSONA, &parked.session])
        .await;
    let why = "quarantined since 2027-01-15 08:00:00: its claim came again and again";
    assert!(words.contains(why), "{words}");

    operator
        .world
        .words(&["session", "release", PERSONA, &parked.session])
        .await;
    let why = operator
        .refused(3, &["session", "show", PERSONA, &parked.session])
        .await;
    assert!(why.contains("there is no session default/s-dora"), "{why}");
}

/// History begins anew, while somebody follows the ledger, and what was forked keeps its own.
async fn anew(operator: &Operator) {
    let arguments = ["--json", "session", "tail", PERSONA, ANN, "--limit", "2"];
    let follow = operator.world.nexus(&arguments);

    // Whoever listens has begun at some moment: there is something to be heard until then.
    let order = async {
        loop {
            operator.ann("reset", &["--reason", "spring"]).await;
            pause(AGAIN).await;
        }
    };

    let heard: Said = tokio::select! {
        heard = follow => heard,
        () = order => panic!("it orders for ever"),
    };
    assert_eq!((heard.code, heard.out.lines().count()), (Some(0), 2), "{}", heard.err);

    operator.is_idle().await;
    let shown = operator.ann("show", &[]).await;
    assert_eq!(
        (&shown["turns_in_history"], &shown["head"]),
        (&json!(0), &Value::Null),
        "{shown}"
    );

    let resets = operator.of_kind("session_reset").await;
    assert_eq!(resets[0]["reason"], "by operator", "{resets:?}");

    let fork = operator.ann("fork", &["anew"]).await;
    assert_eq!(
        (&fork["turns_in_history"], &fork["head"]),
        (&json!(0), &Value::Null),
        "nor does a fork remember: {fork}"
    );

    let branch = operator.world.json(&["session", "show", PERSONA, BRANCH]).await;
    assert_eq!(branch["turns_in_history"], 7, "{branch}");

    let all = operator.world.json(&["session", "list", "--limit", "2"]).await;
    assert_eq!(all.as_array().map(Vec::len), Some(2), "{all}");

    let words = operator.world.words(&["session", "list", "--limit", "2"]).await;
    assert!(words.contains("2 of 6 sessions"), "{words}");
}
