//! What an operator looks at, mends and switches, by the command line, in words and in JSON, right and wrong; what came
//! of it stands in the streams and the buckets.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};
use shared::bus::OutgoingMessage;
use shared::clock::pause;
use shared::model::event::Event;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::{CONTENT_TYPE, Headers};
use shared::wire::topology::{streams, topology};
use tests::command::{command, nexus};
use tests::eventually::eventually;
use tests::record::{Record, read_all};
use tests::world::{Setup, World, root, without_ticks};

use crate::story::{ANSWER, PATIENCE};

mod hooks;

/// Nobody listens there.
const NOWHERE: &str = "nats://127.0.0.1:1";
/// Between two events for whoever listens.
const AGAIN: Duration = Duration::from_millis(250);
/// An age that a stream's messages should not have.
const A_DAY: Duration = Duration::from_hours(24);

struct Operator {
    world: World,
}

impl Operator {
    async fn begin() -> Self {
        let world = World::start(Setup {
            hooks: vec![("answer.ts", ANSWER.to_owned()), ("moody.ts", hooks::MOODY.to_owned())],
            environment: vec![without_ticks()],
            ..Setup::default()
        })
        .await;
        Self { world }
    }

    /// What the command says where it ends with exit code `code`, and what it complains of.
    async fn fails(&self, code: i32, arguments: &[&str]) -> (String, String) {
        let said = self.world.nexus(arguments).await;
        assert_eq!(said.code, Some(code), "nexus {arguments:?}: {}{}", said.out, said.err);
        (said.out, said.err)
    }

    /// Checks that the command ends with exit code `code` because of `why`, and says nothing else.
    async fn refused(&self, code: i32, arguments: &[&str], why: &str) {
        let (out, err) = self.fails(code, arguments).await;
        assert!(out.is_empty() && err.contains(why), "nexus {arguments:?}: {out}{err}");
    }

    /// Sends an event; answers its id.
    async fn sends(&self, channel: &str, content: &str) -> String {
        let token = self.world.token_file("operator");
        let token = token.to_str().expect("a path in UTF-8");
        let arguments = [
            "send",
            content,
            "--channel",
            channel,
            "--peer",
            "ann",
            "--token-file",
            token,
        ];

        let sent = self.world.json(&arguments).await;
        sent["id"].as_str().expect("an id").to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_looks_around_and_switches_hooks() {
    let mut operator = Operator::begin().await;
    doctor(&operator).await;
    planned(&operator).await;
    searched(&operator).await;
    tailed(&operator).await;
    hooks::switched(&operator).await;
    hooks::removed(&operator).await;
    hooks::paused(&operator).await;
    sick(&operator).await;
    unattended(&mut operator).await;
    operator.world.stack.stop().await;
}

/// What `nexus doctor` looks at, as the page for operators shows it.
fn documented() -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/operations.md")).expect("the page");
    let shown = page
        .lines()
        .filter(|line| ["ok   ", "warn ", "BAD  "].iter().any(|mark| line.starts_with(mark)));
    looked_at(shown.map(|line| line[5..21].trim().to_owned()))
}

/// What was looked at, each once, replicas by their service.
fn looked_at(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.map(|name| name.trim_end_matches("-0").to_owned()).collect();
    names.dedup();
    names
}

async fn doctor(operator: &Operator) {
    let words = operator.world.words(&["doctor"]).await;
    assert!(!words.lines().any(|line| line.starts_with("BAD")), "{words}");

    for part in [
        "topology         matches this version",
        "dead letters     0",
        "payload ",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }

    let found = operator.world.json(&["doctor"]).await;
    let found = found.as_array().expect("a list");
    let names = found.iter().filter_map(|one| one["what"].as_str().map(str::to_owned));

    assert_eq!(looked_at(names), documented());

    let arguments = ["--server", NOWHERE, "doctor"];
    let said = nexus(operator.world.path(), &arguments).await;
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.out.contains("BAD  server"), "{}", said.out);
    assert!(said.err.contains("1 of 6 checks failed"), "{}", said.err);
}

