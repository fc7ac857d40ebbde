//! A session whose ledger holds an entry of a later release waits, in sight, and goes on at the first broker of that
//! release: it is neither folded without the entry nor quarantined.

use std::time::Duration;

use serde_json::{Value, json};
use shared::bus::OutgoingMessage;
use shared::process::status::ask_replicas;
use shared::wire::envelope::{PayloadFormat, encode_payload};
use shared::wire::headers::{CONTENT_TYPE, Headers, SCHEMA};
use shared::wire::session_mark::SessionMark;
use shared::wire::subject;
use shared::wire::topology::buckets::SESSION_OVERRIDES;
use shared::wire::topology::streams::LEDGER;
use shared::wire::unknown::LATER_RELEASE;
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::story::{ANSWER, PATIENCE, delivers, event, send, session};

const PEER: &str = "ann";
/// Time in which a status is answered.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Appends a record that has an entry of this release and one that only a later release knows.
async fn append_later_entry(world: &World) -> u64 {
    let subject = subject::ledger(&session(PEER));
    let last = world
        .bus
        .last_on_subject(LEDGER, &subject)
        .await
        .expect("the ledger is read");
    let last = last.expect("a record").sequence;
    let record = json!({
        "append": {"broker": "broker-svc-9", "epoch": 9, "counter": 1}, "at": 1_700_000_000_000_i64,
        "entries": [{"kind": "reminder_shown", "hook": "a"}, {"kind": "x_later", "weight": 3}],
    });
    let headers: Headers = [(CONTENT_TYPE, PayloadFormat::Cbor.content_type()), (SCHEMA, "ledger/2")]
        .into_iter()
        .collect();
    let out = OutgoingMessage::raw(subject, headers, encode_payload(&record, PayloadFormat::Cbor)).expect_last(last);
    world.bus.publish(out).await.expect("it is stored").sequence
}

/// Message `number` of the conversation.
async fn says(world: &World, number: u32) {
    send(
        world,
        &event(&format!("e2e:{PEER}/{number}"), PEER, &format!("message {number}")),
    )
    .await;
}

/// The session as `nexus session show` prints it.
async fn shown(world: &World) -> Value {
    world
        .json(&["session", "show", "default", &session(PEER).session])
        .await
}

/// The first broker says of itself that the session waits.
async fn tells_why(world: &World) -> Result<(), String> {
    let replicas = ask_replicas(&world.bus, ANSWER_WITHIN).await?;
    let broker = replicas.iter().find(|replica| replica.instance == "broker-svc-0");
    let broker = broker.ok_or("it does not answer")?;
    let part = broker.parts.get("ledgers").ok_or("it has no part `ledgers`")?;
    let waiting = broker.metrics.get("nexus_broker_sessions_awaiting_release");
    match (part.degraded, waiting) {
        (true, Some(1.0)) if part.detail.contains("x_later") && broker.ready => Ok(()),
        told => Err(format!("{told:?}, {part:?}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_an_entry_of_a_later_release_waits_for_a_broker_that_knows_it() {
    let mut world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        ..Setup::default()
    })
    .await;
    says(&world, 1).await;
    delivers(&world, "message 1").await;
    let waited = world
        .json(&["session", "wait", "default", &session(PEER).session])
        .await;
    assert_eq!(waited, json!({"idle": true}));

    let sequence = append_later_entry(&world).await;
    says(&world, 2).await;
    let view = eventually("the session waits, in sight", PATIENCE, async || {
        let view = shown(&world).await;
        view["awaits_release"]
            .is_string()
            .then(|| view.clone())
            .ok_or_else(|| format!("{view}\n{}", world.logs()))
    })
    .await;
    let why = view["awaits_release"].as_str().expect("a reason");
    assert!(
        why.contains(&format!("record {sequence}")) && why.contains("`x_later`"),
        "{why}"
    );
    assert_eq!(view["idle"], false);
    eventually("its broker says so", PATIENCE, async || tells_why(&world).await).await;

    // Everything written so far is still the last: nothing was appended over it.
    let subject = subject::ledger(&session(PEER));
    let last = world
        .bus
        .last_on_subject(LEDGER, &subject)
        .await
        .expect("read")
        .expect("a record");
    assert_eq!(last.sequence, sequence);

    world.stack.set_variable(LATER_RELEASE, "1");
    world.scale("broker-svc", 2).await;
    delivers(&world, "message 2").await;

    // The upgrade goes on: the broker that knows all is the only one.
    let marks = world
        .bus
        .kv::<SessionMark>(SESSION_OVERRIDES)
        .survey()
        .await
        .expect("read");
    assert!(marks.entries.is_empty(), "never quarantined: {marks:?}");
    let log = world.log("broker-svc-0");
    assert_eq!(
        log.matches("session waits for a broker of a later release").count(),
        1,
        "{log}"
    );
    world.stack.stop_replica("broker-svc", 0, PATIENCE).await;
    let view = shown(&world).await;
    assert_eq!(view["awaits_release"], Value::Null, "{view}");
    let waited = world
        .json(&["session", "wait", "default", &session(PEER).session])
        .await;
    assert_eq!(waited, json!({"idle": true}));
}
