//! Operators who have no right on streams and buckets: a user of role `operator` may ask services, and nothing else, and does
//! everything that an operator does; and what it asks for is done once, however often a replica is killed meanwhile.

use std::path::PathBuf;

use cli::auth::folder::credentials_path;
use cli::launch::users;
use serde_json::{Value, json};
use shared::breaker::{Breaker, BreakerPolicy, key_of};
use shared::bus::{Bus, OutgoingMessage};
use shared::model::time::UnixMillis;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::CONTENT_TYPE;
use shared::wire::operator::letters::{LetterRecord, LetterStep};
use shared::wire::subject;
use shared::wire::topology::{buckets, streams};
use tests::command::{Said, command, nexus};
use tests::eventually::eventually;
use tests::record::read_all;
use tests::world::{Setup, World, without_ticks};

use crate::story::{ANSWER, PATIENCE, delivers, event, send};

/// Name of the user, which stands in `AUDIT`.
const USER: &str = "console";
/// Number of letters that are redriven while replicas are killed.
const LETTERS: usize = 80;

/// A user of the bus that may ask services, and hear what it is answered.
struct Operator {
    world: World,
    config: PathBuf,
}

impl Operator {
    /// Starts a world, and adds the user.
    async fn begin() -> Self {
        let world = World::start(Setup {
            hooks: vec![("answer.ts", ANSWER.to_owned())],
            environment: vec![without_ticks()],
            users: true,
            ..Setup::default()
        })
        .await;

        let keys = users::folder(world.path());
        let keys = keys.to_str().expect("UTF-8");
        let said = nexus(
            world.path(),
            &["auth", "add", USER, "--role", "operator", "--dir", keys],
        )
        .await;
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);

        let config = world.path().join("console.toml");
        let (url, credentials) = (world.stack.nats[0].url(), credentials_path(keys.as_ref(), USER));
        let text = format!("[nats]\nservers = [{url:?}]\ncredentials = {credentials:?}\n");
        std::fs::write(&config, text).expect("written");
        Self { world, config }
    }

    async fn nexus(&self, arguments: &[&str]) -> Said {
        let config = self.config.to_str().expect("UTF-8");
        nexus(
            self.world.path(),
            &[&["--config", config, "--wide"], arguments].concat(),
        )
        .await
    }

    async fn words(&self, arguments: &[&str]) -> String {
        let said = self.nexus(arguments).await;
        let logs = || self.world.logs();
        assert_eq!(
            said.code,
            Some(0),
            "nexus {arguments:?}: {}{}\n{}",
            said.out,
            said.err,
            logs()
        );
        said.out
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let out = self.words(&[&["--json"], arguments].concat()).await;
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("nexus {arguments:?}: {error}: {out}"))
    }

    /// Returns what the server has refused anybody.
    fn violations(&self) -> Vec<String> {
        let log = self.world.log("nats-0");
        let refused = log.lines().filter(|line| line.contains("Violation"));
        refused.map(str::to_owned).collect()
    }
}

/// A dead letter with a whole event, which can be redriven.
fn letter(id: &str) -> DeadLetter {
    let payload = event(id, "q", "again").to_string();
    DeadLetter {
        service: "hook-svc".to_owned(),
        subject: "nexus.ev.7.e2e.default.q".to_owned(),
        redrive_subject: "nexus.event.e2e.default.q".to_owned(),
        stream: streams::EVENTS.to_owned(),
        sequence: 1,
        headers: vec![(CONTENT_TYPE.to_owned(), "application/json".to_owned())],
        payload: DeadLetter::encode_payload(payload.as_bytes()),
        reason: "gave_up".to_owned(),
        detail: format!("letter of {id}"),
        attempts: 3,
        at: UnixMillis(1),
    }
}