/// The server differs, the plan says how, and it is put right.
async fn planned(operator: &Operator) {
    let words = operator.world.words(&["topology", "plan"]).await;
    assert_eq!(words, "the server has exactly this topology\n");
    assert_eq!(operator.world.json(&["topology", "plan"]).await, json!([]));
    assert_eq!(operator.world.words(&["topology", "apply"]).await, "nothing to do\n");

    let mut other = topology(1);
    let letters = other.streams.iter_mut().find(|stream| stream.name == streams::DLQ);
    letters.expect("DLQ").max_age = A_DAY;
    let differs = async || {
        let done = operator
            .world
            .bus
            .ensure_topology(&other, true)
            .await
            .expect("it is changed");
        assert_eq!(done.updated, ["stream DLQ"]);
    };

    differs().await;
    let (out, err) = operator.fails(1, &["topology", "plan"]).await;
    assert!(
        out.starts_with("stream DLQ: max_age is 86400s, should be "),
        "{out}{err}"
    );
    assert!(
        err.contains("1 differences; run `nexus topology apply` to remove them"),
        "{err}"
    );

    let (out, _) = operator.fails(1, &["--json", "topology", "plan"]).await;
    let plan: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (&plan[0]["what"], &plan[0]["option"], &plan[0]["found"]),
        (&json!("stream DLQ"), &json!("max_age"), &json!("86400s")),
        "{plan}"
    );

    let (out, err) = operator.fails(1, &["doctor"]).await;
    assert!(
        out.contains("BAD  topology         1 differences, the first: "),
        "{out}"
    );
    assert!(err.contains("1 of "), "{err}");

    assert_eq!(
        operator.world.words(&["topology", "apply"]).await,
        "changed stream DLQ\n"
    );

    operator.world.words(&["topology", "plan"]).await;
    differs().await;
    let done = operator.world.json(&["topology", "apply"]).await;
    let expected = json!({ "created": [], "updated": ["stream DLQ"] });

    assert_eq!(done, expected);

    let drift = operator
        .world
        .bus
        .find_drift(&topology(1))
        .await
        .expect("it is looked at");
    assert!(drift.is_empty(), "{drift:?}");

    let said = nexus(operator.world.path(), &["--server", NOWHERE, "topology", "apply"]).await;
    assert_eq!(said.code, Some(4), "{}", said.out);
    assert!(said.err.contains("is it running?"), "{}", said.err);

    let (_, err) = operator.fails(2, &["topology", "destroy"]).await;
    assert!(err.contains("destroy"), "{err}");
}

