//! What an operator asks and orders of schedules and intents, by the command line, in words and in JSON.

use serde_json::{Value, json};
use tests::command::{Said, nexus};
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::story::PATIENCE;

const PERSONAS: &str = "personas:
  default:
    heartbeat: {every: 30m, session: inner, prompt: Anything?, deliver: {channel: nats, accountId: e2e, peerId: owner}}
";
/// The schedule of that heartbeat.
const BEAT: &str = "persona:default";

struct Operator {
    world: World,
    server: String,
}

impl Operator {
    async fn said(&self, arguments: &[&str]) -> Said {
        nexus(self.world.path(), &[&["--server", &self.server], arguments].concat()).await
    }

    async fn words(&self, arguments: &[&str]) -> String {
        let said = self.said(arguments).await;
        assert_eq!(said.code, Some(0), "nexus {arguments:?}: {}{}", said.out, said.err);
        said.out
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let out = self.words(&[&["--json"], arguments].concat()).await;
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("nexus {arguments:?}: {error}: {out}"))
    }

    /// Why the command is refused.
    async fn refused(&self, arguments: &[&str]) -> String {
        let said = self.said(arguments).await;
        assert_eq!(said.code, Some(1), "nexus {arguments:?}: {}", said.out);
        said.err
    }
}

async fn operator() -> Operator {
    let world = World::start(Setup {
        personas: PERSONAS.to_owned(),
        without: vec!["adapter-svc", "hook-svc", "delivery-svc"],
        ..Setup::default()
    })
    .await;
    let server = world.stack.nats[0].url();
    Operator { world, server }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_asks_and_orders_what_time_brings() {
    let operator = operator().await;
    schedules(&operator).await;
    intents(&operator).await;
    operator.world.stack.stop().await;
}

async fn schedules(operator: &Operator) {
    eventually("the heartbeat is written", PATIENCE, async || {
        let said = operator.said(&["schedule", "show", BEAT]).await;
        if said.code == Some(0) { Ok(()) } else { Err(said.err) }
    })
    .await;
    assert!(operator.words(&["schedule", "list"]).await.contains(BEAT));
    let listed = operator.json(&["schedule", "list", "persona:"]).await;
    assert!(listed.to_string().contains(BEAT), "{listed}");
    let next = operator.json(&["schedule", "next", BEAT, "--count", "3"]).await;
    assert_eq!(next["firings"].as_array().map(Vec::len), Some(3), "{next}");
    let text = operator
        .json(&["schedule", "next", "cron 0 9 * * MON-FRI", "--zone", "Europe/Berlin"])
        .await;
    assert_eq!(text["zone"], "Europe/Berlin");
    let why = operator.refused(&["schedule", "next", "every 1s"]).await;
    assert!(!why.is_empty(), "what is not admitted is not shown");
    let paused = operator.json(&["schedule", "pause", BEAT, "--note", "holidays"]).await;
    assert_eq!(paused["paused"]["note"], "holidays", "{paused}");
    assert_eq!(paused["next"], Value::Null);
    let resumed = operator.json(&["schedule", "resume", BEAT]).await;
    assert!(resumed["next"].is_object() && resumed["paused"].is_null(), "{resumed}");
    let again = operator.refused(&["schedule", "resume", BEAT]).await;
    assert!(again.contains("not paused"), "{again}");
    let fired = operator.json(&["schedule", "fire", BEAT]).await;
    assert_eq!(fired["events"].as_array().map(Vec::len), Some(1), "{fired}");
    let future = operator
        .refused(&[
            "schedule",
            "backfill",
            BEAT,
            "--from",
            "2026-01-02T00:00:00Z",
            "--until",
            "2026-01-01T00:00:00Z",
        ])
        .await;
    assert!(future.contains("before"), "{future}");
    assert!(
        operator
            .refused(&["schedule", "show", "nobody"])
            .await
            .contains("nobody")
    );
}

async fn intents(operator: &Operator) {
    let wish = |more: Value| {
        let mut wish = json!({
            "kind": "remind", "parameters": { "subject": "s", "message": "m" },
            "schedule": { "type": "after", "seconds": 3_600 }
        });
        for (key, value) in more.as_object().cloned().unwrap_or_default() {
            wish[key] = value;
        }
        wish.to_string()
    };
    let first = operator.json(&["intent", "propose", &wish(json!({}))]).await;
    assert_eq!(first["status"], "pending", "{first}");
    let id = first["id"].as_str().expect("an id").to_owned();
    let listed = operator.json(&["intent", "list", "--status", "pending"]).await;
    assert_eq!(listed["intents"][0]["intent"]["id"], first["id"], "{listed}");
    assert!(operator.words(&["intent", "list"]).await.contains(&id));
    let moved = operator
        .json(&[
            "intent",
            "reschedule",
            &id,
            r#"{"type":"after","seconds":7200}"#,
            "--why",
            "later",
        ])
        .await;
    assert_ne!(moved["due"], first["due"], "{moved}");
    let shown = operator.json(&["intent", "show", &id]).await;
    assert_eq!(shown["history"].as_array().map(Vec::len), Some(4), "{shown}");
    let canceled = operator.words(&["intent", "cancel", &id, "--why", "no"]).await;
    assert!(canceled.contains("canceled"), "{canceled}");

    let strict = wish(json!({ "approval": "before_admission" }));
    let asked = operator.json(&["intent", "propose", &strict]).await;
    assert_eq!(asked["status"], "proposed", "{asked}");
    let id = asked["id"].as_str().expect("an id").to_owned();
    let mallory = operator.refused(&["intent", "approve", &id, "--by", "mallory"]).await;
    assert!(mallory.contains("not the owner"), "{mallory}");
    let approved = operator.json(&["intent", "approve", &id, "--note", "fine"]).await;
    assert_eq!(approved["status"], "pending", "{approved}");
    let shown = operator.json(&["intent", "show", &id]).await;
    let last = &shown["history"][1];
    assert_eq!(
        (&last["by"], &last["why"]),
        (&json!("operator"), &json!("fine")),
        "{shown}"
    );
    let dance = operator
        .refused(&["intent", "propose", &wish(json!({ "kind": "dance" }))])
        .await;
    assert!(dance.contains("unknown_kind"), "{dance}");
    let nobody = operator
        .refused(&["intent", "show", "01JDGZX4Q8AAAAAAAAK7Q2M9PX"])
        .await;
    assert!(nobody.contains("there is no intent"), "{nobody}");
}