async fn store(bus: &Bus, letter: &DeadLetter) -> String {
    let out = OutgoingMessage::new(subject::dlq(&letter.service), letter);
    bus.publish(out).await.expect("stored").sequence.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_may_ask_services_alone_does_all_of_an_operators_work() {
    let operator = Operator::begin().await;
    send(&operator.world, &event("e2e:p/1", "p", "a yellow boat")).await;
    delivers(&operator.world, "a yellow boat").await;

    looks(&operator).await;
    letters(&operator).await;
    breakers(&operator).await;
    sessions(&operator).await;
    others(&operator).await;

    let refused = operator.violations();
    assert!(refused.is_empty(), "{}", refused.join("\n"));

    // What is not a question to a service is refused by the server.
    let plan = operator.nexus(&["topology", "plan"]).await;
    assert_ne!(plan.code, Some(0), "{}", plan.out);
    assert!(!operator.violations().is_empty());
    operator.world.stack.stop().await;
}

async fn looks(operator: &Operator) {
    let words = eventually("all is well", PATIENCE, async || {
        let said = operator.nexus(&["doctor", "--offline"]).await;
        let is_well = said.code == Some(0);
        is_well.then_some(said.out.clone()).ok_or(said.out)
    })
    .await;
    assert!(
        !words.contains("BAD") && words.contains("topology         matches this version"),
        "{words}"
    );
    let status = operator.json(&["status"]).await;
    assert_eq!(status.as_array().map(Vec::len), Some(6), "{status}");

    let tail = ["tail", "yellow", "--streams", "events", "--last", "9", "--limit", "1"];
    let line = operator.json(&tail).await;
    assert_eq!(
        (&line["stream"], &line["payload"]["id"]),
        (&json!("EVENTS"), &json!("e2e:p/1")),
        "{line}"
    );
    let top = operator.json(&["top", "--limit", "1"]).await;
    assert!(
        top["streams"].as_array().is_some_and(|streams| streams.len() == 8),
        "{top}"
    );
    let trace = operator.json(&["trace", "e2e:p/1", "--wait", "30"]).await;
    assert_eq!(trace["complete"], true, "{trace}");
    let found = operator.json(&["events", "search", "yellow"]).await;
    assert!(found.as_array().is_some_and(|found| !found.is_empty()), "{found}");
    operator.words(&["events", "show", "e2e:p/1"]).await;
}

async fn letters(operator: &Operator) {
    let (redriven, dropped) = (
        store(&operator.world.bus, &letter("open:e2e/default/1")).await,
        store(&operator.world.bus, &letter("open:e2e/default/2")).await,
    );
    let listed = operator.json(&["dlq", "list"]).await;
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    let shown = operator.words(&["dlq", "show", &redriven]).await;
    assert!(shown.contains("letter of open:e2e/default/1"), "{shown}");

    operator.words(&["dlq", "redrive", &redriven]).await;
    operator.words(&["dlq", "drop", &dropped]).await;
    assert_eq!(operator.json(&["dlq", "list"]).await, json!([]));
    assert_eq!(operator.json(&["dlq", "redrive", "--all"]).await, json!([]));
    let records = operator.json(&["audit", "--topic", "dlq"]).await;
    let records = records.as_array().expect("a list");
    assert_eq!(records.len(), 3, "{records:?}");
    assert!(records.iter().all(|one| one["record"]["by"] == USER), "{records:?}");
    let words = operator.words(&["audit", "--topic", "dlq", "--about", &dropped]).await;
    assert!(words.contains("dropped") && words.contains(USER), "{words}");
    assert_eq!(operator.json(&["recover", "list"]).await, json!([]));
}

async fn breakers(operator: &Operator) {
    let mut open = Breaker::for_hook("gone", "1");
    for _ in 0..5 {
        open = open
            .after_failure(&BreakerPolicy::default(), "a", UnixMillis(1))
            .expect("it counts");
    }
    let kv = operator.world.bus.kv::<Breaker>(buckets::BREAKERS);
    kv.create(&key_of("gone"), &open).await.expect("stored");

    let listed = operator.json(&["breaker", "list"]).await;
    assert_eq!(listed[0]["hook_id"], "gone", "{listed}");
    operator.words(&["breaker", "reset", "gone"]).await;
    assert_eq!(operator.json(&["breaker", "list"]).await, json!([]));
    let records = operator.json(&["audit", "--topic", "breaker", "--about", "gone"]).await;
    let record = &records[0]["record"];
    assert_eq!(
        (&record["by"], &record["failures"]),
        (&json!(USER), &json!(5)),
        "{records}"
    );
}

async fn sessions(operator: &Operator) {
    let listed = operator.json(&["session", "list"]).await;
    assert!(listed.as_array().is_some_and(|listed| !listed.is_empty()), "{listed}");
    operator.words(&["session", "show", "default", "s-p"]).await;
    let tail = operator
        .words(&["--json", "session", "tail", "default", "s-p", "--all", "--limit", "1"])
        .await;
    let entries: Vec<Value> = tail
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert!(entries.len() == 1 && entries[0]["entries"].is_array(), "{tail}");
    operator.words(&["session", "wait", "default", "s-p"]).await;
    operator.words(&["session", "reset", "default", "s-p"]).await;
}

async fn others(operator: &Operator) {
    for arguments in [
        &["hook", "list"][..],
        &["hook", "show", "answer"],
        &["hook", "logs", "answer"],
        &["schedule", "list"],
        &["schedule", "next", "every 5m"],
        &["intent", "list"],
        &["approval", "list"],
        &["channel", "list"],
        &["owner", "list"],
    ] {
        operator.words(arguments).await;
    }

    let link = operator.json(&["owner", "link", "--url", "http://here/"]).await;
    assert!(
        link["link"].as_str().is_some_and(|link| link.contains("#owner=")),
        "{link}"
    );
    let records = operator.json(&["audit", "--topic", "owner"]).await;
    let record = &records[0]["record"];
    assert_eq!(
        (&record["what"], &record["by"]),
        (&json!("offered"), &json!(USER)),
        "{records}"
    );
    let token = link["link"]
        .as_str()
        .and_then(|link| link.split_once("#owner="))
        .expect("a token")
        .1;
    assert!(!records.to_string().contains(token), "the token is told to nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_is_done_once_however_often_replicas_are_killed() {
    let mut world = World::start(Setup {
        environment: vec![without_ticks()],
        without: vec!["adapter-svc", "hook-svc", "broker-svc", "delivery-svc"],
        replicas: 2,
        ..Setup::default()
    })
    .await;
    for number in 0..LETTERS {
        store(&world.bus, &letter(&format!("open:e2e/default/{number}"))).await;
    }

    // A replica is killed each time that some more letters are redriven, and started again: its requests end anywhere.
    let server = world.stack.nats[0].url();
    let arguments = ["--server", &server, "dlq", "redrive", "--all"];
    let mut kills = 0;
    loop {
        let before = world.bus.stream_state(streams::AUDIT).await.expect("readable").last;
        let mut redriving = command(world.path(), &arguments).spawn().expect("it runs");
        let more = eventually("some more are recorded, or none is left", PATIENCE, async || {
            let recorded = world
                .bus
                .stream_state(streams::AUDIT)
                .await
                .map_err(|error| error.to_string())?
                .last;
            let left = world
                .bus
                .stream_state(streams::DLQ)
                .await
                .map_err(|error| error.to_string())?
                .messages;
            match (left, recorded >= before + 7) {
                (0, _) => Ok(false),
                (_, true) => Ok(true),
                (_, false) => Err(format!("{left} letters, {recorded} records")),
            }
        });
        if !more.await {
            redriving.wait().await.expect("it ends");
            break;
        }

        let replica = u16::from(kills % 2 == 1);
        world.stack.service("scheduler-svc", replica).expect("it runs").kill();
        redriving.kill().await.expect("it is killed too");
        world.stack.launch("scheduler-svc", replica).expect("it starts again");
        // One of the two is there at any time.
        world.stack.ready().await.expect("it comes up again");
        kills += 1;
    }

    assert!(kills >= 3, "{kills} kills");
    let stored = world
        .bus
        .read_history(streams::EVENTS, ">", 1, 1_000)
        .await
        .expect("readable");
    let mut ids: Vec<String> = stored
        .iter()
        .map(|stored| serde_json::from_slice::<Value>(&stored.payload).expect("JSON")["id"].to_string())
        .collect();
    ids.sort();
    let mut expected: Vec<String> = (0..LETTERS)
        .map(|number| format!("\"open:e2e/default/{number}\""))
        .collect();
    expected.sort();
    assert_eq!(ids, expected, "each once, after {kills} kills");

    let records: Vec<(u64, LetterRecord)> = read_all(&world.bus, streams::AUDIT).await;
    let ended = records
        .iter()
        .filter(|(_, record)| matches!(record.step, LetterStep::Redriven { .. }));
    assert_eq!(ended.count(), LETTERS, "each is recorded once");
    world.stack.stop().await;
}