/// Events are found by words, by channel and by time, and shown.
async fn searched(operator: &Operator) {
    let pears = operator.sends("e2e", "two yellow pears for the pie").await;
    let boat = operator.sends("other", "a yellow boat").await;
    let ids = |found: &Value| -> Vec<String> {
        let hits = found.as_array().expect("hits").iter();
        hits.filter_map(|hit| hit["event_id"].as_str().map(str::to_owned))
            .collect()
    };

    let search = async |more: &[&str]| operator.world.json(&[&["events", "search"], more].concat()).await;
    let found = eventually("both are found", PATIENCE, async || {
        let found = search(&["yellow"]).await;
        let ids = ids(&found);
        let both = ids.contains(&pears) && ids.contains(&boat);
        if both { Ok(found) } else { Err(found.to_string()) }
    })
    .await;

    assert!(found[0]["score"].is_f64(), "{found}");
    assert_eq!(ids(&search(&["yellow", "--channel", "other"]).await), [boat.as_str()]);

    let both = ["yellow", "--channel", "other", "--channel", "e2e"];
    assert_eq!(ids(&search(&both).await).len(), 2);
    assert_eq!(ids(&search(&["yellow", "--limit", "1"]).await).len(), 1);
    assert!(ids(&search(&["yellow", "--until", "2"]).await).is_empty());
    assert!(ids(&search(&["yellow", "--since", "1h", "--channel", "other"]).await).contains(&boat));

    let words = operator.world.words(&["events", "search", "yellow pears"]).await;
    assert!(
        words.contains(&pears) && words.contains("two yellow pears for the pie"),
        "{words}"
    );

    let stored: Vec<(u64, Event)> = read_all(&operator.world.bus, streams::EVENTS).await;
    let (sequence, stored) = stored
        .iter()
        .find(|(_, event)| event.id.as_str() == pears)
        .expect("it is stored");
    let shown = operator.world.json(&["events", "show", &pears]).await;
    assert_eq!(
        (&shown["id"], &shown["sequence"], &shown["content"], &shown["timestamp"]),
        (
            &json!(pears),
            &json!(sequence),
            &json!(stored.content),
            &json!(stored.timestamp)
        ),
        "{shown}"
    );
    let words = operator.world.words(&["events", "show", &pears]).await;
    assert!(words.contains(&pears) && words.contains(&stored.content), "{words}");

    let unknown = ["events", "show", "e2e:nobody"];
    operator.refused(3, &unknown, "no event e2e:nobody is known").await;
    operator.refused(2, &["events", "show", "nobody"], "nobody").await;
    let when = ["events", "search", "yellow", "--since", "yesterday"];
    operator
        .refused(2, &when, "`yesterday`: expected an age such as 90s")
        .await;
}

/// What lies in the streams, and what comes, is printed as it stands there.
async fn tailed(operator: &Operator) {
    let record = eventually("one is answered, and all is evaluated", PATIENCE, async || {
        let record = Record::read(&operator.world.bus).await;
        let evaluated = record.events.len() == 3 && record.invocations.len() == 3;
        if evaluated && record.claims == 0 && record.delivered().len() == 1 {
            Ok(record)
        } else {
            Err(operator.world.logs())
        }
    })
    .await;

    is_tailed(operator, streams::EVENTS, &record.events).await;
    is_tailed(operator, streams::DISPATCHES, &record.dispatches).await;
    is_tailed(operator, streams::LEDGER, &record.ledger).await;
    is_tailed(operator, streams::RECEIPTS, &record.receipts).await;
    is_tailed(operator, streams::INVOCATIONS, &record.invocations).await;
    followed(operator).await;
    operator
        .refused(
            2,
            &["tail", "--streams", "claims"],
            "no stream `claims`: one of events, ",
        )
        .await;

    let (_, err) = operator.fails(2, &["tail", "--last", "some"]).await;
    assert!(err.contains("--last"), "{err}");

    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let server = operator.world.stack.nats[0].url();
    let arguments = ["--server", &server, "tail", "--last", "9"];
    let mut gone = command(operator.world.path(), &arguments);
    let gone = gone.stdout(writer).stderr(Stdio::piped()).spawn().expect("it runs");
    let ended = tokio::time::timeout(PATIENCE, gone.wait_with_output()).await;
    let ended = ended.expect("it ends with its reader").expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);

    assert!(ended.status.success() && said.is_empty(), "{}: {said}", ended.status);
}

/// `nexus tail` prints what `name` begins with, `stored`, in JSON and in lines.
async fn is_tailed<T: Serialize>(operator: &Operator, name: &str, stored: &[(u64, T)]) {
    let count = stored.len().to_string();
    let streams = name.to_lowercase();
    let arguments = ["tail", "--streams", &streams, "--last", "1000", "--limit", &count];
    let printed = operator.world.words(&[&["--json"], &arguments[..]].concat()).await;
    let printed: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();

    assert!(!stored.is_empty() && printed.len() == stored.len(), "{printed:?}");

    let words = operator.world.words(&arguments).await;
    for ((line, words), (sequence, value)) in printed.iter().zip(words.lines()).zip(stored) {
        let value = serde_json::to_value(value).expect("JSON");
        assert_eq!(
            (&line["stream"], &line["sequence"], &line["payload"]),
            (&json!(name), &json!(sequence), &value)
        );

        let columns: Vec<&str> = words.split_whitespace().collect();
        assert_eq!(columns[1..3], [name, &sequence.to_string()], "{words}");
    }

    let last = [&arguments[..3], &["--last", "1", "--limit", "1"]].concat();
    let last = operator.world.words(&last).await;
    assert_eq!(last.lines().count(), 1, "{last}");
}

