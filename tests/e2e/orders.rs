//! What an operator asks and orders of schedules and intents, by the command line, in words and in JSON.

use serde_json::{Value, json};
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::story::PATIENCE;

const PERSONAS: &str = "personas:
  default:
    heartbeat: {every: 30m, session: inner, prompt: Anything?, deliver: {channel: nats, accountId: e2e, peerId: owner}}
";
/// A job that is not due while the test runs, or seldom.
const JOB: &str = "[scheduler.jobs.report]
schedule = \"cron 0 9 * * *\"
content = \"The daily report, please.\"
";
/// The schedule of that heartbeat.
const BEAT: &str = "persona:default";

struct Operator {
    world: World,
}

impl Operator {
    /// Why the command ends with exit code `code`.
    async fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let said = self.world.nexus(arguments).await;
        assert_eq!(said.code, Some(code), "nexus {arguments:?}: {}", said.out);
        said.err
    }
}

async fn operator() -> Operator {
    let world = World::start(Setup {
        personas: PERSONAS.to_owned(),
        adapter: JOB.to_owned(),
        without: vec!["adapter-svc", "hook-svc", "delivery-svc"],
        ..Setup::default()
    })
    .await;
    Operator { world }
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
        let said = operator.world.nexus(&["schedule", "show", BEAT]).await;
        if said.code == Some(0) { Ok(()) } else { Err(said.err) }
    })
    .await;
    assert!(operator.world.words(&["schedule", "list"]).await.contains(BEAT));

    let listed = operator.world.json(&["schedule", "list", "persona:"]).await;
    assert!(listed.to_string().contains(BEAT), "{listed}");

    let next = operator.world.json(&["schedule", "next", BEAT, "--limit", "3"]).await;
    assert_eq!(next["firings"].as_array().map(Vec::len), Some(3), "{next}");

    let text = operator
        .world
        .json(&["schedule", "next", "cron 0 9 * * MON-FRI", "--zone", "Europe/Berlin"])
        .await;
    assert_eq!(text["zone"], "Europe/Berlin");

    let why = operator.refused(5, &["schedule", "next", "every 1s"]).await;
    assert!(!why.is_empty(), "what is not admitted is not shown");

    let paused = operator
        .world
        .json(&["schedule", "pause", BEAT, "--reason", "holidays"])
        .await;
    assert_eq!(paused["paused"]["note"], "holidays", "{paused}");
    assert_eq!(paused["next"], Value::Null);

    let resumed = operator.world.json(&["schedule", "resume", BEAT]).await;
    assert!(resumed["next"].is_object() && resumed["paused"].is_null(), "{resumed}");

    let again = operator.refused(5, &["schedule", "resume", BEAT]).await;
    assert!(again.contains("not paused"), "{again}");

    let fired = operator.world.json(&["schedule", "fire", BEAT]).await;
    assert_eq!(fired.as_array().map(Vec::len), Some(1), "{fired}");

    let future = operator
        .refused(
            5,
            &[
                "schedule",
                "backfill",
                BEAT,
                "--since",
                "2026-01-02T00:00:00Z",
                "--until",
                "2026-01-01T00:00:00Z",
            ],
        )
        .await;

    assert!(future.contains("before"), "{future}");

    backfilled(operator).await;
    assert!(
        operator
            .refused(3, &["schedule", "show", "nobody"])
            .await
            .contains("nobody")
    );
}

/// A job of the configuration is made up for, once and again, and shown with that.
async fn backfilled(operator: &Operator) {
    let job = "config:report";
    assert!(
        operator
            .world
            .words(&["schedule", "list", "config:"])
            .await
            .contains(job)
    );

    let words = operator.world.words(&["schedule", "next", job, "--limit", "2"]).await;
    assert_eq!(words.matches("09:00:00").count(), 2, "{words}");

    let days = ["--since", "2026-01-01T00:00:00Z", "--until", "2026-01-04T00:00:00Z"];
    let arguments = [&["schedule", "backfill", job], days.as_slice()].concat();
    let filled = operator.world.json(&arguments).await;

    assert_eq!(filled.as_array().map(Vec::len), Some(3), "{filled}");
    assert_eq!(operator.world.json(&arguments).await, filled, "the same events again");

    let words = operator.world.words(&arguments).await;
    assert!(words.contains("timer:config:report:"), "{words}");

    let shown = operator.world.words(&["schedule", "show", job]).await;
    assert!(shown.contains(job) && shown.contains("cron 0 9 * * *"), "{shown}");

    let again = operator
        .refused(5, &["schedule", "backfill", job, "--since", "2020-01-01T00:00:00Z"])
        .await;
    assert!(again.contains("more than 100"), "{again}");
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

    let first = operator.world.json(&["intent", "propose", &wish(json!({}))]).await;
    assert_eq!(first["status"], "pending", "{first}");

    let id = first["id"].as_str().expect("an id").to_owned();
    let listed = operator.world.json(&["intent", "list", "--status", "pending"]).await;
    assert_eq!(listed[0]["intent"]["id"], first["id"], "{listed}");
    assert!(operator.world.words(&["intent", "list"]).await.contains(&id));

    let moved = operator
        .world
        .json(&[
            "intent",
            "reschedule",
            &id,
            r#"{"type":"after","seconds":7200}"#,
            "--reason",
            "later",
        ])
        .await;

    assert_ne!(moved["due"], first["due"], "{moved}");

    let shown = operator.world.json(&["intent", "show", &id]).await;
    assert_eq!(shown["history"].as_array().map(Vec::len), Some(4), "{shown}");

    let canceled = operator.world.words(&["intent", "cancel", &id, "--reason", "no"]).await;
    assert!(canceled.contains("canceled"), "{canceled}");

    let strict = wish(json!({ "approval": "before_admission" }));
    let asked = operator.world.json(&["intent", "propose", &strict]).await;
    assert_eq!(asked["status"], "proposed", "{asked}");

    let id = asked["id"].as_str().expect("an id").to_owned();
    let mallory = operator
        .refused(5, &["intent", "approve", &id, "--by", "mallory"])
        .await;
    assert!(mallory.contains("not the owner"), "{mallory}");

    let approved = operator
        .world
        .json(&["intent", "approve", &id, "--reason", "fine"])
        .await;
    assert_eq!(approved["status"], "pending", "{approved}");

    let shown = operator.world.json(&["intent", "show", &id]).await;
    let last = &shown["history"][1];
    assert_eq!(
        (&last["by"], &last["why"]),
        (&json!("operator"), &json!("fine")),
        "{shown}"
    );

    let dance = operator
        .refused(5, &["intent", "propose", &wish(json!({ "kind": "dance" }))])
        .await;
    assert!(dance.contains("unknown_kind"), "{dance}");

    let nobody = operator
        .refused(3, &["intent", "show", "01JDGZX4Q8AAAAAAAAK7Q2M9PX"])
        .await;
    assert!(nobody.contains("does not exist"), "{nobody}");
}