/// Somebody follows what mentions one text while it comes.
async fn followed(operator: &Operator) {
    let arguments = ["--json", "tail", "followed", "--streams", "events", "--limit", "2"];
    // Whoever listens has begun at some moment: there is something to be heard until then.
    let send = async {
        loop {
            operator.sends("quiet", "not to be heard").await;
            operator.sends("quiet", "to be followed").await;
            pause(AGAIN).await;
        }
    };

    let heard = tokio::select! {
        heard = operator.world.words(&arguments) => heard,
        () = send => panic!("it sends for ever"),
    };
    let heard: Vec<Value> = heard
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();

    assert!(
        heard.len() == 2 && heard.iter().all(|one| one["payload"]["content"] == "to be followed"),
        "{heard:?}"
    );
}

/// What was given up is what `nexus doctor` complains of, and is tailed.
async fn sick(operator: &Operator) {
    let headers: Headers = [(CONTENT_TYPE, "application/json")].into_iter().collect();
    let bad = OutgoingMessage::raw(
        "nexus.event.e2e.default.p".to_owned(),
        headers,
        Bytes::from_static(b"{"),
    );

    operator
        .world
        .bus
        .publish(bad)
        .await
        .expect("the server stores anything");

    let letters = eventually("it is given up", PATIENCE, async || {
        let letters: Vec<(u64, DeadLetter)> = read_all(&operator.world.bus, streams::DLQ).await;
        if letters.iter().any(|(_, letter)| letter.reason == "malformed") {
            Ok(letters)
        } else {
            Err(operator.world.logs())
        }
    })
    .await;

    is_tailed(operator, streams::DLQ, &letters).await;
    let (out, err) = operator.fails(1, &["doctor"]).await;
    assert!(
        out.contains("BAD  dead letters     ") && out.contains("(`nexus dlq list`)"),
        "{out}"
    );
    assert!(err.contains("checks failed"), "{err}");

    let (out, _) = operator.fails(1, &["--json", "doctor"]).await;
    let found: Value = serde_json::from_str(&out).expect("JSON");
    let bad: Vec<&Value> = found
        .as_array()
        .into_iter()
        .flatten()
        .filter(|one| one["ok"] == false)
        .collect();

    let bad: Vec<&Value> = bad.iter().map(|one| &one["what"]).collect();
    assert_eq!(bad, ["dead letters"], "{out}");
}

/// Without scheduler-svc one sentence says what is not known, and commands that need it say who is away.
async fn unattended(operator: &mut Operator) {
    operator
        .world
        .stack
        .service("scheduler-svc", 0)
        .expect("it runs")
        .kill();
    let (out, _) = operator.fails(1, &["doctor", "--offline"]).await;
    let bad: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("BAD  ")).collect();
    let [status, service] = bad.as_slice() else {
        panic!("{out}")
    };
    assert!(
        status.starts_with("status ") && status.contains("scheduler-svc is not running"),
        "{out}"
    );
    assert!(service.starts_with("scheduler-svc "), "{out}");

    for arguments in [
        &["dlq", "list"][..],
        &["recover", "list"],
        &["audit"],
        &["top", "--limit", "1"],
    ] {
        operator
            .refused(4, arguments, "scheduler-svc is not running on this server")
            .await;
    }
}
